package quorumlocktest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// Events between the votes and the grant. Messages take 10 ms each way, so that a test
// can act in between.

func TestAGrantNeedsAQuorumThatTookTheToken(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		unlevel(t, c, m) // the register of node 0 has to be raised above that of node 1
		c.Nodes()[2].Cut()
		c.Nodes()[0].Delay(10 * time.Millisecond)
		c.Nodes()[1].Delay(10 * time.Millisecond)
		time.AfterFunc(25*time.Millisecond, func() { // both have voted, and the raise is in flight
			_, err := c.Nodes()[0].Do("DEL", "quorumlock:job")
			assert.NoError(t, err)
		})
		_, err := m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.ErrorContains(t, err, "no longer ours")
		c.Nodes()[2].Heal()
	})
}

func TestAGrantThatAClockStepHasOvertakenDoesNotCount(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		acquire(t, m, "other", quorumlock.WithoutRenewal())
		c.Nodes()[2].Cut()
		c.Nodes()[0].Delay(10 * time.Millisecond)
		c.Nodes()[1].Delay(100 * time.Millisecond)
		time.AfterFunc(25*time.Millisecond, func() { // node 0 has voted
			c.Nodes()[0].StepClock(time.Hour)
			_, err := m.TryAcquire(background, "third") // its answer shows the step, long before node 1 has voted
			assert.Error(t, err)
		})
		began := time.Now()
		l, err := m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum, "one of the two granted keys has expired")
		assert.ErrorContains(t, err, "stepped forward")
		assert.Equal(t, 200*time.Millisecond, time.Since(began))
		assert.Nil(t, l)
		c.Nodes()[2].Heal()
	})
}

// A renewal round notices at once that a majority refuses connections. The warning does
// not wait for a node timeout.
func TestARoundIsOverWhenEveryNodeHasAnsweredOrRefused(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		<-l.Renewed()
		c.Nodes()[0].Kill()
		c.Nodes()[1].Kill()
		var asked time.Time
		c.Nodes()[2].Fail(func([]string) bool { asked = time.Now(); return false }, "")
		risk := <-l.AtRisk()
		assert.Len(t, risk.Nodes, 2)
		assert.Zero(t, time.Since(asked), "reported in the instant of the round")
		c.Nodes()[2].Fail(nil, "")
	})
}
