package conformance

import (
	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var recallCases = []testCase{
	{"an asker that has waited out a reservation empties the queue, wakes everybody in it, and gets the lock", (*rig).recallsAndGrants},
	{"an asker that has waited out a reservation empties no more of a long queue than a script has time for", (*rig).recallsAPart},
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
