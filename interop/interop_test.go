//go:build unix

package interop_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// key is the full key on the nodes, for all libraries.
	key = "invoices/close-month"
	ttl = 10 * time.Second
	// loadFor is how long two libraries compete, or longer until each has had the
	// lock enough times, up to loadMost: the machine may be slow.
	loadFor  = 1500 * time.Millisecond
	loadMost = 10 * loadFor
	enough   = 5
)

// newManager returns a Manager whose keys are the names, as other libraries'
// are, unless the options say otherwise.
func newManager(t *testing.T, addrs []string, opts ...quorumlock.Option) *quorumlock.Manager {
	t.Helper()
	opts = append([]quorumlock.Option{quorumlock.WithPrefix(""), quorumlock.WithTTL(ttl)}, opts...)
	m, err := quorumlock.New(t.Context(), quorumlock.Addrs(addrs...), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close(context.Background())) })
	return m
}

// newClients returns a go-redis client for each address.
func newClients(t *testing.T, addrs []string) []*redis.Client {
	t.Helper()
	var clients []*redis.Client
	for _, addr := range addrs {
		client := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { assert.NoError(t, client.Close()) })
		clients = append(clients, client)
	}
	return clients
}

// library is one way to take the lock. lock waits until it has it or ctx ends.
type library struct {
	name string
	lock func(ctx context.Context) (unlock func() error, err error)
}

func ours(m *quorumlock.Manager) library {
	return library{"quorumlock", func(ctx context.Context) (func() error, error) {
		lease, err := m.Acquire(ctx, key)
		if err != nil {
			return nil, err
		}
		return func() error { return lease.Release(context.WithoutCancel(ctx)) }, nil
	}}
}

// witness notices when two holders are inside at the same time.
type witness struct {
	inside   atomic.Int32
	overlaps atomic.Int32
}

func (w *witness) visit() {
	if w.inside.Add(1) != 1 {
		w.overlaps.Add(1)
	}
	time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Millisecond))))
	w.inside.Add(-1)
}

// compete lets two callers of each library take the lock again and again. It
// returns how often each library had it, and how often two holders met.
func compete(t *testing.T, libraries ...library) (had map[string]int, overlaps int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), loadMost)
	defer cancel()
	began := time.Now()
	var w witness
	var mu sync.Mutex // guards had
	var wg sync.WaitGroup
	had = map[string]int{}
	for _, l := range libraries {
		for range 2 {
			wg.Go(func() {
				for ctx.Err() == nil {
					unlock, err := l.lock(ctx)
					if err != nil {
						continue // the end, or a library that gave up waiting
					}
					w.visit()
					assert.NoError(t, unlock(), l.name)
					mu.Lock()
					had[l.name]++
					done := time.Since(began) > loadFor
					for _, l := range libraries {
						done = done && had[l.name] >= enough
					}
					mu.Unlock()
					if done {
						cancel()
					}
					time.Sleep(time.Duration(rand.Int64N(int64(20 * time.Millisecond)))) // other work
				}
			})
		}
	}
	wg.Wait()
	t.Logf("had the lock: %v; overlaps: %d", had, w.overlaps.Load())
	return had, int(w.overlaps.Load())
}

// requireExclusion checks the result of compete.
func requireExclusion(t *testing.T, had map[string]int, overlaps int, libraries ...library) {
	t.Helper()
	require.Zero(t, overlaps, "two holders at the same time")
	for _, l := range libraries {
		require.GreaterOrEqual(t, had[l.name], enough, "%s starves", l.name)
	}
}

// requireHandOver makes second wait while first holds, and then first release.
func requireHandOver(t *testing.T, first, second library) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	unlock, err := first.lock(ctx)
	require.NoError(t, err)
	var released atomic.Bool
	type result struct {
		unlock func() error
		err    error
	}
	got := make(chan result, 1)
	go func() {
		unlock, err := second.lock(ctx)
		if err == nil && !released.Load() {
			t.Errorf("%s has the lock that %s holds", second.name, first.name)
		}
		got <- result{unlock, err}
	}()
	time.Sleep(300 * time.Millisecond)
	released.Store(true)
	require.NoError(t, unlock())
	r := <-got
	require.NoError(t, r.err)
	require.NoError(t, r.unlock())
}
