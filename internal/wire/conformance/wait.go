package conformance

import (
	"strconv"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/wire"
)

var waitCases = []testCase{
	{"a waiter is queued once, and its position is answered", (*rig).queues},
	{"the queue and the hint have an end, which every ticket puts off", (*rig).queueEnds},
	{"without the hint nobody looks for a queue", (*rig).hintTells},
	{"a waiter that the node cannot wake is not queued", (*rig).queuesSubscribers},
	{"a waiter that comes too late is not queued", (*rig).queuesNobodyLate},
	{"without fencing waiters queue, and there are no registers", (*rig).queuesUnfenced},
	{"a waiter that is granted a lock leaves the queue", (*rig).grantsAndDequeues},
	{"the next waiter of the releaser's own process enters the queue, and may get the lock", (*rig).enters},
	{"waiters that do not listen any more are skipped, and so is what is no ticket", (*rig).skips},
	{"a script skips 64 tickets at most, and the asker's own ticket leaves", (*rig).skipsSoMany},
	{"a queue of another type is an error and leaves no lock", (*rig).queueOfAnotherType},
}

func (r *rig) queues() {
	r.subscribe()
	r.holdsAgainst()
	for _, c := range []struct {
		waiter   int
		position int64
	}{{2, 0}, {3, 1}, {2, 0}, {3, 1}, {1, 0}, {3, 2}, {2, 1}} {
		got := r.one(r.wait(bob, c.waiter)).([]any)
		assert.Equal(r, alice, wire.ParseValue(got[0].(string)).Owner)
		r.left(keyLife, got[1])
		assert.Equal(r, c.position, got[2], "waiter %d", c.waiter)
	}
	assert.EqualValues(r, -1, r.position(r.one(r.acquire(bob, r.micros()))), "it does not wait")
	r.queued(1, 2, 3)
	assert.Equal(r, enqueuedAt(2), r.admin("ZSCORE", r.queue, ticket(2)))
	r.woken()
}

func (r *rig) queueEnds() {
	r.subscribe()
	lives := func(what string) {
		r.Helper()
		for _, key := range []string{r.queue, r.hint} {
			r.left(60000, r.pttl(key), what)
			r.admin("PEXPIRE", key, "10000")
		}
	}
	r.holdsAgainst(1)
	lives("a waiter that is refused")
	r.enqueues(bob, 2)
	lives("another waiter that is refused")
	r.enqueues(bob, 1)
	lives("the first, which asks again")
	r.one(r.stay(bob, 1, ""))
	lives("a waiter that goes on waiting")
	r.one(r.stay(bob, 1, "y"))
	lives("a waiter that yields")
	r.admin("DEL", r.lock)
	r.enqueues(bob, 3)
	lives("a waiter that comes to a free lock behind others")
}

func (r *rig) hintTells() {
	r.subscribe()
	r.holdsAgainst(1)
	r.admin("DEL", r.hint, r.lock)
	t := r.micros()
	assert.Equal(r, []any{int64(1), int64(1)}, r.apply(r.acquire(bob, t), r.release(bob)), "the fast way")
	r.queued(1)
	r.woken()

	// A ticket that comes in the same call counts from then on.
	r.admin("DEL", r.queue)
	assert.Equal(r, []any{int64(1), int64(0), int64(2)}, func() []any {
		got := r.apply(r.acquire(carol, t+5), r.wait(bob, 1), r.release(carol))
		return []any{got[0], r.position(got[1]), got[2]}
	}())
	r.reserved(1)
	assert.Equal(r, "1", r.admin("GET", r.hint))
}

func (r *rig) queuesSubscribers() {
	r.holdsAgainst()
	for _, flags := range []string{"", "1"} {
		r.flags = flags
		r.unchanged(func() { assert.EqualValues(r, -1, r.enqueues(bob, 1)) })
		r.unchanged(func() { r.one(r.stay(bob, 1, "")) })
		r.unchanged(func() { r.one(r.stay(bob, 1, "y")) })
	}
	r.flags = "s1"
	assert.EqualValues(r, 0, r.enqueues(bob, 1))
}

func (r *rig) queuesNobodyLate() {
	r.subscribe()
	r.holdsAgainst()
	late := r.wait(bob, 1).with(argNotAfter, micros(r.micros()-1))
	r.unchanged(func() { assert.EqualValues(r, -1, r.position(r.one(late))) })
	r.enqueues(bob, 2)
	r.admin("DEL", r.lock)
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(late)) })
	r.queued(2)
	r.woken()
}

func (r *rig) queuesUnfenced() {
	r.capText = ""
	r.subscribe(func(c *node.Config) { c.Cap = 0 })
	require.Equal(r, int64(1), r.one(r.acquire(alice, 0)))
	assert.EqualValues(r, 0, r.enqueues(bob, 1))
	assert.EqualValues(r, 1, r.enqueues(bob, 2))
	assert.Equal(r, int64(wire.HandedOn), r.one(r.release(alice)))
	r.reserved(1, 2)
	assert.Equal(r, granted(0, 0, 1), r.one(r.waitFor(bob, 1, 0)), "the number of waiters")
	assert.Equal(r, wire.Compose(bob, 0, metadata), r.admin("GET", r.lock))
	assert.Equal(r, int64(1), r.one(r.waitFor(bob, 1, 0)), "asked again")
	r.queued(2)
	r.absent(r.registers, r.base)
}

func (r *rig) grantsAndDequeues() {
	r.subscribe()
	for what, prepare := range map[string]func(){
		"a free lock": func() { r.admin("DEL", r.lock) },
		"a reservation": func() {
			r.admin("SET", r.lock, name(1)+" w ", "PX", "60000")
			r.admin("ZADD", r.queue, enqueuedAt(1), ticket(1)) // it has asked again in between
		},
	} {
		r.admin("DEL", r.registers, r.queue, r.lock)
		r.holdsAgainst(1, 2)
		prepare()
		t := r.micros() + 2
		assert.IsType(r, []any{}, r.one(r.waitFor(carol, 1, t)), what)
		assert.Equal(r, carol, r.value().Owner, what)
		r.queued(2)
		assert.Equal(r, granted(t, t-1), r.one(r.waitFor(carol, 1, t)), "%s, asked again", what)
		r.queued(2)
	}
	r.woken()
}

func (r *rig) enters() {
	r.subscribe()
	r.holds(alice)
	assert.Equal(r, int64(wire.Ours), r.one(r.stay(alice, 1, "")))
	r.reserved(1)
	r.queued()
	r.admin("DEL", r.lock, r.registers)

	r.holdsAgainst(2, 3)
	assert.Equal(r, int64(wire.HandedOn), r.one(r.stay(alice, 4, "")), "those who came before go first")
	r.reserved(2, 3, 4)
	r.queued(3, 4)
	r.admin("DEL", r.lock, r.registers, r.queue)

	r.holdsAgainst(1)
	assert.Equal(r, int64(wire.HandedOn), r.one(r.stay(alice, 2, "f")))
	r.absent(r.lock)
	r.woken(r.freeFor(1))
	r.queued(1, 2)
	r.admin("SET", r.lock, "x")
	assert.Equal(r, int64(-1), r.one(r.stay(alice, 3, "")), "of a lock that was not the releaser's")
	r.queued(1, 2, 3)
	r.woken()
}

func (r *rig) skips() {
	id := name(9)
	members := []string{
		"", "x", Manager, id, id + "0", id + "1000", id + "-5", id + "1.5", id + "1e1", id + "9 ", id[1:] + "90", id + "\x0090",
		strings.Repeat("f", wire.TicketLen) + "90", strings.ToUpper(Manager) + id[wire.ManagerLen:] + "90", strings.Repeat("v", 100),
	}
	stuff := func() {
		for _, m := range members {
			r.admin("ZADD", r.queue, "5", m)
		}
	}
	r.subscribe()
	r.holdsAgainst(1)
	stuff()
	assert.Equal(r, int64(wire.HandedOn), r.one(r.release(alice)))
	r.reserved(1)
	r.queued()
	r.admin("DEL", r.lock)
	stuff()
	assert.IsType(r, []any{}, r.one(r.acquire(bob, r.micros()+second)))
	assert.Equal(r, bob, r.value().Owner)
	r.queued()
	r.woken()
}

func (r *rig) skipsSoMany() {
	r.subscribe()
	stuff := func(dead int, mark string) {
		for n := range dead {
			r.admin("ZADD", r.queue, "5", strconv.Itoa(n)+mark)
		}
	}
	for _, mark := range []string{"", "s"} { // a writer's, a reader's
		for _, c := range []struct {
			dead int
			want int64
		}{{63, wire.HandedOn}, {64, 1}} {
			r.admin("DEL", r.lock, r.queue, r.registers)
			r.holdsAgainst(1)
			stuff(c.dead, mark)
			assert.Equal(r, c.want, r.one(r.release(alice)), "%d%s", c.dead, mark)
			if c.want == 1 {
				r.absent(r.lock)
				r.woken(r.asksAgain(1)) // any number of waiters behind it may not listen
				r.queued()
				break
			}
			r.reserved(1)
			r.queued()
		}
	}

	r.admin("DEL", r.lock, r.queue, r.registers)
	r.holdsAgainst(1, 2)
	stuff(64, "")
	r.admin("DEL", r.lock)
	t := r.micros() + 2
	assert.IsType(r, []any{}, r.one(r.waitFor(carol, 2, t)))
	assert.Equal(r, carol, r.value().Owner)
	r.queued()
	r.woken(r.asksAgain(1), r.asksAgain(2))
}

func (r *rig) queueOfAnotherType() {
	r.subscribe()
	r.admin("SET", r.queue, "theirs")
	r.admin("SET", r.hint, "1")
	r.unchanged(func() {
		r.fails(r.one(r.acquire(alice, r.micros())))
		r.fails(r.one(r.wait(alice, 1)))
		r.fails(r.one(r.pass(1)))
	})
	r.admin("SET", r.lock, wire.Compose(alice, 1, metadata))
	r.fails(r.one(r.wait(bob, 1)))
	assert.EqualValues(r, -1, r.position(r.one(r.acquire(bob, r.micros()))), "without a ticket")
	r.one(r.release(alice))
	r.absent(r.lock)
	assert.Equal(r, "theirs", r.admin("GET", r.queue))
}
