package conformance

import (
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var resumeCases = []testCase{
	{"a detached lock lives as long as asked for, whatever its holder has sent", detaches},
	{"resume replaces the owner that it names, and moves the register", resumes},
	{"resume takes no lock that is missing, another's, reserved or revoked", resumesOnlyTheOwners},
	{"of two that resume one lock, the second is refused", resumesOnce},
	{"resume is refused where the data may be old, and when it is late", resumesOnlyKnownData},
	{"resume that fails at a base that another program has changed leaves the lock", resumesAfterARepair},
	{"drop deletes a detached lock of its owner, and serves the waiters", drops},
	{"back gives a lock that was resumed back to its handle", givesBack},
	{"a valid lease takes what another owner has detached, and nothing that begins like it", healsOverDetached},
	{"a node reads the answers to a resume", readsResumes},
}

func detaches(r *rig) {
	t := r.holds(alice)
	for _, left := range []string{"20000", "200000"} {
		r.admin("DEL", r.lock)
		r.admin("SET", r.lock, wire.Compose(alice, t, metadata), "PX", left)
		got := r.one(detach(r, alice, "100000")).([]any)
		assert.EqualValues(r, 1, got[0])
		r.left(100_000, r.pttl(r.lock))
	}
	want := wire.ParseValue(wire.Compose(alice, t, metadata))
	want.Detached = true
	assert.Equal(r, want, r.value())
	assert.NotEqual(r, alice, r.admin("GETRANGE", r.lock, "0", "31"), "the script of an older client sees another owner")
	r.unchanged(func() {
		for _, o := range []op{r.extend(alice, t), r.heal(alice), r.release(alice), r.leave(alice, 9)} {
			assert.Equal(r, int64(-1), r.one(o), "%v", o.args[0])
		}
		assert.Equal(r, answer(-1, 0), r.one(r.raise(alice, t+hour)))
		assert.IsType(r, []any{}, r.one(r.acquire(alice, t)))
		r.one(ask(r, alice, note))
	})
	assert.Greater(r, r.pttl(r.lock), int64(90_000))
	r.one(revoke(r, alice, "200000", note))
	r.unchanged(func() {
		got := r.one(detach(r, alice, "300000")).([]any)
		assert.EqualValues(r, wire.RevokedBefore, got[0], "a revoked lease is not handed on")
		assert.Equal(r, int64(-1), r.one(drop(r, alice)))
	})
	v := r.value()
	assert.Equal(r, []any{true, false, t}, []any{v.Revoked, v.Detached, v.Token})
}

func resumes(r *rig) {
	t := r.holds(alice)
	r.one(ask(r, alice, note))
	r.one(detach(r, alice, "100000"))
	assert.Equal(r, granted(t+2, t), r.one(resume(r, bob, alice, t+2)))
	assert.Equal(r, wire.Compose(bob, t+2, metadata), r.admin("GET", r.lock))
	assert.Equal(r, t+2, r.register())
	r.left(keyLife, r.pttl(r.lock))
	r.unchanged(func() {
		assert.Equal(r, granted(t+2, t+1), r.one(resume(r, bob, alice, t+2)), "asked again, the same answer")
		assert.Equal(r, int64(-1), r.one(r.extend(alice, t)), "a late renewal of the one that has detached it")
		assert.Equal(r, int64(-1), r.one(r.heal(alice)))
		assert.Equal(r, int64(-1), r.one(r.release(alice)))
		assert.Equal(r, int64(-1), r.one(drop(r, alice)))
	})
	r.one(detach(r, bob, "100000"))
	assert.Equal(r, granted(0, t+2), r.one(resume(r, carol, bob, t)), "the register is ahead")
	assert.Zero(r, r.value().Token)
}

func resumesOnlyTheOwners(r *rig) {
	t := r.micros()
	r.unchanged(func() {
		assert.Equal(r, answer("", -2, -1), r.one(resume(r, bob, alice, t)), "it may have been another's since")
	})
	for _, value := range []string{
		"", "x", alice, alice + "x", alice + " w ", wire.Compose(alice, 7, metadata), "x " + wire.Compose(alice, 7, metadata), wire.Compose(carol, 7, metadata),
		"d " + wire.Compose(carol, 7, metadata),
	} {
		r.admin("SET", r.lock, value, "PX", "20000")
		r.unchanged(func() {
			got, ok := r.one(resume(r, bob, alice, t)).([]any)
			require.True(r, ok, "%q", value)
			assert.Equal(r, value, got[0])
		})
		assert.LessOrEqual(r, r.pttl(r.lock), int64(20_000))
	}
	r.admin("DEL", r.lock)
	r.admin("SET", r.hint, "1")
	r.admin("ZADD", r.queue, "1", ticket(1))
	r.unchanged(func() { assert.Equal(r, answer("", -2, -1), r.one(resume(r, bob, alice, t)), "nobody is served by it") })
}

func resumesOnce(r *rig) {
	t := r.holds(alice)
	r.one(detach(r, alice, "100000"))
	got := r.apply(resume(r, bob, alice, t+2), resume(r, carol, alice, t+4))
	assert.Equal(r, granted(t+2, t), got[0])
	assert.Equal(r, wire.Compose(bob, t+2, metadata), got[1].([]any)[0])
}

func resumesOnlyKnownData(r *rig) {
	t := r.holds(alice)
	r.one(detach(r, alice, "100000"))
	r.unchanged(func() {
		assert.Equal(r, int64(0), r.one(resume(r, bob, alice, t+2).with(argNotAfter, micros(r.micros()-1))))
		r.known = "another marker"
		assert.Equal(r, int64(-1), r.one(resume(r, bob, alice, t+2)))
	})
}

func resumesAfterARepair(r *rig) {
	t := r.holds(alice)
	r.one(detach(r, alice, "100000"))
	r.admin("SET", r.base, "x")
	r.unchanged(func() { assert.IsType(r, failed(""), r.one(resume(r, bob, alice, t+2))) })
	r.admin("DEL", r.base)
	assert.Equal(r, granted(t+2, t), r.one(resume(r, bob, alice, t+2)))
}

func drops(r *rig) {
	r.holds(alice)
	r.unchanged(func() { assert.Equal(r, int64(-1), r.one(drop(r, alice)), "it was not detached") })
	r.subscribe()
	r.one(r.wait(carol, 1))
	r.one(detach(r, alice, "100000"))
	r.unchanged(func() { assert.Equal(r, int64(-1), r.one(drop(r, bob))) })
	assert.Equal(r, int64(2), r.one(drop(r, alice)))
	assert.Equal(r, name(1), r.value().Owner, "reserved for the waiter")
	r.admin("DEL", r.lock)
	assert.Equal(r, int64(0), r.one(drop(r, alice)))
}

func givesBack(r *rig) {
	t := r.holds(alice)
	r.one(detach(r, alice, "100000"))
	r.unchanged(func() { assert.Equal(r, int64(-1), r.one(back(r, bob, alice)), "bob has not resumed it") })
	r.one(resume(r, bob, alice, t+2))
	r.unchanged(func() { assert.Equal(r, int64(-1), r.one(back(r, carol, alice))) })
	assert.Equal(r, int64(1), r.one(back(r, bob, alice)))
	assert.Equal(r, "d "+wire.Compose(alice, t+2, metadata), r.admin("GET", r.lock))
	r.left(keyLife, r.pttl(r.lock), "as long as it had to live")
	r.unchanged(func() {
		for _, o := range []op{back(r, bob, alice), r.extend(alice, t), r.release(bob)} {
			assert.Equal(r, int64(-1), r.one(o), "%v", o.args[0])
		}
	})
	assert.Equal(r, granted(t+4, t+2), r.one(resume(r, carol, alice, t+4)))
	r.one(ask(r, carol, note))
	assert.Equal(r, int64(1), r.one(back(r, carol, alice)))
	assert.Equal(r, "d "+wire.Compose(alice, t+4, metadata), r.admin("GET", r.lock), "without the mark")
	for _, value := range []string{wire.Compose(alice, 7, metadata), bob + " w ", "x " + wire.Compose(bob, 7, metadata), bob + " secret", "s " + wire.Nobody + " 0 0 - "} {
		r.admin("SET", r.lock, value, "PX", "20000")
		r.unchanged(func() { assert.Equal(r, int64(-1), r.one(back(r, bob, alice)), "%q", value) })
	}
	r.admin("DEL", r.lock)
	r.unchanged(func() { assert.Equal(r, int64(-1), r.one(back(r, bob, alice))) })
}

func healsOverDetached(r *rig) {
	t := r.holds(alice)
	r.one(detach(r, alice, "100000"))
	r.unchanged(func() {
		assert.Equal(r, int64(0), r.one(r.extend(bob, t)), "as if it were missing")
		assert.Equal(r, int64(-1), r.one(r.extend(alice, t)))
		assert.Equal(r, int64(-1), r.one(r.heal(alice)), "what the owner has sent before")
	})
	assert.Equal(r, int64(1), r.one(r.heal(bob)))
	assert.Equal(r, wire.Compose(bob, 0, metadata), r.admin("GET", r.lock))
	r.left(keyLife, r.pttl(r.lock))
	r.one(detach(r, bob, "100000"))
	assert.Equal(r, int64(0), r.one(prolong(r, carol)))
	assert.Equal(r, int64(-1), r.one(prolong(r, bob)))
	assert.Equal(r, int64(-1), r.one(restore(r, bob)))
	assert.Equal(r, int64(1), r.one(restore(r, carol)))
	assert.Equal(r, int64(1), r.one(prolong(r, carol)))
	for _, value := range []string{"d ", "d " + alice, "d " + alice + " ", "d " + alice + " secret", "d secret", "x " + wire.Compose(alice, 7, metadata), "d " + strings.Repeat("g", 32) + " 1 2 - "} {
		r.admin("DEL", r.lock)
		r.admin("SET", r.lock, value, "PX", "20000")
		r.unchanged(func() {
			for _, o := range []op{r.extend(bob, t), r.heal(bob), prolong(r, bob), restore(r, bob)} {
				assert.Equal(r, int64(-1), r.one(o), "%v of %q", o.args[0], value)
			}
		})
	}
}

func readsResumes(r *rig) {
	t := r.holds(alice)
	from := func(owner string) func(*wire.Acquisition) { return func(a *wire.Acquisition) { a.From = owner } }
	got := r.do(r.request(bob, t+second, from(alice)))
	assert.Equal(r, wire.Taken, got.Status)
	assert.Equal(r, wire.Compose(alice, t, metadata), got.Held)
	got = r.do(wire.NewDetach(r.lock, alice, 90*time.Second, r.soon(10*time.Second)))
	assert.Equal(r, []any{wire.Done, int64(wire.Ours)}, []any{got.Status, got.N})
	r.left(90_000, r.pttl(r.lock))
	got = r.do(r.request(bob, t+second, from(alice)))
	assert.Equal(r, []any{wire.Granted, t + second, t}, []any{got.Status, got.Moved, got.Before})
	r.do(wire.NewDetach(r.lock, bob, 90*time.Second, r.soon(10*time.Second)))
	got = r.do(wire.NewDrop(r.lock, bob, r.soon(10*time.Second)))
	assert.EqualValues(r, wire.Ours, got.N)
	got = r.do(r.request(bob, t+4*second, from(alice)))
	assert.Equal(r, []any{wire.Taken, ""}, []any{got.Status, got.Held})
}
