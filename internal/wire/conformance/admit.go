package conformance

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var admitCases = []testCase{
	{"a writer that waits bars the readers that come later", barsLaterReaders},
	{"a writer whose process has ended bars nobody", isNotBarredByTheDead},
	{"a reader that has ended is not counted while others read, and leaves nothing", countsNoneThatHasEnded},
	{"a reader that finds a dead writer lets the readers behind it in, also if it waits itself", letsInBehindTheDead},
	{"a writer that is stopped bars readers until it has been asked in vain", isNotBarredByTheStopped},
	{"a reader that finds the lock free leaves it to the writer before it", leavesItToTheWriter},
	{"readers at the head of the queue are let in together, up to the first writer", admitsTogether},
	{"a reader that comes lets more of them in", admitsMore},
	{"a reader that comes unasked waits behind no other reader, and for no message", comesUnasked},
	{"a reader that was woken comes before a writer with an earlier place", comesBeforeAnEarlierWriter},
	{"a reader that was woken and does not come keeps nobody out", admitsTheNext},
	{"when a writer leaves the queue, the readers behind it are let in", admitsBehindAWriter},
	{"a lease takes precedence over readers that were woken, and not over one that has come", healsOverWokenReaders},
	{"a reader that keeps its place is not let in twice", keepsAReadersPlace},
	{"a reader that has waited out a reservation empties the queue", recallsForAReader},
	{"a script that does not know readers leaves them out of its queue", dropsUnknownTickets},
}

// readerTicket is the ticket of the n-th wait, if a reader waits.
func readerTicket(n int) string { return ticket(n) + "s" }

func shareFor(r *rig, owner string, n int) op {
	return share(r, owner).with(argReader, readerTicket(n)).with(argReader+1, enqueuedAt(n))
}

func countsNoneThatHasEnded(r *rig) {
	all := r.apply(share(r, alice).with(argTTL, "500"), share(r, carol).with(argTTL, "500"), share(r, bob), r.read())
	assert.EqualValues(r, 3, all[3].([]any)[4])
	time.Sleep(550 * time.Millisecond)
	got := r.one(r.read()).([]any)
	assert.Equal(r, []any{int64(1), []any{reader(bob)}}, got[4:])
	assert.EqualValues(r, 1, r.one(r.acquire(strings.Repeat("d", wire.OwnerLen), r.micros())).([]any)[3])
	r.apply(share(r, alice).with(argTTL, "500"))
	time.Sleep(550 * time.Millisecond)
	assert.Equal(r, int64(1), r.one(quit(r, bob)))
	r.absent(r.lock, wire.ReadersKey(r.lock))
	r.apply(share(r, alice).with(argTTL, "100"), share(r, bob))
	time.Sleep(150 * time.Millisecond)
	all = r.apply(share(r, carol).with(argTTL, "600000"), quit(r, alice))
	assert.Equal(r, int64(0), all[1], "a reader for which the lock lives longer removes those that have ended")
}

func isNotBarredByTheStopped(r *rig) {
	r.subscribe()
	set := wire.ReadersKey(r.lock)
	unprobed := func() { assert.Empty(r, r.admin("ZRANGE", set, "-inf", "0", "BYSCORE")) }
	ago := func(told string, age time.Duration) {
		r.admin("ZREMRANGEBYSCORE", set, "0", "0")
		r.admin("ZADD", set, "0", name(5)+told+strconv.FormatInt(r.micros()/1000-age.Milliseconds(), 10)+" w ")
	}
	askAgain := wake{wire.WakeAskAgain, name(5), r.lock}
	r.one(share(r, alice))
	r.one(r.wait(carol, 5))
	for _, age := range []time.Duration{0, 1900 * time.Millisecond} {
		ago("p", age)
		r.one(shareFor(r, bob, 6))
		r.woken(pinged(r, 5))
	}
	r.one(r.wait(carol, 5))
	unprobed()
	r.one(shareFor(r, bob, 6))
	reads(r, alice)
	assert.EqualValues(r, 1, r.one(r.read()).([]any)[4], "it is not counted")
	r.woken(pinged(r, 5))
	ago("p", 2100*time.Millisecond)
	r.one(shareFor(r, bob, 6))
	r.woken(askAgain)
	r.one(shareFor(r, bob, 6))
	ago("a", 900*time.Millisecond)
	r.one(shareFor(r, bob, 6))
	r.woken(pinged(r, 5), pinged(r, 5))
	r.one(r.wait(carol, 5))
	unprobed()
	r.one(shareFor(r, bob, 6))
	ago("a", 1100*time.Millisecond)
	assert.Equal(r, granted(0, 0, 0), r.one(shareFor(r, bob, 6)))
	unprobed()
	r.absent(r.queue)
	r.woken(pinged(r, 5), pinged(r, 5))
	assert.EqualValues(r, 0, r.one(r.wait(carol, 5)).([]any)[2], "it has its place again")
	r.one(shareFor(r, strings.Repeat("d", wire.OwnerLen), 7))
	r.woken(pinged(r, 5))
}

func barsLaterReaders(r *rig) {
	r.subscribe()
	r.one(share(r, alice))
	assert.EqualValues(r, 0, r.one(r.wait(carol, 5)).([]any)[2])
	for what, o := range map[string]op{
		"without a ticket": share(r, bob), "later": shareFor(r, bob, 6), "too late": shareFor(r, bob, 7).with(argNotAfter, micros(r.micros()-1)),
	} {
		got := r.one(o).([]any)
		require.Len(r, got, 5, what)
		assert.Equal(r, theirs, got[0], what)
	}
	r.flags = ""
	assert.EqualValues(r, -1, r.one(shareFor(r, bob, 8)).([]any)[2], "no message reaches it")
	r.flags = "s"
	assert.Equal(r, []any{ticket(5), readerTicket(6)}, r.admin("ZRANGE", r.queue, "0", "-1"))
	reads(r, alice)
	r.woken(slices.Repeat([]wake{pinged(r, 5)}, 4)...)
	assert.Equal(r, granted(0, 0, 2), r.one(share(r, alice)), "it reads already")
	r.capText = ""
	assert.Equal(r, granted(0, 0, 2), r.one(share(r, alice)), "without fencing")
	assert.Equal(r, granted(0, 0, 2), r.one(shareFor(r, bob, 4)), "it came before the writer")
	reads(r, alice, bob)
	r.woken()
	assert.Equal(r, int64(1), r.one(quit(r, alice)))
	assert.Equal(r, int64(wire.HandedOn), r.one(quit(r, bob)))
	r.admin("ZREM", r.queue, readerTicket(6))
	r.woken(r.reservedFor(5), r.nextIs(6, 1))
	assert.Equal(r, name(5)+" w ", r.admin("GET", r.lock))
	r.absent(wire.ReadersKey(r.lock))
}

func isNotBarredByTheDead(r *rig) {
	dead := strings.Repeat("e", wire.ManagerLen) + ticket(1)[wire.ManagerLen:]
	r.subscribe()
	r.one(share(r, alice))
	for _, n := range []int{1, 2} { // the second one lives
		r.one(r.wait(carol, n).with(argTicket, strings.Replace(ticket(n), ticket(1), dead, 1)))
	}
	assert.IsType(r, []any{}, r.one(share(r, bob)))
	r.woken(pinged(r, 2))
	assert.Equal(r, []any{ticket(2)}, r.admin("ZRANGE", r.queue, "0", "-1"))
	r.one(r.pass(2))
	r.one(r.wait(carol, 1).with(argTicket, dead))
	assert.Equal(r, granted(0, 0), r.one(share(r, bob)))
	reads(r, alice, bob)
	r.absent(r.queue)
}

func letsInBehindTheDead(r *rig) {
	dead := strings.Repeat("e", wire.ManagerLen) + ticket(1)[wire.ManagerLen:]
	r.subscribe()
	r.one(share(r, alice))
	r.one(r.wait(carol, 3))
	r.admin("ZADD", r.queue, enqueuedAt(1), dead, enqueuedAt(2), readerTicket(2))
	assert.EqualValues(r, 1, r.one(shareFor(r, bob, 4)).([]any)[2], "behind the writer that lives")
	r.woken(pinged(r, 3), r.reservedFor(2), r.nextIs(3, 1))
	reads(r, name(2), alice)
	assert.Equal(r, []any{ticket(3), readerTicket(4)}, r.admin("ZRANGE", r.queue, "0", "-1"))
}

func leavesItToTheWriter(r *rig) {
	r.subscribe()
	r.holdsAgainst(1, 2)
	r.admin("DEL", r.lock) // it expires
	got := r.one(shareFor(r, carol, 3)).([]any)
	require.Len(r, got, 3)
	assert.Equal(r, name(1)+" w ", got[0])
	assert.EqualValues(r, 1, got[2])
	r.woken(pinged(r, 1), r.reservedFor(1), r.nextIs(2, 1))
}

func admitsTogether(r *rig) {
	r.subscribe()
	r.holds(alice)
	for _, n := range []int{1, 2, 3} {
		assert.EqualValues(r, n-1, r.one(shareFor(r, bob, n)).([]any)[2])
	}
	r.enqueues(bob, 4)
	r.one(shareFor(r, bob, 5))
	assert.Equal(r, int64(wire.HandedOn), r.one(r.release(alice)))
	r.woken(r.reservedFor(1), r.reservedFor(2), r.reservedFor(3), r.nextIs(4, 1), r.nextIs(5, 2))
	reads(r, name(1), name(2), name(3))
	assert.LessOrEqual(r, r.pttl(r.lock), int64(grace+grace/8))
	got := r.one(share(r, carol)).([]any)
	assert.Equal(r, theirs, got[0], "it has to wait behind the writer")
	assert.IsType(r, []any{}, r.one(r.wait(carol, 4)), "the writer itself waits for the readers")
	reg := r.register()
	assert.Equal(r, granted(0, reg, 2), r.one(shareFor(r, bob, 2)))
	assert.Equal(r, granted(0, reg, 2), r.one(shareFor(r, carol, 1)))
	reads(r, name(3), bob, carol)
	assert.Equal(r, int64(1), r.one(quit(r, bob)))
	assert.Equal(r, int64(1), r.one(quit(r, carol)), "the third has not come yet")
	reads(r, name(3))
	assert.Equal(r, int64(wire.HandedOn), r.one(passOf(r, readerTicket(3))), "it does not come")
	r.woken(pinged(r, 4), r.reservedFor(4), r.nextIs(5, 1))
}

func admitsMore(r *rig) {
	r.subscribe()
	r.holds(alice)
	for n := range 100 {
		r.admin("ZADD", r.queue, enqueuedAt(n), readerTicket(n))
	}
	r.admin("SET", r.hint, "1")
	r.one(r.release(alice))
	var first []wake
	for n := range 64 {
		first = append(first, r.reservedFor(n))
	}
	assert.EqualValues(r, 36, r.admin("ZCARD", r.queue))
	first = append(first, r.nextIs(64, 1))
	for rank, at := 2, 0; at < 35; rank++ {
		at = min(2*at+1, 35)
		first = append(first, r.nextIs(64+at, rank))
	}
	r.woken(first...)
	r.one(shareFor(r, bob, 7))
	first = nil
	for n := 64; n < 100; n++ {
		first = append(first, r.reservedFor(n))
	}
	r.woken(first...)
	assert.EqualValues(r, 100, r.admin("ZCARD", wire.ReadersKey(r.lock)))
	assert.EqualValues(r, 0, r.admin("ZCARD", r.queue))
}

func comesUnasked(r *rig) {
	r.subscribe()
	r.one(share(r, alice))
	r.one(r.wait(carol, 2))
	for _, n := range []int{3, 4} {
		r.one(shareFor(r, bob, n))
	}
	r.admin("ZREM", r.queue, ticket(2)) // as a message that was lost
	assert.Equal(r, granted(0, 0), r.one(shareFor(r, bob, 4)))
	r.woken(pinged(r, 2), pinged(r, 2), r.reservedFor(3))
	reads(r, name(3), alice, bob)
}

// The writer's call came earlier, and its ticket later: by then, others have been let in.
func comesBeforeAnEarlierWriter(r *rig) {
	r.subscribe()
	reg := r.holds(alice)
	r.one(shareFor(r, bob, 2))
	r.one(r.release(alice))
	r.one(r.wait(carol, 1))
	assert.IsType(r, []any{}, r.one(shareFor(r, carol, 3)), "it was not woken")
	assert.Equal(r, granted(0, reg, 2), r.one(shareFor(r, bob, 2)))
	reads(r, bob)
}

func admitsTheNext(r *rig) {
	dead := strings.Repeat("e", wire.ManagerLen) + readerTicket(1)[wire.ManagerLen:]
	r.subscribe()
	r.holds(alice)
	r.one(shareFor(r, bob, 1).with(argReader, dead))
	r.enqueues(bob, 2)
	r.one(r.release(alice))
	r.reserved(2)
	r.one(r.pass(2))
	r.absent(r.lock)

	r.holds(alice)
	r.one(shareFor(r, bob, 1))
	r.enqueues(bob, 2)
	r.one(r.release(alice))
	r.woken(r.reservedFor(1), r.nextIs(2, 1))
	r.admin("DEL", r.lock) // its grace ends
	t := r.micros()
	assert.Equal(r, granted(t, r.register()), r.one(r.waitFor(bob, 2, t).with(argMode, "l")))
}

func admitsBehindAWriter(r *rig) {
	r.subscribe()
	for what, leaves := range map[string]func(){
		"by pass":         func() { assert.Equal(r, int64(0), r.one(r.pass(2))) },
		"with a release":  func() { assert.Equal(r, int64(-1), r.one(r.leave(carol, 2))) },
		"as a reader's":   func() { r.admin("ZREM", r.queue, ticket(2)); r.one(shareFor(r, alice, 1)) },
		"with its grant":  func() { r.admin("ZREM", r.queue, ticket(2)); r.one(quit(r, carol).with(2, readerTicket(9))) },
		"and the readers": func() { r.admin("ZREM", r.queue, ticket(2)); r.one(passOf(r, readerTicket(9))) },
	} {
		r.one(share(r, alice))
		r.one(r.wait(bob, 2))
		r.one(shareFor(r, bob, 3))
		reads(r, alice)
		leaves()
		r.woken(pinged(r, 2), r.reservedFor(3))
		assert.EqualValues(r, 2, r.one(r.read()).([]any)[4], what)
		r.admin("DEL", r.lock, r.queue, wire.ReadersKey(r.lock))
	}
	// In one call: the reader before has 100 ms.
	r.apply(share(r, alice).with(argTTL, "100"), r.wait(bob, 2), shareFor(r, bob, 3), r.pass(2))
	assert.Greater(r, r.pttl(r.lock), int64(200), "the lock lasts for the one that was woken")
}

func healsOverWokenReaders(r *rig) {
	r.subscribe()
	admitted := func() (t int64) {
		t = r.holds(alice)
		r.one(shareFor(r, bob, 1))
		r.one(shareFor(r, carol, 2))
		r.one(r.release(alice))
		reads(r, name(1), name(2))
		return t
	}
	t := admitted()
	r.unchanged(func() {
		assert.Equal(r, int64(0), r.one(r.extend(alice, t)))
		assert.Equal(r, int64(0), r.one(r.heal(alice).with(argNotAfter, micros(t))))
	})
	assert.Equal(r, int64(1), r.one(r.heal(alice)))
	assert.Equal(r, wire.Compose(alice, 0, metadata), r.admin("GET", r.lock))
	assert.Equal(r, wire.Compose(alice, 0, metadata), r.one(shareFor(r, bob, 1)).([]any)[0], "it has come too late")
	assert.Equal(r, int64(wire.HandedOn), r.one(r.release(alice)))
	r.admin("DEL", r.lock, r.queue)

	t = admitted()
	r.one(shareFor(r, bob, 1))
	r.unchanged(func() {
		assert.Equal(r, int64(-1), r.one(r.extend(alice, t)))
		assert.Equal(r, int64(-1), r.one(r.heal(alice)))
	})
}

func keepsAReadersPlace(r *rig) {
	r.subscribe()
	stays := func(owner string, n int) op {
		return op{r.lock, []string{"quit", reader(owner), readerTicket(n), enqueuedAt(n), ""}}
	}
	r.one(share(r, alice))
	assert.Equal(r, int64(1), r.one(stays(alice, 1)), "it is the first itself")
	reads(r, name(1))
	r.woken(r.reservedFor(1))
	r.unchanged(func() { assert.Equal(r, int64(-1), r.one(stays(alice, 1)), "reserved for it: no second turn") })
	assert.Equal(r, int64(0), r.one(quit(r, alice).with(2, readerTicket(1))), "it gives up")
	r.absent(r.lock, wire.ReadersKey(r.lock), r.queue)
}

func recallsForAReader(r *rig) {
	r.subscribe()
	r.reserves(1, 2)
	r.one(shareFor(r, bob, 3))
	r.admin("DEL", r.lock)
	lapsed := shareFor(r, bob, 3).with(argReader+2, "l")
	r.unchanged(func() { assert.IsType(r, []any{}, r.one(lapsed.with(argNotAfter, micros(r.micros()-1))), "too late") })
	assert.Equal(r, sharesAt(r.register()), r.one(lapsed))
	reads(r, bob)
	r.woken(pinged(r, 2), r.asksAgain(2))
}

func dropsUnknownTickets(r *rig) {
	r.subscribe()
	r.holds(alice)
	r.admin("ZADD", r.queue, enqueuedAt(1), ticket(1)+"?", enqueuedAt(2), ticket(2))
	r.admin("SET", r.hint, "1")
	r.one(r.release(alice))
	r.reserved(2)
}

func quits(r *rig) {
	for _, owner := range []string{alice, bob} {
		r.one(share(r, owner))
	}
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(quit(r, carol)), "it reads nothing") })
	assert.Equal(r, int64(1), r.one(quit(r, alice)))
	reads(r, bob)
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(quit(r, alice)), "again") })
	r.subscribe()
	r.one(r.wait(carol, 1))
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(quit(r, alice)), "again, while a writer waits") })
	r.admin("DEL", r.queue, r.hint)
	assert.Equal(r, int64(1), r.one(quit(r, bob)))
	r.absent(r.lock, wire.ReadersKey(r.lock))
	assert.Equal(r, int64(0), r.one(quit(r, bob)), "again")
	r.holds(carol)
	r.unchanged(func() { assert.Equal(r, int64(-1), r.one(quit(r, bob))) })
	r.admin("DEL", r.lock)
	r.one(share(r, alice))
	r.one(share(r, bob))
	r.admin("SET", r.lock, wire.Compose(carol, 7, metadata), "PX", "60000")
	assert.Equal(r, int64(-1), r.one(quit(r, alice)), "the set has outlived the readers' string")
}
