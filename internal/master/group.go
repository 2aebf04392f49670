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

	"github.com/quorumlock/quorumlock/internal/failover"
)

var (
	// ErrUnconfirmed means that nobody has confirmed for a while that the connected server
	// is still the master of its group.
	ErrUnconfirmed = errors.New("no majority confirms that this server is still the master: look at those who choose it, if this lasts")
	// ErrNewTerm means that the master has just changed, and is used a little later.
	ErrNewTerm = errors.New("the master of the group has just changed: it is used when the one before no longer votes")
)

// Dial is a dial function of rueidis.
type Dial = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error)

// Group is what a node knows of its failover group. The methods of a nil Group are those of a
// node that is one server: it has no voters, and nobody has to confirm it.
type Group struct {
	life   context.Context // of the node
	now    func() time.Duration
	kind   string // as Name has it
	voters *voters

	mu                 sync.Mutex
	terms              failover.Tracker[Term]
	unconfirmedBecause error // why the last question confirmed nothing
}

// New returns the group of the node with this option, nil if the node is one server. now reads
// the validity clock. aside completes the option of a connection to a voter. Nothing is dialled
// before the first question; the questions end with life.
func New(life context.Context, o *rueidis.ClientOption, now func() time.Duration, aside func(rueidis.ClientOption) rueidis.ClientOption) *Group {
	g := &Group{life: life, now: now}
	switch g.kind, _ = Name(o); g.kind {
	case "sentinel":
		g.voters = newSentinels(life, o, aside)
	case "slot":
		g.voters = newSlotOwner(life, o, aside)
	default:
		return nil
	}
	return g
}

// Kind returns what chooses the master: "sentinel" or "slot".
func (g *Group) Kind() string { return g.kind }

// Voters returns how many Sentinels the group has, or nodes its cluster, and how many of them
// are listed.
func (g *Group) Voters() (known, listed int) {
	if g == nil {
		return 0, 0
	}
	return g.voters.size(), len(g.voters.addrs)
}

// Faults returns what has to be fixed at the Sentinels or seeds, though a majority of them
// names the master.
func (g *Group) Faults() []error {
	if g == nil {
		return nil
	}
	return g.voters.faults()
}

// Used returns the term that the worker dialled last.
func (g *Group) Used() Term {
	if g == nil {
		return Term{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.terms.Used()
}

// Use records that the worker uses a term that was confirmed when somebody asked at asked.
func (g *Group) Use(term Term, asked time.Duration) {
	g.mu.Lock()
	g.terms.Use(term, asked)
	g.mu.Unlock()
}

// resolve asks for the present term.
func (g *Group) resolve(ctx context.Context) (Term, error) {
	return g.voters.resolve(ctx, g.Used() == Term{})
}

// Dial returns a function that dials the present master, whatever the address. The worker's
// dials set the term.
func (g *Group) Dial(dial Dial, worker bool) Dial {
	return func(ctx context.Context, _ string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		asked := g.now()
		master, err := g.resolve(ctx)
		if err != nil {
			return nil, err
		}
		now := g.now()
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

// Run asks, until the node is closed, whether the term goes on, and calls over when it does
// not. It calls changed when the term is confirmed no longer, or again, or the faults have
// changed. It must be called once, and closes the connections to the voters.
func (g *Group) Run(changed, over func()) {
	if g == nil {
		return
	}
	defer g.voters.close()
	tick := time.NewTicker(failover.ConfirmEvery)
	defer tick.Stop()
	confirmed, faults := true, fmt.Sprint(g.Faults())
	for {
		select {
		case <-g.life.Done():
			return
		case <-tick.C:
		}
		if !g.Confirm() {
			over()
		}
		confirmedNow, faultsNow := g.Unconfirmed() == nil, fmt.Sprint(g.Faults())
		if confirmedNow != confirmed || faultsNow != faults {
			changed()
		}
		confirmed, faults = confirmedNow, faultsNow
	}
}

// Confirm asks once, and returns false if the term is over. A dial may have changed the term in
// use meanwhile; then it has just been confirmed.
func (g *Group) Confirm() (goesOn bool) {
	before := g.Used()
	asked := g.now()
	master, err := g.resolve(g.life)
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unconfirmedBecause = err
	return err != nil || before == (Term{}) || g.terms.Used() != before || g.terms.Record(master, asked, now)
}

// Unconfirmed returns why votes may not count, because nobody has confirmed the term; nil
// if they do.
func (g *Group) Unconfirmed() error {
	if g == nil {
		return nil
	}
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.terms.Confirmed(now):
		return nil
	case g.unconfirmedBecause != nil:
		return fmt.Errorf("%w: %w", ErrUnconfirmed, g.unconfirmedBecause)
	default:
		return ErrUnconfirmed
	}
}

// Renews reports whether a lease may rely on an answer of that term to what was sent at sent:
// a majority had confirmed the term within the window.
func (g *Group) Renews(term Term, sent, window time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.terms.Used() == term && g.terms.Renews(sent, window)
}
