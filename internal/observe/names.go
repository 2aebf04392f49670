package observe

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A page is a step of a scan. It stops a server for pageKeys short steps, and the pause after it bounds the load of a
// scan, however many keys there are.
const (
	pageKeys  = 250
	pagePause = 2 * time.Millisecond
	// mostRestarts is how often a scan of a node begins again before it gives the node up.
	mostRestarts = 3
)

var errRestarts = errors.New("the server was restarted or replaced several times during the scan")

// Names finds the locks whose keys begin with a prefix.
type Names struct {
	prefix   string // of the keys
	ensemble *ensemble.Ensemble
	Timeout  func() time.Duration // of a page

	Scanned  int     // nodes whose keys were all looked at; read after Pages
	Problems []error // of the others, by node; read after Pages
}

// Names returns the search for locks whose keys begin with a prefix.
func (s *Observers) Names(prefix string) *Names {
	return &Names{prefix: prefix, ensemble: s.ensemble, Timeout: s.timeout}
}

// Complete reports whether a majority was scanned: it has a key of every lock that is held.
func (n *Names) Complete() bool { return n.Scanned >= n.ensemble.Quorum() }

// Pages scans one node after the other, until it is complete, no node is left, or ctx ends. It
// yields each key once, and keeps it until it ends.
func (n *Names) Pages(ctx context.Context) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		n.Problems = make([]error, n.ensemble.Size())
		seen := map[string]struct{}{}
		for i := range n.Problems {
			if !n.node(ctx, i, seen, yield) || n.Complete() || ctx.Err() != nil {
				return
			}
		}
	}
}

// node scans node i. It returns false when nothing more is to be yielded. A cursor is worthless to another server
// process, so the scan begins again if the node has restarted or has another master.
func (n *Names) node(ctx context.Context, i int, seen map[string]struct{}, yield func([]string) bool) bool {
	server, again := n.server(i), 0
	for cursor := wire.LastPage; ; {
		page, err := n.page(ctx, i, cursor)
		if n.Problems[i] = err; err != nil {
			return true
		}
		if keys := fresh(page.Keys, seen); len(keys) > 0 && !yield(keys) {
			return false
		}
		if now := n.server(i); now != server {
			if again++; again == mostRestarts {
				n.Problems[i] = errRestarts
				return true
			}
			server, cursor = now, wire.LastPage
			continue
		}
		if cursor = page.Cursor; cursor == wire.LastPage {
			n.Scanned++
			return true
		}
		n.pause(ctx)
	}
}

// server names the server process of node i, and its data.
func (n *Names) server(i int) string {
	id := n.ensemble.Nodes()[i].Health().Identity
	return id.RunID + " " + id.ReplID
}

// page asks node i for a page.
func (n *Names) page(ctx context.Context, i int, cursor string) (*wire.Page, error) {
	timeout := n.Timeout()
	_, now := n.ensemble.Clock.Both()
	reply := n.ensemble.Call(ctx, i, wire.NewScan(n.prefix, cursor, pageKeys, now.Add(timeout)), timeout)
	return reply.Page, reply.Err
}

// fresh returns the keys that have not been seen.
func fresh(keys []string, seen map[string]struct{}) (fresh []string) {
	for _, key := range keys {
		if _, known := seen[key]; !known {
			seen[key] = struct{}{}
			fresh = append(fresh, key)
		}
	}
	return fresh
}

// pause lets the server serve others.
func (n *Names) pause(ctx context.Context) {
	timer := n.ensemble.Timer(pagePause)
	defer n.ensemble.PutTimer(timer)
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
