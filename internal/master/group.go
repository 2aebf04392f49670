package master

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// LookEvery is how often a client asks the owner of a slot whether keys are leaving it.
const LookEvery = failover.ConfirmEvery

// ErrNewTerm means that the master has just changed, and is used a little later.
var ErrNewTerm = errors.New("the master of the group has just changed: the new one grants locks as soon as the old one cannot")

// Dial is a dial function of rueidis.
type Dial = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error)

// Group is what a node knows of its failover group. The methods of a nil Group are for a node
// that is one server: it has no voters, and needs no confirmation.
type Group struct {
	life   context.Context // of the node
	clock  func() (clock.Validity, clock.Steady)
	kind   string // as Name has it
	voters *voters
	slot   int // of a cluster

	mu                 sync.Mutex
	terms              failover.Tracker[Term]
	unconfirmedBecause error // why the last question confirmed nothing

	cluster *Cluster // asks for all its slots; nil if the group asks for itself
	heard   heard
}

// heard has what a group has reported after the last question; only the goroutine that asks uses it.
type heard struct {
	changed, over func() // as Run has them
	unconfirmed   bool
	faults        string
}

// New returns the group of the node with this option, nil if the node is one server. by reads
// both clocks. aside completes the option of a connection to a voter. Nothing is dialled
// before the first question; the questions end with life. A slot of a cluster that asks for all
// its slots has no voters of its own.
func New(
	life context.Context, o *rueidis.ClientOption, by func() (clock.Validity, clock.Steady), aside func(rueidis.ClientOption) rueidis.ClientOption, of *Cluster,
) *Group {
	g := &Group{life: life, clock: by}
	switch g.kind, _ = Name(o); g.kind {
	case "sentinel":
		g.voters = newSentinels(life, o, aside)
	case "slot":
		if g.slot, g.cluster = Slot(SlotTag(o)), of; of != nil {
			g.voters = of.voters
		} else {
			g.voters = newSlotOwner(life, o, aside)
		}
	default:
		return nil
	}
	return g
}

// Kind returns what chooses the master: "sentinel" or "slot".
func (g *Group) Kind() string { return g.kind }

// Voters returns the kind, the number of Sentinels of the group or of nodes of its cluster, and how many of these are
// listed.
func (g *Group) Voters() (kind string, known, listed int) {
	if g == nil {
		return "", 0, 0
	}
	return g.kind, g.voters.size(), len(g.voters.addrs)
}

// Faults returns what must be fixed at the Sentinels or seeds, though a majority of them
// names the master.
func (g *Group) Faults() []error {
	if g == nil {
		return nil
	}
	return g.voters.faults(g.slot)
}

// Used returns the term that the worker dialled last.
func (g *Group) Used() (term Term) {
	g.with(func(t *failover.Tracker[Term]) { term = t.Used() })
	return term
}

// with calls f with the mutex held, unless the node is one server.
func (g *Group) with(f func(*failover.Tracker[Term])) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	f(&g.terms)
}

// ask is with for a question; the answer is false for a node that is one server.
func (g *Group) ask(is func(*failover.Tracker[Term]) bool) (yes bool) {
	g.with(func(t *failover.Tracker[Term]) { yes = is(t) })
	return yes
}

// Use records that the worker uses a term that was confirmed by the answers to a question at asked.
func (g *Group) Use(term Term, asked clock.Validity) {
	g.with(func(t *failover.Tracker[Term]) { t.Use(term, asked) })
}

// resolve asks for the present term.
func (g *Group) resolve(ctx context.Context) (Term, error) {
	return g.voters.resolve(ctx, g.slot, g.Used() == Term{})
}

// Dial returns a function that dials the present master, whatever the address. The worker's
// dials set the term.
func (g *Group) Dial(dial Dial, worker bool) Dial {
	return func(ctx context.Context, _ string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		asked, _ := g.clock()
		master, err := g.resolve(ctx)
		if err != nil {
			return nil, err
		}
		_, now := g.clock()
		g.mu.Lock()
		usable := g.terms.Meet(master, now)
		g.mu.Unlock()
		if !usable {
			return nil, ErrNewTerm
		}
		conn, err := dial(ctx, master.Addr, d, config)
		if err == nil && worker {
			g.Use(master, asked)
		}
		return conn, err
	}
}

// DialAgain returns a function that dials the master of the term in use, whatever the address.
func (g *Group) DialAgain(dial Dial) Dial {
	return func(ctx context.Context, _ string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		return dial(ctx, g.Used().Addr, d, config)
	}
}

// Run asks, until the node is closed, whether the term continues, and calls over when it does not. It calls changed
// when the confirmation of the term ends or returns, or the faults change. It must be called once, and closes the
// connections to the voters, unless the cluster has them.
func (g *Group) Run(changed, over func()) {
	if g == nil {
		return
	}
	g.heard = heard{changed: changed, over: over, faults: fmt.Sprint(g.Faults())}
	if g.cluster != nil {
		defer g.cluster.join(g)()
		<-g.life.Done()
		return
	}
	defer g.voters.close()
	tick := time.NewTicker(failover.ConfirmEvery)
	defer tick.Stop()
	for {
		select {
		case <-g.life.Done():
			return
		case <-tick.C:
		}
		g.tell(g.Confirm())
	}
}

// Confirm asks once, and returns false if the term has ended.
func (g *Group) Confirm() (goesOn bool) {
	q := g.question()
	return q.answered(g.resolve(g.life))
}

// question is whether the term in use continues.
type question struct {
	group *Group
	used  Term
	asked clock.Validity
}

func (g *Group) question() question {
	used := g.Used()
	asked, _ := g.clock()
	return question{g, used, asked}
}

// answered records the answer, and returns false if the term has ended. If a dial has changed the term in use since the
// question, the new term has just been confirmed.
func (q question) answered(master Term, err error) (goesOn bool) {
	g := q.group
	_, now := g.clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unconfirmedBecause = err
	return err != nil || q.used == (Term{}) || g.terms.Used() != q.used || g.terms.Record(master, q.asked, now)
}

// tell calls over and changed as Run says, after a question.
func (g *Group) tell(goesOn bool) {
	h := &g.heard
	if !goesOn {
		h.over()
	}
	unconfirmed, faults := g.Unconfirmed(), fmt.Sprint(g.Faults())
	if unconfirmed != h.unconfirmed || faults != h.faults {
		h.changed()
	}
	h.unconfirmed, h.faults = unconfirmed, faults
}

// Votes returns why votes of the term in use do not count now: no majority has confirmed it, or keys may have left the
// master since the marker was written. It returns nil if they count.
func (g *Group) Votes() error {
	if g == nil {
		return nil
	}
	now, _ := g.clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	switch err := g.terms.Votes(now, g.Watches()); {
	case errors.Is(err, failover.ErrMoved):
		return wire.ErrMoving
	case err != nil && g.unconfirmedBecause != nil:
		return fmt.Errorf("%w: %w", err, g.unconfirmedBecause)
	default:
		return err
	}
}

// Unconfirmed reports whether no majority has confirmed the term lately.
func (g *Group) Unconfirmed() bool { return errors.Is(g.Votes(), failover.ErrUnconfirmed) }

// Watches reports whether the master must be asked, by Look, whether keys leave it: it owns a slot.
func (g *Group) Watches() bool { return g != nil && g.kind == "slot" }

// Look records the master's reply to CLUSTER NODES, which was asked at this instant of the validity clock. It
// returns whether a move of the slot has begun, or has ended.
func (g *Group) Look(text string, asked clock.Validity) (changed bool) {
	open := movesAway(text, g.slot)
	return g.ask(func(t *failover.Tracker[Term]) bool { return t.Look(open, asked) })
}

// FoundMove records an answer that only a half-moved slot gives. It returns whether that is new.
func (g *Group) FoundMove() (first bool) { return g.ask((*failover.Tracker[Term]).FoundMove) }

// Moving reports whether keys may leave the master now, and Moved whether they may have left since the marker
// was written; then no vote counts.
func (g *Group) Moving() bool { return g.ask((*failover.Tracker[Term]).Moving) }

// Moved is described at Moving.
func (g *Group) Moved() bool { return g.ask((*failover.Tracker[Term]).Moved) }

// Marked records that the guard has written a new marker since the last Look.
func (g *Group) Marked() { g.with((*failover.Tracker[Term]).Marked) }

// Since returns whether the term of a request that was sent at sent is no longer in use, and whether no lease may rely
// on the answer: because of that, or because no majority had confirmed the term within the window.
func (g *Group) Since(term Term, sent clock.Validity, window time.Duration) (former, outlasted bool) {
	g.with(func(t *failover.Tracker[Term]) {
		former = t.Used() != term
		outlasted = former || !t.Renews(sent, window)
	})
	return former, outlasted
}
