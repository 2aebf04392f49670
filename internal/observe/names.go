package observe

import (
	"context"
	"iter"
	"time"
	"unicode/utf8"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A page is a step of a scan. It stops a server for pageKeys short steps, and the pause behind it
// bounds what a scan takes of the server, however many keys there are.
const (
	pageKeys  = 500
	pagePause = time.Millisecond
)

// Names finds the locks whose keys begin with a prefix.
type Names struct {
	prefix   string // of the keys
	ensemble *ensemble.Ensemble
	Timeout  func() time.Duration // of a page

	Scanned  int     // nodes of which all keys were looked at; read after Pages
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
			for cursor := wire.LastPage; ; {
				page, err := n.page(ctx, i, cursor)
				if n.Problems[i] = err; err != nil {
					break
				}
				if keys := n.fresh(page.Keys, seen); len(keys) > 0 && !yield(keys) {
					return
				}
				if cursor = page.Cursor; cursor == wire.LastPage {
					n.Scanned++
					break
				}
				n.pause(ctx)
			}
			if n.Complete() || ctx.Err() != nil {
				return
			}
		}
	}
}

// page asks node i for a page.
func (n *Names) page(ctx context.Context, i int, cursor string) (*wire.Page, error) {
	timeout := n.Timeout()
	_, now := n.ensemble.Clock.Both()
	reply := n.ensemble.Call(ctx, i, wire.NewScan(n.prefix, cursor, pageKeys, now+timeout), timeout)
	return reply.Page, reply.Err
}

// fresh returns the keys that have not been seen, and that may be those of locks.
func (n *Names) fresh(keys []string, seen map[string]struct{}) (fresh []string) {
	for _, key := range keys {
		if _, known := seen[key]; !known && utf8.ValidString(key) {
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
