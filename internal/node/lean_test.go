package node_test

import (
	"fmt"
	"slices"
	"strconv"
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
		keys, err := strconv.Atoi(call[2])
		require.NoError(tr.t, err)
		name := "usual"
		if op := call[3+keys]; op == "acquire" || op == "release" {
			name = "lean"
		}
		scripts = append(scripts, name)
	}
	return r, scripts
}

// isNear has the node see a short round trip, however busy the machine is.
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

// Beside a long round trip the lean script saves nothing, and what it declines costs one.
func TestADistantNodeTakesTheUsualScript(t *testing.T) {
	tr := newTraffic(t)
	tr.proxy.Delay(time.Millisecond)
	soon := tr.now() + time.Minute
	tr.ask(wire.NewRead("p:job", clock.Steady(soon)))
	r, scripts := tr.ask(acquisition("p:job", ownerA, soon))
	require.Equal(t, wire.Granted, r.Status, "%v", r.Err)
	assert.Equal(t, []string{"usual"}, scripts)
}

// The lean script always moves a register.
func TestANodeWithoutFencingTakesTheUsualScript(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	tr := &traffic{t: t, server: server, proxy: redistest.NewProxy(t, server.Addr())}
	tr.Node, tr.now = run(t, node.Config{Option: rueidis.ClientOption{InitAddress: []string{tr.proxy.Addr()}}})
	tr.watch(0)
	tr.isNear()
	r, scripts := tr.ask(acquisition("p:job", ownerA, tr.now()+time.Minute))
	require.Equal(t, wire.Granted, r.Status, "%v", r.Err)
	assert.Equal(t, []string{"usual"}, scripts)
	assert.EqualValues(t, 0, server.MustDo("EXISTS", wire.RegistersKey("p:")))
}

// The lean script makes the lock first, and then finds the register ahead. If it left the lock
// behind, the usual script would take it for the first answer's, with a register that has moved.
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
	assert.Equal(t, []string{"lean"}, scripts)
	assert.Equal(t, wire.Misconfigured, r.Status)
	require.Error(t, r.Err)
	assert.Regexp(t, "can't run this command|'del' command", r.Err.Error()) // Redis 7.0, and later versions
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

// A request that goes again with the companions of its locks is not behind a later one: the requests of a
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
