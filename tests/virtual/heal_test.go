package virtual

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// The acquisition expired in the queue of a hanging node, and was never sent. So its release would have nothing to do
// there, but in between a renewal has put the lock on the node.
func TestALockThatARenewalHasPutOntoANodeIsReleasedThere(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		c.Nodes()[2].Hang()
		other := acquire(t, m, "other") // requests behind it wait for its answer
		// A register above the proposal requires a raise, so the acquisition is kept for longer.
		setRegister(t, c.Nodes()[0], time.Now().Add(time.Second).UnixMicro())
		l := acquire(t, m, "job")
		time.Sleep(700 * time.Millisecond)
		c.Nodes()[2].Resume()
		time.Sleep(2 * ttl)
		require.Equal(t, 3, holders(t, c, "job"), "it was healed")
		require.NoError(t, l.Release(background))
		require.NoError(t, other.Release(background))
		synctest.Wait()
		assert.Zero(t, holders(t, c, "job"))
	})
}

func TestAKeyThatANodeLostIsHealedInTheNextRound(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		l := acquire(t, manager(t, c), "job")
		c.Nodes()[2].Restart()
		assert.Equal(t, 2, holders(t, c, "job"))
		time.Sleep(interval * 11 / 10)
		synctest.Wait()
		assert.Equal(t, 3, holders(t, c, "job"))
		v, err := c.Nodes()[2].Do("GET", "quorumlock:job")
		require.NoError(t, err)
		assert.Contains(t, v, l.Owner()+" 0 ", "its register may be lost as well")
		assert.Equal(t, []string{"job"}, locks(t, c)[2:], "on this node as on the others")
		assert.Zero(t, do(t, c.Nodes()[2], "EXISTS", "quorumlock:\xffr"), "only an acquisition makes a register")
	})
}

// The node has forgotten what it granted to others before, so it may not grant now. But it can make a key for a request
// that does not compare the marker. To count that key at a renewal would be a vote.
func TestAKeyThatANodeInQuarantineNeverGrantedDoesNotCount(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		const guard = 30 * time.Second
		m := manager(t, c, quorumlock.WithRestartGuard(guard), quorumlock.WithTrustEmptyNodes())
		require.NoError(t, acquire(t, m, "before").Release(background)) // the round trip is known
		synctest.Wait()
		c.Nodes()[0].FlushAll()
		c.Nodes()[0].CutReplies()
		flushed := time.Now()
		l := acquire(t, m, "job")
		require.Equal(t, 3, holders(t, c, "job"))
		time.Sleep(time.Second)
		c.Nodes()[0].Heal()
		r := <-l.Renewed()
		for ; time.Since(flushed) < guard; r = <-l.Renewed() {
			assert.Zero(t, r.Margin, "after %v", time.Since(flushed))
		}
		<-l.Renewed()
		assert.Equal(t, 1, (<-l.Renewed()).Margin, "after the quarantine")
	})
}

func TestAHealThatComesLateDoesNotLock(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		l := acquire(t, m, "job")
		c.Nodes()[2].FlushAll()
		c.Nodes()[2].Delay(3 * time.Second)
		<-l.Renewed() // the extend is in flight to a missing key
		require.NoError(t, l.Release(background))
		time.Sleep(time.Minute)
		c.Nodes()[2].Heal()
		assert.Zero(t, holders(t, c, "job"))
	})
}

// A release can end the lease long before its stop. It can then overtake a heal that is
// stuck on a connection that was given up.
func TestAHealIsVoidOnceItsNodeTimeoutIsOver(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithNodeTimeout(100*time.Millisecond))
		l := acquire(t, m, "job")
		c.Nodes()[2].Delay(150 * time.Millisecond)
		c.Nodes()[2].FlushAll()
		time.Sleep(time.Minute)
		assert.True(t, l.Valid())
		assert.Equal(t, 2, holders(t, c, "job"), "each heal was too late, although the lease lives")
		c.Nodes()[2].Delay(10 * time.Millisecond)
		time.Sleep(2 * interval)
		assert.Equal(t, 3, holders(t, c, "job"))
	})
}
