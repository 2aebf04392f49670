package conformance

import (
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var resumeCases = []testCase{
	{"resume replaces the owner that it names, and moves the register", resumes},
	{"resume takes no lock that is missing, another's, reserved or revoked", resumesOnlyTheOwners},
	{"of two that resume one lock, the second is refused", resumesOnce},
	{"resume is refused where the data may be old, and when it is late", resumesOnlyKnownData},
	{"a node reads the answers to a resume", readsResumes},
}

func resumes(r *rig) {
	t := r.holds(alice)
	r.admin("PEXPIRE", r.lock, "100000")
	assert.Equal(r, granted(t+1, t), r.one(resume(r, bob, alice, t+1)))
	assert.Equal(r, wire.Compose(bob, t+1, metadata), r.admin("GET", r.lock))
	assert.Equal(r, t+1, r.register())
	assert.InDelta(r, 5000, r.pttl(r.lock), 1000)
	r.unchanged(func() {
		assert.Equal(r, granted(t+1, t), r.one(resume(r, bob, alice, t+1)), "asked again, the same answer")
		assert.Equal(r, int64(-1), r.one(r.extend(alice, t)), "a late renewal of the one that has detached it")
		assert.Equal(r, int64(-1), r.one(r.heal(alice)))
		assert.Equal(r, int64(-1), r.one(r.release(alice)))
	})
	assert.Equal(r, granted(0, t+1), r.one(resume(r, carol, bob, t)), "the register is ahead")
	assert.Zero(r, r.value().Token)
	r.one(ask(r, carol, note))
	assert.Equal(r, granted(t+9, t+1), r.one(resume(r, alice, carol, t+9)))
	assert.False(r, r.value().Asked, "who was asked has given it up")
}

func resumesOnlyTheOwners(r *rig) {
	t := r.micros()
	r.unchanged(func() {
		assert.Equal(r, answer("", -2, -1), r.one(resume(r, bob, alice, t)), "it may have been another's since")
	})
	for _, value := range []string{"", "x", alice, alice + "x", alice + " w ", alice + " x 7 - - ", wire.Compose(carol, 7, metadata)} {
		r.admin("SET", r.lock, value, "PX", "2000")
		r.unchanged(func() {
			got, ok := r.one(resume(r, bob, alice, t)).([]any)
			require.True(r, ok, "%q", value)
			assert.Equal(r, value, got[0])
		})
		assert.LessOrEqual(r, r.pttl(r.lock), int64(2000))
	}
	r.admin("DEL", r.lock)
	r.admin("SET", r.hint, "1")
	r.admin("ZADD", r.queue, "1", ticket(1))
	r.unchanged(func() { assert.Equal(r, answer("", -2, -1), r.one(resume(r, bob, alice, t)), "nobody is served by it") })
}

func resumesOnce(r *rig) {
	t := r.holds(alice)
	got := r.apply(resume(r, bob, alice, t+1), resume(r, carol, alice, t+2))
	assert.Equal(r, granted(t+1, t), got[0])
	assert.Equal(r, wire.Compose(bob, t+1, metadata), got[1].([]any)[0])
}

func resumesOnlyKnownData(r *rig) {
	t := r.holds(alice)
	r.unchanged(func() {
		assert.Equal(r, int64(0), r.one(resume(r, bob, alice, t+1).with(argNotAfter, micros(r.micros()-1))))
		r.known = "another marker"
		assert.Equal(r, int64(-1), r.one(resume(r, bob, alice, t+1)))
	})
}

func readsResumes(r *rig) {
	t := r.holds(alice)
	from := func(owner string) func(*wire.Acquisition) { return func(a *wire.Acquisition) { a.From = owner } }
	got := r.do(r.request(bob, t+second, from(carol)))
	assert.Equal(r, wire.Taken, got.Status)
	assert.Equal(r, wire.Compose(alice, t, metadata), got.Held)
	got = r.do(r.request(bob, t+second, from(alice)))
	assert.Equal(r, []any{wire.Granted, t + second, t}, []any{got.Status, got.Moved, got.Before})
	got = r.do(r.releasing(bob))
	assert.EqualValues(r, wire.Ours, got.N)
	got = r.do(r.request(bob, t+2*second, from(alice)))
	assert.Equal(r, []any{wire.Taken, ""}, []any{got.Status, got.Held})
}
