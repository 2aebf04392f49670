package virtual

import (
	"fmt"
	"strconv"
	"strings"
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

// The keys of the permits of "job".
var (
	lockOfJob = wire.LockKey(config.DefaultPrefix, "job")
	slotQueue = wire.QueueKey(wire.FamilyKey(lockOfJob))
	admitted  = wire.SlotsKey(lockOfJob) // and the slots that are taken
)

// rightUntil is the score of a waiter that is let in until this instant.
func rightUntil(then time.Time) string {
	return strconv.FormatInt(1_000_000_000_000_000+then.UnixMilli(), 10)
}

// letIn returns the waiters that a node lets in.
func letIn(t *testing.T, n *quorumlocktest.Node) (names []string) {
	t.Helper()
	for _, member := range do(t, n, "ZRANGE", admitted, "0", "-1").([]any) {
		if name := member.(string); len(name) == wire.TicketLen {
			names = append(names, name)
		}
	}
	return names
}

// keepsFor has a node keep a slot for a waiter that no other node knows.
func keepsFor(t *testing.T, n *quorumlocktest.Node, waiter string) {
	t.Helper()
	do(t, n, "ZADD", admitted, rightUntil(time.Now().Add(time.Minute)), strings.Repeat(waiter, wire.TicketLen))
	do(t, n, "SET", wire.HintKey(config.DefaultPrefix), "1", "PX", "60000")
}

// waitsFor has a caller wait for a permit, which it keeps.
func waitsFor(m *quorumlock.Manager, limit int) <-chan *quorumlock.Lease {
	granted := make(chan *quorumlock.Lease, 1)
	go func() {
		if l, err := m.Acquire(background, "job", quorumlock.Permits(limit)); err == nil {
			granted <- l
		}
	}()
	synctest.Wait()
	return granted
}

// No caller waits for a permit because another caller of its process waits for one, or holds one.
func TestCallersOfAProcessWaitForPermitsBesideEachOther(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		other, m := manager(t, c), manager(t, c)
		leases := permits(t, other, 3)
		waiting := []<-chan *quorumlock.Lease{waitsFor(m, 3), waitsFor(m, 3), waitsFor(m, 3)}
		time.Sleep(time.Second)
		for _, l := range leases {
			require.NoError(t, l.Release(background))
		}
		time.Sleep(time.Second)
		for i, granted := range waiting {
			assert.Len(t, granted, 1, "caller %d", i)
		}
	})
}

// A node had granted the slot that two others refused.
func TestTheVotesForASlotThatIsTakenAreReleased(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for _, n := range c.Nodes()[:2] {
			do(t, n, "SET", wire.SlotKey(lockOfJob, 0), "another program's")
		}
		for range 16 { // half of them ask for the free slot first
			l, err := m.TryAcquire(background, "job", quorumlock.Permits(2))
			require.NoError(t, err)
			assert.Equal(t, 1, l.Slot())
			synctest.Wait()
			assert.Equal(t, 2, holders(t, c, "job\xffp0"))
			require.NoError(t, l.Release(background))
			synctest.Wait()
		}
	})
}

// A node that keeps the slot for another waiter would show it to others as free, wrongly. So it becomes one more vote,
// in whatever order its refusal and the grants arrive, and the waiter leaves its queue.
func TestANodeThatKeepsASlotForAnotherWaiterGivesItsVote(t *testing.T) {
	for _, waits := range []bool{false, true} {
		for _, late := range []bool{false, true} {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				said := fmt.Sprintf("waits %v, late %v", waits, late)
				m, other := manager(t, c), manager(t, c)
				third := c.Nodes()[2]
				slow := []*quorumlocktest.Node{third}
				if !late {
					slow = c.Nodes()[:2]
				}
				var l *quorumlock.Lease
				if waits {
					held := permit(t, other, 1)
					granted := waitsFor(m, 1)
					time.Sleep(time.Second)
					keepsFor(t, third, "f")
					for _, n := range slow {
						n.Delay(2 * time.Millisecond)
					}
					require.NoError(t, held.Release(background))
					l = <-granted
				} else {
					keepsFor(t, third, "f")
					for _, n := range slow {
						n.Delay(2 * time.Millisecond)
					}
					var err error
					l, err = m.TryAcquire(background, "job", quorumlock.Permits(1))
					require.NoError(t, err)
				}
				time.Sleep(50 * time.Millisecond)
				held, _ := do(t, third, "GET", wire.SlotKey(lockOfJob, 0)).(string)
				assert.Equal(t, l.Owner(), wire.ParseValue(held).Owner, said)
				assert.Equal(t, []string{strings.Repeat("f", wire.TicketLen)}, letIn(t, third), said)
				if !late {
					assert.EqualValues(t, 0, do(t, third, "ZCARD", slotQueue), "%s: the ticket has left at once", said)
				}
			})
		}
	}
}

// A node that has refused the holder offers it the slot again when the slot is free there.
func TestARightThatNobodyNeedsIsPassedOn(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		other, m := manager(t, c), manager(t, c)
		third, slot := c.Nodes()[2], wire.SlotKey(lockOfJob, 0)
		held := permit(t, other, 1)
		granted := waitsFor(m, 1)
		time.Sleep(time.Second)
		waiter := do(t, third, "ZRANGE", slotQueue, "0", "0").([]any)[0].(string)
		do(t, third, "SET", slot, "another program's")
		require.NoError(t, held.Release(background))
		l := <-granted
		time.Sleep(50 * time.Millisecond)
		require.Equal(t, "another program's", do(t, third, "GET", slot))
		do(t, third, "DEL", slot)
		do(t, third, "ZADD", admitted, rightUntil(time.Now().Add(time.Minute)), waiter[:wire.TicketLen])
		do(t, third, "PUBLISH", wire.WakeChannel(config.DefaultPrefix, waiter[:wire.ManagerLen]), string(wire.WakeReserved)+waiter[:wire.TicketLen]+slot)
		time.Sleep(50 * time.Millisecond)
		text, _ := do(t, third, "GET", slot).(string)
		assert.Equal(t, l.Owner(), wire.ParseValue(text).Owner, "one more vote")
		assert.Empty(t, letIn(t, third))
	})
}
