package conformance

import (
	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// These are the cases of the right of a waiter for a permit that was let in.

func keepsTheRight(r *rig) {
	r.subscribe()
	owners := full(r, 2)
	r.one(permitFor(r, alice, 1, 0, 2))
	expires(r, owners[1], 1, 2) // and no waiter is woken
	got := r.one(permitFor(r, alice, 1, 0, 2)).([]any)
	assert.EqualValues(r, 1, got[3], "it is the head, and a slot is free")
	assert.EqualValues(r, -1, got[2], "and it does not wait any more")
	slotQueue(r)
	admitted(r, 1)
	got = r.one(permit(r, carol, 1, 2)).([]any)
	assert.EqualValues(r, -1, got[3])
	got = r.one(permitFor(r, alice, 1, 1, 2)).([]any)
	assert.IsType(r, int64(0), got[0])
	assert.Equal(r, []string{owners[0], alice}, owned(r, 2))
	admitted(r)
	r.absent(family(r) + "\xffq")
}

func passesTheRightOn(r *rig) {
	r.subscribe()
	owners := full(r, 2)
	for n := range 3 {
		r.one(permitFor(r, alice, n, 0, 2))
	}
	r.one(r.release(owners[0]).on(slot(r, 0)))
	admitted(r, 0)
	r.one(passOf(r, permitTicket(0, 2)).on(family(r)))
	admitted(r, 1)
	r.one(passOf(r, name(1)).on(slot(r, 0)))
	admitted(r, 2)
	r.one(r.leave(alice, 2).on(slot(r, 0)).with(2, permitTicket(2, 2)))
	admitted(r)
	r.absent(family(r) + "\xffq")

	r.one(permit(r, owners[0], 0, 2))
	for n := range 3 {
		r.one(permitFor(r, alice, n, 0, 2))
	}
	r.one(passOf(r, permitTicket(0, 2)).on(family(r)))
	slotQueue(r, permitTicket(1, 2), permitTicket(2, 2))
	r.one(r.leave(alice, 1).on(slot(r, 0)).with(2, permitTicket(1, 2)))
	slotQueue(r, permitTicket(2, 2))
	admitted(r)
}

func endsWithTheGrace(r *rig) {
	r.subscribe()
	owners := full(r, 1)
	for n := 1; n <= 3; n++ {
		r.one(permitFor(r, alice, n, 0, 1))
	}
	r.one(r.release(owners[0]).on(slot(r, 0)))
	admitted(r, 1)
	lapses(r, 1)
	got := r.one(permitFor(r, alice, 1, 0, 1)).([]any)
	assert.Equal(r, []any{"", got[1], int64(0), int64(-1)}, got, "it comes too late, and waits again where its place is")
	assert.LessOrEqual(r, got[1], int64(grace), "until the right of the next one ends")
	admitted(r, 2)
	slotQueue(r, permitTicket(1, 1), permitTicket(3, 1))
}

func unfencedRight(r *rig) {
	r.capText = ""
	r.subscribe()
	owners := full(r, 1)
	r.one(permitFor(r, alice, 1, 0, 1))
	r.one(permitFor(r, bob, 2, 0, 1))
	assert.Equal(r, int64(wire.HandedOn), r.one(r.release(owners[0]).on(slot(r, 0))))
	admitted(r, 1)
	r.one(permitFor(r, alice, 1, 0, 1))
	assert.Equal(r, []string{alice}, owned(r, 1))
	admitted(r)
	r.one(r.release(alice).on(slot(r, 0)))
	admitted(r, 2)
	assert.Equal(r, int64(1), r.one(permitFor(r, bob, 2, 0, 1)), "nobody waits any more")
	admitted(r)
}
