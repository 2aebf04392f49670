package battery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// Close runs at a random moment, while 50 calls of Acquire and 50 of Renew are in progress. One node hangs, either for
// a moment or for so long that the client has given up its connection.
func TestCloseEndsEveryLeaseOnceAndInTimeWithANodeThatHangs(t *testing.T) {
	others := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		err := goleak.Find(others)
		newRow(t, "Close at a random moment").figure(fmt.Sprintf("goroutines left: %v", err), "none", err == nil)
	})
	forSizes(t, false, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("Close at a random moment, one node hangs, N=%d", n))
		servers := redistest.Start(t, n)
		total := count(500, 8)
		var tally closeTally
		for done := 0; done < total; {
			batch := min(8, total-done)
			victim := rand.IntN(n)
			healthy := append(append([]*redistest.Server(nil), servers[:victim]...), servers[victim+1:]...)
			closers := make([]*closer, batch)
			for i := range closers {
				closers[i] = newCloser(t, fmt.Sprintf("close-%d-", done+i), servers)
			}
			var all sync.WaitGroup
			servers[victim].Stop()
			for _, c := range closers {
				all.Go(func() {
					time.Sleep(time.Duration(rand.Int64N(int64(time.Duration(count(2500, 1500)) * time.Millisecond))))
					c.close(healthy, &tally)
				})
			}
			all.Wait()
			servers[victim].Continue()
			for _, s := range servers { // old keys must not block the names
				s.MustDo("FLUSHALL")
			}
			done += batch
		}
		r.figure(fmt.Sprintf("%d times: %s", len(tally.took), spread(tally.took)), limit(1500*time.Millisecond),
			at(1, tally.took) <= limitOf(1500*time.Millisecond))
		r.figure(fmt.Sprintf("leases %d (granted within 5ms of Close: %d), with one terminal event %d, with one end on their own channels %d",
			tally.leases, tally.granted, tally.once, tally.reported), "all", tally.leases > 0 && tally.once == tally.leases && tally.reported == tally.leases)
		r.figure(fmt.Sprintf("keys left on healthy nodes %d, %v after Close", tally.keys, keysGone), "0", tally.keys == 0)
		if tally.excused > 0 {
			t.Logf("not counted: the keys of %d rounds in which healthy nodes were slow", tally.excused)
		}
		r.figure(fmt.Sprintf("calls that outlived Close %d, or ended otherwise %d", tally.hung, tally.odd), "0", tally.hung == 0 && tally.odd == 0)
		if tally.first != "" {
			t.Log("the first: ", tally.first)
		}
	})
}

// closeTally has the results of a row's calls of Close; guarded by mu.
type closeTally struct {
	mu                                                        sync.Mutex
	took                                                      []time.Duration
	leases, granted, once, reported, keys, hung, odd, excused int
	first                                                     string
}

// closer is one Manager with calls in progress.
type closer struct {
	prefix string // of its names
	m      *quorumlock.Manager

	events chan map[string]int // terminal events by name and token, once the subscription has ended
	calls  sync.WaitGroup
	odd    atomic.Value // an unexpected error of a call

	mu     sync.Mutex
	leases []*quorumlock.Lease
	before int // the number of leases before the calls
}

const (
	underWay = 50
	// keysGone is the time after Close after which a key counts as left behind. In CI a round does not count if a PING
	// of a healthy node took that long.
	keysGone = 100 * time.Millisecond
)

func newCloser(t *testing.T, prefix string, servers []*redistest.Server) *closer {
	t.Helper()
	m, err := quorumlock.New(context.Background(), quorumlock.Addrs(redistest.Addrs(servers)...))
	require.NoError(t, err)
	c := &closer{prefix: prefix, m: m, events: make(chan map[string]int, 1)}
	sub := m.Subscribe(1 << 16)
	go func() {
		terminal := map[string]int{}
		for e := range sub.C() {
			switch e := e.(type) {
			case quorumlock.Released:
				terminal[grant(e.Name, e.Token)]++
			case quorumlock.Lost:
				terminal[grant(e.Name, e.Token)]++
			}
		}
		c.events <- terminal
	}()
	for i := range underWay {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		l, err := m.Acquire(ctx, fmt.Sprint(prefix, "held-", i))
		cancel()
		if err != nil { // the Manager must be closed anyway
			_ = m.Close(context.Background())
		}
		require.NoError(t, err)
		if i%2 == 0 { // for the others, the channels are made only when the lease ends
			l.Lost()
		}
		c.leases = append(c.leases, l)
	}
	c.before = len(c.leases)
	for i := range underWay / 2 { // they wait all the time
		c.calls.Go(func() { c.acquire(fmt.Sprint(prefix, "held-", i)) })
	}
	return c
}

// burst makes the other calls. Most of them are still in progress a moment later.
func (c *closer) burst() {
	for i, l := range c.leases[:c.before] {
		c.calls.Go(func() { c.renew(l) })
		if i < underWay/2 {
			c.calls.Go(func() { c.acquire(fmt.Sprint(c.prefix, "new-", i)) })
		}
	}
}

func grant(name string, token int64) string { return fmt.Sprint(name, " ", token) }

// renew renews until the lease has ended.
func (c *closer) renew(l *quorumlock.Lease) {
	for {
		switch err := l.Renew(context.Background()); {
		case err == nil || errors.Is(err, quorumlock.ErrNoQuorum):
		case errors.Is(err, quorumlock.ErrReleased) || errors.Is(err, quorumlock.ErrLost):
			return
		default:
			c.odd.CompareAndSwap(nil, "renew: "+err.Error())
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// acquire waits for a held name, or takes a free one and keeps it.
func (c *closer) acquire(name string) {
	l, err := c.m.Acquire(context.Background(), name)
	switch {
	case err == nil:
		c.mu.Lock()
		defer c.mu.Unlock()
		c.leases = append(c.leases, l)
	case !errors.Is(err, quorumlock.ErrClosed):
		c.odd.CompareAndSwap(nil, "acquire: "+err.Error())
	}
}

// close closes the Manager and checks its remains.
func (c *closer) close(healthy []*redistest.Server, tally *closeTally) {
	c.burst()
	time.Sleep(time.Duration(rand.Int64N(int64(5 * time.Millisecond))))
	slowest := watchPings(healthy)
	began := time.Now()
	err := c.m.Close(context.Background())
	took := time.Since(began)
	slow := slowest()
	returned := make(chan struct{})
	go func() {
		c.calls.Wait()
		close(returned)
	}()
	hung := false
	select {
	case <-returned:
	case <-time.After(limitOf(100 * time.Millisecond)):
		hung = true
		<-returned // forever, if necessary: the time limit of the test ends it
	}
	var keys []string
	within(keysGone, func() bool {
		keys = nil
		for i, s := range healthy {
			for _, key := range locksOn(s) {
				if strings.HasPrefix(key, lockKey(c.prefix)) {
					keys = append(keys, fmt.Sprintf("%s on healthy node %d", key, i))
				}
			}
		}
		return len(keys) == 0
	})
	terminal := <-c.events

	c.mu.Lock()
	defer c.mu.Unlock()
	tally.mu.Lock()
	defer tally.mu.Unlock()
	tally.took = append(tally.took, took)
	if slow > keysGone && !full {
		tally.excused++
		keys = nil
	}
	tally.keys += len(keys)
	if hung {
		tally.hung++
	}
	note := func(format string, args ...any) {
		if tally.first == "" {
			tally.first = fmt.Sprintf(format, args...)
		}
	}
	if len(keys) > 0 {
		note("Close took %v, a PING of a healthy node %v, and left %q", took, slow, keys)
	}
	if err != nil {
		tally.odd++
		note("close: %v", err)
	}
	if odd := c.odd.Load(); odd != nil {
		tally.odd++
		note("%v", odd)
	}
	tally.leases += len(c.leases)
	tally.granted += len(c.leases) - c.before
	for _, l := range c.leases {
		if events := terminal[grant(l.Name(), l.Token())]; events == 1 {
			tally.once++
		} else {
			note("%s has %d terminal events", l.Name(), events)
		}
		if reported, err := endOf(l); reported {
			tally.reported++
		} else {
			note("%s: %v", l.Name(), err)
		}
		delete(terminal, grant(l.Name(), l.Token()))
	}
	for name, events := range terminal {
		tally.odd++
		note("%d terminal events of %s, which nobody was given", events, name)
	}
}

// watchPings pings the servers continuously until slowest is called. slowest returns the time of the slowest answer.
func watchPings(servers []*redistest.Server) (slowest func() time.Duration) {
	var all sync.WaitGroup
	var worst atomic.Int64
	over := make(chan struct{})
	for _, s := range servers {
		all.Go(func() {
			for {
				began := time.Now()
				if _, err := s.Do("PING"); err != nil {
					return // the row's own check fails too
				}
				for took := int64(time.Since(began)); ; {
					old := worst.Load()
					if took <= old || worst.CompareAndSwap(old, took) {
						break
					}
				}
				select {
				case <-over:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
	}
	return func() time.Duration {
		close(over)
		all.Wait()
		return time.Duration(worst.Load())
	}
}

// endOf reports whether a lease has reported its end on its own channels, once: Lost has
// one value after a loss and none after a release, and all channels agree.
func endOf(l *quorumlock.Lease) (reported bool, err error) {
	err = l.Err()
	if err == nil || !ended(l) || !errors.Is(context.Cause(l.Context()), err) {
		return false, fmt.Errorf("err %w, done %v, context %w", err, ended(l), context.Cause(l.Context()))
	}
	values := 0
	for {
		select {
		case lost, open := <-l.Lost():
			if !open {
				var loss *quorumlock.LostError
				isLost := errors.As(err, &loss)
				return isLost && values == 1 || !isLost && values == 0, err
			}
			values++
			if lost.Token != l.Token() {
				return false, errors.New("the loss of another lease")
			}
		default:
			return false, errors.New("the channel of losses is not closed")
		}
	}
}
