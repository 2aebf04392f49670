package queue

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/report"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// key is the key of every lock here.
const key = "p:job"

// room is the queues of a process, and what they work with.
type room struct {
	*Queues
	t        *testing.T
	clock    *clock.Clock
	ensemble *ensemble.Ensemble
	dog      *hold.Watchdog
	answered func(*wire.Request) // what else a node's answer does; nil for nothing

	selfMu sync.Mutex
	selves []string // the keys whose callers may wait for themselves
}

// idle returns a room of three nodes that never run, by the hands of a clock.
func idle(t *testing.T, h *hands) *room {
	return roomOf(t, clock.From(h.read), "127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1")
}

func roomOf(t *testing.T, c *clock.Clock, addrs ...string) *room {
	t.Helper()
	r := &room{t: t, clock: c}
	var nodes []rueidis.ClientOption
	for _, addr := range addrs {
		nodes = append(nodes, rueidis.ClientOption{InitAddress: []string{addr}})
	}
	r.ensemble = ensemble.New(&ensemble.Config{
		Nodes: nodes, Timeout: time.Hour, Clock: c, Report: report.New(slog.New(slog.DiscardHandler)), Closing: func() bool { return false }, Events: events{r},
		Node: node.Config{Prefix: "p:", Drift: 0.01, Cap: 2 * time.Second, Manager: strings.Repeat("0", wire.ManagerLen)},
	})
	r.dog = hold.NewWatchdog(&hold.Config{Ensemble: r.ensemble, Calls: &sync.WaitGroup{}})
	r.Queues = New(&Config{
		Clock: c, Locks: r.dog.Locks, Closing: context.Background(), Turn: func() time.Duration { return time.Millisecond }, Woken: func() bool { return false },
		WaitsForItself: func(key string) {
			r.selfMu.Lock()
			defer r.selfMu.Unlock()
			r.selves = append(r.selves, key)
		},
	})
	t.Cleanup(r.Stop)
	return r
}

// events are the reports of the room's ensemble.
type events struct{ r *room }

func (events) NodeChanged(int, node.Health)               {}
func (events) ClockStepped(*ensemble.Step) (apply func()) { return func() {} }
func (events) Woken(int, wire.WakeKind, string, string)   {}
func (events) Subscribed(int)                             {}
func (events) HandedOn(string)                            {}

func (e events) Answered(_ int, req *wire.Request, _ *wire.Reply) {
	if e.r.answered != nil {
		e.r.answered(req)
	}
}

// run runs the nodes until the function that it returns is called.
func (r *room) run() (stop func()) {
	var running sync.WaitGroup
	for _, n := range r.ensemble.Nodes() {
		running.Go(n.Run)
		running.Go(n.RunSubscriber)
	}
	return sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for _, n := range r.ensemble.Nodes() {
			n.Close(ctx, nil, ensemble.Nobody{})
		}
		running.Wait()
	})
}

// hands are the hands of a clock, which move when the test moves them.
type hands struct {
	mu   sync.Mutex
	now  time.Duration
	then func() // what the next reading does first, once; nil for nothing
}

func (h *hands) read() clock.Reading {
	h.mu.Lock()
	then := h.then
	h.then = nil
	h.mu.Unlock()
	if then != nil {
		then()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	at := time.Second + h.now
	return clock.Reading{Mono: at, Boot: at, Wall: at}
}

// move moves the hands forward.
func (h *hands) move(by time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now += by
}

// before makes the next reading of the clock do something first.
func (h *hands) before(then func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.then = then
}

// hour returns the terms of a lease of an hour.
func hour() *config.Terms {
	return &config.Terms{Terms: quorum.Terms{Nodes: 3, TTL: time.Hour, Timeout: time.Hour, Interval: 20 * time.Minute}}
}

// caller is a Caller that carries no ticket.
type caller struct {
	leases    []*lease // that it was offered
	abandoned []hold.Tenant
}

func (c *caller) Tenant(*hold.Lock) hold.Tenant {
	l := &lease{}
	c.leases = append(c.leases, l)
	return l
}

func (*caller) CarryTicket(clock.Validity) wire.TicketUpdate { return wire.TicketUpdate{} }

func (c *caller) Abandon(l hold.Tenant) { c.abandoned = append(c.abandoned, l) }

// lease is a Tenant that records what has happened.
type lease struct{ events []hold.Event }

func (l *lease) Report(e hold.Event) { l.events = append(l.events, e) }

// saw reports whether one of these things has happened.
func (l *lease) saw(what hold.What) bool {
	return slices.ContainsFunc(l.events, func(e hold.Event) bool { return e.Is(what) })
}

// enter puts a caller into the queue of the lock.
func (r *room) enter(terms *config.Terms) (*Place, *caller) {
	c := &caller{}
	return r.Enter(key, Waiting{Caller: c, Terms: terms, Arrived: r.clock.Now()}), c
}

// open opens the lock of a caller that has asked the nodes, with its first lease. Every node has moved
// its register from 100 to 200.
func (r *room) open(terms *config.Terms, queue hold.Queue) (*hold.Lock, *lease) {
	r.t.Helper()
	ballot := quorum.NewBallot(terms.Nodes, true, 200)
	for i := range terms.Nodes {
		ballot.Grant(i, 200, 100)
	}
	began, steady := r.clock.Both()
	l, first := &hold.Lock{}, &lease{}
	require.NoError(r.t, r.dog.Open(&hold.Grant{
		Terms: terms, Entry: wire.Entry{Lock: key, Value: wire.Compose(strings.Repeat("0", wire.OwnerLen), 200, "1 - ")}, Proposal: 200,
		Ballot: &ballot, Began: began, Steady: steady, Queue: queue,
	}, l, first))
	return l, first
}

// held returns a lock with its first lease, and the places of the callers that wait behind it.
func (r *room) held(terms *config.Terms, behind int) (l *hold.Lock, first *lease, places []*Place, callers []*caller) {
	r.t.Helper()
	head, _ := r.enter(terms)
	for range behind {
		p, c := r.enter(terms)
		places, callers = append(places, p), append(callers, c)
	}
	asks(r.t, head)
	l, first = r.open(terms, head.Queue())
	head.Granted(l)
	return l, first, places, callers
}

// asks demands that it is the caller's turn to ask the nodes.
func asks(t *testing.T, p *Place) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	turn, ok := p.Wait(ctx)
	require.True(t, ok, "the caller waits for ever")
	assert.Nil(t, turn.Lease)
	assert.False(t, turn.Ends)
}

// vacate ends a lease by its release, and returns the state of its lock.
func vacate(t *testing.T, l *hold.Lock, of hold.Tenant) quorum.Hold {
	t.Helper()
	owner, state, ok := l.Vacate(of, hold.Ending{What: hold.Released})
	require.True(t, ok)
	require.NotNil(t, owner)
	return state
}

// lose lets time pass until the lock is lost, and returns when its owner knows.
func lose(t *testing.T, h *hands, l *hold.Lock) {
	t.Helper()
	h.move(2 * time.Hour)
	l.Tick()
	require.True(t, l.Over())
}
