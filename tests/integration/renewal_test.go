package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

func TestALeaseOutlivesAMinorityOfKilledNodesAndIsHealed(t *testing.T) {
	testkit.OnlyAddrs(t, "in quarantine, a master gets no key back that it did not have within the TTL")
	t.Parallel()
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("N=%d", n), func(t *testing.T) {
			t.Parallel()
			m, servers := testkit.Manager(t, n, quorumlock.WithTTL(3*time.Second))
			l, err := m.Acquire(background, "job")
			require.NoError(t, err)
			for _, s := range servers[:n/2] {
				s.Kill()
			}
			time.Sleep(4 * time.Second) // beyond the TTL
			require.True(t, l.Valid(), "%v", l.Err())
			for _, s := range servers[:n/2] {
				s.Restart()
			}
			testkit.Eventually(t, "healed", func() bool { return testkit.Locks(t, servers, "job") == n })
			require.NoError(t, l.Release(background))
		})
	}
}

func TestRefusedConnectionsAreReportedAtOnceAndAsSuch(t *testing.T) {
	m, servers := testkit.Manager(t, 3, quorumlock.WithTTL(30*time.Second), quorumlock.WithNodeTimeout(10*time.Second))
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	atRisk := l.AtRisk()
	servers[0].Kill()
	servers[1].Kill()
	began := time.Now()
	require.ErrorIs(t, l.Renew(background), quorumlock.ErrNoQuorum)
	assert.Less(t, time.Since(began), 5*time.Second, "a refused connection needs no timeout")
	risk := <-atRisk
	for len(risk.Nodes) < 2 { // the kill came before the third vote for the grant
		risk = <-atRisk
	}
	for _, node := range risk.Nodes {
		assert.NotContains(t, node.Error(), "no answer within")
	}
}

func TestAFrozenMinorityDelaysNoCaller(t *testing.T) {
	t.Parallel()
	const ttl, timeout = 12 * time.Second, 2 * time.Second
	m, servers := testkit.Manager(t, 3, quorumlock.WithTTL(ttl), quorumlock.WithNodeTimeout(timeout))
	l, err := m.Acquire(background, "long")
	require.NoError(t, err)
	servers[0].Stop()
	began := time.Now()
	const calls = 200
	for i := range calls {
		quick, err := m.TryAcquire(background, fmt.Sprintf("quick-%d", i))
		require.NoError(t, err)
		require.NoError(t, quick.Release(background))
	}
	assert.Less(t, time.Since(began), calls*timeout/4, "no call waits for the node")
	time.Sleep(max(0, ttl+time.Second-time.Since(began)))
	assert.True(t, l.Valid())
	servers[0].Continue()
	require.NoError(t, l.Release(background))
	testkit.Eventually(t, "no key is left on the frozen node", func() bool {
		for _, key := range testkit.Keys(t, servers) {
			if key == testkit.Prefix+"long" || strings.HasPrefix(key, testkit.Prefix+"quick") {
				return false
			}
		}
		return true
	})
}

func TestAHolderGetsALostNodeBackAlthoughOthersWait(t *testing.T) {
	t.Parallel()
	m, servers := testkit.Manager(t, 3, quorumlock.WithTTL(3*time.Second))
	managers := testkit.Crowd(t, servers, 3, quorumlock.WithTTL(3*time.Second))
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	come := line(t, managers, servers)
	servers[2].MustDo("DEL", testkit.Prefix+"job")
	testkit.Eventually(t, "healed", func() bool {
		value, _ := servers[2].MustDo("GET", testkit.Prefix+"job").(string)
		return strings.HasPrefix(value, l.Owner()+" ")
	})
	require.NoError(t, l.Err())
	require.NoError(t, l.Release(background))
	assert.Equal(t, []int{0, 1, 2}, come())
}
