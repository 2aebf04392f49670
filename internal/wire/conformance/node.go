package conformance

import (
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/wire"
)

var nodeCases = []testCase{
	{"a node reads every answer to an acquisition", (*rig).readsVotes},
	{"a node reads every answer of what keeps a lease and gives one back", (*rig).readsTheRest},
	{"a node reads what it is told of a waiter", (*rig).readsWaiters},
	{"the errors of operations go to their own requests", (*rig).readsErrors},
	{"a node without fencing asks for none", (*rig).readsUnfenced},
	{"the only node says so to the script", (*rig).readsOnlyNode},
	{"scripts that the server forgot are loaded again", (*rig).reloads},
	{"many requests of one moment are answered, each by its own", (*rig).readsManyBatches},
}

// inOneBatch posts requests while the node's worker is busy, so that they go out
// together, and returns the answers in the order of the requests. Before they go out,
// it calls the function.
func (r *rig) inOneBatch(n *node.Node, before func(), reqs ...*wire.Request) []wire.Reply {
	r.Helper()
	answers := make([]Replies, len(reqs))
	posted := make(chan struct{})
	post := posting(func() {
		defer close(posted)
		before()
		for i, req := range reqs {
			answers[i] = make(Replies, 1)
			assert.True(r, n.Post(req, answers[i]))
		}
	})
	require.True(r, n.Post(wire.NewRead(r.lock, r.soon(10*time.Second)), post))
	<-posted
	got := make([]wire.Reply, len(reqs))
	for i := range got {
		got[i] = answers[i].Next(r)
	}
	return got
}

// posting is a receiver that does something in the worker's goroutine.
type posting func()

func (p posting) Receive(int, *wire.Request, *wire.Reply) { p() }

func (r *rig) readsVotes() {
	t := r.micros()
	got := r.do(r.request(alice, t))
	require.Equal(r, wire.Granted, got.Status, "%v", got.Err)
	assert.EqualValues(r, wire.AsProposed, got.Moved)
	assert.EqualValues(r, wire.AsProposed, got.Before)
	got = r.do(r.request(alice, t))
	assert.Equal(r, []int64{t, t - 1}, []int64{got.Moved, got.Before}, "asked again")
	got = r.do(r.request(bob, t))
	assert.Equal(r, wire.Taken, got.Status)
	assert.Equal(r, alice, wire.ParseValue(got.Held).Owner)
	r.left(keyLife, got.TTL.Milliseconds())
	assert.EqualValues(r, -1, got.Position)

	r.admin("DEL", r.lock)
	r.setRegister(t + hour)
	got = r.do(r.request(alice, t))
	assert.Equal(r, wire.Granted, got.Status)
	assert.Equal(r, []int64{0, t + hour}, []int64{got.Moved, got.Before})

	r.admin("SET", r.lock, "x")
	got = r.do(r.request(alice, t))
	assert.Equal(r, wire.Taken, got.Status)
	assert.Equal(r, "x", got.Held)
	assert.Negative(r, got.TTL)
}

func (r *rig) readsTheRest() {
	t := r.micros()
	require.Equal(r, wire.Granted, r.do(r.request(alice, t)).Status)
	assert.Equal(r, []int64{wire.Ours}, r.do(r.renewal(alice, t)).Answers)
	got := r.do(wire.Entry{Lock: r.lock, Value: wire.Compose(alice, 0, metadata)}.Raise(t+3, r.soon(10*time.Second)))
	assert.Equal(r, wire.Done, got.Status)
	assert.Equal(r, []int64{t, 0}, []int64{got.Before, got.Waiters})
	assert.Equal(r, []int64{wire.OursWithoutToken}, r.do(r.renewal(alice, t)).Answers)
	assert.EqualValues(r, -1, r.do(wire.Entry{Lock: r.lock, Value: wire.Compose(bob, 0, metadata)}.Raise(t+9, r.soon(10*time.Second))).Before)
	got = r.do(wire.NewRead(r.lock, r.soon(10*time.Second)))
	assert.Equal(r, wire.Compose(alice, t+3, metadata), got.Held)
	r.left(keyLife, got.TTL.Milliseconds())
	assert.Equal(r, []int64{t + 3, 0}, []int64{got.Register, got.Waiters})

	for owner, want := range map[string]int64{bob: wire.Another, alice: wire.Ours} {
		assert.Equal(r, []int64{want}, r.do(r.renewal(owner, t+3)).Answers)
		assert.Equal(r, []int64{want}, r.do(r.healing(owner, 0)).Answers)
	}
	assert.EqualValues(r, wire.Another, r.do(r.releasing(bob)).N)
	assert.EqualValues(r, wire.Ours, r.do(r.releasing(alice)).N)
	assert.EqualValues(r, wire.Missing, r.do(r.releasing(alice)).N)
	assert.Equal(r, []int64{wire.Missing}, r.do(r.renewal(alice, t)).Answers)
	got = r.do(wire.NewRead(r.lock, r.soon(10*time.Second)))
	assert.Empty(r, got.Held)
	assert.Negative(r, got.TTL)

	assert.Equal(r, []int64{wire.Ours}, r.do(r.healing(alice, 0)).Answers)
	other := wire.LockKey(r.server.Prefix, "other")
	value := wire.Compose(alice, 0, metadata)
	got = r.do(r.deleting(value, r.lock, other, r.lock))
	assert.Equal(r, []int64{wire.Ours, wire.Missing, wire.Missing}, got.Answers)
}

func (r *rig) readsWaiters() {
	r.subscribe()
	waits := func(owner string, n int, lapsed uint32) wire.Reply { // for nodes; this one is node 0
		return r.do(r.request(owner, r.micros(), func(a *wire.Acquisition) { a.Ticket, a.EnqueuedAt, a.Lapsed = ticket(n), enqueuedAt(n), lapsed }))
	}
	update := func(owner string, u wire.TicketUpdate) int64 {
		got := r.do(wire.Entry{Lock: r.lock, Value: wire.Compose(owner, 0, metadata)}.Release(nil, u, r.soon(10*time.Second)))
		require.Equal(r, wire.Done, got.Status, "%v", got.Err)
		return got.N
	}
	t := r.holds(alice)
	for i := range 3 {
		got := waits(bob, i+1, 0)
		assert.Equal(r, wire.Taken, got.Status)
		assert.EqualValues(r, i, got.Position)
	}
	assert.EqualValues(r, 3, r.do(wire.NewRead(r.lock, r.soon(10*time.Second))).Waiters)
	assert.EqualValues(r, 3, r.do(wire.Entry{Lock: r.lock, Value: wire.Compose(alice, 0, metadata)}.Raise(t+1, r.soon(10*time.Second))).Waiters)
	assert.EqualValues(r, wire.HandedOn, update(alice, wire.TicketUpdate{Ticket: ticket(1), EnqueuedAt: enqueuedAt(1), Yields: true}))
	r.reserved(2, 3)
	r.queued(1, 3)
	assert.True(r, wire.ParseValue(r.do(wire.NewRead(r.lock, r.soon(10*time.Second))).Held).Reserved)
	got := waits(carol, 2, 0)
	assert.Equal(r, wire.Granted, got.Status)
	assert.Equal(r, []int64{r.register(), t + 1, 2}, []int64{got.Moved, got.Before, got.Waiters})
	assert.EqualValues(r, wire.HandedOn, update(carol, wire.TicketUpdate{Ticket: ticket(2), LeavesFree: true}))
	r.absent(r.lock)
	r.woken(r.freeFor(1))
	assert.EqualValues(r, wire.Missing, update(carol, wire.TicketUpdate{Ticket: ticket(3)}))
	r.reserved(1)
	assert.EqualValues(r, wire.Another, update(bob, wire.TicketUpdate{Ticket: ticket(4), EnqueuedAt: enqueuedAt(4)}))
	r.queued(4)
	r.one(r.leave(bob, 4))
	assert.EqualValues(r, 1, r.do(wire.NewPass(r.lock, ticket(1), r.soon(10*time.Second))).N)
	assert.EqualValues(r, 0, r.do(wire.NewPass(r.lock, ticket(1), r.soon(10*time.Second))).N)

	r.holdsAgainst(1, 2, 3)
	r.admin("DEL", r.lock)
	assert.Equal(r, wire.Granted, waits(bob, 2, 1).Status)
	r.woken(r.asksAgain(1), r.asksAgain(3))
}

func (r *rig) readsErrors() {
	t := r.micros()
	require.Equal(r, wire.Granted, r.do(r.request(alice, t)).Status)
	bad, free := wire.LockKey(r.server.Prefix, "bad"), wire.LockKey(r.server.Prefix, "free")
	r.admin("HSET", bad, "a", "b")
	at := func(lock string) func(*wire.Acquisition) { return func(a *wire.Acquisition) { a.Lock = lock } }
	renewals, value := wire.NewBatch(wire.Extend, 3, r.soon(time.Minute)), wire.Compose(alice, t, metadata)
	for _, lock := range []string{bad, r.lock, free} {
		wire.Entry{Lock: lock, Value: value}.Extend(renewals, keyTTL)
	}
	got := r.inOneBatch(r.node, func() {},
		r.request(bob, t, at(bad)), renewals, wire.NewRead(bad, r.soon(time.Minute)),
		wire.Entry{Lock: bad, Value: wire.Compose(alice, 0, metadata)}.Raise(t, r.soon(time.Minute)),
		wire.Entry{Lock: bad, Value: value}.Release(nil, wire.TicketUpdate{}, r.soon(time.Minute)),
		r.deleting(value, bad, r.lock),
		r.request(bob, t+1), r.request(bob, t, at(free)),
	)
	var config *wire.ConfigError
	for _, i := range []int{0, 2, 3} {
		assert.Equal(r, wire.Misconfigured, got[i].Status, "request %d", i)
		require.ErrorAs(r, got[i].Err, &config, "request %d", i)
		assert.Contains(r, config.Problem, "WRONGTYPE", "request %d", i)
		assert.Contains(r, config.Fix, "another program", "request %d", i)
	}
	assert.Equal(r, []int64{wire.Another, wire.Ours, wire.Missing}, got[1].Answers, "%v", got[1].Err)
	assert.EqualValues(r, wire.Another, got[4].N, "it is not ours")
	assert.Equal(r, []int64{wire.Another, wire.Ours}, got[5].Answers)
	assert.Equal(r, wire.Granted, got[6].Status)
	assert.Equal(r, wire.Granted, got[7].Status)
}

func (r *rig) readsUnfenced() {
	r.node = r.connect(func(c *node.Config) { c.Cap = 0 })
	for range 2 {
		got := r.do(r.request(alice, 0))
		require.Equal(r, wire.Granted, got.Status, "%v", got.Err)
	}
	assert.Equal(r, wire.Taken, r.do(r.request(bob, 0)).Status)
	assert.Equal(r, []int64{wire.Ours}, r.do(r.renewal(alice, 0)).Answers)
	assert.EqualValues(r, 1, r.admin("DBSIZE"))
	assert.EqualValues(r, wire.Ours, r.do(r.releasing(alice)).N)
	assert.EqualValues(r, 0, r.admin("DBSIZE"))
}

func (r *rig) readsOnlyNode() {
	r.node = r.connect(func(c *node.Config) { c.Only = true })
	t := r.micros() + hour/3600
	r.setRegister(t)
	got := r.do(r.request(alice, t-2))
	assert.Equal(r, []int64{t + 2, t}, []int64{got.Moved, got.Before})
	assert.Equal(r, []int64{wire.Ours}, r.do(r.renewal(alice, t+2)).Answers)
}

func (r *rig) reloads() {
	t := r.micros()
	require.Equal(r, wire.Granted, r.do(r.request(alice, t)).Status)
	r.admin("SCRIPT", "FLUSH")
	assert.Equal(r, wire.Taken, r.do(r.request(bob, t+1)).Status)

	// A request for an existing lease is not sent again: the lease's release may be on its way.
	got := r.inOneBatch(r.node, func() { r.admin("SCRIPT", "FLUSH") },
		r.healing(alice, 0), r.releasing(alice), r.request(bob, t+2), r.renewal(alice, t))
	assert.Equal(r, wire.NotApplied, got[0].Status)
	require.ErrorContains(r, got[0].Err, "NOSCRIPT")
	assert.EqualValues(r, wire.Ours, got[1].N, "%v", got[1].Err)
	assert.Equal(r, wire.Granted, got[2].Status, "%v", got[2].Err)
	assert.Equal(r, []int64{wire.Missing}, got[3].Answers, "before the acquisition, and behind the release")
}

func (r *rig) readsManyBatches() {
	const locks = 1000
	t := r.micros()
	var asks, releases []*wire.Request
	for i := range locks {
		lock := wire.LockKey(r.server.Prefix, strconv.Itoa(i))
		if i%3 == 0 {
			r.admin("SET", lock, strconv.Itoa(i))
		}
		asks = append(asks, r.request(alice, t, func(a *wire.Acquisition) { a.Lock = lock }))
		releases = append(releases, wire.Entry{Lock: lock, Value: wire.Compose(alice, t, metadata)}.Release(nil, wire.TicketUpdate{}, r.soon(time.Minute)))
	}
	n := r.connect()
	for i, got := range r.inOneBatch(n, func() {}, asks...) {
		if i%3 == 0 {
			assert.Equal(r, strconv.Itoa(i), got.Held, "lock %d", i)
		} else {
			assert.Equal(r, wire.Granted, got.Status, "lock %d: %v", i, got.Err)
		}
	}
	for i, got := range r.inOneBatch(n, func() {}, releases...) {
		assert.Equal(r, i%3 == 0, got.N == wire.Another, "lock %d: %v", i, got.Err)
	}
	left := r.admin("KEYS", r.server.Prefix+"*").([]any)
	for _, key := range left {
		if !strings.Contains(key.(string), "\xff") {
			assert.Len(r, r.admin("GET", key.(string)), len(strings.TrimPrefix(key.(string), r.server.Prefix)))
		}
	}
	assert.Len(r, left, 1+(locks+2)/3)
}

func readsAboutSlots(r *rig) {
	r.subscribe(func(c *node.Config) { c.Cap = Ahead })
	ask := func(owner string, n, i int) wire.Reply {
		return r.on(r.node, r.request(owner, r.micros(), func(a *wire.Acquisition) {
			const limit = 2
			a.Lock, a.Limit, a.Ticket, a.EnqueuedAt = slot(r, i), limit, permitTicket(n, limit), enqueuedAt(n)
		}))
	}
	for i, owner := range []string{alice, bob} {
		got := ask(owner, i, i)
		require.Equal(r, wire.Granted, got.Status, "%v", got.Err)
		assert.EqualValues(r, wire.AsProposed, got.Moved)
	}
	got := ask(carol, 5, 0)
	require.Equal(r, wire.Taken, got.Status, "%v", got.Err)
	assert.Equal(r, []any{alice, int64(0), int64(-1)}, []any{wire.ParseValue(got.Held).Owner, got.Position, got.FreeSlot}, "the third slot is above its limit")
	r.left(keyLife, got.TTL.Milliseconds())
	r.one(r.release(bob).on(slot(r, 1)))
	got = ask(carol, 5, 0)
	assert.Equal(r, []any{wire.Taken, int64(-1), int64(1)}, []any{got.Status, got.Position, got.FreeSlot}, "it is let in")
	got = ask(carol, 5, 1)
	assert.Equal(r, wire.Granted, got.Status, "%v", got.Err)
	r.holds(alice)
	assert.EqualValues(r, -1, r.vote(r.node, bob).FreeSlot, "no permit")
}
