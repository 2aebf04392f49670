package conformance

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Manager has the tickets of the cases.
const Manager = "0123456789abcdef"

// grace is how long a lock is reserved for a ticket of the cases, ms; Grace is the same.
const (
	grace = 999
	Grace = grace * time.Millisecond
)

// ticket is the ticket of the n-th wait, and enqueuedAt its place in the queue.
func ticket(n int) string { return fmt.Sprintf("%s%016x%d", Manager, n, grace) }

func enqueuedAt(n int) string { return strconv.Itoa(1_700_000_000_000_000 + n) }

// name is the name of a ticket in values and messages.
func name(n int) string { return ticket(n)[:wire.TicketLen] }

// wake is what a node has published.
type wake struct {
	kind         wire.WakeKind
	ticket, lock string
}

// subscribe makes the rig's node one that wakes the waiters of the cases' Manager.
func (r *rig) subscribe(change ...func(*node.Config)) {
	r.Helper()
	subscribed := make(chan struct{}, 64)
	r.node = r.connect(append(change, func(c *node.Config) {
		c.Manager = Manager
		c.OnWake = func(_ int, kind wire.WakeKind, ticket, lock string) { r.wakes <- wake{kind, ticket, lock} }
		c.OnSubscribed = func(int) { subscribed <- struct{}{} }
	})...)
	r.node.Subscribe()
	select {
	case <-subscribed:
	case <-time.After(20 * time.Second):
		require.Fail(r, "the node does not subscribe")
	}
}

// The messages to the n-th waiter of the rig's lock.
func (r *rig) reservedFor(n int) wake { return wake{wire.WakeReserved, name(n), r.lock} }
func (r *rig) freeFor(n int) wake     { return wake{wire.WakeFree, name(n), r.lock} }
func (r *rig) asksAgain(n int) wake   { return wake{wire.WakeAskAgain, name(n), r.lock} }

// pinged is the ping to the process of the n-th waiter.
func pinged(r *rig, n int) wake { return wake{wire.WakePing, name(n), r.lock} }

// nextIs is the message that tells the n-th waiter its rank behind the head.
func (r *rig) nextIs(n, rank int) wake {
	return wake{wire.WakeNext + wire.WakeKind(rank-1), name(n), r.lock}
}

// woken checks the messages that were published since its last call, in this order.
func (r *rig) woken(want ...wake) {
	r.Helper()
	last := wake{wire.WakeReserved, strings.Repeat("-", wire.TicketLen), "and this is all"}
	r.publish("r" + last.ticket + last.lock)
	var got []wake
	for {
		select {
		case next := <-r.wakes:
			if next == last {
				assert.Equal(r, want, got)
				return
			}
			got = append(got, next)
		case <-time.After(20 * time.Second):
			require.Fail(r, "the node does not publish any more")
		}
	}
}

// reserved checks that the lock is reserved for the n-th waiter, and that the node woke it and the next ones, by rank,
// and no others. It keeps the reservation for longer than a slow machine takes, and drops the key that would end after
// 20 ms.
func (r *rig) reserved(n int, next ...int) {
	r.Helper()
	text, _ := r.admin("GET", r.lock).(string)
	left := r.pttl(r.lock)
	r.admin("PEXPIRE", r.lock, "60000")
	r.admin("DEL", wire.WatchKey(r.lock))
	assert.Equal(r, name(n)+" w ", text)
	assert.Equal(r, wire.Value{Owner: name(n), Reserved: true}, wire.ParseValue(text))
	assert.Greater(r, left, int64(0))
	assert.LessOrEqual(r, left, int64(grace))
	woken := []wake{r.reservedFor(n)}
	for i, n := range next {
		woken = append(woken, r.nextIs(n, i+1))
	}
	r.woken(woken...)
}

// queued checks which waiters are in the queue, in this order.
func (r *rig) queued(waiters ...int) {
	r.Helper()
	want := []any{}
	for _, n := range waiters {
		want = append(want, ticket(n))
	}
	assert.Equal(r, want, r.admin("ZRANGE", r.queue, "0", "-1"))
}

// enqueues makes the n-th waiter ask for a lock that is taken, and returns how many tickets are before its own.
func (r *rig) enqueues(owner string, n int) int64 {
	r.Helper()
	got, ok := r.one(r.wait(owner, n)).([]any)
	require.True(r, ok)
	require.Len(r, got, 3, "%v", got)
	return got[2].(int64)
}

// holdsAgainst makes alice hold the lock while these wait, in the order of their arrival. It returns where the register
// stands.
func (r *rig) holdsAgainst(waiters ...int) (t int64) {
	r.Helper()
	t = r.holds(alice)
	for _, n := range waiters {
		r.enqueues(bob, n)
	}
	return t
}

// reserves is holdsAgainst and a release: the lock is reserved for the first of the waiters, which are in the order of
// their places.
func (r *rig) reserves(waiters ...int) (t int64) {
	r.Helper()
	t = r.holdsAgainst(waiters...)
	require.Equal(r, int64(wire.HandedOn), r.one(r.release(alice)))
	r.reserved(waiters[0], waiters[1:]...) // of up to three, all are woken
	return t
}

// position is the rank in the answer to an acquisition that was refused.
func (r *rig) position(got any) int64 {
	r.Helper()
	parts, ok := got.([]any)
	require.True(r, ok, "%v", got)
	require.Len(r, parts, 3, "%v", got)
	return parts[2].(int64)
}
