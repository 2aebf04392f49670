package conformance

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/wire"
)

var sharedCases = []testCase{
	{"readers have a lock together, and it lives as long as the last of them", sharesTogether},
	{"a reader sees the register and does not move it", sharesWithoutMove},
	{"no reader joins what is another's: a writer's lock, its reservation, a mark, a stranger's key", sharesNothingElse},
	{"no operation of a writer touches a lock that readers have", sharesWithNoWriter},
	{"a reader that asks again gets the same answer, and a late one or one with old data nothing", sharesAgain},
	{"a lock is free when its last reader has left", quits},
	{"a reader that has ended does not keep a writer out", endsWithTheLastReader},
	{"prolong extends a reader that is there, and never makes one", prolongs},
	{"restore makes a lost reader again, beside readers or in place of a reservation", restores},
	{"align moves the register up to a value for a reader that is there", aligns},
	{"readers count only while the lock says that it is theirs", countsWithTheLock},
	{"the owner of a lock becomes its first reader in one step", downgrades},
	{"a full server lets no reader in, and releases and prolongs those that are there", sharesOnAFullServer},
	{"a reader that has died leaves the set though others read", forgetsTheDead},
	{"a node reads the answers about readers", readsAboutReaders},
}

// argReader is the ticket of share; its place and the mode follow.
const argReader = 4

// sharesAt is the answer to a reader that is let in while no client waits.
func sharesAt(register int64) any {
	if register <= 2 {
		return granted(0, register)
	}
	return register
}

// reader is the value of a reader of the cases.
func reader(owner string) string { return wire.Compose(owner, 0, metadata) }

func share(r *rig, owner string) op {
	return op{r.lock, []string{"share", reader(owner), keyTTL, micros(r.micros() + 60*second), "", "", ""}}
}

func prolong(r *rig, owner string) op { return op{r.lock, []string{"prolong", reader(owner), keyTTL}} }

func restore(r *rig, owner string) op {
	o := r.heal(owner)
	o.args[0] = "restore"
	return o
}

func align(r *rig, owner string, t int64) op {
	return op{r.lock, []string{"raise", reader(owner), micros(t)}}
}

func quit(r *rig, owner string) op { return op{r.lock, []string{"quit", reader(owner), "", "", ""}} }

// reads checks the owners that have the lock together, the first to end first. A reader for which the lock is reserved
// shows its ticket.
func reads(r *rig, owners ...string) {
	r.Helper()
	got := []string{}
	for _, member := range r.admin("ZRANGE", wire.ReadersKey(r.lock), "(0", "+inf", "BYSCORE").([]any) { // a member at 0 isn't a reader
		got = append(got, member.(string)[:wire.OwnerLen])
	}
	assert.Equal(r, append([]string{}, owners...), got)
	if len(owners) > 0 {
		assert.True(r, r.value().Shared, "%+v", r.value())
		assert.Positive(r, r.pttl(wire.ReadersKey(r.lock)))
	}
}

// theirs is the value of a lock that readers have.
var theirs = "s " + wire.Nobody + " 0 0 - "

func sharesTogether(r *rig) {
	assert.Equal(r, granted(0, 0), r.one(share(r, alice).with(argTTL, "20000")))
	assert.Equal(r, []any{granted(0, 0), granted(0, 0)}, r.apply(share(r, bob).with(argTTL, "10000"), share(r, carol).with(argTTL, "30000")))
	reads(r, bob, alice, carol)
	assert.Equal(r, theirs, r.admin("GET", r.lock))
	assert.Equal(r, wire.Value{Shared: true, Owner: wire.Nobody, Since: time.UnixMicro(0)}, r.value())
	for _, key := range []string{r.lock, wire.ReadersKey(r.lock)} {
		assert.GreaterOrEqual(r, r.pttl(key), int64(25_000))
	}
	assert.Less(r, r.pttl(r.lock), int64(34_000), "a little longer, so that not every reader has to prolong it")
	assert.Nil(r, r.admin("SET", r.lock, "another client's", "NX"))
	r.absent(r.queue, r.hint, r.registers)
}

func sharesWithoutMove(r *rig) {
	t := r.micros() - hour
	r.setRegister(t)
	r.unchanged(func() {
		assert.Equal(r, sharesAt(t), r.one(share(r, alice)))
		assert.Equal(r, int64(1), r.one(quit(r, alice)))
	})
	r.admin("SET", r.base, micros(t+7))
	assert.Equal(r, sharesAt(t+7), r.one(share(r, alice)), "no register is below the base")
	r.admin("SET", r.base, "no number")
	assert.IsType(r, failed(""), r.one(share(r, bob)))
	r.admin("DEL", r.lock)
	assert.IsType(r, failed(""), r.one(share(r, bob)))
	r.absent(r.lock)
	r.capText = ""
	assert.Equal(r, int64(1), r.one(share(r, carol)), "without fencing")
}

func sharesNothingElse(r *rig) {
	for _, value := range []string{
		wire.Compose(bob, 7, metadata), bob + " a 7 " + metadata, name(1) + " w ", "x " + wire.Compose(bob, 7, metadata), "d " + wire.Compose(bob, 7, metadata),
		"x " + theirs[2:], "a stranger's", "", "s", alice, alice + " w ", "x " + wire.Compose(alice, 7, metadata), "d " + wire.Compose(alice, 7, metadata),
	} {
		r.admin("SET", r.lock, value, "PX", "60000")
		r.unchanged(func() {
			assert.Equal(r, value, r.one(share(r, alice)).([]any)[0], "%q", value)
			assert.Contains(r, []any{int64(-1), int64(0)}, r.one(prolong(r, alice)), "%q", value)
			assert.Equal(r, answer(-1, 0), r.one(align(r, alice, r.micros())), "%q", value)
			if value != alice && value != "x "+wire.Compose(alice, 7, metadata) { // these it may delete
				assert.Equal(r, int64(-1), r.one(quit(r, alice)), "%q", value)
			}
		})
	}
	r.admin("DEL", r.lock)
	r.admin("SADD", r.lock, "x")
	for _, o := range []op{share(r, alice), prolong(r, alice), restore(r, alice), align(r, alice, 8), quit(r, alice)} {
		r.unchanged(func() { r.fails(r.one(o)) })
	}
}

func sharesWithNoWriter(r *rig) {
	r.one(share(r, alice))
	r.one(share(r, bob))
	for _, owner := range []string{alice, carol, wire.Nobody} {
		for name, o := range r.everyOperation(owner) {
			if name == "mark" && owner == wire.Nobody {
				continue
			}
			before := r.admin("GET", r.lock)
			r.one(o)
			assert.Equal(r, before, r.admin("GET", r.lock), "%s of %s", name, owner)
			reads(r, alice, bob)
			r.one(prolong(r, alice)) // all of them together may take longer than a lease on a busy machine
			r.one(prolong(r, bob))
		}
	}
	began := r.micros()
	r.one(prolong(r, bob))
	got := r.one(r.acquire(carol, r.micros())).([]any)
	assert.Equal(r, answer(theirs, got[1], -1, 2, reader(bob)), got)
	assert.LessOrEqual(r, got[1], int64(keyLife), "exactly, for those who wait")
	assert.GreaterOrEqual(r, got[1], keyLife-(r.micros()-began)/1000-5, "exactly, for those who wait")
	got = r.one(r.wait(carol, 1)).([]any)
	assert.Equal(r, answer(theirs, got[1], 0, 2, reader(bob)), got)
}

func sharesAgain(r *rig) {
	t := r.micros()
	r.setRegister(t)
	late := share(r, alice).with(argNotAfter, micros(t-1))
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(late)) })
	assert.Equal(r, sharesAt(t), r.one(share(r, alice)))
	assert.Equal(r, sharesAt(t), r.one(share(r, alice)))
	reads(r, alice)
	r.unchanged(func() {
		assert.Equal(r, int64(0), r.one(late))
		r.known = "another marker"
		assert.Equal(r, int64(-1), r.one(share(r, bob)))
		assert.Equal(r, answer(-1, 0), r.one(align(r, alice, t)))
	})
	assert.Equal(r, int64(3), r.one(prolong(r, alice)), "what is there may be old")
}

// ages makes a reader end so many ms from now. The lock does not end before the others.
func ages(r *rig, owner string, ms int64) {
	r.Helper()
	r.admin("ZADD", wire.ReadersKey(r.lock), "XX", strconv.FormatInt(r.micros()/1000+ms, 10), reader(owner))
}

func endsWithTheLastReader(r *rig) {
	for _, owner := range []string{alice, bob, carol} {
		r.one(share(r, owner))
	}
	ages(r, alice, -1)
	ages(r, bob, 20_000)
	r.admin("PEXPIRE", r.lock, "60000")
	assert.Equal(r, int64(1), r.one(quit(r, carol)), "the one that would last longest")
	dave := strings.Repeat("d", wire.OwnerLen)
	got := r.one(r.acquire(dave, r.micros())).([]any)
	assert.Equal(r, []any{int64(1), reader(bob)}, got[3:])
	r.left(20_000, got[1])
	r.left(20_000, r.pttl(r.lock))
	reads(r, bob)
	ages(r, bob, -1)
	r.admin("PEXPIRE", r.lock, "60000")
	assert.Equal(r, int64(0), r.one(prolong(r, bob)), "it has ended, though the lock has not")
	t := r.micros()
	assert.Equal(r, granted(t, 0), r.one(r.acquire(dave, t)))
	r.absent(wire.ReadersKey(r.lock))
}

func prolongs(r *rig) {
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(prolong(r, alice))) })
	r.one(share(r, alice))
	r.one(share(r, bob))
	assert.Equal(r, int64(1), r.one(prolong(r, bob).with(argTTL, "60000")))
	assert.Equal(r, int64(1), r.one(prolong(r, alice).with(argTTL, "20000")))
	reads(r, alice, bob)
	for _, key := range []string{r.lock, wire.ReadersKey(r.lock)} {
		assert.GreaterOrEqual(r, r.pttl(key), int64(50_000))
	}
	assert.Equal(r, int64(1), r.one(prolong(r, bob).with(argTTL, "100")), "a minimum hold that ends soon")
	reads(r, bob, alice)
	r.unchanged(func() {
		assert.Equal(r, []any{int64(0)}, r.applySent(r.micros()-31*second, prolong(r, alice)), "longer on its way than it prolongs")
		assert.Equal(r, int64(0), r.one(prolong(r, carol)))
	})
	r.admin("SET", r.lock, name(1)+" w ", "PX", "60000")
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(prolong(r, alice)), "it was lost, and the lock is reserved") })
}

func restores(r *rig) {
	r.unchanged(func() {
		assert.Equal(r, int64(0), r.one(restore(r, alice).with(argNotAfter, micros(r.micros()-1))))
		r.known = "another marker"
		assert.Equal(r, int64(0), r.one(restore(r, alice).with(4, micros(r.micros()-1))), "behind the end of what was lost, it would be a vote")
		r.known = ""
	})
	assert.Equal(r, int64(1), r.one(restore(r, alice)))
	assert.Equal(r, int64(1), r.one(restore(r, bob)))
	assert.Equal(r, int64(1), r.one(restore(r, bob)))
	reads(r, alice, bob)
	for _, value := range []string{wire.Compose(carol, 7, metadata), "x " + theirs[2:], "a stranger's", ""} {
		r.admin("SET", r.lock, value, "PX", "60000")
		r.unchanged(func() { assert.Equal(r, int64(-1), r.one(restore(r, alice)), "%q", value) })
	}
	r.admin("SET", r.lock, name(1)+" w ", "PX", "60000")
	assert.Equal(r, int64(1), r.one(restore(r, carol)), "a lease takes precedence over a reservation")
	reads(r, carol)
	r.admin("DEL", r.lock)
	r.known = "another marker"
	assert.Equal(r, int64(1), r.one(restore(r, bob)), "in quarantine, while the lost one would be there")
	reads(r, bob)
	r.admin("DEL", r.lock)
	r.known = ""
	r.one(share(r, alice).with(argTTL, "600000"))
	assert.Equal(r, int64(1), r.one(restore(r, bob)))
	assert.GreaterOrEqual(r, r.pttl(wire.ReadersKey(r.lock)), int64(600_000), "one that lasts longer stays")
}

func aligns(r *rig) {
	t := r.micros()
	r.one(share(r, alice))
	assert.Equal(r, answer(0, 0), r.one(align(r, alice, t)))
	assert.Equal(r, t, r.register())
	r.unchanged(func() {
		assert.Equal(r, answer(t, 0), r.one(align(r, alice, t)), "it is there already")
		assert.Equal(r, answer(-1, 0), r.one(align(r, alice, t-2)), "a later writer's")
		assert.Equal(r, answer(-1, 0), r.one(align(r, bob, t+2)), "of one that does not read")
	})
	ages(r, alice, -1)
	assert.Equal(r, answer(-1, 0), r.one(align(r, alice, t+2)), "of one that has ended")
}

func countsWithTheLock(r *rig) {
	r.one(share(r, alice))
	r.admin("DEL", r.lock) // as a server that evicts does
	assert.Equal(r, int64(0), r.one(prolong(r, alice)))
	assert.Equal(r, answer(-1, 0), r.one(align(r, alice, r.micros())))
	assert.Equal(r, granted(0, 0), r.one(share(r, bob)))
	reads(r, bob)
	r.admin("DEL", r.lock)
	r.holds(carol)
	assert.Equal(r, int64(-1), r.one(prolong(r, bob)))
	assert.Equal(r, int64(-1), r.one(quit(r, bob)))
	assert.Equal(r, carol, r.value().Owner)
	r.one(r.release(carol))

	r.one(share(r, alice))
	r.one(share(r, bob))
	r.admin("DEL", wire.ReadersKey(r.lock))
	assert.Equal(r, int64(0), r.one(prolong(r, alice)), "it is known no more")
	assert.Equal(r, int64(1), r.one(restore(r, alice)))
	reads(r, alice)
}

func downgrades(r *rig) {
	t := r.holds(alice)
	assert.Equal(r, sharesAt(t), r.one(share(r, alice)))
	reads(r, alice)
	assert.Equal(r, sharesAt(t), r.one(share(r, alice)), "asked again")
	for what, o := range map[string]op{"a renewal": r.extend(alice, t), "a heal": r.heal(alice), "a release": r.release(alice)} {
		r.unchanged(func() { assert.Equal(r, int64(-1), r.one(o), "%s of the writer that it was", what) })
	}
	assert.Equal(r, sharesAt(t), r.one(share(r, bob)), "others join")
	r.one(quit(r, alice))
	r.one(quit(r, bob))
	for what, o := range map[string]op{"a renewal": prolong(r, carol), "a heal": restore(r, carol)} {
		r.holds(carol)
		assert.Equal(r, int64(1), r.one(o), "%s of a node that has missed it", what)
		reads(r, carol)
		r.one(quit(r, carol))
	}
	r.holds(alice)
	assert.Equal(r, int64(1), r.one(quit(r, alice)), "it is given up before it began here")
	r.absent(r.lock)
	r.holds(alice)
	r.one(revoke(r, alice, "60000", note))
	r.unchanged(func() { assert.Equal(r, int64(-1), r.one(quit(r, bob)), "another reader") })
	assert.Equal(r, int64(1), r.one(quit(r, alice)), "it was revoked here before it could begin")
	r.subscribe()
	r.holdsAgainst(1)
	r.one(shareFor(r, bob, 2))
	r.one(shareFor(r, carol, 3).with(argReader+1, enqueuedAt(0)))
	assert.Equal(r, granted(0, r.register(), 2), r.one(share(r, alice)))
	r.woken(r.reservedFor(3), r.nextIs(1, 1), r.nextIs(2, 2))
	reads(r, name(3), alice)
}

func sharesOnAFullServer(r *rig) {
	if r.server.Fill == nil {
		r.Skip("this server cannot be filled")
	}
	r.one(share(r, alice).with(argTTL, "60000"))
	r.one(share(r, bob))
	n := r.connect()
	r.server.Fill()
	defer r.server.Drain()
	for _, lock := range []string{r.lock, r.lock + "2"} {
		got := r.on(n, r.request(carol, 0, func(a *wire.Acquisition) { a.Lock, a.Value, a.Shared = lock, reader(carol), true }))
		assert.Equal(r, wire.Failed, got.Status, "%v", got.Err)
		assert.ErrorContains(r, got.Err, "OOM")
	}
	r.absent(r.lock + "2")
	assert.Equal(r, int64(1), r.one(prolong(r, bob)))
	reads(r, bob, alice)
	assert.Equal(r, int64(1), r.one(quit(r, alice)))
	reads(r, bob)
}

func readsAboutReaders(r *rig) {
	n := r.connect(func(c *node.Config) { c.Cap = Ahead })
	entry := func(owner string) wire.Entry { return wire.Entry{Lock: r.lock, Value: reader(owner), Shared: true} }
	ask := func(owner string) wire.Reply {
		return r.on(n, r.request(owner, 0, func(a *wire.Acquisition) { a.Value, a.Shared = reader(owner), true }))
	}
	t := r.micros()
	r.setRegister(t)
	for i := range 20 {
		got := ask(fmt.Sprintf("%032x", 0xf0+i))
		require.Equal(r, wire.Granted, got.Status, "%v", got.Err)
		assert.Equal(r, []int64{0, t}, []int64{got.Moved, got.Before})
	}
	first, last := fmt.Sprintf("%032x", 0xf0), fmt.Sprintf("%032x", 0xf0+19)
	ages(r, last, 60_000)
	got := r.on(n, wire.NewRead(r.lock, r.soon(time.Second)))
	require.Equal(r, wire.Done, got.Status, "%v", got.Err)
	require.NotNil(r, got.Readers)
	assert.EqualValues(r, 20, got.Readers.Count)
	assert.Len(r, got.Readers.Values, 16)
	assert.Equal(r, reader(last), got.Readers.Values[0], "the one that lasts longest")
	assert.True(r, wire.ParseValue(got.Held).Shared)
	got = r.vote(n, carol)
	require.Equal(r, wire.Taken, got.Status, "%v", got.Err)
	assert.Equal(r, &wire.Readers{Count: 20, Values: []string{reader(last)}}, got.Readers)
	assert.Equal(r, reader(first), r.on(n, entry(first).Read(r.soon(time.Second))).Held)
	assert.True(r, wire.ParseValue(r.on(n, entry(carol).Read(r.soon(time.Second))).Held).Shared)
	got = r.on(n, entry(first).Raise(t+2, r.soon(time.Second)))
	assert.Equal(r, []any{wire.Done, t}, []any{got.Status, got.Before})
	renewals := wire.NewBatch(wire.Extend, 3, r.soon(time.Second))
	entry(first).Extend(renewals, keyTTL)
	entry(carol).Extend(renewals, keyTTL)
	wire.Entry{Lock: r.lock + "2", Value: wire.Compose(carol, 7, metadata)}.Extend(renewals, keyTTL)
	assert.Equal(r, []int64{wire.Ours, wire.Missing, wire.Missing}, r.on(n, renewals).Answers)
	heal := wire.NewBatch(wire.Heal, 2, r.soon(time.Second))
	entry(carol).Heal(heal, keyTTL, heal.Expires, 0)
	wire.Entry{Lock: r.lock + "2", Value: wire.Compose(carol, 0, metadata)}.Heal(heal, keyTTL, heal.Expires, 0)
	assert.Equal(r, []int64{wire.Ours, wire.Ours}, r.on(n, heal).Answers)
	assert.EqualValues(r, wire.Ours, r.on(n, entry(carol).Release(nil, wire.TicketUpdate{}, r.soon(time.Second))).N)
	assert.EqualValues(r, 20, r.admin("ZCARD", wire.ReadersKey(r.lock)))
	assert.Equal(r, []int64{wire.Ours}, r.on(n, entry(first).Keep("60000", r.soon(time.Second))).Answers)
	assert.GreaterOrEqual(r, r.pttl(r.lock), int64(50_000))
}

func forgetsTheDead(r *rig) {
	r.one(share(r, alice))
	for n := range 60 { // at most 64 leave at one time
		r.admin("ZADD", wire.ReadersKey(r.lock), micros(r.micros()/1000-1), reader(fmt.Sprintf("%032x", n+1)))
	}
	r.one(share(r, alice).with(argTTL, "600000"))
	reads(r, alice)
}
