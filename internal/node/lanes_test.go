package node_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
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

// traffic is a node behind a proxy that records the calls.
type traffic struct {
	*node.Node
	t      *testing.T
	server *redistest.Server
	proxy  *redistest.Proxy
	now    func() time.Duration

	mu   sync.Mutex
	seen [][]string // calls of the script
}

func newTraffic(t *testing.T) *traffic {
	t.Helper()
	server := redistest.Start(t, 1)[0]
	tr := &traffic{t: t, server: server, proxy: redistest.NewProxy(t, server.Addr())}
	tr.Node, tr.now = greeted(t, tr.proxy.Addr())
	tr.watch(0)
	return tr
}

// watch records calls, and delays each of them.
func (tr *traffic) watch(delay time.Duration) {
	tr.proxy.DelayCommand(func(cmd []string) bool {
		if cmd[0] != "EVALSHA" && cmd[0] != "SET" { // which is an acquisition without fencing
			return false
		}
		tr.mu.Lock()
		tr.seen = append(tr.seen, cmd)
		tr.mu.Unlock()
		return true
	}, delay)
}

// calls returns the calls since the last time, and the number of operations in each.
func (tr *traffic) calls() (calls [][]string, operations []int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	calls, tr.seen = tr.seen, nil
	for _, call := range calls {
		if call[0] == "SET" {
			operations = append(operations, 1)
			continue
		}
		keys, err := strconv.Atoi(call[2])
		require.NoError(tr.t, err)
		switch { // the lean script has one
		case keys > 5 && strings.Contains(call[3+keys+5], "k"):
			operations = append(operations, (keys-5)/4)
		default:
			operations = append(operations, max(keys-5, 1))
		}
	}
	return calls, operations
}

// whileBusy posts requests from the worker's own goroutine, so that they go out together.
func (tr *traffic) whileBusy(post func()) {
	tr.t.Helper()
	done := make(chan struct{})
	require.True(tr.t, tr.Post(wire.NewRead("p:busy", clock.Steady(tr.now()+time.Minute)), receiver(func(*wire.Reply) {
		defer close(done)
		tr.calls()
		post()
	})))
	<-done
}

// receiver is a Receiver made of a function.
type receiver func(*wire.Reply)

func (f receiver) Receive(_ int, _ *wire.Request, r *wire.Reply) { f(r) }

func (tr *traffic) post(req *wire.Request, to node.Receiver) {
	tr.t.Helper()
	assert.True(tr.t, tr.Post(req, to))
}

// Renewals and releases go before acquisitions.
func TestAcquisitionsGoLast(t *testing.T) {
	tr := newTraffic(t)
	soon := tr.now() + time.Minute
	order := make(chan string, 16)
	to := func(name string) receiver { return func(*wire.Reply) { order <- name } }
	tr.whileBusy(func() {
		tr.post(acquisition("p:1", ownerA, soon), to("acquire"))
		tr.post(wire.NewPassOn("p:11", ticketOf("000000000000000150"), clock.Steady(soon)), to("pass on"))
		tr.post(acquisition("p:2", ownerA, soon, func(a *wire.Acquisition) { a.Ticket, a.EnqueuedAt = ticketOf("000000000000000150"), "5" }), to("wait"))
		tr.post(renewals([]string{"p:3"}, ownerA, 7, "1000", soon), to("extend"))
		tr.post(heals([]string{"p:4"}, "1000", soon), to("heal"))
		tr.post(wire.Entry{Lock: "p:3", Value: wire.Compose(ownerA, 0, metadata)}.Raise(9, clock.Steady(soon)), to("raise"))
		tr.post(release("p:5", ownerA, soon), to("release"))
		tr.post(releases(soon, "p:7"), to("releases"))
		tr.post(wire.NewPass("p:8", ticketOf("000000000000000150"), clock.Steady(soon)), to("pass"))
		tr.post(wire.NewRead("p:10", clock.Steady(soon)), to("read"))
	})
	for _, want := range []string{"extend", "heal", "raise", "release", "releases", "pass", "read", "pass on", "acquire", "wait"} {
		assert.Equal(t, want, <-order)
	}
	_, operations := tr.calls()
	assert.Equal(t, []int{10}, operations, "in one call")
}

// Messages cause requests. Any client may publish, so few of these requests wait at a time, and one for each ticket.
func TestRequestsThatMessagesCauseAreFew(t *testing.T) {
	tr := newTraffic(t)
	soon := tr.now() + time.Minute
	answered := make(chan string, 2*node.HintMax)
	passOn := func(lock string, number int) bool {
		ticket := ticketOf(fmt.Sprintf("%016x", number))[:wire.TicketLen]
		return tr.Post(wire.NewPassOn(lock, ticket, clock.Steady(soon)), receiver(func(*wire.Reply) { answered <- lock }))
	}
	tr.whileBusy(func() {
		for i := range node.HintMax {
			assert.True(t, passOn("p:pass", i))
			assert.False(t, passOn("p:again", i), "a second one for the ticket")
		}
		assert.False(t, passOn("p:more", node.HintMax), "one too many")
		tr.post(renewals([]string{"p:held"}, ownerA, 7, "1000", soon), receiver(func(*wire.Reply) { answered <- "extend" }))
	})
	assert.Equal(t, "extend", <-answered, "renewals go first")
	for range node.HintMax {
		assert.Equal(t, "p:pass", <-answered)
	}
	tr.whileBusy(func() { assert.True(t, passOn("p:pass", 0), "the lane has room again") })
	assert.Equal(t, "p:pass", <-answered)
	require.True(t, tr.Close(t.Context(), nil, nil))
	assert.False(t, passOn("p:closed", 1))
}

// A full lane refuses acquisitions. No other request is ever refused.
func TestAFullLaneShedsAcquisitionsOnly(t *testing.T) {
	tr := newTraffic(t)
	soon := tr.now() + time.Minute
	var sheds int
	var all sync.WaitGroup
	done := receiver(func(*wire.Reply) { all.Done() })
	add := func(req *wire.Request) bool {
		all.Add(1)
		ok := tr.Post(req, done)
		if !ok {
			all.Done()
		}
		return ok
	}
	kept := make(answers, 4)
	tr.whileBusy(func() {
		for i := range node.AcquireMax {
			assert.True(t, add(acquisition(fmt.Sprint("p:", i), ownerA, soon)), "%d", i)
		}
		for range 3 {
			if !add(acquisition("p:over", ownerA, soon)) {
				sheds++
			}
		}
		for range 2 * node.AcquireMax {
			assert.True(t, add(release("p:none", ownerA, soon)))
		}
		tr.post(renewals([]string{"p:lease"}, ownerB, 7, "1000", soon), kept)
	})
	assert.Equal(t, 3, sheds)
	all.Wait()
	assert.Equal(t, wire.Done, kept.Next(t).Status)
	assert.EqualValues(t, node.AcquireMax, tr.server.MustDo("ZCARD", wire.RegistersKey("p:")))
}

// The requests of callers that gave up make room for others.
func TestAFullLaneMakesRoomByDroppingExpiredRequests(t *testing.T) {
	tr := newTraffic(t)
	answered := make(answers, 2*node.AcquireMax)
	granted := make(answers, 1)
	tr.whileBusy(func() {
		gone := tr.now() + 20*time.Millisecond
		for i := range node.AcquireMax {
			req := acquisition(fmt.Sprint("p:", i), ownerA, gone)
			tr.post(req, answered)
			if i%2 == 0 {
				req.Withdraw()
			}
		}
		time.Sleep(40 * time.Millisecond)
		tr.post(acquisition("p:job", ownerB, tr.now()+time.Minute), granted)
	})
	assert.Equal(t, wire.Granted, granted.Next(t).Status)
	for range node.AcquireMax {
		got := answered.Next(t)
		assert.Equal(t, wire.NotApplied, got.Status)
	}
	assert.EqualValues(t, 1, tr.server.MustDo("ZCARD", wire.RegistersKey("p:")))
}

// A caller that gives up while its request waits costs the node nothing.
func TestAReleaseCancelsAnAcquisitionThatStillWaits(t *testing.T) {
	tr := newTraffic(t)
	soon := tr.now() + time.Minute
	ask := acquisition("p:job", ownerA, soon)
	asked, released := make(answers, 2), make(answers, 2)
	undo := func(ask *wire.Request) *wire.Request {
		return wire.Entry{Lock: "p:job", Value: wire.Compose(ownerA, 0, metadata)}.Release(ask, wire.TicketUpdate{}, clock.Steady(soon))
	}
	tr.whileBusy(func() {
		tr.post(ask, asked)
		ask.Withdraw()
		tr.post(undo(ask), released)
	})
	got := asked.Next(t)
	assert.Equal(t, wire.NotApplied, got.Status)
	require.ErrorIs(t, got.Err, wire.ErrWithdrawn)
	got = released.Next(t)
	assert.Equal(t, wire.Done, got.Status)
	assert.EqualValues(t, wire.Missing, got.N)
	calls, _ := tr.calls()
	assert.Empty(t, calls, "neither is sent")

	// A request that was sent must be undone.
	sent := acquisition("p:job", ownerA, soon)
	tr.post(sent, asked)
	require.Equal(t, wire.Granted, asked.Next(t).Status)
	sent.Withdraw()
	tr.post(undo(sent), released)
	assert.EqualValues(t, wire.Ours, released.Next(t).N)

	// A ticket may be in the queue since an earlier attempt.
	ask = acquisition("p:job", ownerA, soon)
	tr.whileBusy(func() {
		tr.post(ask, asked)
		ask.Withdraw()
		tr.post(wire.Entry{Lock: "p:job", Value: wire.Compose(ownerA, 0, metadata)}.Release(ask, wire.TicketUpdate{Ticket: ticketOf("000000000000000150")}, clock.Steady(soon)), released)
	})
	require.ErrorIs(t, asked.Next(t).Err, wire.ErrWithdrawn)
	assert.EqualValues(t, wire.Missing, released.Next(t).N)
	calls, _ = tr.calls()
	require.Len(t, calls, 1)
	assert.Contains(t, calls[0], "leave")
	assert.NotContains(t, calls[0], "acquire")
}

// A failed attempt sends releases before every node has answered it. A node that refuses
// the attempt has nothing to release.
func TestAnAcquisitionThatWasRefusedIsNotReleased(t *testing.T) {
	ticket, other := ticketOf("000000000000000150"), ticketOf("000000000000000250")
	keep := wire.TicketUpdate{Ticket: ticket, EnqueuedAt: "5"}
	for what, c := range map[string]struct {
		ticket string // of the acquisition
		held   bool
		update wire.TicketUpdate
		make   func(e wire.Entry, undoes *wire.Request, ticket wire.TicketUpdate, expires clock.Steady) *wire.Request
		sent   bool
	}{
		"refused":                       {held: true, make: wire.Entry.Undo},
		"granted":                       {make: wire.Entry.Undo, sent: true},
		"the ticket keeps its place":    {held: true, ticket: ticket, update: keep, make: wire.Entry.Undo},
		"granted, and keeps its place":  {ticket: ticket, update: keep, make: wire.Entry.Undo, sent: true},
		"the ticket had not been sent":  {held: true, update: keep, make: wire.Entry.Undo, sent: true},
		"another ticket was sent":       {held: true, ticket: other, update: keep, make: wire.Entry.Undo, sent: true},
		"others go first":               {held: true, ticket: ticket, update: wire.TicketUpdate{Ticket: ticket, EnqueuedAt: "5", Yields: true}, make: wire.Entry.Undo, sent: true},
		"the ticket leaves":             {held: true, ticket: ticket, update: wire.TicketUpdate{Ticket: ticket}, make: wire.Entry.Undo, sent: true},
		"a lease that other nodes gave": {held: true, make: wire.Entry.Release, sent: true},
		"such a lease, with its ticket": {held: true, ticket: ticket, update: keep, make: wire.Entry.Release, sent: true},
	} {
		t.Run(what, func(t *testing.T) {
			tr := newTraffic(t)
			soon := tr.now() + time.Minute
			if c.held {
				tr.server.MustDo("SET", "p:job", wire.Compose(ownerB, 0, metadata))
			}
			ask := acquisition("p:job", ownerA, soon, func(a *wire.Acquisition) { a.Ticket, a.EnqueuedAt = c.ticket, "5" })
			asked, released := make(answers, 1), make(answers, 1)
			tr.whileBusy(func() {
				tr.post(ask, receiver(func(r *wire.Reply) {
					ask.Withdraw()
					tr.post(c.make(wire.Entry{Lock: "p:job", Value: wire.Compose(ownerA, 0, metadata)}, ask, c.update, clock.Steady(soon)), released)
					asked.Receive(0, ask, r)
				}))
			})
			assert.Equal(t, c.held, asked.Next(t).Status == wire.Taken)
			assert.Equal(t, wire.Done, released.Next(t).Status)
			calls, _ := tr.calls()
			sent := slices.ContainsFunc(calls, func(cmd []string) bool { return slices.Contains(cmd, "release") || slices.Contains(cmd, "leave") })
			assert.Equal(t, c.sent, sent, "%q", calls)
		})
	}
}

// A request that waits on two nodes is undone only where it was sent.
func TestAReleaseIsSentToTheNodesThatWereAsked(t *testing.T) {
	servers := redistest.Start(t, 2)
	var nodes []*node.Node
	var now func() time.Duration
	for i, s := range servers {
		n, clock := run(t, node.Config{Index: i, Option: rueidis.ClientOption{InitAddress: []string{s.Addr()}}})
		nodes, now = append(nodes, n), clock
	}
	soon := now() + time.Minute
	ask := acquisition("p:job", ownerA, soon)
	asked, released := make(answers, 2), make(answers, 2)
	require.True(t, nodes[0].Post(ask, asked))
	require.Equal(t, wire.Granted, asked.Next(t).Status)
	ask.Withdraw()
	servers[1].MustDo("SET", "p:job", wire.Compose(ownerA, 0, metadata)) // a release would delete it
	for _, n := range nodes {
		require.True(t, n.Post(wire.Entry{Lock: "p:job", Value: wire.Compose(ownerA, 0, metadata)}.Release(ask, wire.TicketUpdate{}, clock.Steady(soon)), released))
	}
	assert.ElementsMatch(t, []int64{wire.Ours, wire.Missing}, []int64{released.Next(t).N, released.Next(t).N})
	assert.EqualValues(t, 0, servers[0].MustDo("EXISTS", "p:job"))
	assert.EqualValues(t, 1, servers[1].MustDo("EXISTS", "p:job"))
}

// A reservation lapses on each node separately: one request reports it to some nodes
// only.
func TestAReservationLapsesOnEachNodeAlone(t *testing.T) {
	const second = 1
	modes := make(chan string, 2)
	for i, server := range redistest.Start(t, 2) {
		proxy := redistest.NewProxy(t, server.Addr())
		n, now := run(t, node.Config{Index: i, Option: rueidis.ClientOption{InitAddress: []string{proxy.Addr()}}, Cap: time.Second})
		proxy.DelayCommand(func(cmd []string) bool {
			if slices.Contains(cmd, "wait") {
				modes <- cmd[len(cmd)-1]
			}
			return false
		}, 0)
		answer := make(answers, 1)
		require.True(t, n.Post(acquisition("p:job", ownerA, now()+time.Minute, func(a *wire.Acquisition) {
			a.Ticket, a.EnqueuedAt, a.Lapsed = ticketOf("000000000000000150"), "5", 1<<second
		}), answer))
		require.Equal(t, wire.Granted, answer.Next(t).Status)
		assert.Equal(t, i == second, <-modes == "l", "node %d", i)
	}
}

// A distant node has no limit on the number of requests for each round trip.
func TestABatchHasNoLimitOnItsRequests(t *testing.T) {
	const requests = 3000
	tr := newTraffic(t)
	tr.proxy.Delay(40 * time.Millisecond) // each way
	began := time.Now()
	var all tally
	for i := range requests {
		tr.post(acquisition(fmt.Sprint("p:", i), ownerA, tr.now()+time.Minute), &all)
	}
	require.Eventually(t, func() bool { done, others := all.counts(); return done+others == requests }, 20*time.Second, time.Millisecond)
	assert.Equal(t, map[wire.Status]int{wire.Granted: requests}, all.statuses)
	// The first request goes alone, and the rest in the next batch.
	assert.Less(t, time.Since(began), 1500*time.Millisecond, "a few round trips of 80 ms, not one for each 512")
	_, operations := tr.calls()
	assert.LessOrEqual(t, len(operations), requests/wire.MaxLocks+20)
}

// A script blocks the server for all clients while it runs.
func TestScriptsAreSplitAtTheLimitOfOperations(t *testing.T) {
	tr := newTraffic(t)
	soon := tr.now() + time.Minute
	var all sync.WaitGroup
	post := func(req *wire.Request) {
		all.Add(1)
		tr.post(req, receiver(func(r *wire.Reply) { assert.NoError(t, r.Err); all.Done() }))
	}
	many := func(locks int) []string {
		names := make([]string, locks)
		for i := range names {
			names[i] = fmt.Sprint("p:", i)
		}
		return names
	}
	tr.server.MustDo("SET", "p:a", wire.Compose(ownerA, 7, metadata)) // the lean script would decline to release nothing
	tr.whileBusy(func() {
		post(release("p:a", ownerA, soon))
		post(renewals(many(wire.MaxLocks), ownerA, 7, "1000", soon))
		post(renewals(many(100), ownerA, 7, "1000", soon))
		post(renewals(many(28), ownerA, 7, "1000", soon))
		post(renewals(many(1), ownerA, 7, "1000", soon))
		for range wire.MaxLocks + 1 {
			post(release("p:a", ownerA, soon))
		}
	})
	all.Wait()
	_, operations := tr.calls()
	assert.Equal(t, []int{1, 128, 128, 128, 2}, operations)
}

// An operation that may wake the waiters for permits takes longer than others.
func TestScriptsHaveFewerOperationsOnPermits(t *testing.T) {
	tr := newTraffic(t)
	soon := tr.now() + time.Minute
	var all sync.WaitGroup
	slot := wire.SlotKey("p:a", 0)
	ticket := wire.TicketUpdate{Ticket: ticketOf("0000000000000000999p4")}
	tr.whileBusy(func() {
		for _, req := range []*wire.Request{
			acquisition(slot, ownerA, soon, func(a *wire.Acquisition) { a.Limit = 4 }),
			release(slot, ownerA, soon),
			wire.Entry{Lock: slot, Value: wire.Compose(ownerA, 0, metadata)}.Release(nil, ticket, clock.Steady(soon)),
			wire.NewPass(wire.FamilyKey("p:a"), ticket.Ticket, clock.Steady(soon)),
			renewals([]string{slot, slot}, ownerA, 7, "1000", soon),
		} {
			for range 20 {
				all.Add(1)
				tr.post(req, receiver(func(r *wire.Reply) { assert.NoError(t, r.Err); all.Done() }))
			}
		}
	})
	all.Wait()
	_, operations := tr.calls()
	// 60 releases and passes, 20 renewals of two, then 20 acquisitions.
	assert.Equal(t, []int{16, 16, 16, 12 + 32, 8 + 15, 5}, operations)
}

// Large requests go out in several batches, because a request behind a batch waits for
// all of its answers. The second batch is on the wire while the answers of the first are
// delivered, since many requests wait. An urgent request goes before the third.
func TestABatchHasALimitOnItsSize(t *testing.T) {
	tr := newTraffic(t)
	soon := tr.now() + time.Minute
	var all sync.WaitGroup
	long := func(a *wire.Acquisition) {
		a.Value = wire.Compose(ownerA, 1_000_000, "0 - "+strings.Repeat("x", 200<<10))
	}
	order := make(chan string, 64)
	tr.whileBusy(func() {
		for i := range 40 {
			all.Add(1)
			tr.post(acquisition(fmt.Sprint("p:", i), ownerA, soon, long), receiver(func(r *wire.Reply) {
				if i == 0 { // in the middle of the first batch
					tr.post(wire.NewRead("p:x", clock.Steady(soon)), receiver(func(*wire.Reply) { order <- "read" }))
				}
				order <- fmt.Sprint(i)
				all.Done()
			}))
		}
	})
	all.Wait()
	var got []string
	for range 9 {
		got = append(got, <-order)
	}
	assert.Equal(t, []string{"0", "1", "2", "3", "4", "5", "read", "6", "7"}, got)
}

// The server's own clock measures a script of the most operations, next to one that sets ten keys for each: 2 ms or
// more, depending on the machine (ADR 17 has figures). The machine may be busy, so the test takes the shortest of many
// runs.
func TestAFullScriptStopsTheServerForLessThanTenSetsAnOperation(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	server.MustDo("CONFIG", "SET", "slowlog-log-slower-than", "20") // logging the calls inside the script would cost time
	n, now := greeted(t, server.Addr())
	least := map[string]int64{}
	const sets = "ten sets each"
	reference := func() {
		server.MustDo("SLOWLOG", "RESET")
		server.MustDo("EVAL", "for i = 1, ARGV[3] do redis.call('SET', KEYS[1] .. i, ARGV[1], 'PX', ARGV[2]) end", "1",
			"p:a-name-of-ordinary-length/", wire.Compose(ownerA, 0, metadata), "10000", strconv.Itoa(10*wire.MaxLocks))
		entry := server.MustDo("SLOWLOG", "GET", "1").([]any)[0].([]any)
		us := entry[2].(int64)
		if before, ok := least[sets]; !ok || us < before {
			least[sets] = us
		}
	}
	call := func(kind string, requests []*wire.Request) {
		t.Helper()
		var all sync.WaitGroup
		posted := make(chan struct{})
		server.MustDo("SLOWLOG", "RESET")
		all.Add(len(requests))
		require.True(t, n.Post(wire.NewRead("p:busy", clock.Steady(now()+time.Minute)), receiver(func(*wire.Reply) {
			defer close(posted)
			for _, req := range requests {
				assert.True(t, n.Post(req, receiver(func(r *wire.Reply) { assert.NoError(t, r.Err); all.Done() })))
			}
		})))
		<-posted
		all.Wait()
		longest := int64(0)
		for _, line := range server.MustDo("SLOWLOG", "GET", "10").([]any) {
			entry := line.([]any)
			if command := entry[3].([]any); command[0] == "EVALSHA" && (command[2] == strconv.Itoa(5+wire.MaxLocks) || command[2] == strconv.Itoa(5+4*wire.MaxLocks)) {
				longest = max(longest, entry[2].(int64))
			}
		}
		require.Positive(t, longest, "%s: one call of the most operations", kind)
		if before, ok := least[kind]; !ok || longest < before {
			least[kind] = longest
		}
	}
	for try := range 30 {
		soon := now() + time.Minute
		var acquires, again, ahead, releases, waits, leaves, taken []*wire.Request
		var locks []string
		for i := range wire.MaxLocks {
			lock := fmt.Sprintf("p:a-name-of-ordinary-length/%d/%d", try, i)
			locks = append(locks, lock)
			acquires = append(acquires, acquisition(lock, ownerA, soon))
			again = append(again, acquisition(lock, ownerA, soon, func(a *wire.Acquisition) { a.Token = "1000001" }))
			ahead = append(ahead, acquisition(lock, ownerA, soon))
			taken = append(taken, acquisition(lock, ownerB, soon))
			waits = append(waits, acquisition(lock, ownerB, soon, func(a *wire.Acquisition) {
				a.Ticket, a.EnqueuedAt = ticketOf(fmt.Sprintf("%016x50", i)), "5"
			}))
			releases = append(releases, release(lock, ownerA, soon))
			leaves = append(leaves, wire.Entry{Lock: lock, Value: wire.Compose(ownerA, 0, metadata)}.Release(nil, wire.TicketUpdate{Ticket: ticketOf(fmt.Sprintf("%016x50", i))}, clock.Steady(soon)))
		}
		call("acquire", acquires)
		call("taken", taken)
		call("extend", []*wire.Request{renewals(locks, ownerA, 1_000_000, "10000", soon)})
		call("release", releases)
		server.MustDo("SET", wire.HintKey("p:"), "1")
		call("acquire with queues", again)
		call("leave", leaves)
		call("acquire that is ahead", ahead)
		call("wait", waits)
		call("release of those", releases)
		call("release of nothing", releases)
		server.MustDo("DEL", wire.HintKey("p:"))
		reference()
		if try >= 4 && slices.Max(slices.Collect(maps.Values(least))) == least[sets] {
			break
		}
	}
	t.Logf("µs for %d operations: %v", wire.MaxLocks, least)
	for kind, us := range least {
		assert.LessOrEqual(t, us, least[sets], kind)
	}
}
