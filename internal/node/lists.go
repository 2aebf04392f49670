package node

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

const (
	// looksPerList is how many greetings an entry outlives; its votes count for one less.
	looksPerList = 3
	// ListAge is the age of a registration after which votes do not rely on it.
	ListAge = (looksPerList - 1) * checkEvery
)

// listLife returns how long an entry stands: for the longest lease after the last vote
// that may rely on it. The node's clock may run faster than ours, by the bound.
func (g *greeter) listLife() time.Duration {
	life := g.cfg.Guard + looksPerList*checkEvery
	return life + time.Duration(float64(life)*max(g.cfg.Drift, minDrift))
}

// listing returns the request that registers the list, and its entry. A client without the
// guard only asks.
func (g *greeter) listing() (*wire.Request, wire.ListEntry) {
	e := g.cfg.Lists.Entry(g.cfg.Index)
	asked, fresh := e, rand.Text()
	if g.cfg.Guard == 0 {
		e.Adds, e.Keeps = false, false
		asked, fresh = e, ""
		asked.Known = ""
	}
	return wire.NewList(g.script.listsKey, &asked, fresh, g.listLife(), g.notAfter()), e
}

// enlist registers the list of the Manager, together with the rehearsal.
func (g *greeter) enlist(ctx context.Context) error {
	if g.cfg.Lists == nil {
		_, err := g.run(ctx, "script", wire.NewRehearsal(g.script.markerKey))
		return err
	}
	op, e := g.listing()
	sent := g.now
	replies, err := g.run(ctx, "script", wire.NewRehearsal(g.script.markerKey), op)
	if err != nil {
		return err
	}
	a, err := wire.ReadListed(replies[1])
	if err != nil {
		return err
	}
	g.named = a.ID != ""
	_ = g.cfg.Lists.Listed(g.cfg.Index, e, sent, a) // it withholds votes and nothing else: see unlisted
	return nil
}

// unlist records that the node takes no part in the comparison of lists.
func (g *greeter) unlist() {
	if g.cfg.Lists != nil {
		g.cfg.Lists.Gone(g.cfg.Index)
	}
}

// unlisted returns why votes do not count because of the lists of nodes, nil if they do.
func (g *greeter) unlisted() error {
	if g.cfg.Lists == nil || g.cfg.Guard == 0 {
		return nil
	}
	return g.cfg.Lists.Votes(g.cfg.Index)
}
