package quorumlocktest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// The acquisition expired in the queue of a node that hung, and was never sent. Its
// release would have nothing to do there, but a renewal has put the lock onto the node
// since.
func TestALockThatARenewalHasPutOntoANodeIsReleasedThere(t *testing.T) {
	virtual(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		c.Nodes()[2].Hang()
		other := acquire(t, m, "other") // requests behind it wait for its answer
		// A register above the proposal costs a raise, so the acquisition is kept for
		// longer.
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
