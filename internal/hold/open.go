package hold

import (
	"errors"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// These are the reasons why a won attempt gets no lock.
var (
	// ErrTooSlow means that the majority came when too little of the lease was left.
	ErrTooSlow = errors.New("granted too late: less than a tenth of the lease was left")
	// ErrStepped means that the clock of a node that granted was stepped forward during the
	// attempt.
	ErrStepped = errors.New("granted, but the node's clock was then stepped forward")
	// ErrEnded means that Close has begun.
	ErrEnded = errors.New("closing")
)

// Grant is an attempt that was won.
type Grant struct {
	Terms    *config.Terms
	Entry    wire.Entry // as proposed to the nodes
	Proposal int64      // the token in it
	Ballot   *quorum.Ballot
	Began    clock.Validity // before the first request was sent
	Steady   clock.Steady   // the same instant
	Queue    Queue          // the queue of callers that want the lock; nil for none
	Others   int            // tickets in the queues, by the answers
	Errors   []error        // of the nodes; nil for none
	Acquire  *wire.Request  // set while nodes have not answered it
}

// Open makes a Lock from a grant, and reports it to its first lease. Only Open grants a lock. The lock is complete
// before any other goroutine sees it, with the clock steps that were found since the attempt began. The caller
// allocates the lock.
func (s *Locks) Open(g *Grant, l *Lock, t Tenant) error {
	s.build(g, l)
	s.ensemble.Steps.Lock()
	defer s.ensemble.Steps.Unlock()
	if s.ended.Load() {
		return ErrEnded
	}
	for _, step := range s.ensemble.Steps.Since(g.Steady) {
		l.machine.Step(s.clock.Now(), quorum.Input{Kind: quorum.InputClockStep, Node: step.Node, By: step.By})
		l.note(step.Node, step)
		l.resetProof()
	}
	if l.machine.State() == quorum.StateLost {
		return ErrStepped
	}
	// The last check of the clock before the grant: a lease that was won too slowly is of
	// no use (etcd-io/etcd#11456).
	now := s.clock.Now()
	if l.machine.End().Sub(now) < l.Terms().MinUseful {
		return ErrTooSlow
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.others.asOf, l.tenancy.tenant = now, t
	l.report(now, Opened)
	s.schedule.at(&l.alarm, l.machine.Wake())
	s.registry.add(l)
	return nil
}

// build fills in a Lock. No other goroutine sees it yet.
func (s *Locks) build(g *Grant, l *Lock) {
	t, votes := g.Terms, g.Ballot.Votes()
	l.of, l.key, l.jumped = s, g.Entry.Lock, s.clock.Jumped()
	l.terms.Store(t)
	l.is.shared, l.is.what = g.Entry.Shared, Released
	if g.Queue != nil {
		queue := g.Queue
		l.queue = &queue
	}
	l.alarm.of, l.alarm.index = l, -1
	l.tenancy.granted, l.value, l.others.tickets = g.Began, g.Entry.Value, g.Others
	blocks := int64(1)
	if g.Queue != nil && !s.unfenced {
		blocks = blockSize // callers of this process queue for the lock
	}
	l.tokens.next, l.tokens.last = g.Ballot.Tokens(blocks)
	if l.tokens.last != g.Proposal && !l.is.shared {
		l.value = wire.Compose(wire.OwnerOf(l.value), l.tokens.last, wire.MetadataOf(l.value))
	}
	l.proof.nodes = g.Ballot.Counted()
	if s.unfenced {
		l.proof.nodes = votes.Granted()
	}
	for i := range t.Nodes {
		if g.Acquire != nil && g.Acquire.Unproven(1<<i) {
			l.proof.nodes, l.proof.unproven = l.proof.nodes.Without(i), l.proof.unproven.With(i)
		}
	}
	window := quorum.Window[clock.Validity](l.window[:min(t.Nodes, len(l.window))])
	if t.Nodes > len(l.window) {
		window = make(quorum.Window[clock.Validity], t.Nodes)
	}
	l.machine = quorum.NewMachine(&t.Terms, window, g.Began, votes.Granted(), quorum.All(t.Nodes)&^votes.Silent())
	l.machine.SetLag(s.expectedLag())
	l.nodes = g.Errors // evidence, if the lease is at risk from the start
	l.acquire = g.Acquire
	if !t.Manual {
		l.machine.Arm(g.Began.Add(l.nextRound()))
	}
}
