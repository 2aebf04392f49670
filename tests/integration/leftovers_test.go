package integration

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// endings are the ways in which a lease ends. Each has two clients and its own names. A third node answers late, so
// requests to it are pending when the lease ends.
var endings = map[string]func(t *testing.T, m, other *quorumlock.Manager, name string){
	"released": func(t *testing.T, m, _ *quorumlock.Manager, name string) {
		release(t, testkit.Acquired(t, m, name))
	},
	"lost": func(t *testing.T, m, _ *quorumlock.Manager, name string) {
		<-testkit.Acquired(t, m, name, quorumlock.WithMaxHold(100*time.Millisecond)).Lost()
	},
	"passed on": func(t *testing.T, m, _ *quorumlock.Manager, name string) {
		l := testkit.Acquired(t, m, name)
		next := make(chan *quorumlock.Lease)
		go func() { next <- testkit.Acquired(t, m, name) }()
		time.Sleep(5 * time.Millisecond)
		release(t, l)
		release(t, <-next)
	},
	"given up": func(t *testing.T, m, other *quorumlock.Manager, name string) {
		l := testkit.Acquired(t, m, name)
		_, err := other.Acquire(background, name, quorumlock.WithWait(time.Millisecond))
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		ctx, cancel := context.WithTimeout(background, 200*time.Microsecond)
		defer cancel()
		if never, err := other.Acquire(ctx, name+" free"); err == nil {
			release(t, never)
		}
		release(t, l)
	},
	"shared": func(t *testing.T, m, other *quorumlock.Manager, name string) {
		l, err := m.Acquire(background, name, quorumlock.Shared())
		require.NoError(t, err)
		second, err := other.Acquire(background, name, quorumlock.Shared())
		require.NoError(t, err)
		release(t, l)
		release(t, second)
	},
	"downgraded": func(t *testing.T, m, _ *quorumlock.Manager, name string) {
		l, err := testkit.Acquired(t, m, name).Downgrade(background)
		require.NoError(t, err)
		release(t, l)
	},
	"downgraded in vain": func(t *testing.T, m, _ *quorumlock.Manager, name string) {
		l := testkit.Acquired(t, m, name)
		ctx, cancel := context.WithCancel(background)
		cancel()
		_, err := l.Downgrade(ctx)
		require.Error(t, err)
	},
	"detached, given back": func(t *testing.T, m, other *quorumlock.Manager, name string) {
		h := detach(t, testkit.Acquired(t, m, name), time.Minute)
		require.NoError(t, other.ReleaseHandle(background, h))
	},
	"detached, given back here": func(t *testing.T, m, _ *quorumlock.Manager, name string) {
		h := detach(t, testkit.Acquired(t, m, name), time.Minute)
		require.NoError(t, m.ReleaseHandle(background, h))
	},
	"detached, expired": func(t *testing.T, m, _ *quorumlock.Manager, name string) {
		detach(t, testkit.Acquired(t, m, name), 100*time.Millisecond)
	},
	"detached in vain": func(t *testing.T, m, _ *quorumlock.Manager, name string) {
		l := testkit.Acquired(t, m, name)
		ctx, cancel := context.WithCancel(background)
		cancel()
		if h, err := l.Detach(ctx, time.Minute); err == nil {
			require.NoError(t, m.ReleaseHandle(background, h))
		}
	},
	"resumed": func(t *testing.T, m, other *quorumlock.Manager, name string) {
		h := detach(t, testkit.Acquired(t, m, name), time.Minute)
		l, err := other.Resume(background, h)
		require.NoError(t, err)
		release(t, l)
	},
	"resumed by many": func(t *testing.T, m, other *quorumlock.Manager, name string) {
		release(t, resumedByMany(t, detach(t, testkit.Acquired(t, m, name), time.Minute), 5, m, other))
	},
	"resumed twice": func(t *testing.T, m, other *quorumlock.Manager, name string) {
		l := testkit.Acquired(t, m, name)
		for _, by := range []*quorumlock.Manager{other, m} {
			var err error
			l, err = by.Resume(background, detach(t, l, time.Minute))
			require.NoError(t, err)
		}
		below, err := l.Downgrade(background)
		require.NoError(t, err)
		release(t, below)
	},
	"several in part": func(t *testing.T, m, other *quorumlock.Manager, name string) {
		l := testkit.Acquired(t, other, name+" b")
		_, err := m.AcquireAll(background, []string{name + " a", name + " b", name + " c"}, quorumlock.WithWait(5*time.Millisecond))
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		release(t, l)
		all, err := m.AcquireAll(background, []string{name + " a", name + " b", name + " c"})
		require.NoError(t, err)
		require.NoError(t, all.Release(background))
	},
	"permits": func(t *testing.T, m, other *quorumlock.Manager, name string) {
		var held []*quorumlock.Lease
		for _, by := range []*quorumlock.Manager{m, other} {
			l, err := by.Acquire(background, name, quorumlock.Permits(2))
			require.NoError(t, err)
			held = append(held, l)
		}
		_, err := m.Acquire(background, name, quorumlock.Permits(2), quorumlock.WithWait(5*time.Millisecond))
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		for _, l := range held {
			release(t, l)
		}
	},
	"revoked": func(t *testing.T, m, other *quorumlock.Manager, name string) {
		l := testkit.Acquired(t, m, name, quorumlock.WithTTL(3*time.Second))
		_, err := other.Revoke(background, name, "")
		require.NoError(t, err)
		<-l.Done()
	},
}

func release(t *testing.T, l *quorumlock.Lease) {
	t.Helper()
	require.NoError(t, l.Release(background))
}

func detach(t *testing.T, l *quorumlock.Lease, keep time.Duration) quorumlock.Handle {
	t.Helper()
	h, err := l.Detach(background, keep)
	require.NoError(t, err)
	return h
}

// However a lease ends, none of its keys stays on a slow node. Only registers remain, and hints such as the set of
// slots.
func TestNothingStaysBehindHoweverALeaseEnds(t *testing.T) {
	t.Parallel()
	each := testkit.Count(60, 2)
	servers := testkit.Start(t, 3)
	proxies, addrs := testkit.Proxied(t, servers)
	proxies[2].Delay(8 * time.Millisecond)
	opts := testkit.Options(quorumlock.WithTTL(time.Minute), quorumlock.WithNodeTimeout(900*time.Millisecond), quorumlock.WithLogger(slog.New(slog.DiscardHandler)))
	m, other := open(t, testkit.Nodes(t, addrs...), opts...), open(t, testkit.Nodes(t, addrs...), opts...)
	t.Run("each", func(t *testing.T) {
		for way, end := range endings {
			for i := range each {
				t.Run(way, func(t *testing.T) {
					t.Parallel()
					end(t, m, other, fmt.Sprintf("%s %d", way, i))
				})
			}
		}
	})
	closing, err := start(t, testkit.Nodes(t, addrs...), opts...)
	require.NoError(t, err)
	for i := range each {
		testkit.Acquired(t, closing, fmt.Sprintf("closed %d", i))
	}
	require.NoError(t, closing.Close(background))
	counts := map[string]int{}
	for _, key := range left(t, servers) {
		counts[strings.TrimRight(key, "0123456789 abc")]++
	}
	assert.Empty(t, counts)
}

// left returns the keys that are left when no request is pending any more.
func left(t *testing.T, servers []*redistest.Server) (keys []string) {
	t.Helper()
	for range 100 { // 10 s, much less than the TTL
		if keys = ofLeases(t, servers...); len(keys) == 0 {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	for i, key := range keys {
		keys[i] = strings.TrimPrefix(key, testkit.Prefix)
	}
	return keys
}

// Many callers in several processes resume one handle at the same instant. Each time, exactly one gets it.
func TestOneOfManyThatResumeAtOneInstantGetsIt(t *testing.T) {
	t.Parallel()
	servers := testkit.Start(t, 3)
	managers := make([]*quorumlock.Manager, 5)
	for i := range managers {
		managers[i] = open(t, testkit.Nodes(t, redistest.Addrs(servers)...), patient()...)
	}
	for i := range testkit.Count(60, 5) {
		l := testkit.Acquired(t, managers[0], fmt.Sprint("job ", i))
		next := resumedByMany(t, detach(t, l, time.Minute), 10, managers...)
		assert.Greater(t, next.Token(), l.Token())
		release(t, next)
	}
	clean(t, servers)
}

// resumedByMany has this number of callers in each Manager resume a handle, and returns the lease of the only caller
// that gets it.
func resumedByMany(t *testing.T, h quorumlock.Handle, callers int, managers ...*quorumlock.Manager) *quorumlock.Lease {
	t.Helper()
	var all sync.WaitGroup
	got, start := make(chan *quorumlock.Lease, callers*len(managers)), make(chan struct{})
	for _, m := range managers {
		for range callers {
			all.Go(func() {
				<-start
				if l, err := m.Resume(background, h); err == nil {
					got <- l
				}
			})
		}
	}
	close(start)
	all.Wait()
	require.Len(t, got, 1, "of %d callers", cap(got))
	return <-got
}
