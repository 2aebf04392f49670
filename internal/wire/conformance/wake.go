package conformance

import (
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/wire"
)

var wakeCases = []testCase{
	{"a message that anybody publishes ends no lease", (*rig).passesNoLeaseOnAMessage},
	{"a message for a reservation that is over does no harm", (*rig).passesNothingThatIsOver},
	{"a node wakes nobody before it subscribes, and queues nobody", (*rig).queuesNobodyUnasked},
	{"a message with any kind and any ticket reaches the Manager as it is", (*rig).deliversMessages},
}

// received returns the next message that the subscriber has received.
func (r *rig) received() wake {
	r.Helper()
	select {
	case w := <-r.wakes:
		return w
	case <-time.After(20 * time.Second):
		require.Fail(r, "no message")
		return wake{}
	}
}

// passOn is what a Manager does with a message about a ticket that it does not wait with.
func (r *rig) passOn(w wake) int64 {
	r.Helper()
	got := r.do(wire.NewPass(w.lock, w.ticket+"999", r.soon(10*time.Second)))
	require.Equal(r, wire.Done, got.Status, "%v", got.Err)
	return got.N
}

func (r *rig) passesNoLeaseOnAMessage() {
	r.subscribe()
	t := r.holdsAgainst(1)
	before := r.admin("GET", r.lock)
	for _, id := range []string{alice, name(1), name(2), strings.Repeat("-", wire.TicketLen)} {
		for _, kind := range "r19a" {
			r.publish(string(kind) + id + r.lock)
			w := r.received()
			require.Equal(r, wake{wire.WakeKind(kind), id, r.lock}, w)
			assert.EqualValues(r, wire.Another, r.passOn(w))
			assert.Equal(r, before, r.admin("GET", r.lock))
			assert.Equal(r, t, r.register())
		}
	}
	assert.Equal(r, []int64{wire.Ours}, r.do(r.renewal(alice, t)).Answers, "the lease goes on")
}

func (r *rig) passesNothingThatIsOver() {
	r.subscribe()
	r.reserves(1, 2, 3)
	r.admin("DEL", r.lock) // the grace has ended
	t := r.micros()
	require.IsType(r, []any{}, r.one(r.waitFor(bob, 2, t).with(argMode, "l")))
	assert.EqualValues(r, wire.Another, r.passOn(r.reservedFor(1)))
	assert.Equal(r, bob, r.value().Owner)
}

func (r *rig) queuesNobodyUnasked() {
	r.holdsAgainst()
	waits := func() *wire.Request {
		return r.request(bob, r.micros(), func(a *wire.Acquisition) { a.Ticket, a.EnqueuedAt = ticket(1), enqueuedAt(1) })
	}
	named := func(c *node.Config) {
		c.Manager = Manager
		c.OnSubscribed = func(int) { assert.Fail(r, "nobody has called Subscribe") }
	}
	nameless := r.connect()
	nameless.Subscribe()
	for what, n := range map[string]*node.Node{"with a Manager": r.connect(named), "without a Manager": nameless} {
		got := r.on(n, waits())
		assert.Equal(r, wire.Taken, got.Status, what)
		assert.EqualValues(r, -1, got.Position, what)
	}
	r.queued()
	r.subscribe()
	assert.EqualValues(r, 0, r.do(waits()).Position)
	r.queued(1)
}

func (r *rig) deliversMessages() {
	r.subscribe()
	id := name(1)
	for _, text := range []string{"", "r", "r" + id, "1" + id, "1r" + id + "x", "a" + id + "\x00\xff", "\xff" + id + "x"} {
		r.publish(text)
	}
	assert.Equal(r, wake{wire.WakeNext, "r" + id[:31], id[31:] + "x"}, r.received(), "what it cannot know to be wrong")
	assert.Equal(r, wake{wire.WakeAskAgain, id, "\x00\xff"}, r.received())
	assert.Equal(r, wake{0xff, id, "x"}, r.received())
	r.woken()
}
