package conformance

import (
	"strings"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var leaveCases = []testCase{
	{"leave without a queue is a release", (*rig).leavesWithoutQueue},
	{"a waiter that leaves is not in the queue any more", (*rig).leavesQueue},
	{"a waiter that goes on waiting keeps its place", (*rig).staysInPlace},
	{"a waiter that yields keeps its place and lets the others go first", (*rig).yields},
	{"a lock that is left free for a moment is reserved for nobody, and the head is woken", (*rig).leavesFree},
}

func (r *rig) leavesWithoutQueue() {
	r.holds(alice)
	assert.Equal(r, int64(1), r.one(r.leave(alice, 1)))
	r.absent(r.lock, r.queue, r.hint)
	for _, mode := range []string{"y", "f"} {
		r.one(r.acquire(alice, r.micros()))
		assert.Equal(r, int64(1), r.one(r.leave(alice, 1).with(4, mode)), "mode %s", mode)
		r.absent(r.lock, r.queue, r.hint)
	}
}

func (r *rig) leavesQueue() {
	r.subscribe()
	r.holdsAgainst(1, 2, 3)
	before := r.admin("GET", r.lock)
	for _, o := range []op{r.leave(bob, 2), r.pass(3)} {
		assert.Equal(r, int64(-1), r.one(o))
		assert.Equal(r, before, r.admin("GET", r.lock))
	}
	r.queued(1)
	r.woken()
	r.enqueues(bob, 3)
	assert.Equal(r, int64(wire.HandedOn), r.one(r.leave(alice, 1)), "with the lock")
	r.reserved(3)
	r.queued()
}

func (r *rig) staysInPlace() {
	r.subscribe()
	r.holdsAgainst(2)
	assert.Equal(r, int64(1), r.one(r.stay(alice, 1, "")), "it is the first itself: a free lock would look like a dead head's")
	r.reserved(1, 2)
	r.queued(2)
	r.admin("DEL", r.queue, r.lock, r.registers)

	r.holdsAgainst(2, 1)
	assert.Equal(r, int64(wire.HandedOn), r.one(r.stay(alice, 3, "")))
	r.reserved(1, 2, 3)
	r.queued(2, 3)
	assert.Equal(r, int64(-1), r.one(r.stay(alice, 4, "")), "it had nothing here")
	r.queued(2, 3, 4)
	assert.Equal(r, int64(-1), r.one(r.stay(carol, 1, "")), "reserved for it meanwhile: no second turn")
	r.queued(2, 3, 4)
	r.woken()
}

func (r *rig) yields() {
	r.subscribe()
	r.holdsAgainst(3, 2, 1)
	assert.Equal(r, int64(wire.HandedOn), r.one(r.stay(alice, 1, "y")))
	r.reserved(2, 3)
	r.queued(1, 3)
	r.admin("DEL", r.queue, r.lock, r.registers)

	r.holdsAgainst(1)
	assert.Equal(r, int64(1), r.one(r.stay(alice, 1, "y")), "there is nobody else")
	r.absent(r.lock)
	r.queued(1)
	r.woken()
}

func (r *rig) leavesFree() {
	r.subscribe()
	r.holdsAgainst(1, 2, 3)
	assert.Equal(r, int64(wire.HandedOn), r.one(r.leave(alice, 1).with(4, "f")))
	r.absent(r.lock)
	r.queued(2, 3)
	r.woken(r.freeFor(2))
	assert.Equal(r, int64(1), r.one(r.heal(carol)), "a client without a ticket takes it")
	r.admin("SET", r.lock, "x")
	assert.Equal(r, int64(-1), r.one(r.leave(alice, 2).with(4, "f")), "another's lock is not free")
	r.queued(3)
	r.admin("DEL", r.lock)
	assert.Equal(r, int64(0), r.one(r.leave(alice, 2).with(4, "f")), "it was free")
	r.absent(r.lock)
	r.woken(r.freeFor(3))

	r.admin("DEL", r.queue, r.registers)
	r.holds(alice)
	assert.Equal(r, int64(1), r.one(r.stay(alice, 1, "f")), "the head is the ticket that stays")
	r.absent(r.lock)
	r.queued(1)
	r.woken(r.freeFor(1))

	r.admin("DEL", r.queue, r.registers)
	r.holdsAgainst(1, 2, 3)
	dead := strings.Repeat("e", wire.ManagerLen) + ticket(1)[wire.ManagerLen:]
	r.admin("ZADD", r.queue, "1", dead)
	assert.Equal(r, int64(wire.HandedOn), r.one(r.leave(alice, 1).with(4, "f")))
	r.reserved(2, 3) // as if it was not to be left free: the head is dead
	r.queued(3)
}
