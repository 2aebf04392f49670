package hold

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/report"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// owner is the owner value of every lock here.
var owner = strings.Repeat("2", wire.OwnerLen)

// process is the locks of a process, and its watchdog.
type process struct{ *Watchdog }

// idle returns a process whose watchdog runs only when the test runs it, on nodes that never run:
// the test delivers their answers.
func idle(nodes int) process { return idleOn(clock.New(), nodes) }

func idleOn(c *clock.Clock, nodes int) process {
	return processOn(ensembleOf(c, slices.Repeat([]rueidis.ClientOption{{InitAddress: []string{"127.0.0.1:1"}}}, nodes)))
}

func processOn(e *ensemble.Ensemble) process {
	return process{NewWatchdog(&Config{Ensemble: e, Calls: &sync.WaitGroup{}})}
}

func ensembleOf(c *clock.Clock, nodes []rueidis.ClientOption) *ensemble.Ensemble {
	return ensemble.New(&ensemble.Config{
		Nodes: nodes, Timeout: time.Hour, Clock: c, Report: report.New(slog.New(slog.DiscardHandler)), Closing: func() bool { return false }, Events: noEvents{},
		Node: node.Config{Prefix: "p:", Drift: 0.01, Cap: 2 * time.Second, Manager: strings.Repeat("0", wire.ManagerLen)},
	})
}

// noEvents ignores the reports of an ensemble.
type noEvents struct{}

func (noEvents) NodeChanged(int, node.Health)               {}
func (noEvents) ClockStepped(*ensemble.Step) (apply func()) { return func() {} }
func (noEvents) Answered(int, *wire.Request, *wire.Reply)   {}
func (noEvents) HandedOn(string)                            {}
func (noEvents) Woken(int, wire.WakeKind, string, string)   {}
func (noEvents) Subscribed(int)                             {}

// hour returns the terms of a lease of an hour that its holder renews, so the watchdog only looks
// for its loss.
func hour(nodes int) *config.Terms {
	return &config.Terms{Terms: quorum.Terms{Nodes: nodes, TTL: time.Hour, Timeout: time.Hour}, Manual: true}
}

// grant returns the grant of a lock whose attempt has begun now. Every node has moved its register
// from 3 to 7.
func (p process) grant(terms *config.Terms) *Grant {
	ballot := quorum.NewBallot(terms.Nodes, true, 7)
	for i := range terms.Nodes {
		ballot.Grant(i, 7, 3)
	}
	began, steady := p.clock.Both()
	return &Grant{Terms: terms, Entry: wire.Entry{Lock: "job", Value: wire.Compose(owner, 7, "1 - ")}, Proposal: 7, Ballot: &ballot, Began: began, Steady: steady}
}

// open opens the lock of a grant, with its first lease.
func (p process) open(t *testing.T, g *Grant) (*Lock, *lease) {
	t.Helper()
	l, first := &Lock{}, &lease{}
	require.NoError(t, p.Open(g, l, first))
	return l, first
}

// stepClock steps a node's clock forward, as an ensemble reports it.
func (p process) stepClock(node int, by time.Duration) {
	_, at := p.clock.Both()
	step := &ensemble.Step{Node: node, By: by, At: at}
	p.ensemble.Steps.Lock()
	p.ensemble.Steps.Add(step)
	apply := p.ClockStepped(step)
	p.ensemble.Steps.Unlock()
	apply()
}

// lease is a Tenant that records what has happened.
type lease struct {
	events []Event
	then   func(Event) // what else it does; nil for nothing
}

func (t *lease) Report(e Event) {
	e.Errors = slices.Clone(e.Errors)
	t.events = append(t.events, e)
	if t.then != nil {
		t.then(e)
	}
}

// saw reports whether one of these things has happened.
func (t *lease) saw(what What) bool {
	return slices.ContainsFunc(t.events, func(e Event) bool { return e.Is(what) })
}

// queue is a Queue, with the mutex under which it frees its lock.
type queue struct {
	mu   sync.Mutex
	lost []*Lock
	next wire.TicketUpdate // of the caller for whom it frees a lock
}

func (q *queue) Lost(l *Lock) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lost = append(q.lost, l)
}

// Finish releases the lock.
func (q *queue) Finish(l *Lock, _ quorum.Hold) *ensemble.Answers {
	q.mu.Lock()
	defer q.mu.Unlock()
	return l.Free(q.next)
}
