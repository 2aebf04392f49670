package conformance

import (
	"strconv"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var takenCases = []testCase{
	{"the set of a name's slots shows until when each is taken", showsWhatIsTaken},
	{"a slot that an older client has taken or released is written by the one who asks for it", writesWhatItMeets},
	{"slots that end without a release are offered again", offersWhatHasEnded},
	{"a refusal says when the first slot ends", readsTheEnds},
	{"a set that was lost is complete when each holder has renewed", isMadeAgain},
	{"the set ends a minute after the last slot in it", endsTheSet},
}

// shown returns the instant until which the set shows each slot as taken, ms.
func shown(r *rig) map[string]int64 {
	r.Helper()
	all := map[string]int64{}
	entries := r.admin("ZRANGE", wire.SlotsKey(r.lock), "0", "-1", "WITHSCORES").([]any)
	for i := 0; i < len(entries); i += 2 {
		at, err := strconv.ParseInt(entries[i+1].(string), 10, 64)
		require.NoError(r, err)
		if member := entries[i].(string); len(member) < wire.TicketLen {
			all[member] = at
		}
	}
	return all
}

// shows checks that the set agrees with the key of each slot.
func shows(r *rig, slots int) {
	r.Helper()
	all := shown(r)
	for i := range slots {
		before := r.micros() / 1000
		if left := r.pttl(slot(r, i)); left >= 0 {
			assert.GreaterOrEqual(r, all[strconv.Itoa(i)], before+left-100, "slot %d is taken", i)
			assert.LessOrEqual(r, all[strconv.Itoa(i)], r.micros()/1000+left+100, "slot %d is taken", i)
		} else {
			assert.Less(r, all[strconv.Itoa(i)], before, "slot %d is free", i)
		}
	}
}

func showsWhatIsTaken(r *rig) {
	t := r.micros()
	first := func(i int) op {
		return permit(r, alice, i, 3).with(1, wire.Compose(alice, t, metadata)).with(4, micros(t))
	}
	long := func(o op) op { return o.with(argTTL, "60000") }
	on := func(o op) op { return o.on(slot(r, 1)) }
	for _, queued := range []bool{false, true} {
		r.admin("FLUSHALL")
		if queued {
			r.subscribe()
			r.admin("SET", r.hint, "1")
		}
		for _, o := range []op{
			first(1), long(first(1)), long(on(r.extend(alice, t))), on(r.extend(alice, t)), long(on(r.heal(alice))), on(r.heal(alice)),
			on(revoke(r, alice, "90000", note)), on(r.release(alice)),
			first(1), on(r.leave(alice, 7)), on(r.heal(alice)), on(detach(r, alice, "100000")), on(resume(r, bob, alice, r.micros())), on(r.release(bob)),
		} {
			r.one(o)
			shows(r, 3)
		}
		assert.Empty(r, owned(r, 3)[1])
	}
}

func writesWhatItMeets(r *rig) {
	r.admin("SET", r.hint, "1") // without it, the SET alone decides
	r.one(permit(r, alice, 0, 2))
	r.admin("SET", slot(r, 1), wire.Compose(carol, 0, metadata), "PX", "20000")
	assert.EqualValues(r, 1, r.one(permit(r, bob, 0, 2)).([]any)[3], "it looks free")
	got := r.one(permit(r, bob, 1, 2)).([]any)
	assert.IsType(r, "", got[0], "the key decides")
	assert.EqualValues(r, -1, got[3])
	shows(r, 2)
	r.admin("DEL", slot(r, 1))
	assert.EqualValues(r, -1, r.one(permit(r, bob, 0, 2)).([]any)[3], "it looks taken")
	assert.IsType(r, int64(0), r.one(permit(r, bob, 1, 2)).([]any)[0], "the key decides")
	shows(r, 2)
}

func offersWhatHasEnded(r *rig) {
	const limit = 40
	owners := full(r, limit)
	for i := range owners {
		r.one(permit(r, owners[i], i, limit).with(argTTL, "1"))
	}
	ended(r, limit-1)
	r.admin("SET", slot(r, 1), wire.Compose(alice, 0, metadata), "PX", "60000")
	got := r.one(permit(r, bob, 1, limit)).([]any)
	assert.EqualValues(r, 2, got[3], "the next one that is free")
	shows(r, limit)
}

func readsTheEnds(r *rig) {
	t := r.micros()
	for i, owner := range []string{alice, bob, carol} {
		r.one(permit(r, owner, i, 3).with(1, wire.Compose(owner, t, metadata)).with(4, micros(t)).with(argTTL, strconv.Itoa(keyLife+i)))
	}
	left := func() any { return r.one(permit(r, dave, 0, 3)).([]any)[1] }
	r.left(keyLife, left())
	r.one(r.extend(alice, t).on(slot(r, 0)).with(argTTL, "60000"))
	r.one(r.extend(carol, t).on(slot(r, 2)).with(argTTL, "50000"))
	r.left(keyLife+1, left(), "bob's")
	r.one(r.extend(bob, t).on(slot(r, 1)).with(argTTL, "55000"))
	r.left(50000, left(), "carol's")
}

func isMadeAgain(r *rig) {
	t := r.micros()
	for i, owner := range []string{alice, bob, carol} {
		r.one(permit(r, owner, i, 4).with(1, wire.Compose(owner, t, metadata)).with(4, micros(t)))
	}
	r.admin("DEL", wire.SlotsKey(r.lock))
	assert.EqualValues(r, 1, r.one(permit(r, dave, 0, 4)).([]any)[3], "the set lacks it, so it looks free")
	r.one(r.extend(bob, t).on(slot(r, 1)))
	r.one(r.extend(carol, t).on(slot(r, 2)))
	shows(r, 4)
	assert.EqualValues(r, 3, r.one(permit(r, dave, 0, 4)).([]any)[3])
}

func endsTheSet(r *rig) {
	r.one(permit(r, alice, 0, 2).with(argTTL, "90000"))
	r.one(permit(r, bob, 1, 2))
	left := r.pttl(wire.SlotsKey(r.lock))
	assert.Greater(r, left, int64(80_000), "not before a slot in it")
	r.left(150_000, left)
}
