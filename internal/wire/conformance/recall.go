package conformance

import (
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var recallCases = []testCase{
	{"an asker that has waited out a reservation empties the queue, wakes everybody in it, and gets the lock", (*rig).recallsAndGrants},
	{"an asker that has waited out a reservation empties no more of a long queue than a script has time for", (*rig).recallsAPart},
	{"one script drops and recalls so many tickets of the dead, and leaves the others to the next", (*rig).sparesTheServer},
	{"a waiter behind more dead ones than a script recalls still comes before a newcomer", leavesTheRestOfTheQueue},
	{"an asker that has waited out a reservation gets nothing of a lock that is taken", (*rig).lapsedButTaken},
}

// One script takes no more tickets than it has time for.
func (r *rig) recallsAPart() {
	add := []string{"ZADD", r.queue}
	for i := range 501 {
		add = append(add, enqueuedAt(i), ticket(i))
	}
	r.admin(add...)
	r.admin("SET", r.hint, "1")
	r.one(r.wait(carol, 600).with(argMode, "l"))
	assert.Equal(r, carol, r.value().Owner)
	assert.Equal(r, []any{ticket(500)}, r.admin("ZRANGE", r.queue, "0", "-1"))
}

// A script takes hardly more time for the dead of many queues than for the dead of one.
func (r *rig) sparesTheServer() {
	const each = 600
	r.subscribe()
	dead := strings.Repeat("e", wire.ManagerLen)
	for what, c := range map[string]struct {
		lock   func(int) string
		ticket func(int) string
	}{
		"locks": {func(i int) string { return r.lock + strconv.Itoa(i) }, ticket},
		"slots": {func(i int) string { return wire.SlotKey(r.lock+strconv.Itoa(i), 0) }, func(n int) string { return permitTicket(n, 1) }},
	} {
		r.admin("SET", r.hint, "1")
		var ops []op
		queued := func() (count int64) {
			for _, o := range ops {
				queue, _, _ := wire.Companions(o.key)
				count += r.admin("ZCARD", queue).(int64)
			}
			return count
		}
		for i := range 8 {
			queue, _, _ := wire.Companions(c.lock(i))
			add := []string{"ZADD", queue}
			for n := range each {
				add = append(add, enqueuedAt(n), dead+c.ticket(n)[wire.ManagerLen:])
			}
			r.admin(add...)
			r.admin("SET", c.lock(i), wire.Compose(alice, 7, metadata), "PX", "60000")
			ops = append(ops, r.release(alice).on(c.lock(i)))
		}
		lives, _, _ := wire.Companions(c.lock(7))
		r.admin("ZADD", lives, "0", c.ticket(1))
		before := queued()
		got := r.apply(ops...)
		assert.Equal(r, append(slices.Repeat([]any{int64(1)}, 7), int64(wire.HandedOn)), got, "%s: a head that lives is served all the same", what)
		took := before - queued()
		assert.Greater(r, took, int64(564), what)
		assert.Less(r, took, int64(1100), what)
		for range 20 {
			r.apply(ops[:7]...)
		}
		assert.Equal(r, int64(each), queued(), "%s: the next scripts continue", what)
		for len(r.wakes) > 0 {
			<-r.wakes
		}
	}
}

func (r *rig) recallsAndGrants() {
	r.subscribe()
	r.holdsAgainst(1, 2, 3, 4)
	r.admin("DEL", r.lock)
	t := r.micros() + 2
	got := r.one(r.waitFor(carol, 2, t).with(argMode, "l")).([]any)
	assert.Equal(r, t, got[0])
	assert.Equal(r, carol, r.value().Owner)
	r.absent(r.queue)
	r.woken(r.asksAgain(1), r.asksAgain(3), r.asksAgain(4))
	assert.EqualValues(r, 0, r.enqueues(bob, 1), "those who are alive come back")
	r.one(r.release(carol))
	r.reserved(1)

	r.admin("DEL", r.lock)
	assert.IsType(r, []any{}, r.one(r.waitFor(carol, 2, t+second).with(argMode, "l")), "there is no queue")
	assert.Equal(r, carol, r.value().Owner)
	r.woken()
}

func (r *rig) lapsedButTaken() {
	r.subscribe()
	for what, value := range map[string]string{"another's": wire.Compose(alice, 7, metadata), "reserved": name(1) + " w "} {
		r.admin("SET", r.lock, value)
		assert.EqualValues(r, 0, r.position(r.one(r.wait(bob, 2).with(argMode, "l"))), what)
		assert.Equal(r, value, r.admin("GET", r.lock))
		r.queued(2)
	}
	r.admin("DEL", r.lock)
	late := r.wait(bob, 2).with(argMode, "l").with(argNotAfter, micros(r.micros()-1))
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(late)) })
	r.woken()
}

func leavesTheRestOfTheQueue(r *rig) {
	r.subscribe()
	add := []string{"ZADD", wire.QueueKey(family(r))}
	for n := range 564 { // 64 are dropped, and 500 recalled
		add = append(add, enqueuedAt(n), strings.Repeat("e", wire.ManagerLen)+permitTicket(n, 1)[wire.ManagerLen:])
	}
	r.admin(append(add, enqueuedAt(600), permitTicket(600, 1))...)
	r.admin("SET", r.hint, "1")
	got := r.one(permit(r, carol, 0, 1)).([]any)
	assert.Equal(r, answer("", got[1], -1, -1), got)
	r.absent(slot(r, 0))
	slotQueue(r, permitTicket(600, 1))
	r.one(permit(r, carol, 0, 1))
	admitted(r, 600)
}
