package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/quorumlock/quorumlock"
)

// Bounds of watch. A scan reads every key of a node once, in steps, so it is bounded in
// names and in steps.
const (
	minInterval   = 100 * time.Millisecond
	maxWatched    = 100000
	maxScanSteps  = 1000
	scanStep      = 1000 // keys a step
	watchInFlight = 64   // inspections at one time
)

type watchOptions struct {
	interval time.Duration
	limit    int
	once     bool
}

func (p *program) watchCommand() *cobra.Command {
	o := watchOptions{interval: time.Second, limit: 500}
	c := &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Show which locks are held, and follow them",
		Long: `Watch shows the locks whose names begin with PREFIX: who holds them by the word
of a majority, how long they live, and how many wait. On a terminal it redraws a
table; piped, or with --json, it prints a line for every change.

It looks every --interval, so a lock that came and went in between is not seen.
Each look scans the nodes with SCAN, a right that locks do not need: give the
user +scan. A scan ends after a million keys of a node, or --limit names.`,
		Annotations: needsServers,
		Args:        cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.interval < minInterval {
				return usagef("--interval %v: must be at least %v", o.interval, minInterval)
			}
			if o.limit < 1 || o.limit > maxWatched {
				return usagef("--limit %d: must be 1 to %d", o.limit, maxWatched)
			}
			return p.watch(cmd.Context(), strings.Join(args, ""), o)
		},
	}
	c.Flags().Var(durationFlag{&o.interval}, "interval", "how long to wait between two looks")
	c.Flags().IntVar(&o.limit, "limit", o.limit, "how many names to follow")
	c.Flags().BoolVar(&o.once, "once", false, "look once and end")
	return c
}

func (p *program) watch(ctx context.Context, prefix string, o watchOptions) error {
	ctx, stop := signal.NotifyContext(ctx, ending()...)
	defer stop()
	w := &watcher{program: p, prefix: prefix, limit: o.limit, clients: make([]rueidis.Client, len(p.connection.options))}
	defer w.close()
	m, err := p.connection.manager(ctx)
	if err != nil {
		return err
	}
	defer closeManager(m)
	w.manager = m
	view := w.view(o.once)
	defer view.end()
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	for {
		look, err := w.look(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // somebody has seen enough
		}
		if err != nil {
			return err
		}
		if err := view.show(look); err != nil || o.once {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// watcher looks at the locks of a prefix.
type watcher struct {
	*program
	manager *quorumlock.Manager
	prefix  string
	limit   int
	clients []rueidis.Client // for SCAN, one for each node, nil until it can be reached
}

// look is the state of all locks at one time.
type look struct {
	at     time.Time
	locks  []quorumlock.Status // by name
	nodes  int                 // that were scanned
	cut    bool                // there are more
	errors []string
}

func (w *watcher) close() {
	for _, c := range w.clients {
		if c != nil {
			c.Close()
		}
	}
}

// look scans all nodes and asks about every name that one of them has.
func (w *watcher) look(ctx context.Context) (look, error) {
	l := look{at: time.Now()}
	names := map[string]bool{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range w.clients {
		wg.Go(func() {
			found, cut, err := w.scan(ctx, i)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				l.errors = append(l.errors, fmt.Sprintf("node %d (%s): %s", i, w.connection.addr(i), oneLine(err)))
				return
			}
			l.nodes++
			l.cut = l.cut || cut
			for _, name := range found {
				names[name] = true
			}
		})
	}
	wg.Wait()
	if l.nodes == 0 {
		return l, &exitError{code: exitNoQuorum, text: "no node can be scanned: " + strings.Join(l.errors, "; ")}
	}
	slices.Sort(l.errors)
	sorted := slices.Sorted(maps.Keys(names))
	if len(sorted) > w.limit {
		sorted, l.cut = sorted[:w.limit], true
	}
	return l, w.inspectAll(ctx, sorted, &l)
}

// inspectAll asks the nodes about names, some at a time.
func (w *watcher) inspectAll(ctx context.Context, names []string, l *look) error {
	all, errs := make([]quorumlock.Status, len(names)), make([]error, len(names))
	slots := make(chan struct{}, watchInFlight)
	var wg sync.WaitGroup
	for i, name := range names {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			all[i], errs[i] = w.manager.Inspect(ctx, name)
		})
	}
	wg.Wait()
	for i, s := range all {
		switch err := errs[i]; {
		case errors.Is(err, quorumlock.ErrNoQuorum):
			return err
		case err == nil && (s.Votes > 0 || s.Waiters > 0):
			l.locks = append(l.locks, s)
		}
	}
	return nil
}

// scan returns the names on one node. What bounds it is the number of names and of
// steps; a node that has come back since the last look is scanned again.
func (w *watcher) scan(ctx context.Context, i int) (names []string, cut bool, err error) {
	if w.clients[i] == nil {
		option := w.connection.options[i]
		option.ForceSingleClient, option.DisableCache, option.DisableRetry = true, true, true
		option.ClientSetInfo = rueidis.DisableClientSetInfo
		option.PipelineMultiplex = -1
		option.Dialer.Timeout, option.ConnWriteTimeout = time.Second, time.Second
		if w.clients[i], err = rueidis.NewClient(option); err != nil {
			w.clients[i] = nil
			return nil, false, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client := w.clients[i]
	pattern := literal(w.connection.prefix+w.prefix) + "*"
	cursor := uint64(0)
	for range maxScanSteps {
		entry, err := client.Do(ctx, client.B().Scan().Cursor(cursor).Match(pattern).Count(scanStep).Type("string").Build()).AsScanEntry()
		if err != nil {
			return nil, false, scanError(err)
		}
		for _, key := range entry.Elements {
			if utf8.ValidString(key) { // the other keys of a prefix hold a byte that is no UTF-8
				names = append(names, strings.TrimPrefix(key, w.connection.prefix))
			}
		}
		if cursor = entry.Cursor; cursor == 0 {
			return names, false, nil
		}
		if len(names) > w.limit {
			break
		}
	}
	return names, true, nil
}

func scanError(err error) error {
	if redis, ok := rueidis.IsRedisErr(err); ok && strings.HasPrefix(redis.Error(), "NOPERM") {
		return fmt.Errorf("%w: give the user +scan, which watch needs and locks do not", err)
	}
	return err
}

// literal escapes what a pattern of Redis takes for a wildcard.
func literal(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
