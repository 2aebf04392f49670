package conformance

import (
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var reserveCases = []testCase{
	{"a release reserves the lock for the head of the queue, and wakes it and the next", (*rig).releaseReserves},
	{"a release wakes waiters further and further back, and again when the queue has come half as far", (*rig).wakesFurtherBack},
	{"a reservation is refused to everybody else", (*rig).reservesForOne},
	{"a reservation ends with the grace of the ticket", (*rig).reservesForAWhile},
	{"the waiter with the reservation acquires the lock, alone, and its register moves", (*rig).reservesForItsOwner},
	{"the waiter with the reservation gets nothing when it comes too late", (*rig).reservesForNobodyLate},
	{"a reservation is no lease: extend and raise refuse it, and heal takes it", (*rig).reservesFromNoLease},
	{"a free lock is reserved for the head of its queue, whichever client asks", (*rig).reservesForTheHead},
	{"a free lock goes to the head of its queue when it asks", (*rig).grantsToTheHead},
	{"another client's lock is reserved for nobody, whatever is in it", (*rig).reservesNothingOfOthers},
}

func (r *rig) releaseReserves() {
	r.subscribe()
	t := r.holdsAgainst(3, 1, 2)
	assert.Equal(r, int64(wire.HandedOn), r.one(r.release(alice)))
	r.reserved(1, 2, 3)
	r.queued(2, 3)
	assert.Equal(r, t, r.register())
	r.unchanged(func() { assert.Equal(r, int64(-1), r.one(r.release(alice))) })
	r.woken()

	r.admin("DEL", r.lock)
	assert.Equal(r, int64(0), r.one(r.release(alice)), "a free lock is reserved by the next client that asks")
	r.reserved(2, 3)
	r.queued(3)
}

func (r *rig) wakesFurtherBack() {
	r.subscribe()
	r.holdsAgainst(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
	// In one call, because the node forgets after 20 ms which waiters it has woken.
	r.apply(r.release(alice), r.pass(1), r.pass(2))
	r.woken(r.reservedFor(1), r.nextIs(2, 1), r.nextIs(3, 2), r.nextIs(5, 3), r.nextIs(9, 4), r.nextIs(12, 5),
		r.reservedFor(2), r.nextIs(3, 1), r.reservedFor(3), r.nextIs(4, 1))
	r.admin("DEL", wire.WatchKey(r.lock))
	r.apply(r.pass(3), r.pass(4), r.pass(5), r.pass(6), r.pass(7), r.pass(8), r.pass(9), r.pass(10))
	r.woken(r.reservedFor(4), r.nextIs(5, 1), r.nextIs(6, 2), r.nextIs(8, 3), r.nextIs(12, 4),
		r.reservedFor(5), r.nextIs(6, 1), r.reservedFor(6), r.nextIs(7, 1), r.reservedFor(7), r.nextIs(8, 1),
		r.reservedFor(8), r.nextIs(9, 1), r.nextIs(10, 2), r.nextIs(12, 3),
		r.reservedFor(9), r.nextIs(10, 1), r.reservedFor(10), r.nextIs(11, 1), r.reservedFor(11), r.nextIs(12, 1))
}

func (r *rig) reservesForOne() {
	r.subscribe()
	t := r.reserves(1, 2)
	before := r.admin("GET", r.lock)
	for _, c := range []struct {
		o    op
		want int64
	}{{r.acquire(bob, t+1), -1}, {r.wait(bob, 2), 0}, {r.wait(bob, 3), 1}, {r.wait(bob, 2).with(argMode, "l"), 0}} {
		got := r.one(c.o).([]any)
		require.Len(r, got, 3)
		assert.Equal(r, before, got[0])
		assert.InDelta(r, 60_000, got[1], 10_000)
		assert.Equal(r, c.want, got[2])
	}
	assert.Equal(r, []any{int64(-1), int64(-1), int64(-1)}, r.apply(r.release(bob), r.release(name(2)), r.leave(bob, 2)))
	assert.Equal(r, int64(-1), r.one(r.pass(2)))
	assert.Equal(r, before, r.admin("GET", r.lock))
	assert.Equal(r, t, r.register())
	r.queued(3)
	r.woken()
}

func (r *rig) reservesForAWhile() {
	r.subscribe()
	r.holdsAgainst()
	r.one(r.wait(bob, 1).with(argTicket, name(1)+"30"))
	r.one(r.release(alice))
	assert.LessOrEqual(r, r.pttl(r.lock), int64(30))
	r.woken(r.reservedFor(1))
	require.Eventually(r, func() bool { return r.admin("GET", r.lock) == nil }, 20*time.Second, time.Millisecond)
	assert.Equal(r, int64(1), r.one(r.acquire(carol, r.micros())))
}

func (r *rig) reservesForItsOwner() {
	r.subscribe()
	before := r.reserves(1, 2)
	t := r.micros()
	assert.Equal(r, granted(t, before, 1), r.one(r.waitFor(bob, 1, t)))
	assert.Equal(r, t, r.register())
	assert.Equal(r, wire.Compose(bob, t, metadata), r.admin("GET", r.lock))
	r.left(keyLife, r.pttl(r.lock))
	assert.EqualValues(r, 0, r.enqueues(carol, 2))
	assert.EqualValues(r, -1, r.position(r.one(r.acquire(carol, t+1))))
	r.queued(2)
	r.woken()
}

func (r *rig) reservesForNobodyLate() {
	r.subscribe()
	t := r.reserves(1)
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(r.waitFor(bob, 1, t+1).with(argNotAfter, micros(t)))) })
}

func (r *rig) reservesFromNoLease() {
	r.subscribe()
	t := r.reserves(1)
	r.unchanged(func() {
		for _, owner := range []string{alice, name(1)} {
			assert.Equal(r, []any{int64(0), answer(-1, 0)}, r.apply(r.extend(owner, t), r.raise(owner, t+hour))[:2], owner)
			if owner == alice {
				assert.Equal(r, int64(0), r.one(r.heal(owner).with(argNotAfter, micros(t))))
			}
		}
	})
	assert.Greater(r, r.pttl(r.lock), int64(10_000))
	assert.Equal(r, int64(1), r.one(r.heal(alice)))
	assert.Equal(r, wire.Compose(alice, 0, metadata), r.admin("GET", r.lock))
	r.left(keyLife, r.pttl(r.lock))
	assert.EqualValues(r, 0, r.enqueues(bob, 1))
}

func (r *rig) reservesForTheHead() {
	r.subscribe()
	r.holdsAgainst(1, 2)
	r.admin("DEL", r.lock, r.registers)
	got := r.one(r.acquire(bob, r.micros())).([]any)
	require.Len(r, got, 3)
	assert.Equal(r, name(1)+" w ", got[0])
	assert.InDelta(r, grace, got[1], grace)
	assert.EqualValues(r, -1, got[2])
	r.reserved(1, 2)
	r.queued(2)
	r.admin("DEL", r.lock)
	assert.EqualValues(r, 0, r.enqueues(bob, 3))
	r.reserved(2) // the next is the asker itself, which needs no wake-up
	r.queued(3)
	r.absent(r.registers)
}

func (r *rig) grantsToTheHead() {
	r.subscribe()
	r.holdsAgainst(1, 2)
	for _, owner := range []string{bob, carol} { // carol's attempt is of the same wait: it came before the other's
		r.admin("DEL", r.lock)
		t := r.micros()
		got := r.one(r.waitFor(owner, 1, t)).([]any)
		assert.Equal(r, t, got[0])
		r.queued(2)
	}
	r.woken()
}

func (r *rig) reservesNothingOfOthers() {
	r.subscribe()
	r.holdsAgainst(1, 2)
	for _, command := range [][]string{{"SET", r.lock, ""}, {"SET", r.lock, "x"}, {"SET", r.lock, name(9) + " w "}, {"HSET", r.lock, "a", "b"}} {
		r.admin("DEL", r.lock)
		r.admin(command...)
		before := r.dump()[r.lock]
		r.apply(r.wait(bob, 2), r.wait(bob, 1), r.acquire(bob, r.micros()), r.release(bob), r.wait(bob, 1).with(argMode, "l"), r.pass(7))
		assert.Equal(r, before, r.dump()[r.lock])
		r.queued(1, 2)
		r.woken()
	}
}
