package virtual

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// ahead is how far the register of node 1 is ahead after unlevel.
const ahead = 10 * time.Second

// unlevel makes the registers of "job" differ. It returns the value on node 1, which is
// the largest.
func unlevel(t *testing.T, c *quorumlocktest.Cluster, m *quorumlock.Manager) (largest int64) {
	t.Helper()
	first := acquire(t, m, "job")
	require.NoError(t, first.Release(background))
	synctest.Wait()
	for i, by := range []time.Duration{0, ahead, ahead / 2} {
		setRegister(t, c.Nodes()[i], first.Token()+by.Microseconds())
	}
	time.Sleep(time.Millisecond) // the register of node 0 is below the next proposal
	return first.Token() + ahead.Microseconds()
}

// register returns the value of a node's register of "job".
func register(t *testing.T, n *quorumlocktest.Node) int64 {
	t.Helper()
	text, ok := do(t, n, "ZSCORE", wire.RegistersKey(config.DefaultPrefix), "quorumlock:job").(string)
	require.True(t, ok)
	at, err := strconv.ParseInt(text, 10, 64)
	require.NoError(t, err)
	return at
}

func setRegister(t *testing.T, n *quorumlocktest.Node, at int64) {
	t.Helper()
	do(t, n, "ZADD", wire.RegistersKey(config.DefaultPrefix), strconv.FormatInt(at, 10), "quorumlock:job")
}

func TestLevelRegistersTakeOneRoundTrip(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		run(t, n, func(t *testing.T, c *quorumlocktest.Cluster) {
			m := manager(t, c)
			for _, node := range c.Nodes() {
				node.Delay(10 * time.Millisecond)
			}
			var last int64
			for range 10 {
				began := time.Now()
				l := acquire(t, m, "job")
				assert.Equal(t, 20*time.Millisecond, time.Since(began))
				assert.Greater(t, l.Token(), last)
				last = l.Token()
				require.NoError(t, l.Release(background))
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
}

func TestNodesWhoseClocksDifferStillAgreeOnAFreshToken(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		c.Nodes()[0].StepClock(-1500 * time.Millisecond)
		c.Nodes()[1].StepClock(1900 * time.Millisecond)
		m := manager(t, c)
		for _, node := range c.Nodes() {
			node.Delay(10 * time.Millisecond)
		}
		began := time.Now()
		l := acquire(t, m, "job")
		assert.Equal(t, 20*time.Millisecond, time.Since(began))
		assert.InDelta(t, began.UnixMicro(), l.Token(), 100_000, "by the median clock")
	})
}

// A register that is days ahead lifts the tokens above the clocks. If a node forgot it before the clocks reach it, the
// tokens would start again below it.
func TestTokensRiseOverARegisterThatTheClocksHaveNotReached(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		nodes := c.Nodes()
		nodes[1].Cut() // so that nodes 0 and 2 are the majority
		setRegister(t, nodes[2], time.Now().Add(48*time.Hour).UnixMicro())
		m, err := quorumlock.New(background, c.Options())
		require.NoError(t, err)
		last := acquire(t, m, "job")
		require.Greater(t, time.Until(time.UnixMicro(last.Token())), 47*time.Hour)
		require.NoError(t, last.Release(background))
		require.NoError(t, m.Close(background))

		nodes[1].Heal()
		nodes[2].Cut() // so that nodes 0 and 1 are the majority
		for range 6 {
			time.Sleep(13 * time.Hour)
			m, err = quorumlock.New(background, c.Options())
			require.NoError(t, err)
			next := acquire(t, m, "job")
			assert.Greater(t, next.Token(), last.Token())
			last = next
			require.NoError(t, m.Close(background))
			time.Sleep(13 * time.Hour)
		}
		require.WithinDuration(t, time.Now(), time.UnixMicro(last.Token()), 30*time.Hour, "the clocks have caught up")
	})
}

// Registers have no TTL. A node drops registers that have not moved for a day, and its base must keep their values.
func TestTokensRiseOverRegistersThatWereForgotten(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, err := quorumlock.New(background, c.Options())
		require.NoError(t, err)
		first := acquire(t, m, "job")
		require.NoError(t, first.Release(background))
		require.NoError(t, m.Close(background))
		time.Sleep(25 * time.Hour)
		m = manager(t, c)
		time.Sleep(2 * time.Minute)
		for _, n := range c.Nodes() {
			assert.EqualValues(t, 0, do(t, n, "EXISTS", wire.RegistersKey(config.DefaultPrefix)))
			assert.Equal(t, strconv.FormatInt(first.Token(), 10), do(t, n, "GET", wire.BaseKey(config.DefaultPrefix)))
			n.StepClock(-36 * time.Hour) // tokens by the clocks alone would go back
		}
		time.Sleep(time.Minute)
		assert.Greater(t, acquire(t, m, "job").Token(), first.Token())
	})
}

func TestRegistersThatDisagreeAreRaisedBeforeTheGrant(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		largest := unlevel(t, c, m)
		c.Nodes()[2].Delay(50 * time.Millisecond) // so that nodes 0 and 1 are the majority
		c.Nodes()[0].Delay(10 * time.Millisecond)
		c.Nodes()[1].Delay(10 * time.Millisecond)
		_, err := m.Inspect(background, "job") // the nodes are distant, and their workers know that from now on
		require.NoError(t, err)
		began := time.Now()
		l, err := m.Acquire(background, "job")
		require.NoError(t, err)
		assert.Equal(t, 40*time.Millisecond, time.Since(began), "votes and one raise")
		assert.Equal(t, largest+2, l.Token(), "registers are even")
		for _, n := range c.Nodes()[:2] {
			assert.Equal(t, l.Token(), register(t, n))
		}
	})
}
