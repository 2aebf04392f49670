package cli

import (
	"cmp"
	"context"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/quorumlock"
)

// Bounds of list.
const (
	minInterval = 100 * time.Millisecond
	maxListed   = 100000
)

type listOptions struct {
	interval time.Duration
	limit    int
	follow   bool
}

func (p *program) listCommand() *cobra.Command {
	o := listOptions{interval: time.Second, limit: 500}
	c := &cobra.Command{
		Use:   "list [PREFIX]",
		Short: "Show which locks are held",
		Long: `List shows the locks whose names begin with PREFIX: the holder that a majority
of the nodes reports, the time to its expiry and the number of waiters. Readers
that share a lock are counted; inspect names them. With --follow it scans again
every --interval: on a terminal it redraws its table; piped, or with --json, it
prints a line for every change. It misses locks that are held only between two
scans.

Each scan reads the keys of a majority of the nodes with SCAN, 250 at a time
with pauses of 2 ms: about a tenth of a server's time, and 10 s for a million
keys. It ends after --limit names. Only list needs the ACL right +scan.`,
		Annotations: needsNodes,
		Args:        cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.interval < minInterval {
				return usagef("--interval %v: must be at least %v", o.interval, minInterval)
			}
			if o.limit < 1 || o.limit > maxListed {
				return usagef("--limit %d: must be 1 to %d", o.limit, maxListed)
			}
			return p.list(cmd.Context(), strings.Join(args, ""), o)
		},
	}
	c.Flags().BoolVarP(&o.follow, "follow", "f", false, "look again and again, until Ctrl-C")
	c.Flags().Var(durationFlag{&o.interval}, "interval", "time between two looks of --follow")
	c.Flags().IntVar(&o.limit, "limit", o.limit, "how many names to show")
	return c
}

func (p *program) list(ctx context.Context, prefix string, o listOptions) error {
	ctx, stop := signal.NotifyContext(ctx, ending()...)
	defer stop()
	m, err := p.connection.manager(ctx)
	if err != nil {
		return err
	}
	defer closeManager(m)
	l := &lister{program: p, prefix: prefix, limit: o.limit, manager: m}
	view := l.view(o.follow)
	defer view.end()
	for {
		seen := l.look(ctx)
		if ctx.Err() != nil {
			return nil // the user has seen enough
		}
		if seen.err != nil && !o.follow {
			return seen.err
		}
		if err := view.show(ctx, seen); err != nil || !o.follow {
			return err
		}
		select {
		case <-time.After(o.interval):
		case <-ctx.Done():
			return nil
		}
	}
}

// lister looks at the locks of a prefix.
type lister struct {
	*program
	manager *quorumlock.Manager
	prefix  string
	limit   int
}

// look is the state of the locks at one time.
type look struct {
	at    time.Time
	locks []quorumlock.Status // by name
	cut   bool                // there are more
	err   error               // why locks may be missing; nil if none are
}

// look finds the locks.
func (l *lister) look(ctx context.Context) look {
	seen := look{at: time.Now()}
	for s, err := range l.manager.List(ctx, l.prefix) {
		if err != nil {
			seen.err = err
			break
		}
		if len(seen.locks) == l.limit {
			seen.cut = true
			break
		}
		seen.locks = append(seen.locks, s)
	}
	slices.SortFunc(seen.locks, func(a, b quorumlock.Status) int { return cmp.Compare(a.Name, b.Name) })
	return seen
}
