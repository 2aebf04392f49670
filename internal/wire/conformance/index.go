package conformance

import (
	"fmt"
	"strconv"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var indexCases = []testCase{
	{"the index shows each slot as its key is", indexesSlots},
	{"a slot that an older client has taken or released is compared with its key", comparesSlots},
	{"slots that end without a release are offered again", comparesWhatEnds},
	{"slots that were renewed end later than the index says", readsTheEnds},
	{"the index learns of slots until it knows one that is free", growsTheIndex},
	{"the index ends after a minute", endsTheIndex},
}

// indexed checks that the index has the first slots, and each as its key is.
func indexed(r *rig, slots int) {
	r.Helper()
	entries := r.admin("ZRANGE", wire.IndexKey(r.lock), "0", "-1", "WITHSCORES").([]any)
	shown := map[string]int64{}
	for i := 0; i < len(entries); i += 2 {
		at, err := strconv.ParseInt(entries[i+1].(string), 10, 64)
		require.NoError(r, err)
		shown[entries[i].(string)] = at
	}
	assert.Len(r, shown, slots)
	for i := range slots {
		number := strconv.Itoa(i)
		before := r.micros() / 1000
		if left := r.pttl(slot(r, i)); left >= 0 {
			assert.GreaterOrEqual(r, shown[number], before+left-100, "slot %d is taken", i)
			assert.LessOrEqual(r, shown[number], r.micros()/1000+left+100, "slot %d is taken", i)
		} else {
			assert.Contains(r, shown, number)
			assert.EqualValues(r, i, shown[number], "slot %d is free", i)
		}
	}
}

func indexesSlots(r *rig) {
	owners := full(r, 3)
	r.absent(wire.IndexKey(r.lock))
	long := func(o op) op { return o.with(argTTL, "60000") }
	for _, queued := range []bool{false, true} {
		if queued {
			r.subscribe()
			r.one(permitFor(r, bob, 1, 0, 3))
			require.EqualValues(r, 1, r.admin("EXISTS", r.hint))
		} else {
			r.one(permit(r, bob, 0, 3))
		}
		indexed(r, 3)
		r.one(r.release(owners[1]).on(slot(r, 1)))
		indexed(r, 3)
		ask := long(permit(r, owners[1], 1, 3))
		if queued {
			ask = ask.with(argTicket, permitTicket(1, 3)).with(argTicket+1, enqueuedAt(1))
		}
		r.one(ask)
		assert.Equal(r, owners, owned(r, 3))
		indexed(r, 3)
		r.one(r.leave(owners[2], 7).on(slot(r, 2)))
		indexed(r, 3)
		r.one(long(permit(r, owners[2], 2, 3)))
		assert.Equal(r, owners, owned(r, 3))
		indexed(r, 3)
		r.one(permit(r, owners[2], 2, 3))
		indexed(r, 3) // asked again
		r.admin("DEL", slot(r, 0))
		r.one(long(r.heal(owners[0]).on(slot(r, 0))))
		indexed(r, 3)
		r.one(r.heal(owners[0]).on(slot(r, 0)))
		indexed(r, 3)
	}
}

func comparesSlots(r *rig) {
	r.admin("SET", r.hint, "1") // without it, the SET alone decides
	r.one(permit(r, alice, 0, 2))
	r.one(permit(r, bob, 0, 2))
	indexed(r, 2)
	r.admin("SET", slot(r, 1), wire.Compose(carol, 0, metadata), "PX", "20000")
	assert.IsType(r, "", r.one(permit(r, bob, 1, 2)).([]any)[0], "the key decides")
	indexed(r, 2)
	r.admin("DEL", slot(r, 1))
	assert.IsType(r, int64(0), r.one(permit(r, bob, 1, 2)).([]any)[0], "the key decides")
	indexed(r, 2)
	r.admin("DEL", slot(r, 1))
	free := any(nil)
	for try := 0; try < 1000 && free != int64(1); try++ { // one in turn, and each round is another instant
		free = r.one(permit(r, carol, 0, 2)).([]any)[3]
	}
	assert.Equal(r, int64(1), free)
	indexed(r, 2)
}

func comparesWhatEnds(r *rig) {
	const limit, most = 40, 15 // most is how many a script compares
	owners := full(r, limit)
	r.one(permit(r, alice, 0, limit))
	for i := range owners {
		r.one(permit(r, owners[i], i, limit).with(argTTL, "1"))
	}
	ended(r, limit-1)
	r.admin("SET", slot(r, 1), wire.Compose(alice, 0, metadata), "PX", "60000")
	taken := func() int {
		return len(r.admin("ZRANGE", wire.IndexKey(r.lock), "1000000000", "+inf", "BYSCORE").([]any))
	}
	require.Equal(r, limit, taken())
	got := r.one(permit(r, bob, 1, limit)).([]any)
	assert.NotEqual(r, int64(-1), got[3], "one that is free")
	assert.GreaterOrEqual(r, taken(), limit-most-1)
	assert.LessOrEqual(r, taken(), limit-most+1)
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
	indexed(r, 3)
}

func growsTheIndex(r *rig) {
	const limit, step, most = 1024, 128, 256 // most is for one script
	all := make([]op, limit)
	owner := func(i int) string { return fmt.Sprintf("%032x", 0xe000+i) }
	held := func(i int) op { return permit(r, owner(i), i, limit).with(argTTL, "60000") } // none ends meanwhile
	for i := range all {
		all[i] = held(i)
	}
	for i := 0; i < limit; i += step {
		for _, got := range r.apply(all[i : i+step]...) {
			require.EqualValues(r, 1, got)
		}
	}
	size := func() any { return r.admin("ZCARD", wire.IndexKey(r.lock)) }
	free := func(i int) any { return r.one(permit(r, bob, i, limit)).([]any)[3] }
	r.one(r.release(owner(3)).on(slot(r, 3)))
	assert.EqualValues(r, 3, free(7))
	assert.EqualValues(r, step, size())
	r.one(r.release(owner(900)).on(slot(r, 900)))
	r.one(held(3))
	for known := step + most; known < limit; known += most {
		assert.EqualValues(r, known, free(7), "one that is not known yet")
		assert.EqualValues(r, known, size())
	}
	assert.EqualValues(r, 900, free(7))
	assert.EqualValues(r, limit, size())
	r.one(held(900))
	assert.EqualValues(r, -1, free(7))
	indexed(r, limit)
	assert.EqualValues(r, -1, r.one(permit(r, bob, 7, 100)).([]any)[3], "of a client with a smaller limit")
	r.one(r.release(owner(100)).on(slot(r, 100)))
	assert.EqualValues(r, -1, r.one(permit(r, bob, 7, 100)).([]any)[3], "slot 100 is above its limit")
	assert.EqualValues(r, 100, free(101), "it continues from the first one")
}

func endsTheIndex(r *rig) {
	r.one(permit(r, alice, 0, 2))
	r.one(permit(r, bob, 0, 2))
	index := wire.IndexKey(r.lock)
	r.left(60000, r.pttl(index))
	r.admin("PEXPIRE", index, "30000")
	r.one(permit(r, bob, 0, 2))
	assert.LessOrEqual(r, r.pttl(index), int64(30000), "it is made anew now and then")
	r.admin("DEL", index)
	r.one(permit(r, bob, 0, 2))
	indexed(r, 2)
}
