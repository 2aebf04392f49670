package conformance

import (
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

var markCases = []testCase{
	{"an ask is told to the holder, whose lock goes on as before", asks},
	{"a revoked lock is not prolonged, healed, raised or granted again, and lives on", revokes},
	{"a mark touches nothing but the lock of the owner that it names", marksOnlyTheOwners},
	{"the latest mark counts, and nothing takes a revocation back", marksAgain},
	{"a revoked lock is free when its owner releases it, and its waiters are served", releasesRevoked},
	{"extend says how many wait, to clients that know this answer", tellsWhoWaits},
	{"a full server revokes", revokesOnAFullServer},
	{"readers are asked and revoked together", marksReaders},
	{"a lock that only waits for readers is not theirs yet, and a revocation costs them no place", marksNoExpectedReaders},
	{"a node reads marks, and the answers to a renewal of marked locks", readsMarks},
}

// note is the author of a mark and the reason, as the script has them.
const note = "ops\xffthe job hangs"

// knows are the flags of a client that knows who wants a lock.
const knows = "sw"

// argMarkNotAfter is an argument of mark.
const argMarkNotAfter = 4

func asks(r *rig) {
	t := r.holds(alice)
	r.admin("PEXPIRE", r.lock, "100000")
	left := r.one(ask(r, alice, note)).([]any)
	assert.EqualValues(r, 1, left[0])
	r.left(100_000, left[1])
	assert.Greater(r, r.pttl(r.lock), int64(50_000), "the lock lives as long as before")
	want := wire.ParseValue(wire.Compose(alice, t, metadata))
	want.Asked, want.Note = true, wire.Note{By: "ops", Reason: "the job hangs"}
	assert.Equal(r, want, r.value())

	assert.Equal(r, int64(1), r.one(r.extend(alice, t)), "of a client that does not know marks")
	r.left(keyLife, r.pttl(r.lock))
	assert.Equal(r, int64(2), r.one(r.extend(alice, t-1)))
	r.flags = knows
	r.unchanged(func() {
		assert.Equal(r, answer(1, 0, note), r.one(r.extend(alice, t)))
		assert.Equal(r, answer(2, 0, note), r.one(r.extend(alice, t/10)))
		assert.Equal(r, int64(-1), r.one(r.extend(bob, t)), "not to another owner")
		assert.Equal(r, int64(1), r.one(r.heal(alice)))
	})
	r.admin("PEXPIRE", r.lock, "100000")
	assert.Equal(r, answer(t, 0), r.one(r.raise(alice, t+1)))
	assert.Equal(r, wire.ParseValue(wire.Compose(alice, t+1, metadata)), r.value(), "the lease that was asked has passed the lock on")
	assert.Greater(r, r.pttl(r.lock), int64(50_000))
	assert.Equal(r, int64(1), r.one(r.extend(alice, t+1)))
	r.one(ask(r, alice, note))
	want.Token = t + 1
	r.unchanged(func() {
		assert.Equal(r, granted(t+1, t), r.one(r.acquire(alice, t)), "its acquisition, asked again")
		got := r.one(r.acquire(bob, t)).([]any)
		assert.Equal(r, want, wire.ParseValue(got[0].(string)), "who is in the way")
	})
	assert.Equal(r, int64(1), r.one(r.release(alice)))
	r.absent(r.lock)
}

func revokes(r *rig) {
	t := r.holds(alice)
	for _, life := range []struct {
		left, then int64
	}{{20_000, 60_000}, {100_000, 100_000}} {
		r.admin("SET", r.lock, wire.Compose(alice, t, metadata), "PX", micros(life.left))
		got := r.one(revoke(r, alice, "60000", note)).([]any)
		assert.EqualValues(r, 1, got[0])
		r.left(life.left, got[1])
		r.left(life.then, r.pttl(r.lock))
	}
	want := wire.ParseValue(wire.Compose(alice, t, metadata))
	want.Revoked, want.Note = true, wire.Note{By: "ops", Reason: "the job hangs"}
	assert.Equal(r, want, r.value())
	assert.NotEqual(r, alice, r.admin("GETRANGE", r.lock, "0", "31"), "the script of an older client sees another owner")
	for _, flags := range []string{"s", knows} {
		r.flags = flags
		r.unchanged(func() {
			if flags == "s" {
				assert.Equal(r, int64(-1), r.one(r.extend(alice, t)))
			} else {
				assert.Equal(r, answer(-1, 0, note), r.one(r.extend(alice, t)))
			}
			assert.Equal(r, int64(-1), r.one(r.heal(alice)))
			assert.Equal(r, answer(-1, 0), r.one(r.raise(alice, t+hour)))
			assert.Equal(r, int64(-1), r.one(r.pass(9)))
			for _, o := range []op{r.acquire(alice, t+1), r.acquire(bob, t+1)} {
				got, ok := r.one(o).([]any)
				require.True(r, ok, "refused, and not granted again")
				assert.Equal(r, want, wire.ParseValue(got[0].(string)))
			}
		})
		assert.Greater(r, r.pttl(r.lock), int64(50_000))
	}
}

func marksOnlyTheOwners(r *rig) {
	r.flags = knows
	reserved := ticket(1)[:wire.TicketLen]
	marks := func(owner string) []op { return []op{ask(r, owner, note), revoke(r, owner, "9000", note)} }
	for _, o := range marks(alice) {
		r.unchanged(func() { assert.Equal(r, int64(-1), r.one(o), "nobody has it") })
	}
	for _, value := range []string{"", "x", alice, alice + "x", wire.Compose(bob, 7, metadata), bob + " a 7 " + metadata + "\xffe\xfff", reserved + " w "} {
		r.admin("SET", r.lock, value, "PX", "20000")
		for _, o := range append(marks(alice), marks(reserved)...) {
			r.unchanged(func() { assert.Equal(r, int64(-1), r.one(o), "%q", value) })
		}
		assert.LessOrEqual(r, r.pttl(r.lock), int64(20_000))
	}
	r.admin("SET", r.lock, wire.Compose(alice, 7, metadata), "PX", "20000")
	for _, o := range marks(alice) {
		r.unchanged(func() { assert.Equal(r, int64(0), r.one(o.with(argMarkNotAfter, micros(r.micros()-1))), "too late") })
		assert.LessOrEqual(r, r.pttl(r.lock), int64(20_000))
	}
}

func marksAgain(r *rig) {
	r.flags = knows
	t := r.holds(alice)
	r.one(ask(r, alice, note))
	r.one(ask(r, alice, "dev\xffmy turn"))
	assert.Equal(r, answer(1, 0, "dev\xffmy turn"), r.one(r.extend(alice, t)))
	assert.Equal(r, t, r.value().Token)
	r.one(revoke(r, alice, "35000", note))
	assert.Equal(r, answer(-1, 0, note), r.one(r.extend(alice, t)))
	r.left(35_000, r.pttl(r.lock))
	assert.Equal(r, t, r.value().Token)
	r.unchanged(func() {
		got := r.one(ask(r, alice, "dev\xffmy turn")).([]any)
		assert.EqualValues(r, wire.RevokedBefore, got[0], "it is on its way out")
	})
	got := r.one(revoke(r, alice, "40000", "dev\xff")).([]any)
	assert.EqualValues(r, wire.RevokedBefore, got[0])
	r.left(35_000, got[1])
	r.left(40_000, r.pttl(r.lock))
	v := r.value()
	assert.Equal(r, []any{true, wire.Note{By: "dev"}, t, "label with spaces"}, []any{v.Revoked, v.Note, v.Token, v.Label})
}

func releasesRevoked(r *rig) {
	r.holds(alice)
	r.one(revoke(r, alice, "60000", note))
	assert.Equal(r, int64(1), r.one(r.release(alice)))
	r.absent(r.lock)
	assert.Equal(r, int64(1), r.one(r.acquire(bob, r.micros())))
	r.one(revoke(r, bob, "60000", note))
	r.subscribe()
	r.one(r.wait(carol, 1))
	assert.Equal(r, int64(2), r.one(r.release(bob)))
	assert.Equal(r, name(1), r.value().Owner, "reserved for the waiter")
}

func tellsWhoWaits(r *rig) {
	r.subscribe()
	t := r.holds(alice)
	r.flags = knows
	assert.Equal(r, int64(1), r.one(r.extend(alice, t)))
	r.one(r.wait(bob, 1))
	r.one(r.wait(carol, 2))
	assert.Equal(r, answer(1, 2, ""), r.one(r.extend(alice, t)))
	assert.Equal(r, answer(2, 2, ""), r.one(r.extend(alice, t/10)))
	assert.Equal(r, int64(-1), r.one(r.extend(bob, t)), "another's")
	other := wire.LockKey(r.server.Prefix, "other")
	assert.Equal(r, []any{int64(0), answer(1, 2, "")}, r.apply(r.extend(alice, t).on(other), r.extend(alice, t)))
	r.one(ask(r, alice, note))
	assert.Equal(r, answer(1, 2, note), r.one(r.extend(alice, t)))
	r.flags = "s"
	assert.Equal(r, int64(1), r.one(r.extend(alice, t)))
}

func revokesOnAFullServer(r *rig) {
	if r.server.Fill == nil {
		r.Skip("this server cannot be filled")
	}
	r.holds(alice)
	r.server.Fill()
	defer r.server.Drain()
	got, ok := r.one(revoke(r, alice, "60000", note)).([]any)
	require.True(r, ok)
	assert.EqualValues(r, 1, got[0])
	assert.True(r, r.value().Revoked)
}

func readsMarks(r *rig) {
	t := r.holds(alice)
	byOps := wire.Note{By: "ops", Reason: strings.Repeat("ü", 200)}
	soon := func() clock.Steady { return r.soon(10 * time.Second) }
	got := r.do(wire.NewAsk(r.lock, bob, byOps, soon()))
	assert.Equal(r, []any{wire.Done, int64(wire.Another)}, []any{got.Status, got.N})
	got = r.do(wire.NewAsk(r.lock, alice, byOps, soon()))
	assert.Equal(r, []any{wire.Done, int64(wire.Ours)}, []any{got.Status, got.N})
	r.left(keyLife, got.TTL.Milliseconds())
	cut := wire.Note{By: "ops", Reason: strings.Repeat("ü", wire.MaxReasonLen/2)}
	got = r.do(r.renewal(alice, t))
	assert.Equal(r, []int64{wire.Ours}, got.Answers)
	assert.Equal(r, []wire.Want{{Marked: true, Note: cut}}, got.Wants)

	got = r.do(wire.NewRevoke(r.lock, alice, 45*time.Second+1, wire.Note{}, soon()))
	assert.Equal(r, []any{wire.Done, int64(wire.Ours)}, []any{got.Status, got.N})
	r.left(45_001, r.pttl(r.lock))
	renewals := wire.NewBatch(wire.Extend, 2, soon())
	for _, lock := range []string{wire.LockKey(r.server.Prefix, "other"), r.lock} {
		wire.Entry{Lock: lock, Value: wire.Compose(alice, t, metadata)}.Extend(renewals, keyTTL)
	}
	got = r.do(renewals)
	assert.Equal(r, []int64{wire.Missing, wire.Another}, got.Answers)
	assert.Equal(r, []wire.Want{{Lock: 1, Marked: true}}, got.Wants)
	got = r.do(r.renewal(bob, t))
	assert.Empty(r, got.Wants)
	read := wire.ParseValue(r.do(wire.NewRead(r.lock, soon())).Held)
	assert.Equal(r, []any{alice, true, false}, []any{read.Owner, read.Revoked, read.Asked})
	r.admin("DEL", r.lock)
	r.admin("HSET", r.lock, "a", "b")
	got = r.do(wire.NewRevoke(r.lock, alice, time.Second, wire.Note{}, soon()))
	assert.Equal(r, wire.Misconfigured, got.Status)
	require.ErrorContains(r, got.Err, "WRONGTYPE")
}

func marksReaders(r *rig) {
	r.one(share(r, alice))
	r.flags = knows
	assert.EqualValues(r, 1, r.one(ask(r, wire.Nobody, note)).([]any)[0])
	v := r.value()
	assert.Equal(r, []any{true, true, wire.Note{By: "ops", Reason: "the job hangs"}}, []any{v.Shared, v.Asked, v.Note})
	assert.Equal(r, answer(1, 0, note), r.one(prolong(r, alice)))
	assert.Equal(r, granted(0, 0), r.one(share(r, bob)), "it goes on as before")
	assert.Equal(r, answer(1, 0, note), r.one(prolong(r, bob)))
	assert.EqualValues(r, 1, r.one(revoke(r, wire.Nobody, "60000", note)).([]any)[0])
	v = r.value()
	assert.Equal(r, []any{false, true, wire.Nobody}, []any{v.Shared, v.Revoked, v.Owner})
	r.left(60_000, r.pttl(r.lock))
	r.unchanged(func() {
		assert.Equal(r, answer(-1, 0, note), r.one(prolong(r, alice)))
		assert.Equal(r, int64(-1), r.one(restore(r, alice)))
		assert.IsType(r, []any{}, r.one(share(r, carol)))
		assert.Equal(r, int64(-1), r.one(restore(r, carol)))
	})
	assert.Equal(r, int64(1), r.one(quit(r, alice)))
	assert.Equal(r, int64(1), r.one(quit(r, bob)))
	r.absent(wire.ReadersKey(r.lock))
	r.unchanged(func() {
		assert.Equal(r, int64(-1), r.one(quit(r, bob)))
		assert.True(r, r.value().Revoked, "another one, of which this node has lost the entry, may still be at work")
	})
}

func marksNoExpectedReaders(r *rig) {
	r.one(share(r, alice))
	ages(r, alice, -1)
	r.admin("ZADD", wire.ReadersKey(r.lock), micros(r.micros()/1000+60_000), name(1)+" w ")
	marks := map[string]op{"ask": ask(r, wire.Nobody, note), "revoke": revoke(r, wire.Nobody, "60000", note)}
	for what, o := range marks {
		r.unchanged(func() { assert.Equal(r, int64(-1), r.one(o), "%s before one has come", what) })
	}
	r.one(share(r, bob))
	assert.EqualValues(r, 1, r.one(marks["ask"]).([]any)[0])
	assert.EqualValues(r, 1, r.one(marks["revoke"]).([]any)[0])
}
