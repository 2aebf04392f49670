package conformance

import (
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var acquireCases = []testCase{
	{"a free lock is granted and lives as long as asked", (*rig).grants},
	{"asking again with the same owner gets the first answer again", (*rig).repeats},
	{"asking again prolongs the lock and moves no register", (*rig).repeatsWithoutAMove},
	{"asking again too late prolongs nothing", (*rig).repeatsTooLate},
	{"a taken lock answers its holder and is not touched", (*rig).refuses},
	{"another client's lock is taken, whatever is in it", (*rig).strangers},
	{"a request that is too late locks nothing", (*rig).late},
	{"a key of another type is an error and is not touched", (*rig).wrongType},
	{"an acquisition that fails leaves no lock behind", (*rig).failsWithoutALock},
	{"without fencing nothing but the lock is written", (*rig).unfenced},
	{"the marker of other data refuses acquisitions and nothing else", (*rig).anotherMarker},
}

func (r *rig) grants() {
	t := r.micros()
	assert.Equal(r, int64(1), r.one(r.acquire(alice, t)))
	assert.Equal(r, wire.Compose(alice, t, metadata), r.admin("GET", r.lock))
	r.left(keyLife, r.pttl(r.lock))
	assert.Equal(r, t, r.register())
	assert.EqualValues(r, -1, r.pttl(r.registers), "registers have no TTL")
	assert.EqualValues(r, 2, r.admin("DBSIZE"), "the lock and the registers")
}

func (r *rig) repeats() {
	t := r.micros()
	for range 2 {
		r.one(r.acquire(alice, t))
		assert.Equal(r, granted(t, t-1), r.one(r.acquire(alice, t)))
	}
	require.Equal(r, answer(t, 0), r.one(r.raise(alice, t+5)))
	assert.Equal(r, granted(t+5, t+4), r.one(r.acquire(alice, t)), "after a raise it stands where it was raised to")

	r.admin("DEL", r.lock)
	ahead := r.micros() + hour
	r.setRegister(ahead)
	for range 3 {
		assert.Equal(r, granted(0, ahead), r.one(r.acquire(bob, r.micros())))
	}
	r.admin("DEL", r.lock)
	require.Equal(r, int64(1), r.one(r.heal(bob)))
	assert.Equal(r, granted(0, ahead), r.one(r.acquire(bob, ahead+1)), "a healed lock is at no token")
}

func (r *rig) repeatsWithoutAMove() {
	t := r.holds(alice)
	r.admin("PEXPIRE", r.lock, "20000")
	r.one(r.acquire(alice, t+second))
	r.left(keyLife, r.pttl(r.lock))
	assert.Equal(r, t, r.register())
	assert.Equal(r, t, r.value().Token)
}

func (r *rig) repeatsTooLate() {
	t := r.holds(alice)
	r.admin("PEXPIRE", r.lock, "60000")
	assert.Equal(r, int64(0), r.one(r.acquire(alice, t).with(argNotAfter, micros(t-second))))
	assert.Greater(r, r.pttl(r.lock), int64(50_000))
}

func (r *rig) refuses() {
	t := r.holds(alice)
	before := r.admin("GET", r.lock)
	for what, o := range map[string]op{
		"asked in time": r.acquire(bob, t+second), "asked too late": r.acquire(bob, t+second).with(argNotAfter, micros(t-second)),
		"asked by a waiter": r.wait(bob, 1).with(argNotAfter, micros(t-second)),
	} {
		r.unchanged(func() {
			got, ok := r.one(o).([]any)
			require.True(r, ok, what)
			require.Len(r, got, 3, what)
			assert.Equal(r, before, got[0], what)
			r.left(keyLife, got[1], what)
			assert.EqualValues(r, -1, got[2], what)
		})
	}
}

func (r *rig) strangers() {
	for _, value := range []string{
		"", "x", "\xff\x00\r\n", alice, bob, bob[1:] + "  0 ", alice + " ", alice + "0 1 - -", strings.Repeat("v", 100_000), strings.Repeat("v", 512),
	} {
		r.admin("SET", r.lock, value)
		r.unchanged(func() {
			assert.Equal(r, answer(value[:min(len(value), 512)], -1, -1), r.one(r.acquire(bob, r.micros())), "%.40q", value)
		})
	}
}

func (r *rig) late() {
	for _, queued := range []bool{false, true} {
		if queued {
			r.flags = ""
			r.admin("SET", r.hint, "1")
			r.admin("ZADD", r.queue, "1", ticket(1))
		}
		t := r.micros()
		r.unchanged(func() {
			assert.Equal(r, int64(0), r.one(r.acquire(alice, t).with(argNotAfter, micros(t-1))))
			assert.Equal(r, int64(0), r.one(r.wait(alice, 1).with(argNotAfter, micros(t-1))))
		})
	}
}

func (r *rig) wrongType() {
	r.admin("HSET", r.lock, "a", "b")
	for _, o := range r.everyOperation(alice) {
		r.unchanged(func() {
			r.fails(r.one(o))
		})
	}
}

func (r *rig) failsWithoutALock() {
	t := r.micros()
	for what, spoil := range map[string][]string{
		"registers of another type": {"SET", r.registers, "x"},
		"a base that is no number":  {"SET", r.base, "x"},
		"a base that is endless":    {"SET", r.base, "inf"},
		"a base that is no value":   {"SET", r.base, "nan"},
	} {
		r.admin("FLUSHALL")
		r.admin(spoil...)
		for name, o := range map[string]op{"acquire": r.acquire(alice, t), "wait": r.wait(alice, 1)} {
			r.unchanged(func() {
				assert.IsType(r, failed(""), r.one(o), "%s, %s", what, name)
			})
		}
		r.admin("SET", r.lock, ticket(1)[:wire.TicketLen]+" w ")
		assert.IsType(r, failed(""), r.one(r.wait(alice, 1)), "%s, reserved", what)
		r.absent(r.lock)
		r.admin("SET", r.lock, wire.Compose(alice, 0, metadata), "PX", "60000")
		r.unchanged(func() {
			assert.IsType(r, failed(""), r.one(r.acquire(alice, t)), "%s, asked again", what)
			assert.IsType(r, failed(""), r.one(r.raise(alice, t)), "%s, raised", what)
		})
		assert.Equal(r, int64(2), r.one(r.extend(alice, t)), what)
		assert.Equal(r, int64(1), r.one(r.release(alice)), what)
	}
}

func (r *rig) unfenced() {
	r.capText = ""
	for range 2 {
		assert.Equal(r, int64(1), r.one(r.acquire(alice, 0)), "granted, and granted again")
	}
	assert.Equal(r, wire.Compose(alice, 0, metadata), r.admin("GET", r.lock))
	assert.EqualValues(r, 1, r.admin("DBSIZE"))
	assert.Equal(r, int64(1), r.one(r.extend(alice, 0)))
	assert.Equal(r, int64(1), r.one(r.release(alice)))
	assert.EqualValues(r, 0, r.admin("DBSIZE"))
}

func (r *rig) anotherMarker() {
	r.admin("SET", r.marker, "of other data")
	r.known = "the client's"
	t := r.micros()
	r.unchanged(func() {
		assert.Equal(r, []any{int64(-1), int64(-1)}, r.apply(r.acquire(alice, t), r.wait(alice, 1)))
	})
	r.unchanged(func() {
		assert.Equal(r, int64(0), r.one(r.heal(alice).with(4, micros(r.micros()-1))), "behind the end of what was lost, a heal would be a vote")
	})
	assert.Equal(r, int64(1), r.one(r.heal(alice)))
	r.unchanged(func() { assert.Equal(r, answer(-1, 0), r.one(r.raise(alice, t)), "a raise would count") })
	assert.Equal(r, []any{int64(3), int64(1), int64(-1)}, r.apply(r.extend(alice, 0), r.release(alice), r.acquire(alice, t)),
		"that the key shows the token proves nothing")
	r.known = "of other data"
	assert.Equal(r, int64(1), r.one(r.acquire(alice, t)))
	assert.Equal(r, int64(1), r.one(r.extend(alice, t)))
	r.known = "the client's"
	r.admin("PEXPIRE", r.lock, "100000")
	assert.Equal(r, int64(3), r.one(r.extend(alice, t)))
	r.left(keyLife, r.pttl(r.lock))
	r.known = "of other data"
	r.admin("DEL", r.marker, r.lock)
	assert.Equal(r, int64(-1), r.one(r.acquire(alice, t+1)), "no marker is another one")
}
