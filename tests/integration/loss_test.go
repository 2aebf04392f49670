package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

func TestFlushingAMinorityIsHealedAndAMajorityIsALoss(t *testing.T) {
	t.Parallel()
	m, servers := testkit.Manager(t, 3, quorumlock.WithTTL(3*time.Second))
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	servers[2].MustDo("FLUSHALL")
	testkit.Eventually(t, "healed", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	require.True(t, l.Valid())
	lost := testkit.Forgotten(t, l, servers[:2])
	assert.Equal(t, quorumlock.LostMissing, lost.Reason)
	assert.Len(t, lost.Nodes, 2)
	testkit.Eventually(t, "the remaining keys are released", func() bool { return testkit.Locks(t, servers, "job") == 0 })
}

// Many leases are lost at once. Their remaining keys are deleted on every node as soon as it answers again.
func TestTheKeysOfManyLeasesLostAtOnceAreReleased(t *testing.T) {
	t.Parallel()
	many := testkit.Count(9000, 1000)
	servers := testkit.Start(t, 3)
	proxies, addrs := testkit.Proxied(t, servers)
	m := testkit.Connect(t, addrs, quorumlock.WithTTL(2*time.Minute), quorumlock.WithNodeTimeout(2*time.Second), quorumlock.WithMaxHold(10*time.Second))
	leases := make([]*quorumlock.Lease, many)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for j := i; j < many; j += 64 {
				l, err := m.Acquire(background, fmt.Sprint("job-", j))
				if !assert.NoError(t, err) {
					return
				}
				leases[j] = l
			}
		})
	}
	all.Wait()
	left := func() (n int64) {
		for _, s := range servers {
			n += s.MustDo("DBSIZE").(int64)
		}
		return n
	}
	testkit.Eventually(t, "all votes are in", func() bool { return left() >= int64(3*many) })
	for _, p := range proxies[1:] {
		p.Swallow()
	}
	for _, l := range leases {
		<-l.Done()
		require.ErrorIs(t, l.Err(), quorumlock.ErrLost)
	}
	time.Sleep(3 * time.Second) // the keys are released when the guard has passed
	for _, p := range proxies[1:] {
		p.Heal()
	}
	testkit.Eventually(t, "released everywhere, long before the keys expire", func() bool {
		return len(keysBut(t, servers, "\xff")) == 0
	})
}
