package conformance

import (
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var registerCases = []testCase{
	{"a register moves to the proposal when it is below", (*rig).movesToTheProposal},
	{"a register at or above the proposal does not move, and the lock is granted all the same", (*rig).staysAhead},
	{"a register moves no further ahead of the node's clock than the cap", (*rig).movesToTheCap},
	{"the only node moves its register with every grant", (*rig).movesTheOnlyNode},
	{"a waiter is answered where its register stood before", (*rig).answersBefore},
	{"every register counts as the base at least", (*rig).countsAsTheBase},
	{"a register beyond all numbers is ahead", (*rig).staysBeyondNumbers},
	{"nothing but acquire and raise touches a register", (*rig).touchesNoRegister},
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
			assert.Equal(r, wire.Compose(alice, 0, metadata), r.admin("GET", r.lock), what)
			r.left(keyLife, r.pttl(r.lock), what)
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
		assert.GreaterOrEqual(r, moved, began+Ahead.Microseconds())
		assert.LessOrEqual(r, moved, r.micros()+Ahead.Microseconds())
		assert.Equal(r, from, got[1], "case %d", i)
		assert.Equal(r, moved, r.register())
		assert.Equal(r, wire.Compose(alice, moved, metadata), r.admin("GET", r.lock))
		r.left(keyLife, r.pttl(r.lock))
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
		assert.Equal(r, granted(from+2, from), r.one(r.acquire(alice, t)), "the next number may be a reader's token")
		assert.Equal(r, from+2, r.register())
		assert.Equal(r, from+2, r.value().Token)
		assert.Equal(r, granted(from+2, from+1), r.one(r.acquire(alice, t)), "asked again")
	}
	r.one(r.release(alice))
	r.admin("SET", r.base, micros(t+2*hour+1))
	assert.Equal(r, granted(t+2*hour+2, t+2*hour+1), r.one(r.acquire(alice, t)))
	r.flags = "s1"
	r.one(r.release(alice))
	assert.Equal(r, granted(t+2*hour+4, t+2*hour+2), r.one(r.waitFor(alice, 1, t)))
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

func (r *rig) touchesNoRegister() {
	t := r.holds(alice)
	others := r.everyOperation(alice)
	for _, name := range []string{"acquire", "wait", "raise"} {
		delete(others, name)
	}
	for _, register := range []int64{0, t - hour, t, t + hour} {
		for _, lock := range []string{wire.Compose(alice, t, metadata), wire.Compose(alice, 0, metadata), "", "x", ticket(9)[:wire.TicketLen] + " w "} {
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

func (r *rig) registersAreApart() {
	t := r.holds(alice)
	other := wire.LockKey(r.server.Prefix, "l2")
	assert.Equal(r, int64(1), r.one(r.acquire(alice, 5).on(other)))
	assert.Equal(r, t, r.register())
	assert.Equal(r, "5", r.admin("ZSCORE", r.registers, other))
}
