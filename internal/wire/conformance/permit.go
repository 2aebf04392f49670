package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var permitCases = []testCase{
	{"a free slot is a lock as any other", takesSlots},
	{"a slot that is taken names one that is free", namesAFreeSlot},
	{"a waiter is let in to any slot that is free", letsIn},
	{"slots that are freed together go to different waiters", letsInOneForEachSlot},
	{"those who are let in together are told of different slots", namesDifferentSlots},
	{"nobody comes before those who wait", refusesNewcomers},
	{"a waiter that asks again for another slot keeps its right", keepsTheRight},
	{"a waiter that was let in and goes makes way for the next", passesTheRightOn},
	{"a right that was not used in time is the next waiter's", endsWithTheGrace},
	{"waiters for a permit that do not listen any more are skipped, 64 at most", skipsForASlot},
	{"more waiters than a script lets in stay before the asker", letsInSoMany},
	{"a waiter for a permit that is late, or that no message reaches, keeps no place", queuesNobodyForASlot},
	{"a waiter with a smaller limit is not let in to the slots above", letsInBelowTheLimit},
	{"a waiter that yields keeps its place behind the others", yieldsASlot},
	{"an asker that has waited out a right empties the queue of the slots", recallsForASlot},
	{"an asker empties the queue of the slots only if a slot is free for one more", recallsNothingForFullSlots},
	{"a slot is prolonged, restored and raised like a lock, and shows who waits", keepsSlots},
	{"permits and the lock of their name are apart", permitsAreApart},
	{"without fencing a right is used up", unfencedRight},
	{"a node reads the answers about slots", readsAboutSlots},
}

// family is the name of the queue of all slots, and slot the lock of one.
func family(r *rig) string { return wire.FamilyKey(r.lock) }

func slot(r *rig, i int) string { return wire.SlotKey(r.lock, i) }

// permitTicket is the ticket of the n-th wait for one of limit permits.
func permitTicket(n, limit int) string { return ticket(n) + "p" + strconv.Itoa(limit) }

// permit asks for a slot without a ticket.
func permit(r *rig, owner string, i, limit int) op {
	o := r.acquire(owner, r.micros())
	return op{slot(r, i), append(append([]string{"permit"}, o.args[1:]...), "", "", strconv.Itoa(limit), "")}
}

// permitFor is permit for the n-th waiter.
func permitFor(r *rig, owner string, n, i, limit int) op {
	return permit(r, owner, i, limit).with(argTicket, permitTicket(n, limit)).with(argTicket+1, enqueuedAt(n))
}

// owned returns the owners of the first slots, "" for a free one.
func owned(r *rig, limit int) (owners []string) {
	for i := range limit {
		text, _ := r.admin("GET", slot(r, i)).(string)
		owners = append(owners, wire.ParseValue(text).Owner)
	}
	return owners
}

// full makes owners 0, 1, … take all slots.
func full(r *rig, limit int) (owners []string) {
	r.Helper()
	for i := range limit {
		owners = append(owners, fmt.Sprintf("%032x", 0xe0+i))
		require.Equal(r, int64(1), r.one(permit(r, owners[i], i, limit)))
	}
	return owners
}

// expires makes the lock of a slot end.
func expires(r *rig, owner string, i, limit int) {
	r.Helper()
	r.one(permit(r, owner, i, limit).with(argTTL, "1"))
	ended(r, i)
}

// ended waits until the lock of a slot has ended.
func ended(r *rig, i int) {
	r.Helper()
	for try := 0; try < 5000 && r.admin("EXISTS", slot(r, i)) != int64(0); try++ {
		time.Sleep(time.Millisecond)
	}
	r.absent(slot(r, i))
}

// admitted checks which waiters are let in.
func admitted(r *rig, waiters ...int) {
	r.Helper()
	want := []any{}
	for _, n := range waiters {
		want = append(want, name(n))
	}
	got := r.admin("ZRANGE", wire.SlotsKey(r.lock), "0", "-1").([]any)
	assert.ElementsMatch(r, want, slices.DeleteFunc(got, func(member any) bool { return len(member.(string)) < wire.TicketLen }))
}

// nextForAny is the message that tells the n-th waiter its rank behind a waiter that is let in.
func nextForAny(r *rig, n, rank int) wake {
	return wake{wire.WakeNext + wire.WakeKind(rank-1), name(n), family(r)}
}

// slotQueue checks the tickets in the queue, in this order.
func slotQueue(r *rig, tickets ...string) {
	r.Helper()
	want := []any{}
	for _, t := range tickets {
		want = append(want, t)
	}
	assert.Equal(r, want, r.admin("ZRANGE", wire.QueueKey(family(r)), "0", "-1"))
}

// rights is what the set of the slots adds to the instants at which rights end.
const rights = 1_000_000_000_000_000

// lapses ends the right of the n-th waiter.
func lapses(r *rig, n int) {
	r.Helper()
	r.admin("ZADD", wire.SlotsKey(r.lock), "XX", strconv.FormatInt(rights+r.micros()/1000-1, 10), name(n))
}

// slotFor is the message that the n-th waiter may take a slot. It names one.
func slotFor(r *rig, n, i int) wake { return wake{wire.WakeReserved, name(n), slot(r, i)} }

func takesSlots(r *rig) {
	t := r.micros()
	assert.Equal(r, int64(1), r.one(permit(r, alice, 0, 2)))
	assert.Equal(r, int64(1), r.one(permit(r, bob, 1, 2)))
	assert.Equal(r, []string{alice, bob}, owned(r, 2))
	assert.GreaterOrEqual(r, r.admin("ZSCORE", r.registers, slot(r, 0)), micros(t), "each slot has a register")
	r.left(keyLife, r.pttl(slot(r, 1)))
	r.unchanged(func() {
		assert.Equal(r, int64(0), r.one(permit(r, carol, 2, 3).with(argNotAfter, micros(t-1))))
		r.known = "another marker"
		assert.Equal(r, int64(-1), r.one(permit(r, carol, 2, 3)))
		r.known = ""
		got := r.one(permit(r, carol, 0, 2)).([]any)
		assert.Equal(r, []any{int64(-1), int64(-1)}, got[2:], "no ticket, and no slot is free")
		assert.Equal(r, alice, wire.ParseValue(got[0].(string)).Owner)
	})
	again := r.one(permit(r, alice, 0, 2)).([]any)
	assert.IsType(r, int64(0), again[0], "asked again: the same answer")
	assert.Equal(r, int64(1), r.one(r.release(alice).on(slot(r, 0))))
	assert.Equal(r, []string{"", bob}, owned(r, 2))
	r.absent(family(r)+"\xffq", r.hint)
}

func namesAFreeSlot(r *rig) {
	for _, i := range []int{1, 2} {
		r.one(permit(r, alice, i, 4))
	}
	free := func(i, limit int) any { return r.one(permit(r, bob, i, limit)).([]any)[3] }
	r.unchanged(func() {
		assert.EqualValues(r, 3, free(1, 4))
		assert.EqualValues(r, 3, free(2, 4))
		assert.EqualValues(r, 0, free(2, 3), "it goes on from the first one")
	})
	for _, ends := range []int{1, 2} {
		r.one(permit(r, alice, ends, 4).with(argTTL, "20000"))
		r.one(permit(r, alice, 3-ends, 4).with(argTTL, "60000"))
		r.left(20_000, r.one(permit(r, bob, 1, 4)).([]any)[1], "the slot that ends first")
	}
}

func letsIn(r *rig) {
	r.subscribe()
	owners := full(r, 2)
	assert.EqualValues(r, 0, r.one(permitFor(r, alice, 1, 0, 2)).([]any)[2])
	assert.EqualValues(r, 1, r.one(permitFor(r, bob, 2, 1, 2)).([]any)[2])
	assert.Equal(r, int64(wire.HandedOn), r.one(r.release(owners[1]).on(slot(r, 1))))
	r.woken(slotFor(r, 1, 1), nextForAny(r, 2, 1))
	admitted(r, 1)
	until, err := strconv.ParseInt(r.admin("ZSCORE", wire.SlotsKey(r.lock), name(1)).(string), 10, 64)
	require.NoError(r, err)
	assert.InDelta(r, rights+r.micros()/1000, until, 2*grace, "for the grace")
	assert.Greater(r, r.pttl(wire.SlotsKey(r.lock)), int64(grace))
	got := r.one(permitFor(r, bob, 2, 1, 2)).([]any)
	assert.Equal(r, []any{int64(0), int64(-1)}, got[2:], "the slot is kept for the first")
	got = r.one(permitFor(r, alice, 1, 1, 2)).([]any)
	assert.IsType(r, int64(0), got[0])
	assert.EqualValues(r, 1, got[2], "one more waits")
	assert.Equal(r, []string{owners[0], alice}, owned(r, 2))
	admitted(r)
}

func letsInOneForEachSlot(r *rig) {
	r.subscribe()
	owners := full(r, 3)
	for n := range 4 {
		r.one(permitFor(r, alice, n, 0, 3))
	}
	for _, i := range []int{2, 0} {
		r.one(r.release(owners[i]).on(slot(r, i)))
	}
	admitted(r, 0, 1)
	r.admin("DEL", wire.WatchKey(family(r)))
	got := r.one(permitFor(r, alice, 1, 2, 3)).([]any)
	assert.IsType(r, int64(0), got[0], "another slot than the one that the message named")
	got = r.one(permitFor(r, bob, 0, 2, 3)).([]any)
	assert.EqualValues(r, 0, got[3], "so the other one may be asked for")
	admitted(r, 0)
	got = r.one(permitFor(r, bob, 0, 0, 3)).([]any)
	assert.IsType(r, int64(0), got[0])
	assert.Equal(r, []string{bob, owners[1], alice}, owned(r, 3))
}

func namesDifferentSlots(r *rig) {
	r.subscribe()
	owners := full(r, 3)
	for n := range 4 {
		r.one(permitFor(r, alice, n, 0, 3))
	}
	expires(r, owners[0], 0, 3)
	expires(r, owners[2], 2, 3)
	r.one(r.release(owners[1]).on(slot(r, 1)))
	admitted(r, 0, 1, 2)
	r.woken(slotFor(r, 0, 1), nextForAny(r, 1, 1), nextForAny(r, 2, 2), nextForAny(r, 3, 3),
		slotFor(r, 1, 2), nextForAny(r, 2, 1), slotFor(r, 2, 0), nextForAny(r, 3, 1))
}

func refusesNewcomers(r *rig) {
	r.subscribe()
	owners := full(r, 2)
	r.one(permitFor(r, alice, 1, 0, 2))
	r.one(r.release(owners[0]).on(slot(r, 0)))
	got := r.one(permit(r, carol, 0, 2)).([]any)
	assert.Equal(r, answer("", got[1], -1, -1), got, "free, and kept")
	assert.LessOrEqual(r, got[1], int64(grace), "until the right ends")
	r.one(permit(r, owners[1], 1, 2).with(argTTL, "20000"))
	got = r.one(permit(r, carol, 1, 2)).([]any)
	r.left(20_000, got[1], "the slot that ends first")
	lapses(r, 1)
	got = r.one(permit(r, carol, 0, 2)).([]any)
	assert.IsType(r, int64(0), got[0])
}

func skipsForASlot(r *rig) {
	r.subscribe()
	for _, c := range []struct {
		dead int
		want int64
	}{{63, wire.HandedOn}, {64, 1}} {
		r.admin("FLUSHALL")
		owners := full(r, 1)
		r.one(permitFor(r, alice, 1, 0, 1))
		for n := range c.dead {
			dead := strings.Repeat("e", wire.ManagerLen) + permitTicket(n, 1)[wire.ManagerLen:]
			r.admin("ZADD", wire.QueueKey(family(r)), "5", dead)
		}
		assert.Equal(r, c.want, r.one(r.release(owners[0]).on(slot(r, 0))), "%d", c.dead)
		slotQueue(r)
		if c.want == 1 {
			admitted(r)
			r.woken(wake{wire.WakeAskAgain, name(1), family(r)})
		} else {
			admitted(r, 1)
			r.woken(slotFor(r, 1, 0))
		}
	}
}

func letsInSoMany(r *rig) {
	const limit = 70
	r.subscribe()
	var want []int
	for n := range limit {
		r.admin("ZADD", wire.QueueKey(family(r)), enqueuedAt(n), permitTicket(n, limit))
		want = append(want, n)
	}
	r.admin("SET", r.hint, "1")
	asks := permitFor(r, carol, limit, 0, limit)
	for _, admits := range []int{64, limit} {
		got := r.one(asks).([]any)
		assert.Equal(r, answer("", got[1], limit-admits, -1), got, "the others come first")
		admitted(r, want[:admits]...)
	}
	for w := r.received(); w.kind != wire.WakeReserved || w.ticket != name(limit-1); {
		w = r.received()
	}
}

func queuesNobodyForASlot(r *rig) {
	full(r, 1)
	asks := permitFor(r, alice, 1, 0, 1)
	r.unchanged(func() {
		assert.EqualValues(r, -1, r.one(asks.with(argNotAfter, micros(r.micros()-1))).([]any)[2])
		r.flags = ""
		assert.EqualValues(r, -1, r.one(asks).([]any)[2])
		r.one(r.stay(alice, 1, "").on(slot(r, 0)).with(2, permitTicket(1, 1)))
		r.one(r.stay(alice, 1, "y").on(slot(r, 0)).with(2, permitTicket(1, 1)))
	})
	r.flags = "s"
	assert.EqualValues(r, 0, r.one(asks).([]any)[2])
}

func letsInBelowTheLimit(r *rig) {
	r.subscribe()
	owners := full(r, 3)
	r.one(permitFor(r, alice, 1, 0, 2))
	r.one(permitFor(r, alice, 2, 0, 3))
	r.one(r.release(owners[2]).on(slot(r, 2)))
	admitted(r)
	assert.EqualValues(r, -1, r.one(permit(r, carol, 2, 3)).([]any)[3], "nobody comes before the one with the smaller limit")
	r.one(r.release(owners[1]).on(slot(r, 1)))
	admitted(r, 1, 2)
	r.one(r.release(owners[0]).on(slot(r, 0)))
	admitted(r, 1, 2)
}

func yieldsASlot(r *rig) {
	r.subscribe()
	owners := full(r, 1)
	r.one(permitFor(r, alice, 1, 0, 1))
	r.one(permitFor(r, alice, 2, 0, 1))
	stays := func(n int, mode string) op {
		return r.stay(owners[0], n, mode).on(slot(r, 0)).with(2, permitTicket(n, 1))
	}
	assert.Equal(r, int64(wire.HandedOn), r.one(stays(0, "y")))
	admitted(r, 1)
	assert.Equal(r, []any{permitTicket(0, 1), permitTicket(2, 1)}, r.admin("ZRANGE", family(r)+"\xffq", "0", "-1"))
	r.one(stays(1, ""))
	admitted(r, 1)
	assert.EqualValues(r, 2, r.admin("ZCARD", family(r)+"\xffq"), "let in meanwhile: no second turn")
	r.one(stays(1, "y"))
	admitted(r, 0) // it gives its right up, and the next is let in at once
	assert.Equal(r, []any{permitTicket(1, 1), permitTicket(2, 1)}, r.admin("ZRANGE", family(r)+"\xffq", "0", "-1"))
}

func recallsForASlot(r *rig) {
	r.subscribe()
	owners := full(r, 1)
	for n := 1; n <= 3; n++ {
		r.one(permitFor(r, alice, n, 0, 1))
	}
	r.one(r.release(owners[0]).on(slot(r, 0)))
	r.admin("ZREM", wire.SlotsKey(r.lock), name(1))
	r.woken(slotFor(r, 1, 0), nextForAny(r, 2, 1), nextForAny(r, 3, 2))
	got := r.one(permitFor(r, alice, 3, 0, 1).with(argMode+1, "l")).([]any)
	assert.IsType(r, int64(0), got[0])
	r.woken(wake{wire.WakeAskAgain, name(2), family(r)})
	slotQueue(r)
	admitted(r)
}

// The waiter that was let in has taken the slot, which the others do not hear.
func recallsNothingForFullSlots(r *rig) {
	r.subscribe()
	full(r, 1)
	for n := 1; n <= 3; n++ {
		r.one(permitFor(r, alice, n, 0, 1))
	}
	got := r.one(permitFor(r, alice, 2, 0, 1).with(argMode+1, "l")).([]any)
	assert.NotEqual(r, int64(0), got[1], "it is held")
	slotQueue(r, permitTicket(1, 1), permitTicket(2, 1), permitTicket(3, 1))
}

func keepsSlots(r *rig) {
	r.subscribe()
	r.flags = knows
	t := r.micros()
	on := func(o op) op { return o.on(slot(r, 0)) }
	r.one(permit(r, alice, 0, 1).with(1, wire.Compose(alice, t, metadata)).with(4, micros(t)))
	assert.Equal(r, int64(1), r.one(on(r.extend(alice, t))))
	r.one(permitFor(r, bob, 1, 0, 1))
	assert.Equal(r, answer(1, 1, ""), r.one(on(r.extend(alice, t))), "one waits")
	assert.Equal(r, answer(t, 1), r.one(on(r.raise(alice, t+2))))
	r.admin("DEL", slot(r, 0))
	assert.Equal(r, int64(1), r.one(on(r.heal(alice))))
	assert.Equal(r, []string{alice}, owned(r, 1))
}

func permitsAreApart(r *rig) {
	r.subscribe()
	r.holdsAgainst(1)
	assert.IsType(r, int64(0), r.one(permit(r, bob, 0, 1)).([]any)[0])
	r.one(permitFor(r, carol, 2, 0, 1))
	assert.Equal(r, int64(wire.HandedOn), r.one(r.release(alice)))
	r.reserved(1)
	admitted(r)
	assert.Equal(r, int64(wire.HandedOn), r.one(r.release(bob).on(slot(r, 0))))
	admitted(r, 2)
}
