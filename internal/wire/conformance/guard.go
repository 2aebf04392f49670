package conformance

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/wire"
)

var guardCases = []testCase{
	{"a marker of another process, or none, starts a quarantine that raises the base", (*rig).guardStarts},
	{"a marker that stands is answered, and not written again", (*rig).guardAnswers},
	{"a forced quarantine writes a marker of the same process again", (*rig).guardForced},
	{"every marker is new, a trusted one too", (*rig).guardNeverRepeats},
	{"a client of an earlier term of a failover group changes nothing, and a later one starts a quarantine", (*rig).guardTerms},
	{"a look at the marker writes nothing", (*rig).guardLooks},
	{"a guard that comes too late does nothing", (*rig).guardTooLate},
	{"clients without the guard vote until the first client ends the rollout", (*rig).guardRollsOut},
	{"a node refuses the votes of a client without the guard, and nothing else", (*rig).guardRefusesTheUnguarded},
	{"the end of a rollout is no loss of data", (*rig).guardEndsARolloutOfTrusted},
	{"the restart guard lets a node vote that it knows", (*rig).guardKnows},
	{"the restart guard quarantines a restart, a flush and a first use", (*rig).guardQuarantines},
	{"a quarantined node votes for nothing, and its extensions prove no token", (*rig).guardRaisesNothing},
	{"the restart guard sees a flush under a connection that stands", (*rig).guardSeesFlushes},
	{"a quarantine that one client starts binds the others", (*rig).guardBindsAll},
	{"the restart guard trusts an empty node with the option", (*rig).guardTrusts},
	{"the restart guard trusts nothing that it has seen before", (*rig).guardTrustsOnce},
	{"a client sees a flush that a trusting newcomer has found first", (*rig).guardSeesTrustedMarkers},
	{"the restart guard's marker survives garbage in its place", (*rig).guardMends},
	{"a key of another type is refused, not overwritten, under the guard too", (*rig).guardSparesOthers},
	{"registers count as the end of a quarantine at least", (*rig).guardRaisesTheBase},
	{"clients with different longest leases are refused", (*rig).guardDisagrees},
	{"a guard that cannot do its work withholds votes and nothing else", (*rig).guardWithholds},
	{"a lock is handed on under the restart guard too", (*rig).guardHandsOn},
	{"an acquisition that was refused for its marker is sent again, and not when it was withdrawn", (*rig).resendsNothingWithdrawn},
}

// guard starts a quarantine, if there is a reason.
func (r *rig) guard(run string, ms int64, trust, force string) op {
	return op{r.marker, []string{"guard", run, strconv.FormatInt(ms, 10), trust, force, rand.Text(), "", micros(r.micros() + 60*second)}}
}

// quarantine runs the operation and returns the parts of its answer.
func (r *rig) quarantine(o op) (stop, longest int64, marker string) {
	r.Helper()
	got, ok := r.one(o).([]any)
	require.True(r, ok)
	require.Len(r, got, 3, "%v", got)
	return got[0].(int64), got[1].(int64), got[2].(string)
}

func (r *rig) guardStarts() {
	for what, prepare := range map[string][]string{
		"first use": {"DEL", r.marker}, "another process": {"SET", r.marker, "another 1 60000 nonce"}, "garbage": {"SET", r.marker, "\xff"},
		"the marker of turn one": {"SET", r.marker, "run 1 60000"}, "an end that is no instant": {"SET", r.marker, "run 9007199254740991 60000 nonce"},
		"a clock that was ahead": {"SET", r.marker, "run " + micros(r.micros()+hour) + " 60000 nonce"},
	} {
		r.admin("DEL", r.marker, r.base)
		r.admin(prepare...)
		began := r.micros()
		stop, longest, marker := r.quarantine(r.guard("run", 60_000, "0", "0"))
		assert.GreaterOrEqual(r, stop, began+60*second, what)
		assert.LessOrEqual(r, stop, r.micros()+60*second, what)
		assert.EqualValues(r, 60_000, longest, what)
		assert.Equal(r, marker, r.admin("GET", r.marker), what)
		assert.Equal(r, micros(stop), r.admin("GET", r.base), what)
		assert.EqualValues(r, -1, r.pttl(r.marker), what)
		assert.EqualValues(r, -1, r.pttl(r.base), what)
	}
	r.admin("DEL", r.marker)
	r.admin("HSET", r.marker, "theirs", "x")
	r.fails(r.one(r.guard("run", 60_000, "0", "0")))
	assert.Equal(r, "x", r.admin("HGET", r.marker, "theirs"), "it is not overwritten")
	r.admin("DEL", r.marker)
	r.admin("SET", r.base, micros(1<<52))
	r.quarantine(r.guard("third", 60_000, "0", "0"))
	assert.Equal(r, micros(1<<52), r.admin("GET", r.base), "it only grows")
}

func (r *rig) guardAnswers() {
	stop, _, marker := r.quarantine(r.guard("run", 60_000, "0", "0"))
	r.unchanged(func() {
		for what, o := range map[string]op{
			"the same": r.guard("run", 60_000, "0", "0"), "with trust": r.guard("run", 60_000, "1", "0"),
			"another longest lease": r.guard("run", 61_000, "0", "1"), "and another process": r.guard("another", 59_000, "1", "1"),
		} {
			gotStop, longest, got := r.quarantine(o)
			assert.Equal(r, stop, gotStop, what)
			assert.EqualValues(r, 60_000, longest, what)
			assert.Equal(r, marker, got, what)
		}
	})
	t := r.micros()
	r.known = marker
	assert.Equal(r, granted(0, stop), r.one(r.acquire(alice, t)), "who knows the marker votes, above the base")
}

func (r *rig) guardForced() {
	stop, _, marker := r.quarantine(r.guard("run", 60_000, "0", "0"))
	r.admin("DEL", r.base)
	again, _, forced := r.quarantine(r.guard("run", 60_000, "0", "1"))
	assert.Greater(r, again, stop)
	assert.NotEqual(r, marker, forced)
	assert.Equal(r, forced, r.admin("GET", r.marker), "the other clients read it")
	assert.Equal(r, micros(again), r.admin("GET", r.base))
}

func (r *rig) guardTerms() {
	const mine = "run.data."
	stop, _, marker := r.quarantine(r.guard(mine+"12", 60_000, "0", "0"))
	for what, earlier := range map[string]op{
		"the same server": r.guard(mine+"9", 60_000, "0", "0"), "another server": r.guard("other.data.11", 60_000, "0", "0"),
		"with force": r.guard("other.data.11", 60_000, "0", "1"),
	} {
		gotStop, _, got := r.quarantine(earlier)
		assert.Equal(r, stop, gotStop, what)
		assert.Equal(r, marker, got, what)
		assert.Equal(r, marker, r.admin("GET", r.marker), what)
	}
	for what, later := range map[string]string{
		"the same server is the master again": mine + "13", "another server": "other.data.14", "other data": "other.new.14",
	} {
		before, _, was := r.quarantine(r.guard(mine+"12", 60_000, "0", "0"))
		again, _, now := r.quarantine(r.guard(later, 60_000, "0", "0"))
		assert.Greater(r, again, before, what)
		assert.NotEqual(r, was, now, what)
		r.admin("DEL", r.marker)
	}
}

func (r *rig) guardNeverRepeats() {
	seen := map[string]bool{}
	for range 20 {
		r.admin("FLUSHALL")
		stop, _, marker := r.quarantine(r.guard("run", 60_000, "1", "0"))
		assert.Zero(r, stop, "an empty database is trusted")
		r.absent(r.base)
		assert.False(r, seen[marker], marker)
		seen[marker] = true
	}
	r.admin("FLUSHALL")
	r.admin("SET", r.server.Prefix+"anything", "x")
	stop, _, _ := r.quarantine(r.guard("run", 60_000, "1", "0"))
	assert.NotZero(r, stop, "not empty")
}

// guarded switches the restart guard on.
func guarded(longest time.Duration) func(*node.Config) {
	return func(c *node.Config) { c.Guard = longest }
}

func trusting(c *node.Config) { c.Guard, c.Trust = time.Hour, true }

// passed writes a marker whose quarantine has ended, so that a case need not wait, and has a client with
// the guard use the node.
func (r *rig) passed(longest time.Duration) {
	r.Helper()
	if r.word == "" {
		r.word = r.serverWord()
	}
	r.admin("SET", r.marker, fmt.Sprintf("%s 1 %d nonce", r.word, longest.Milliseconds()))
	usedUntil(r, r.micros()+60*second)
}

// serverWord returns the word by which a marker names the server.
func (r *rig) serverWord() string {
	if r.server.Group { // it has the epoch, which only the servers that choose the master know
		r.connect(guarded(time.Hour)).Close(context.Background(), nil, nil)
		word, _, _ := strings.Cut(r.admin("GET", r.marker).(string), " ")
		r.admin("DEL", r.marker, r.base)
		return word
	}
	info, ok := r.admin("INFO", "server").(string)
	require.True(r, ok)
	_, after, _ := strings.Cut(info, "run_id:")
	run, _, _ := strings.Cut(after, "\r\n")
	return run
}

func (r *rig) guardKnows() {
	r.connect(guarded(100*time.Millisecond)).Close(context.Background(), nil, nil)
	time.Sleep(150 * time.Millisecond)
	n := r.connect(guarded(100 * time.Millisecond))
	require.NoError(r, n.Health().Err)
	assert.Zero(r, n.Health().Quarantined)
}

func (r *rig) guardQuarantines() {
	quarantined := func(n *node.Node, why string) {
		r.Helper()
		got := r.vote(n, alice)
		assert.Equal(r, wire.NotApplied, got.Status, why)
		assert.ErrorIs(r, got.Err, wire.ErrQuarantined, why)
		r.absent(r.lock)
		assert.Equal(r, wire.Done, r.on(n, r.renewal(alice, 1)).Status, "everything but votes goes on")
	}
	quarantined(r.connect(guarded(time.Hour)), "first use")
	r.admin("FLUSHALL")
	quarantined(r.connect(guarded(time.Hour)), "flush")
	if r.server.Restart == nil {
		return
	}
	r.server.Restart()
	quarantined(r.connect(guarded(time.Hour)), "restart")
}

func (r *rig) guardRaisesNothing() {
	n := r.connect(guarded(time.Hour))
	t := r.micros() + 2*hour // above the base
	r.setRegister(t)
	r.admin("SET", r.lock, wire.Compose(alice, t, metadata), "PX", "60000")
	r.unchanged(func() {
		got := r.on(n, wire.Entry{Lock: r.lock, Value: wire.Compose(alice, 0, metadata)}.Raise(t+1, r.soon(10*time.Second)))
		assert.Equal(r, wire.Done, got.Status, "%v", got.Err)
		assert.EqualValues(r, -1, got.Before, "refused")
	})
	assert.Equal(r, []int64{wire.OursWithoutVote}, r.on(n, r.renewal(alice, t)).Answers)
	r.left(keyLife, r.pttl(r.lock))
	r.admin("DEL", r.marker)
	r.passed(time.Hour)
	other := r.connect(guarded(time.Hour)) // out of quarantine
	assert.Equal(r, []int64{wire.Ours}, r.on(other, r.renewal(alice, t)).Answers)
	assert.EqualValues(r, t, r.on(other, wire.Entry{Lock: r.lock, Value: wire.Compose(alice, 0, metadata)}.Raise(t+1, r.soon(10*time.Second))).Before)
}

// lookAt is an operation that only reads the marker.
func (r *rig) lookAt() op { return r.guard("", 0, "0", "0") }

func (r *rig) guardLooks() {
	r.unchanged(func() { assert.Equal(r, answer(0, 0, "", 0), r.one(r.lookAt())) })
	r.admin("HSET", r.marker, "theirs", "x")
	r.unchanged(func() { assert.Equal(r, answer(0, 0, "", 0), r.one(r.lookAt()), "of another program") })
	r.admin("DEL", r.marker)
	stop, longest, marker := r.quarantine(r.guard("run", 60_000, "0", "0"))
	r.unchanged(func() { assert.Equal(r, []any{stop, longest, marker}, r.one(r.lookAt()).([]any)[:3]) })
}

func (r *rig) guardTooLate() {
	past := micros(r.micros() - 1)
	r.unchanged(func() {
		assert.Equal(r, answer(0, 0, ""), r.one(r.guard("run", 60_000, "0", "0").with(7, past)))
	})
	_, _, marker := r.quarantine(r.guard("run", 60_000, "0", "0"))
	r.unchanged(func() {
		assert.Equal(r, answer(0, 0, ""), r.one(r.guard("another", 60_000, "0", "1").with(7, past)))
	})
	assert.Equal(r, marker, r.admin("GET", r.marker))
}

// opened is an operation of a client that lets clients without the guard vote.
func (r *rig) opened(run string, force string) op {
	return r.guard(run, 60_000, "0", force).with(6, "open")
}

func (r *rig) guardRollsOut() {
	unguarded := func() any {
		r.Helper()
		r.known = ""
		r.admin("DEL", r.lock)
		return r.one(r.acquire(alice, r.micros()+2*hour))
	}
	assert.NotEqual(r, int64(-1), unguarded(), "no client has the guard")
	stop, _, marker := r.quarantine(r.opened("run", "0"))
	assert.True(r, strings.HasSuffix(marker, "open"), marker)
	assert.NotEqual(r, int64(-1), unguarded(), "the guard is rolled out")
	again, _, same := r.quarantine(r.opened("run", "0"))
	assert.Equal(r, []any{stop, marker}, []any{again, same})
	_, _, forced := r.quarantine(r.opened("run", "1"))
	assert.True(r, strings.HasSuffix(forced, "open"), forced)
	for what, nothing := range map[string]op{
		"another longest lease": r.guard("run", 61_000, "0", "0"), "late": r.guard("run", 60_000, "0", "0").with(7, micros(r.micros()-1)),
	} {
		r.unchanged(func() { r.one(nothing) })
		assert.NotEqual(r, int64(-1), unguarded(), what)
	}

	stop, _, strict := r.quarantine(r.guard("run", 60_000, "0", "0"))
	assert.Equal(r, strings.TrimSuffix(forced, "open"), strict, "the end of the rollout is no new quarantine")
	assert.Equal(r, strict, r.admin("GET", r.marker))
	assert.Positive(r, stop)
	for what, o := range map[string]op{
		"the rest of the rollout": r.opened("run", "0"), "a restart": r.opened("next", "0"), "a step of the clock": r.opened("next", "1"),
	} {
		_, _, marker = r.quarantine(o)
		assert.False(r, strings.HasSuffix(marker, "open"), "%s: %s", what, marker)
		assert.Equal(r, int64(-1), unguarded(), what)
		r.absent(r.lock)
	}
	r.quarantine(r.guard("r.d.12", 60_000, "0", "0"))
	r.admin("DEL", r.marker)
	_, _, marker = r.quarantine(r.opened("r.d.12", "0"))
	_, _, same = r.quarantine(r.guard("r.d.11", 60_000, "0", "0"))
	assert.Equal(r, marker, same, "a client of an earlier term changes nothing")
}

// A client without the guard asks a node on which the others rely on the guard.
func (r *rig) guardRefusesTheUnguarded() {
	t := r.holds(alice)
	before := r.connect()
	assert.Equal(r, []int64{wire.Ours}, r.on(before, r.renewal(alice, t)).Answers)
	r.passed(time.Hour)
	refused := func(n *node.Node) {
		r.Helper()
		var config *wire.ConfigError
		got := r.vote(n, bob)
		assert.Equal(r, wire.Misconfigured, got.Status)
		require.ErrorAs(r, got.Err, &config)
		require.ErrorIs(r, got.Err, wire.ErrUnguarded)
		assert.Contains(r, config.Fix, "WithRestartGuard to 1h0m0s")
		assert.True(r, n.Health().Withheld)
		assert.Equal(r, alice, wire.ParseValue(r.on(n, wire.NewRead(r.lock, r.soon(10*time.Second))).Held).Owner, "it can be read")
		assert.NotEqual(r, []int64{wire.Missing}, r.on(n, r.renewal(alice, t)).Answers, "a lease goes on")
	}
	refused(before)
	refused(r.connect())
	assert.EqualValues(r, wire.Ours, r.on(before, r.releasing(alice)).N)
	r.absent(r.lock)

	r.admin("SET", r.marker, r.admin("GET", r.marker).(string)+"open")
	require.Eventually(r, func() bool { return before.Health().Err == nil }, 10*time.Second, 10*time.Millisecond)
	assert.Equal(r, wire.Granted, r.vote(before, bob).Status)
	require.ErrorIs(r, before.Health().Warning, wire.ErrUnguarded)
	rolling := r.connect(guarded(time.Hour), func(c *node.Config) { c.Rollout = true })
	require.NoError(r, rolling.Health().Err)
	assert.ErrorContains(r, rolling.Health().Warning, "WithGuardRollout")
	r.on(before, r.releasing(bob))
	n := r.connect(guarded(time.Hour))
	require.NoError(r, n.Health().Err)
	assert.NoError(r, n.Health().Warning)
	assert.Zero(r, n.Health().Quarantined)
	assert.Equal(r, wire.Misconfigured, r.vote(before, bob).Status, "the rollout is over for all")
	assert.Equal(r, wire.Granted, r.vote(rolling, bob).Status, "%v", rolling.Health().Err)
	assert.Zero(r, rolling.Health().Quarantined)
}

// The end of a rollout changes a marker that stands for data which a client trusts: that isn't a loss of data.
func (r *rig) guardEndsARolloutOfTrusted() {
	rolling := r.connect(trusting, func(c *node.Config) { c.Rollout = true })
	require.Equal(r, wire.Granted, r.vote(rolling, alice).Status)
	r.on(rolling, r.releasing(alice))
	n := r.connect(trusting)
	require.Zero(r, n.Health().Quarantined)
	assert.Equal(r, wire.Granted, r.vote(rolling, alice).Status)
	assert.Zero(r, rolling.Health().Quarantined)
}

func (r *rig) guardTrusts() {
	assert.Zero(r, r.connect(trusting).Health().Quarantined)
	r.admin("FLUSHALL")
	r.admin("SET", r.server.Prefix+"anything", "x")
	assert.NotZero(r, r.connect(trusting).Health().Quarantined, "not empty, and not known")
}

func (r *rig) guardSeesFlushes() {
	r.passed(time.Hour)
	n := r.connect(guarded(time.Hour))
	require.Equal(r, wire.Granted, r.vote(n, alice).Status)
	r.admin("FLUSHALL")
	got := r.vote(n, bob)
	assert.Equal(r, wire.NotApplied, got.Status)
	require.ErrorIs(r, got.Err, wire.ErrQuarantined)
	r.absent(r.lock)
	assert.InDelta(r, time.Hour, n.Health().QuarantineLeft(), float64(2*time.Minute))
	require.NoError(r, n.Health().Err, "everything but votes goes on")
}

func (r *rig) guardBindsAll() {
	r.passed(time.Hour)
	n := r.connect(guarded(time.Hour))
	require.Equal(r, wire.Granted, r.vote(n, alice).Status)
	r.admin("FLUSHALL")
	r.connect(guarded(time.Hour)) // another client, which finds the flush first
	require.ErrorIs(r, r.vote(n, bob).Err, wire.ErrQuarantined)
}

func (r *rig) guardTrustsOnce() {
	n := r.connect(trusting)
	require.Equal(r, wire.Granted, r.vote(n, alice).Status, "a first deployment")
	r.admin("FLUSHALL")
	require.ErrorIs(r, r.vote(n, bob).Err, wire.ErrQuarantined, "and no second one")
}

func (r *rig) guardSeesTrustedMarkers() {
	n := r.connect(trusting)
	require.Equal(r, wire.Granted, r.vote(n, alice).Status, "a first deployment")
	before := r.admin("GET", r.marker)
	r.admin("FLUSHALL")
	newcomer := r.connect(trusting) // it has never seen the data that were lost
	require.Equal(r, wire.Granted, r.vote(newcomer, carol).Status)
	assert.NotEqual(r, before, r.admin("GET", r.marker))
	r.one(r.release(carol))
	require.ErrorIs(r, r.vote(n, bob).Err, wire.ErrQuarantined, "it knows that data were lost")
	require.ErrorIs(r, r.vote(newcomer, bob).Err, wire.ErrQuarantined, "and says so to everybody")
	r.absent(r.lock)
}

func (r *rig) guardMends() {
	r.admin("SET", r.marker, "\xff garbage")
	n := r.connect(guarded(time.Second))
	require.ErrorIs(r, r.vote(n, alice).Err, wire.ErrQuarantined)
	time.Sleep(1100 * time.Millisecond)
	assert.Equal(r, wire.Granted, r.vote(n, alice).Status)
}

func (r *rig) guardSparesOthers() {
	r.passed(time.Hour)
	n := r.connect(guarded(time.Hour))
	r.admin("HSET", r.lock, "theirs", "x")
	got := r.vote(n, alice)
	assert.Equal(r, wire.Misconfigured, got.Status)
	assert.ErrorContains(r, got.Err, "WRONGTYPE")
	assert.Equal(r, "x", r.admin("HGET", r.lock, "theirs"))
}

func (r *rig) guardRaisesTheBase() {
	began := r.micros()
	n := r.connect(guarded(200 * time.Millisecond))
	time.Sleep(300 * time.Millisecond)
	got := r.on(n, r.request(alice, began))
	require.Equal(r, wire.Granted, got.Status, "%v", got.Err)
	assert.Zero(r, got.Moved)
	assert.Greater(r, got.Before, began+200_000)
	got = r.on(n, wire.Entry{Lock: r.lock, Value: wire.Compose(alice, 0, metadata)}.Raise(got.Before+1, r.soon(10*time.Second)))
	assert.Greater(r, got.Before, began+200_000)
}

func (r *rig) guardDisagrees() {
	r.connect(guarded(time.Second))
	n := r.connect(guarded(2 * time.Second))
	var config *wire.ConfigError
	require.ErrorAs(r, n.Health().Err, &config)
	assert.Contains(r, config.Error(), "1000 ms")
}

func (r *rig) guardWithholds() {
	goesOn := func(n *node.Node) {
		r.Helper()
		r.on(n, r.releasing(bob))
		assert.Equal(r, []int64{wire.Missing}, r.on(n, r.healing(alice, 0)).Answers, "a heal of what it never had would be a vote")
		assert.Equal(r, []int64{wire.Ours}, r.on(n, r.healing(alice, 10*time.Second)).Answers)
		t := r.register() + 1
		assert.Equal(r, []int64{wire.OursWithoutVote}, r.on(n, r.renewal(alice, t)).Answers)
		got := r.on(n, wire.Entry{Lock: r.lock, Value: wire.Compose(alice, 0, metadata)}.Raise(t, r.soon(10*time.Second)))
		assert.EqualValues(r, -1, got.Before, "a raise would count")
		assert.Equal(r, alice, wire.ParseValue(r.on(n, wire.NewRead(r.lock, r.soon(10*time.Second))).Held).Owner)
		assert.EqualValues(r, wire.Ours, r.on(n, r.releasing(alice)).N)
		r.absent(r.lock)
	}
	withheld := func(n *node.Node) {
		r.Helper()
		got := r.vote(n, bob)
		assert.Equal(r, wire.Misconfigured, got.Status)
		require.ErrorContains(r, got.Err, "the other clients of this node use a restart guard of")
		r.absent(r.lock)
		goesOn(n)
		require.Equal(r, got.Err, n.Health().Err)
		assert.True(r, n.Health().Withheld)
	}
	r.passed(time.Hour)
	n := r.connect(guarded(time.Hour))
	require.Equal(r, wire.Granted, r.vote(n, bob).Status)
	r.passed(2 * time.Hour) // an operator deploys another longest lease
	r.on(n, r.releasing(bob))
	withheld(n)
	withheld(r.connect(guarded(time.Hour)))
	r.passed(time.Hour)
	require.Eventually(r, func() bool { return n.Health().Err == nil }, 10*time.Second, 10*time.Millisecond, "fixed")
	assert.False(r, n.Health().Withheld)
	assert.Equal(r, wire.Granted, r.vote(n, bob).Status)
}

func (r *rig) guardHandsOn() {
	r.passed(time.Hour)
	r.known = r.admin("GET", r.marker).(string)
	r.subscribe(guarded(time.Hour))
	waits := func(owner string, n int) wire.Reply {
		r.Helper()
		return r.do(r.request(owner, r.micros(), func(a *wire.Acquisition) { a.Ticket, a.EnqueuedAt = ticket(n), enqueuedAt(n) }))
	}
	before := r.reserves(1, 2)
	assert.EqualValues(r, 1, waits(carol, 3).Position)
	got := waits(bob, 1)
	require.Equal(r, wire.Granted, got.Status, "%v", got.Err)
	assert.Equal(r, before, got.Before)
	assert.Equal(r, got.Moved, r.register())
	r.queued(2, 3)
	r.admin("DEL", r.lock)
	assert.Equal(r, wire.Taken, r.vote(r.node, carol).Status)
	r.reserved(2, 3)

	r.admin("DEL", r.marker) // other data
	got = waits(bob, 2)
	assert.Equal(r, wire.NotApplied, got.Status)
	require.ErrorIs(r, got.Err, wire.ErrQuarantined)
	assert.True(r, r.value().Reserved)
	r.queued(3)
}

func (r *rig) resendsNothingWithdrawn() {
	r.passed(time.Hour)
	n := r.connect(guarded(time.Hour))
	marker := r.admin("GET", r.marker).(string)
	// Another marker, of a quarantine that has ended: the acquisition is void, and the requests behind it are not.
	another := func(i int) func() {
		return func() { r.admin("SET", r.marker, strings.Replace(marker, " 1 ", fmt.Sprintf(" %d ", 1+i), 1)) }
	}
	got := r.inOneBatch(n, another(1), r.request(alice, r.micros()), r.renewal(alice, 1))
	assert.Equal(r, wire.Granted, got[0].Status, "after a greeting: %v", got[0].Err)
	r.on(n, r.releasing(alice))

	acquire := r.request(alice, r.micros())
	release := wire.Entry{Lock: r.lock, Value: wire.Compose(alice, 0, metadata)}.Release(acquire, wire.TicketUpdate{}, r.soon(10*time.Second))
	withdraws := make(Replies, 1)
	answers := make(Replies, 1)
	require.True(r, n.Post(r.renewal(bob, 1), posting(func() {
		another(3)()
		// Extends go before acquisitions: this one is answered while the acquisition's
		// answer is not read yet.
		require.True(r, n.Post(r.renewal(bob, 1), posting(func() {
			acquire.Withdraw()
			require.True(r, n.Post(release, withdraws))
		})))
		require.True(r, n.Post(acquire, answers))
	})))
	refused := answers.Next(r)
	assert.Equal(r, wire.NotApplied, refused.Status, "%v", refused.Err)
	require.ErrorIs(r, refused.Err, wire.ErrWithdrawn)
	assert.Equal(r, wire.Done, withdraws.Next(r).Status)
	r.absent(r.lock)
	require.Equal(r, wire.Granted, r.vote(n, alice).Status, "the node votes")
}
