package conformance

import (
	"strconv"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/node"
)

var registerCases = []testCase{
	{"a register moves to the proposal when it is below", (*rig).movesToTheProposal},
	{"a register at or above the proposal does not move, and the lock is granted all the same", (*rig).staysAhead},
	{"a register moves no further ahead of the node's clock than the cap", (*rig).movesToTheCap},
	{"the only node moves its register with every grant", (*rig).movesTheOnlyNode},
	{"a waiter is answered where its register stood before", (*rig).answersBefore},
	{"every register counts as the base at least", (*rig).countsAsTheBase},
	{"a register beyond all numbers is ahead", (*rig).staysBeyondNumbers},
	{"raise moves the register of a lock that is ours, and only up", (*rig).raises},
	{"raise is refused to everybody else and makes no register", (*rig).raisesOnlyOurs},
	{"nothing but acquire and raise touches a register", (*rig).touchesNoRegister},
	{"forget drops old registers, so many at most, and raises the base to them", (*rig).forgets},
	{"forget with nothing to forget changes nothing", (*rig).forgetsNothing},
	{"the base never goes back", (*rig).baseOnlyGrows},
	{"registers of different locks are apart", (*rig).registersAreApart},
}

func (r *rig) movesToTheProposal() {
	now := r.micros()
	for _, t := range []int64{1, 17, now - hour, now - 1, now, now + second} {
		assert.Equal(r, int64(1), r.one(r.acquire(alice, t)), "%d", t)
		assert.Equal(r, t, r.register())
		assert.Equal(r, t, r.value().Token)
		r.one(r.release(alice))
	}
}

func (r *rig) staysAhead() {
	t := r.micros()
	for _, ahead := range []int64{t, t + 1, t + hour} {
		r.setRegister(ahead)
		for what, o := range map[string]op{"acquire": r.acquire(alice, t), "wait": r.waitFor(alice, 1, t)} {
			assert.Equal(r, granted(0, ahead), r.one(o), what)
			assert.Equal(r, ahead, r.register(), what)
			assert.Equal(r, node.Compose(alice, 0, metadata), r.admin("GET", r.lock), what)
			assert.InDelta(r, 5000, r.pttl(r.lock), 1000, what)
			r.one(r.release(alice))
		}
	}
}

func (r *rig) movesToTheCap() {
	r.setRegister(7)
	for i, o := range []op{r.acquire(alice, r.micros()+hour), r.waitFor(alice, 1, r.micros()+hour), r.acquire(alice, 1<<52)} {
		from := r.register()
		began := r.micros()
		got, ok := r.one(o).([]any)
		require.True(r, ok, "%v", got)
		require.Len(r, got, 3)
		moved := got[0].(int64)
		assert.GreaterOrEqual(r, moved, began+moveCap.Microseconds())
		assert.LessOrEqual(r, moved, r.micros()+moveCap.Microseconds())
		assert.Equal(r, from, got[1], "case %d", i)
		assert.Equal(r, moved, r.register())
		assert.Equal(r, node.Compose(alice, moved, metadata), r.admin("GET", r.lock))
		assert.InDelta(r, 5000, r.pttl(r.lock), 1000)
		r.one(r.release(alice))
	}
}

func (r *rig) movesTheOnlyNode() {
	r.flags = "1"
	t := r.micros()
	assert.Equal(r, int64(1), r.one(r.acquire(alice, t)))
	for _, from := range []int64{t, t + hour} {
		r.one(r.release(alice))
		r.setRegister(from)
		assert.Equal(r, granted(from+1, from), r.one(r.acquire(alice, t)))
		assert.Equal(r, from+1, r.register())
		assert.Equal(r, from+1, r.value().Token)
		assert.Equal(r, granted(from+1, from), r.one(r.acquire(alice, t)), "asked again")
	}
	r.one(r.release(alice))
	r.admin("SET", r.base, micros(t+2*hour))
	assert.Equal(r, granted(t+2*hour+1, t+2*hour), r.one(r.acquire(alice, t)))
	r.flags = "s1"
	r.one(r.release(alice))
	assert.Equal(r, granted(t+2*hour+2, t+2*hour+1), r.one(r.waitFor(alice, 1, t)))
}

func (r *rig) answersBefore() {
	t := r.micros()
	assert.Equal(r, granted(t, 0), r.one(r.waitFor(alice, 1, t)))
	r.one(r.release(alice))
	assert.Equal(r, granted(t+10, t), r.one(r.waitFor(alice, 1, t+10)))
	assert.Equal(r, t+10, r.value().Token)
	r.one(r.release(alice))
	r.admin("SET", r.base, micros(t+12))
	assert.Equal(r, granted(t+20, t+12), r.one(r.waitFor(alice, 1, t+20)))
}

func (r *rig) countsAsTheBase() {
	t := r.micros()
	r.admin("SET", r.base, micros(t))
	assert.Equal(r, granted(0, t), r.one(r.acquire(alice, t)), "no register")
	r.absent(r.registers)
	assert.Equal(r, answer(t, 0), r.one(r.raise(alice, t+1)))
	r.one(r.release(alice))
	r.setRegister(t - 5)
	assert.Equal(r, granted(0, t), r.one(r.acquire(alice, t-1)), "a register below it")
	assert.Equal(r, answer(-1, 0), r.one(r.raise(alice, t)))
	assert.Equal(r, t-5, r.register())
	assert.Equal(r, t, r.one(r.read()).([]any)[2])
	r.one(r.release(alice))
	assert.Equal(r, int64(1), r.one(r.acquire(alice, t+1)))
}

func (r *rig) staysBeyondNumbers() {
	const beyond = 1 << 53 // + 1 is the same number
	for _, flags := range []string{"s", "s1"} {
		r.flags = flags
		r.admin("DEL", r.lock)
		r.setRegister(beyond)
		assert.Equal(r, granted(0, beyond), r.one(r.acquire(alice, r.micros())), "flags %q", flags)
		assert.Zero(r, r.value().Token)
		assert.EqualValues(r, beyond, r.register())
	}
	r.flags = "s"
	for _, score := range []string{"inf", "1e300"} {
		r.admin("DEL", r.lock)
		r.admin("ZADD", r.registers, score, r.lock)
		got, ok := r.one(r.acquire(alice, r.micros())).([]any)
		require.True(r, ok)
		assert.EqualValues(r, 0, got[0], "%s is ahead", score)
		assert.Zero(r, r.value().Token)
	}
}

func (r *rig) raises() {
	t := r.holds(alice)
	r.admin("PEXPIRE", r.lock, "100000")
	assert.Equal(r, answer(t, 0), r.one(r.raise(alice, t+3)))
	assert.Equal(r, t+3, r.register())
	assert.Equal(r, node.Compose(alice, t+3, metadata), r.admin("GET", r.lock))
	assert.Greater(r, r.pttl(r.lock), int64(50_000), "the lock lives as long as before")
	r.unchanged(func() {
		for _, to := range []int64{t + 3, t, 1} {
			assert.Equal(r, answer(-1, 0), r.one(r.raise(alice, to)), "not up")
		}
	})
	assert.Equal(r, answer(t+3, 0), r.one(r.raise(alice, t+hour)), "no cap: the largest of some nodes is within it")
	assert.Equal(r, int64(1), r.one(r.extend(alice, t+hour)))

	r.one(r.release(alice))
	r.setRegister(t + 2*hour)
	r.one(r.acquire(bob, t))
	assert.Equal(r, answer(t+2*hour, 0), r.one(r.raise(bob, t+2*hour+1)), "a node that was ahead")
	assert.Equal(r, int64(1), r.one(r.extend(bob, t+2*hour+1)))
}

func (r *rig) raisesOnlyOurs() {
	r.unchanged(func() { assert.Equal(r, answer(-1, 0), r.one(r.raise(alice, r.micros()))) })
	t := r.holds(bob)
	r.unchanged(func() { assert.Equal(r, answer(-1, 0), r.one(r.raise(alice, t+hour))) })
	for _, value := range []string{"", alice, ticket(1)[:node.TicketLen] + " w "} {
		r.admin("SET", r.lock, value)
		r.unchanged(func() {
			assert.Equal(r, answer(-1, 0), r.one(r.raise(alice, t+hour)), "%q", value)
		})
	}
}

func (r *rig) touchesNoRegister() {
	t := r.holds(alice)
	others := r.everyOperation(alice)
	for _, name := range []string{"acquire", "wait", "raise"} {
		delete(others, name)
	}
	for _, register := range []int64{0, t - hour, t, t + hour} {
		for _, lock := range []string{node.Compose(alice, t, metadata), node.Compose(alice, 0, metadata), "", "x", ticket(9)[:node.TicketLen] + " w "} {
			for name, o := range others {
				r.admin("DEL", r.registers, r.lock)
				if register > 0 {
					r.setRegister(register)
				}
				if lock != "" {
					r.admin("SET", r.lock, lock)
				}
				r.one(o)
				assert.Equal(r, register, r.register(), "%s of %q", name, lock)
				r.absent(r.base)
			}
		}
	}
	// Nor does an acquisition that is refused.
	r.setRegister(t)
	r.admin("SET", r.lock, "x")
	r.apply(r.acquire(bob, t+hour), r.wait(bob, 1))
	assert.Equal(r, t, r.register())
}

func (r *rig) forgets() {
	now := r.micros()
	for i := range int64(7) {
		r.admin("ZADD", r.registers, micros(now-2*hour-i), "old "+strconv.FormatInt(i, 10))
	}
	r.admin("ZADD", r.registers, micros(now-hour/2), "young", micros(now+hour), "ahead")
	assert.Equal(r, int64(3), r.one(r.forget(3)), "the oldest")
	assert.Equal(r, micros(now-2*hour-4), r.admin("GET", r.base))
	assert.EqualValues(r, -1, r.pttl(r.base))
	assert.Equal(r, []any{int64(3), int64(1)}, r.apply(r.forget(3), r.forget(3)))
	assert.Equal(r, []any{"young", "ahead"}, r.admin("ZRANGE", r.registers, "0", "-1"))
	assert.Equal(r, micros(now-2*hour), r.admin("GET", r.base))
	assert.Equal(r, granted(0, now-2*hour), r.one(r.acquire(alice, now-2*hour)))
	r.admin("DEL", r.lock)
	r.admin("ZADD", r.registers, micros(now-2*hour+5), r.lock)
	assert.Equal(r, []any{int64(1), granted(0, now-2*hour+5)}, r.apply(r.forget(3), r.acquire(alice, now-2*hour+3)), "it counts at once")
}

func (r *rig) forgetsNothing() {
	r.admin("ZADD", r.registers, "5", "old")
	for _, garbage := range []string{"x", "inf", "nan", ""} {
		r.admin("SET", r.base, garbage)
		r.unchanged(func() {
			assert.Equal(r, int64(0), r.one(r.forget(3)), "a base that cannot be raised: %q", garbage)
		})
	}
	r.admin("DEL", r.registers, r.base)
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(r.forget(3))) })
	r.holds(alice)
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(r.forget(3))) })
}

func (r *rig) baseOnlyGrows() {
	now := r.micros()
	r.admin("SET", r.base, micros(now))
	r.admin("ZADD", r.registers, micros(now-2*hour), "old")
	assert.Equal(r, int64(1), r.one(r.forget(3)))
	assert.Equal(r, micros(now), r.admin("GET", r.base))
	r.one(r.guard("run", hour/1000, "0", "0"))
	before, err := strconv.ParseInt(r.admin("GET", r.base).(string), 10, 64)
	require.NoError(r, err)
	assert.InDelta(r, now+hour, before, float64(5*second))
	r.admin("SET", r.base, micros(now+9*hour))
	r.one(r.guard("another run", hour/1000, "0", "0"))
	assert.Equal(r, micros(now+9*hour), r.admin("GET", r.base))
}

func (r *rig) registersAreApart() {
	t := r.holds(alice)
	other := node.LockKey(r.server.Prefix, "l2")
	assert.Equal(r, int64(1), r.one(r.acquire(alice, 5).on(other)))
	assert.Equal(r, t, r.register())
	assert.Equal(r, "5", r.admin("ZSCORE", r.registers, other))
}
