package virtual

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestCloseReleasesAttemptsInFlight(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for _, node := range c.Nodes() {
			node.Delay(40 * time.Millisecond)
		}
		waiting := make(chan error)
		go func() {
			_, err := m.Acquire(background, "job")
			waiting <- err
		}()
		time.Sleep(60 * time.Millisecond) // locked everywhere, but not answered yet
		assert.Equal(t, 3, holders(t, c, "job"))
		go func() { _ = m.Close(background) }()
		require.ErrorIs(t, <-waiting, quorumlock.ErrClosed)
		require.NoError(t, m.Close(background))
		assert.Zero(t, holders(t, c, "job"))
	})
}

// Close gives slow nodes a second to take the releases. It waits no longer for a node
// that hangs, and not at all for a node that is known to be down.
func TestCloseWaitsForNodesThatMayStillAnswer(t *testing.T) {
	cases := map[string]struct {
		fault func(*quorumlocktest.Node)
		since time.Duration // before Close
		took  time.Duration
		left  int
	}{
		"all answer":              {func(*quorumlocktest.Node) {}, time.Second, 0, 0},
		"one is down":             {(*quorumlocktest.Node).Kill, time.Second, 0, 0},
		"one hangs":               {(*quorumlocktest.Node).Hang, 0, time.Second, 1},
		"one hangs since long":    {(*quorumlocktest.Node).Hang, time.Minute, 0, 0},
		"one answers after 700ms": {func(n *quorumlocktest.Node) { n.Delay(350 * time.Millisecond) }, 0, 700 * time.Millisecond, 0},
		"one is cut off":          {(*quorumlocktest.Node).Cut, 0, time.Second, 1},
		"one is busy for 220ms": {func(n *quorumlocktest.Node) {
			n.Fail(func(args []string) bool { return args[0] == "EVALSHA" }, "BUSY a script runs")
			time.AfterFunc(220*time.Millisecond, func() { n.Fail(nil, "") })
		}, 0, 250 * time.Millisecond, 0},
		"one answers after a minute": {func(n *quorumlocktest.Node) { n.Delay(30 * time.Second) }, 0, time.Second, 1},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m, err := quorumlock.New(background, c.Options())
				require.NoError(t, err)
				acquire(t, m, "job")
				tt.fault(c.Nodes()[1])
				time.Sleep(tt.since)
				began := time.Now()
				require.NoError(t, m.Close(background))
				assert.Equal(t, tt.took, time.Since(began))
				if _, down := c.Nodes()[1].Do("PING"); down != nil {
					c.Nodes()[1].Restart()
				}
				assert.Equal(t, tt.left, holders(t, c, "job"))
			})
		})
	}
}

// The context of a Close is often one that a signal has ended. That must not leave locks behind.
func TestCloseReleasesWithAContextThatHasEnded(t *testing.T) {
	for name, tt := range map[string]struct {
		fault func(*quorumlocktest.Node)
		took  time.Duration
		left  int
		err   error
	}{
		"all answer":  {func(*quorumlocktest.Node) {}, 0, 0, nil},
		"one is slow": {func(n *quorumlocktest.Node) { n.Delay(30 * time.Millisecond) }, 60 * time.Millisecond, 0, nil},
		"one hangs":   {(*quorumlocktest.Node).Hang, 100 * time.Millisecond, 1, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m, err := quorumlock.New(background, c.Options())
				require.NoError(t, err)
				acquire(t, m, "job")
				tt.fault(c.Nodes()[1])
				ctx, cancel := context.WithCancel(background)
				cancel()
				began := time.Now()
				require.ErrorIs(t, m.Close(ctx), tt.err)
				assert.Equal(t, tt.took, time.Since(began))
				assert.Equal(t, tt.left, holders(t, c, "job"))
			})
		})
	}
}

// Wherever the dial of a dead node hangs, Close ends it.
func TestCloseEndsADialThatHangs(t *testing.T) {
	for name, tt := range map[string]struct {
		fault func(*quorumlocktest.Node)
		from  int // the fault begins before this dial
		hangs int // Close must end this dial
	}{
		"the first one":       {(*quorumlocktest.Node).Cut, 1, 1},
		"while it connects":   {(*quorumlocktest.Node).Cut, 2, 4},
		"while it says hello": {(*quorumlocktest.Node).Hang, 2, 4},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				options := c.Options()
				dial, dials := options[1].DialCtxFn, make(chan struct{}, 1000)
				options[1].DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
					dials <- struct{}{}
					return dial(ctx, addr, d, config)
				}
				if tt.from == 1 {
					tt.fault(c.Nodes()[1])
				}
				m, err := quorumlock.New(background, options)
				require.NoError(t, err)
				acquire(t, m, "job")
				if tt.from > 1 {
					tt.fault(c.Nodes()[1])
				}
				for range tt.hangs {
					<-dials
				}
				synctest.Wait()
				began := time.Now()
				require.NoError(t, m.Close(background))
				assert.Zero(t, time.Since(began))
			})
		})
	}
}

// Several callers release while Close runs: each lease ends once, and no key stays.
func TestCloseAndReleasesTogetherEndEachLeaseOnce(t *testing.T) {
	const leases = 20
	for range 10 {
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			m, err := quorumlock.New(background, c.Options())
			require.NoError(t, err)
			events := m.Subscribe(10 * leases)
			var held []*quorumlock.Lease
			for i := range leases {
				held = append(held, acquire(t, m, fmt.Sprint(i)))
			}
			var all sync.WaitGroup
			for _, l := range held {
				all.Go(func() {
					if err := l.Release(background); err != nil {
						assert.ErrorIs(t, err, quorumlock.ErrReleased)
					}
				})
			}
			require.NoError(t, m.Close(background))
			all.Wait()
			ends := 0
			for e := range events.C() {
				if _, ok := e.(quorumlock.Released); ok {
					ends++
				}
			}
			assert.Equal(t, leases, ends)
			for i, l := range held {
				require.ErrorIs(t, l.Err(), quorumlock.ErrReleased)
				assert.Zero(t, holders(t, c, fmt.Sprint(i)))
			}
		})
	}
}

// Once Close has begun, only Close ends leases: a Release could find the events and the nodes closed. A function that
// does not return delays Close.
func TestAReleaseDoesNotEndALeaseOnceCloseHasBegun(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, err := quorumlock.New(background, c.Options())
		require.NoError(t, err)
		events := m.Subscribe(100)
		l := acquire(t, m, "job")
		on := make(chan struct{})
		var calls sync.WaitGroup
		calls.Go(func() {
			assert.ErrorIs(t, m.Do(background, "busy", func(context.Context, *quorumlock.Lease) error { <-on; return nil }), quorumlock.ErrClosed)
		})
		synctest.Wait()
		calls.Go(func() { assert.NoError(t, m.Close(background)) })
		synctest.Wait()
		require.ErrorIs(t, l.Err(), quorumlock.ErrReleased, "Close has ended it")
		assert.ErrorIs(t, l.Release(background), quorumlock.ErrReleased)
		close(on)
		calls.Wait()
		ends := map[string]int{}
		for e := range events.C() {
			if e, ok := e.(quorumlock.Released); ok {
				ends[e.Name]++
			}
		}
		assert.Equal(t, map[string]int{"job": 1, "busy": 1}, ends)
		assert.Zero(t, holders(t, c, "job"))
	})
}

// Whatever a user's function does, Close ends all leases at once, and returns with its context.
func TestCloseEndsLeasesFirstAndReturnsWithItsContext(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, err := quorumlock.New(background, c.Options(), quorumlock.WithTTL(ttl))
		require.NoError(t, err)
		l := acquire(t, m, "job")
		hanging := &trap{gate: make(chan struct{})}
		hanging.armed.Store(true)
		var calls sync.WaitGroup
		calls.Go(func() {
			_, err := m.Acquire(trappedContext{trap: hanging, in: "Done"}, "job")
			assert.ErrorIs(t, err, quorumlock.ErrClosed)
		})
		synctest.Wait()
		require.NotZero(t, hanging.reached.Load())
		ctx, cancel := context.WithTimeout(background, time.Second)
		defer cancel()
		closed := make(chan error)
		began := time.Now()
		go func() { closed <- m.Close(ctx) }()
		synctest.Wait()
		require.ErrorIs(t, l.Err(), quorumlock.ErrReleased)
		assert.Zero(t, holders(t, c, "job"))
		assert.Zero(t, time.Since(began))
		require.ErrorIs(t, <-closed, context.DeadlineExceeded)
		assert.Equal(t, time.Second+100*time.Millisecond, time.Since(began), "and the grace")
		close(hanging.gate)
		calls.Wait()
	})
}

// The call hangs in its context while the nodes grant, and Close gives it up. It gets no lease afterwards, because
// nothing would renew or release it.
func TestACallThatHangsPastCloseGetsNoLease(t *testing.T) {
	for range 20 { // it finds both the votes and the end of the Manager, and chooses at random
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			m, err := quorumlock.New(background, c.Options(), quorumlock.WithTTL(ttl))
			require.NoError(t, err)
			hanging := &trap{gate: make(chan struct{})}
			hanging.armed.Store(true)
			done := make(chan error)
			go func() {
				_, err := m.Acquire(trappedContext{trap: hanging, in: "Done"}, "job")
				done <- err
			}()
			synctest.Wait()
			require.Equal(t, 3, holders(t, c, "job"), "they have granted")
			ctx, cancel := context.WithTimeout(background, time.Second)
			defer cancel()
			require.ErrorIs(t, m.Close(ctx), context.DeadlineExceeded)
			close(hanging.gate)
			require.ErrorIs(t, <-done, quorumlock.ErrClosed)
			time.Sleep(ttl)
			assert.Zero(t, holders(t, c, "job"), "its keys expire")
		})
	}
}

func TestCloseDoesNotWaitForTheNodeTimeoutOfARelease(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, err := quorumlock.New(background, c.Options(), quorumlock.WithNodeTimeout(4*time.Second))
		require.NoError(t, err)
		l := acquire(t, m, "job")
		for _, n := range c.Nodes()[1:] {
			n.Hang()
		}
		var releasing sync.WaitGroup
		releasing.Go(func() { assert.ErrorIs(t, l.Release(background), quorumlock.ErrNoQuorum) })
		synctest.Wait()
		began := time.Now()
		require.NoError(t, m.Close(background))
		assert.Equal(t, time.Second, time.Since(began))
		releasing.Wait()
		assert.Equal(t, time.Second, time.Since(began), "Close also ends the Release")
	})
}

// A node that is known to be down does not make Close fail when the context has ended.
func TestCloseSucceedsWithAnEndedContextAndANodeThatIsDown(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, err := quorumlock.New(background, c.Options())
		require.NoError(t, err)
		acquire(t, m, "job")
		c.Nodes()[1].Kill()
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(background)
		cancel()
		require.NoError(t, m.Close(ctx))
		for range 100 {
			require.NoError(t, m.Close(ctx), "a further Close succeeds too")
		}
	})
}
