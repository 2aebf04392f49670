package node_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// ask posts a request, and returns the reply and which scripts it took.
func (tr *traffic) ask(req *wire.Request) (r wire.Reply, scripts []string) {
	tr.t.Helper()
	tr.calls()
	answer := make(answers, 1)
	tr.post(req, answer)
	r = answer.Next(tr.t)
	calls, _ := tr.calls()
	for _, call := range calls {
		name := "usual"
		if call[0] == "SET" || call[2] == "2" {
			name = "lean"
		}
		scripts = append(scripts, name)
	}
	return r, scripts
}

// isNear makes the node see a short round trip, however busy the machine is.
func (tr *traffic) isNear() {
	tr.t.Helper()
	require.Eventually(tr.t, func() bool {
		began := time.Now()
		tr.ask(wire.NewRead("p:job", clock.Steady(tr.now()+time.Minute)))
		return time.Since(began) < time.Millisecond
	}, 20*time.Second, time.Millisecond)
}

func TestACallOfOneCommonOperationTakesTheLeanScript(t *testing.T) {
	tr := newTraffic(t)
	soon := tr.now() + time.Minute
	for _, c := range []struct {
		name   string
		req    *wire.Request
		script string
	}{
		{"acquire", acquisition("p:job", ownerA, soon), "lean"},
		{"release", release("p:job", ownerA, soon), "lean"},
		{"wait", acquisition("p:job", ownerA, soon, func(a *wire.Acquisition) { a.Ticket, a.EnqueuedAt = ticketOf("000000000000000150"), "5" }), "usual"},
		{"leave", wire.Entry{Lock: "p:job", Value: wire.Compose(ownerA, 7, metadata)}.Release(nil, wire.TicketUpdate{Ticket: ticketOf("000000000000000150")}, clock.Steady(soon)), "usual"},
		{"extend", renewals([]string{"p:job"}, ownerA, 7, "1000", soon), "usual"},
		{"two", releases(soon, "p:a", "p:b"), "usual"},
	} {
		tr.isNear()
		r, scripts := tr.ask(c.req)
		require.NoError(t, r.Err, c.name)
		assert.Equal(t, []string{c.script}, scripts, c.name)
	}
}

// Each operation that the lean script declines costs a round trip more.
func TestANodeLeavesTheLeanScriptAloneAfterItHasDeclined(t *testing.T) {
	tr := newTraffic(t)
	soon := tr.now() + time.Minute
	value := wire.Compose(ownerA, 7, metadata)
	tr.server.MustDo("SET", "p:job", value)
	tr.server.MustDo("ZADD", wire.QueueKey("p:job"), "5", ticketOf("000000000000000150"))
	tr.server.MustDo("SET", wire.HintKey("p:"), "1")
	tr.isNear()
	r, scripts := tr.ask(release("p:job", ownerA, soon))
	assert.Equal(t, []any{wire.Done, int64(wire.Ours)}, []any{r.Status, r.N})
	assert.Equal(t, []string{"lean", "usual"}, scripts)
	tr.isNear()
	_, scripts = tr.ask(acquisition("p:other", ownerA, soon))
	assert.Equal(t, []string{"usual"}, scripts)

	tr.server.MustDo("DEL", wire.HintKey("p:"))
	tr.Check() // another greeting, which drops the registers of 1970 and raises the base to them
	for tries := 1; !slices.Equal([]string{"lean"}, scripts); tries++ {
		require.Less(t, tries, 1000)
		tr.isNear()
		_, scripts = tr.ask(acquisition(fmt.Sprint("p:free", tries), ownerA, soon, func(a *wire.Acquisition) { a.Token = "2000000" }))
	}
}

// At a long round trip the lean script saves nothing, and each operation that it declines costs another round trip.
func TestADistantNodeTakesTheUsualScript(t *testing.T) {
	tr := newTraffic(t)
	tr.proxy.Delay(time.Millisecond)
	soon := tr.now() + time.Minute
	tr.ask(wire.NewRead("p:job", clock.Steady(soon)))
	r, scripts := tr.ask(acquisition("p:job", ownerA, soon))
	require.Equal(t, wire.Granted, r.Status, "%v", r.Err)
	assert.Equal(t, []string{"usual"}, scripts)
}

// Without fencing an acquisition needs no script.
func TestALoneAcquisitionWithoutFencingIsASET(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	tr := &traffic{t: t, server: server, proxy: redistest.NewProxy(t, server.Addr())}
	tr.Node, tr.now = run(t, node.Config{Option: rueidis.ClientOption{InitAddress: []string{tr.proxy.Addr()}}})
	tr.watch(0)
	for _, lock := range []string{"p:job", "p:taken"} { // in this order: after a lock that is taken, the lean way rests
		granted := lock == "p:job"
		if !granted {
			server.MustDo("SET", lock, wire.Compose(ownerB, 7, metadata), "PX", "60000")
		}
		tr.isNear()
		r, scripts := tr.ask(acquisition(lock, ownerA, tr.now()+time.Minute))
		assert.Equal(t, granted, r.Status == wire.Granted, "%v", r.Err)
		assert.Equal(t, granted, slices.Equal([]string{"lean"}, scripts), "%v", scripts)
	}
	assert.EqualValues(t, 0, server.MustDo("EXISTS", wire.RegistersKey("p:")))
	assert.InDelta(t, 10_000, server.MustDo("PTTL", "p:job"), 9_000)
}

// The lean way makes the lock first, and then finds that it isn't a vote. If the lock stayed, the usual script would
// take it for the lock of a lost answer, with a register that has moved.
func TestALeanAcquisitionThatIsNoVoteIsTakenBack(t *testing.T) {
	const token = "1000000"
	for name, hinder := range map[string]func(*redistest.Server){
		"the base is at the proposal": func(s *redistest.Server) { s.MustDo("SET", wire.BaseKey("p:"), token) },
		"the prefix has a queue":      func(s *redistest.Server) { s.MustDo("SET", wire.HintKey("p:"), "1") },
		"the base is no number":       func(s *redistest.Server) { s.MustDo("SET", wire.BaseKey("p:"), "x") },
	} {
		tr := newTraffic(t)
		tr.isNear()
		hinder(tr.server)
		r, scripts := tr.ask(acquisition("p:job", ownerA, tr.now()+time.Minute))
		assert.Equal(t, []string{"lean", "usual"}, scripts, name)
		if r.Status == wire.Granted {
			assert.EqualValues(t, 0, r.Moved, "%s: the register stood there before this vote", name)
			assert.GreaterOrEqual(t, r.Before, int64(1_000_000), name)
		} else {
			require.Error(t, r.Err, name)
			assert.EqualValues(t, 0, tr.server.MustDo("EXISTS", "p:job"), name)
		}
	}
}

// An acquisition whose answer was lost may have made the lock without being a vote: asked again, it gives no first answer,
// and its attempt must not keep the owner value.
func TestALeanAcquisitionWhoseAnswerWasLostIsAskedAnew(t *testing.T) {
	tr := newTraffic(t)
	tr.server.MustDo("SET", wire.BaseKey("p:"), "1000000")
	tr.isNear()
	tr.proxy.DropReply(func(cmd []string) bool { return cmd[0] == "MGET" })
	req := acquisition("p:job", ownerA, tr.now()+time.Minute)
	r, _ := tr.ask(req)
	require.Equal(t, wire.Unknown, r.Status)
	require.True(t, req.Unproven(1))
	require.EqualValues(t, 1, tr.server.MustDo("EXISTS", "p:job"))
	require.Eventually(t, func() bool { return tr.Health().Err == nil }, 20*time.Second, time.Millisecond)
	r, scripts := tr.ask(req)
	require.Equal(t, wire.Granted, r.Status, "%v", r.Err)
	assert.NotContains(t, scripts, "lean")
	assert.Equal(t, []int64{0, 1_000_000}, []int64{r.Moved, r.Before})
	assert.False(t, req.Unproven(1))
}

// A lock that isn't a vote stays if its request is not sent again in time: the caller must then release it.
func TestALeanAcquisitionThatIsNotSentAgainMayHaveALock(t *testing.T) {
	tr := newTraffic(t)
	tr.server.MustDo("SET", wire.BaseKey("p:"), "1000000")
	tr.isNear()
	req := acquisition("p:job", ownerA, tr.now()+time.Minute)
	tr.proxy.DelayCommand(func(cmd []string) bool {
		if cmd[0] == "MGET" {
			req.Withdraw()
		}
		return false
	}, 0)
	answer := make(answers, 1)
	tr.post(req, answer)
	assert.Equal(t, wire.Unknown, answer.Next(t).Status)
	assert.EqualValues(t, 1, tr.server.MustDo("EXISTS", "p:job"))
}

// This client does not know a node with new data: neither the lock nor the register there is a vote.
func TestALeanAcquisitionOnOtherDataIsNoVote(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	tr := &traffic{t: t, server: server, proxy: redistest.NewProxy(t, server.Addr())}
	tr.Node, tr.now = run(t, node.Config{
		Option: rueidis.ClientOption{InitAddress: []string{tr.proxy.Addr()}}, Cap: time.Second, Guard: 100 * time.Millisecond,
	})
	tr.watch(0)
	require.Eventually(t, func() bool { h := tr.Health(); return h.Err == nil && h.Reason == nil }, 20*time.Second, time.Millisecond)
	tr.isNear()
	server.MustDo("FLUSHALL")
	r, scripts := tr.ask(acquisition("p:job", ownerA, tr.now()+time.Minute))
	assert.NotEqual(t, wire.Granted, r.Status)
	assert.Equal(t, []string{"lean", "usual"}, scripts[:2])
	assert.EqualValues(t, 0, server.MustDo("EXISTS", "p:job"))
}

// A server that was stopped runs what lies in its sockets in any order. The lean way compares no "not after", so an
// acquisition there may make the lock after its release. The release is therefore sent once more.
func TestALeanAcquisitionThatAStoppedServerRunsLateLeavesNoLock(t *testing.T) {
	tr := newTraffic(t)
	tr.isNear()
	tr.server.Stop()
	answer := make(answers, 2)
	began := tr.now()
	tr.post(acquisition("p:job", ownerA, began+100*time.Millisecond, func(a *wire.Acquisition) { a.KeyTTL = "600000" }), answer)
	require.Equal(t, wire.Unknown, answer.Next(t).Status)
	require.Greater(t, tr.now(), began+100*time.Millisecond+10*time.Millisecond, "its not-after is over")
	tr.post(release("p:job", ownerA, tr.now()+time.Minute), receiver(func(r *wire.Reply) {
		tr.calls()
		answer <- *r
	}))
	tr.server.Continue()
	require.Equal(t, wire.Done, answer.Next(t).Status)
	require.Eventually(t, func() bool {
		calls, _ := tr.calls()
		return slices.ContainsFunc(calls, func(cmd []string) bool { return slices.Contains(cmd, "release") })
	}, 10*time.Second, time.Millisecond, "a second release")
	require.Eventually(t, func() bool { return tr.server.MustDo("EXISTS", "p:job") == int64(0) }, 10*time.Second, 10*time.Millisecond)
}

// The clock is read behind the lock, and shows a step that came before it: other locks have ended early on that node.
func TestALeanAcquisitionWhereTheClockWasSetForwardIsNoVote(t *testing.T) {
	server := redistest.StartWith(t, 1, redistest.Options{Clock: true})[0]
	tr := &traffic{t: t, server: server, proxy: redistest.NewProxy(t, server.Addr())}
	tr.Node, tr.now = greeted(t, tr.proxy.Addr())
	tr.watch(0)
	tr.isNear()
	server.StepClock(time.Hour)
	time.Sleep(10 * time.Millisecond) // Valkey 9 reads its wall clock each 5 ms: TIME and the ends of keys follow that together
	r, scripts := tr.ask(acquisition("p:job", ownerA, tr.now()+time.Minute))
	assert.Equal(t, []string{"lean"}, scripts[:1])
	assert.NotEqual(t, wire.Granted, r.Status)
}

// The keys that decide the vote are read behind the lock: otherwise a loss of data in between would stay unseen.
func TestALeanAcquisitionReadsWhatDecidesBehindItsLock(t *testing.T) {
	tr := newTraffic(t)
	tr.isNear()
	seen := make(chan string, 16)
	tr.proxy.DelayCommand(func(cmd []string) bool { seen <- cmd[0]; return false }, 0)
	answer := make(answers, 1)
	tr.post(acquisition("p:job", ownerA, tr.now()+time.Minute), answer)
	require.Equal(t, wire.Granted, answer.Next(t).Status)
	assert.Equal(t, []string{"EVALSHA", "MGET", "TIME"}, []string{<-seen, <-seen, <-seen})
}

// A lock that cannot be taken back isn't a vote either.
func TestALeanAcquisitionThatCannotBeTakenBackIsNoVote(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	server.MustDo("ACL", "SETUSER", "u", "reset", "on", ">word", "~*", "&*", "+@all", "-del")
	tr := &traffic{t: t, server: server, proxy: redistest.NewProxy(t, server.Addr())}
	tr.Node, tr.now = run(t, node.Config{
		Option: rueidis.ClientOption{InitAddress: []string{tr.proxy.Addr()}, Username: "u", Password: "word"}, Cap: time.Second,
	})
	tr.watch(0)
	server.MustDo("ZADD", wire.RegistersKey("p:"), "9000000", "p:job")
	tr.isNear()
	r, scripts := tr.ask(acquisition("p:job", ownerA, tr.now()+time.Minute))
	assert.Equal(t, []string{"lean", "usual"}, scripts)
	assert.Equal(t, wire.Misconfigured, r.Status)
	require.Error(t, r.Err)
	assert.Regexp(t, "can't run this command|'del' command", r.Err.Error()) // Redis 7.0, and later versions
}

// An estimate of the clocks is a little too low now and then: then the usual script decides, once.
func TestAProposalThatIsTooLowLeavesTheLeanWayInUse(t *testing.T) {
	tr := newTraffic(t)
	tr.server.MustDo("ZADD", wire.RegistersKey("p:"), "1000000", "p:job")
	tr.isNear()
	r, scripts := tr.ask(acquisition("p:job", ownerA, tr.now()+time.Minute))
	assert.Equal(t, []string{"lean", "usual"}, scripts)
	assert.Equal(t, []int64{0, 1_000_000}, []int64{r.Moved, r.Before})
	tr.isNear()
	_, scripts = tr.ask(release("p:job", ownerA, tr.now()+time.Minute))
	assert.Equal(t, []string{"lean"}, scripts)
}

// A lean release reads no clock, which shows as the clock of 1970 in its reply.
func TestANodeKeepsItsClockWhenTheLeanScriptReleases(t *testing.T) {
	tr := newTraffic(t)
	soon := tr.now() + time.Minute
	tr.server.MustDo("SET", "p:job", wire.Compose(ownerA, 7, metadata))
	tr.isNear()
	before, _ := tr.Reading()
	_, scripts := tr.ask(release("p:job", ownerA, soon))
	require.Equal(t, []string{"lean"}, scripts)
	after, known := tr.Reading()
	assert.True(t, known)
	assert.InDelta(t, before.Offset, after.Offset, float64(time.Second))
}

// A request that is sent again with the companions of its locks does not run after a later one: the requests of a
// connection run in their order.
func TestWhatIsDeclinedGoesAgainBeforeTheNextBatch(t *testing.T) {
	tr := newTraffic(t)
	soon := tr.now() + time.Minute
	tr.server.MustDo("SET", "p:job", wire.Compose(ownerA, 7, metadata), "PX", "600000")
	tr.server.MustDo("SET", wire.HintKey("p:"), "1")
	tr.watch(200 * time.Millisecond)
	tr.calls()
	answer := make(answers, 64)
	tr.post(renewals([]string{"p:job", "p:a"}, ownerA, 7, "1000", soon), answer)
	require.Eventually(t, func() bool { calls, _ := tr.calls(); return len(calls) > 0 }, 20*time.Second, time.Millisecond, "it is on its way")
	tr.post(renewals([]string{"p:job"}, ownerA, 7, "90000", soon), answer)
	read := wire.NewRead("p:job", clock.Steady(soon)) // because of it the next batch has the companions
	read.Urgent = true
	tr.post(read, answer)
	for i := range 40 { // so many that the next batch goes out before the answers are read
		tr.post(renewals([]string{fmt.Sprint("p:", i)}, ownerA, 7, "1000", soon), answer)
	}
	for range 43 {
		assert.NoError(t, answer.Next(t).Err)
	}
	assert.Greater(t, tr.server.MustDo("PTTL", "p:job"), int64(60_000), "the later one counts")
}

// The calls of one batch have the companions of their locks together: one that was declined would run after the others.
func TestTheCallsOfABatchAreDeclinedTogether(t *testing.T) {
	tr := newTraffic(t)
	soon := tr.now() + time.Minute
	tr.server.MustDo("SET", "p:job", wire.Compose(ownerA, 7, metadata), "PX", "600000")
	tr.server.MustDo("SET", wire.HintKey("p:"), "1")
	locks := []string{"p:job"}
	for i := range wire.MaxLocks - 1 {
		locks = append(locks, fmt.Sprint("p:", i))
	}
	answer := make(answers, 3)
	tr.whileBusy(func() {
		tr.post(renewals(locks, ownerA, 7, "1000", soon), answer) // a whole call
		tr.post(renewals([]string{"p:job"}, ownerA, 7, "90000", soon), answer)
		read := wire.NewRead("p:job", clock.Steady(soon)) // because of it the second call has the companions
		read.Urgent = true
		tr.post(read, answer)
	})
	for range 3 {
		assert.NoError(t, answer.Next(t).Err)
	}
	assert.Greater(t, tr.server.MustDo("PTTL", "p:job"), int64(60_000), "the later one counts")
}
