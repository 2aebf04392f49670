package virtual

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// place is a place where the library calls a user's code.
type place struct {
	options func(*trap) []quorumlock.Option
	node    func(*rueidis.ClientOption, *trap) // of the first of three nodes
	call    func(*quorumlock.Manager, *trap) (*quorumlock.Lease, error)
	waits   bool // Close waits for it until the context ends
}

func places() map[string]place {
	all := map[string]place{
		"log handler":        log("Handle"),
		"log handler, level": log("Enabled"),
		"log handler, attrs": log("WithAttrs"),
		"backoff function":   retries(func(p *trap) backoff.BackOff { p.spring(); return &backoff.ZeroBackOff{} }),
		"NextBackOff":        retries(func(p *trap) backoff.BackOff { return &trappedBackoff{trap: p} }),
		"name attribute": {
			options: func(p *trap) []quorumlock.Option {
				return []quorumlock.Option{quorumlock.WithMeterProvider(meters{}), quorumlock.WithNameAttribute(func(name string) string {
					if name == "trouble" {
						p.spring()
					}
					return name
				})}
			},
			call: func(m *quorumlock.Manager, _ *trap) (*quorumlock.Lease, error) {
				return m.Acquire(background, "trouble")
			},
		},
		"function of Do": {waits: true, call: func(m *quorumlock.Manager, p *trap) (*quorumlock.Lease, error) {
			return nil, m.Do(background, "trouble", func(context.Context, *quorumlock.Lease) error { p.spring(); return nil })
		}},
		"function of Lead": {waits: true, call: func(m *quorumlock.Manager, p *trap) (*quorumlock.Lease, error) {
			return nil, m.Lead(background, "trouble", func(context.Context, *quorumlock.Lease) error { p.spring(); return nil })
		}},
		"DialCtxFn": {node: func(o *rueidis.ClientOption, p *trap) {
			dial := o.DialCtxFn
			o.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
				p.spring()
				return dial(ctx, addr, d, config)
			}
		}},
		"DialFn": {node: func(o *rueidis.ClientOption, p *trap) {
			dial := o.DialCtxFn
			o.DialCtxFn = nil
			o.DialFn = func(addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
				p.spring()
				return dial(background, addr, d, config)
			}
		}},
		"credentials": {node: func(o *rueidis.ClientOption, p *trap) {
			o.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
				p.spring()
				return rueidis.AuthCredentials{}, nil
			}
		}},
	}
	for _, name := range []string{
		"quorumlock.acquire.duration", "quorumlock.wait.duration", "quorumlock.hold.duration", "quorumlock.renewal.validity",
		"quorumlock.node.operation.duration", "quorumlock.lease.active", "quorumlock.lease.at_risk", "quorumlock.lease.lost",
		"quorumlock.waiter.active", "quorumlock.handover", "unregister",
	} {
		all["meter, "+name] = place{waits: true, options: func(p *trap) []quorumlock.Option {
			return []quorumlock.Option{quorumlock.WithMeterProvider(meters{trap: p, in: name})}
		}}
	}
	for _, method := range []string{"Start", "End", "SetAttributes", "SetStatus"} {
		all["hold span, "+method] = place{waits: true, options: func(p *trap) []quorumlock.Option {
			return []quorumlock.Option{quorumlock.WithTracerProvider(spans{trap: p, name: "quorumlock.hold", in: method})}
		}}
	}
	for _, method := range []string{"Start", "End", "SetAttributes", "AddEvent", "AddLink", "IsRecording", "SpanContext"} {
		all["acquire span, "+method] = place{call: func(m *quorumlock.Manager, p *trap) (*quorumlock.Lease, error) {
			return m.Acquire(spans{trap: p, name: "quorumlock.acquire", in: method}.context(), "job")
		}}
	}
	for _, method := range []string{"End", "SetAttributes"} {
		all["acquire span with a lease, "+method] = place{call: func(m *quorumlock.Manager, p *trap) (*quorumlock.Lease, error) {
			return m.Acquire(spans{trap: p, name: "quorumlock.acquire", in: method}.context(), "trouble")
		}}
	}
	for _, method := range []string{"Start", "End", "SetAttributes"} {
		all["release span, "+method] = place{call: func(m *quorumlock.Manager, p *trap) (*quorumlock.Lease, error) {
			l, err := m.Acquire(background, "trouble")
			if err == nil {
				err = l.Release(spans{trap: p, name: "quorumlock.release", in: method}.context())
			}
			return l, err
		}}
	}
	for _, method := range []string{"Done", "Err", "Value"} {
		all["context, "+method] = place{waits: true, call: func(m *quorumlock.Manager, p *trap) (*quorumlock.Lease, error) {
			return m.Acquire(trappedContext{trap: p, in: method}, "job")
		}}
	}
	return all
}

func log(method string) place {
	return place{waits: true, options: func(p *trap) []quorumlock.Option {
		return []quorumlock.Option{quorumlock.WithLogger(slog.New(trappedLog{slog.DiscardHandler, p, method}))}
	}}
}

func retries(make func(*trap) backoff.BackOff) place {
	return place{
		options: func(p *trap) []quorumlock.Option {
			return []quorumlock.Option{quorumlock.WithRetryBackoff(func() backoff.BackOff { return make(p) })}
		},
		call: func(m *quorumlock.Manager, _ *trap) (*quorumlock.Lease, error) { return m.Acquire(background, "job") },
	}
}

// A user's code hangs or panics in each place where the library calls it. Renewals, Valid, the calls of others and
// Close continue, and no lease outlives Close.
func TestUsersCodeThatHangsOrPanicsHarmsNothingElse(t *testing.T) {
	for name, at := range places() {
		for how, panics := range map[string]bool{"hangs": false, "panics": true} {
			t.Run(name+" "+how, func(t *testing.T) {
				run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) { inTrouble(t, c, at, panics) })
			})
		}
	}
}

func inTrouble(t *testing.T, c *quorumlocktest.Cluster, at place, panics bool) {
	p := &trap{panics: panics, gate: make(chan struct{})}
	nodes := c.Options()
	if at.node != nil {
		at.node(&nodes[0], p)
	}
	opts := []quorumlock.Option{quorumlock.WithTTL(ttl)}
	if at.options != nil {
		opts = append(opts, at.options(p)...)
	}
	m, err := quorumlock.New(background, nodes, opts...)
	require.NoError(t, err)
	synctest.Wait()
	job, err := m.Acquire(spans{}.context(), "job") // traced, so that waiters link to it
	require.NoError(t, err)

	p.armed.Store(true)
	var calls sync.WaitGroup
	var late *quorumlock.Lease // the result of the call in trouble
	if at.call != nil {
		calls.Go(func() {
			defer func() { _ = recover() }()
			late, _ = at.call(m, p)
		})
	}
	provoke(t, c, m)
	require.True(t, job.Valid())
	require.Greater(t, job.Remaining(), ttl/2, "renewed")

	ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
	other, err := m.Acquire(ctx, "other")
	require.NoError(t, err)
	require.NoError(t, other.Release(ctx))
	cancel()

	ctx, cancel = context.WithTimeout(background, 3*time.Second)
	defer cancel()
	began := time.Now()
	_ = m.Close(ctx) // it may return that something hangs
	limit := guard
	switch {
	case at.waits && !panics:
		limit = 3*time.Second + 200*time.Millisecond
	case at.node != nil:
		limit = time.Second // that node gives no answer
	}
	assert.LessOrEqual(t, time.Since(began), limit)
	require.ErrorIs(t, job.Err(), quorumlock.ErrReleased)
	require.NotZero(t, p.reached.Load(), "the place was reached")
	close(p.gate)
	calls.Wait()
	require.False(t, late != nil && late.Valid(), "no lease outlives Close")
	synctest.Wait()
	assert.Zero(t, holders(t, c, "other"))
	time.Sleep(2 * ttl) // keys of a call that hung in an attempt expire
	for _, key := range []string{"job", "other", "trouble"} {
		assert.Zero(t, holders(t, c, key), key)
	}
}

// A node that hangs in a user's function is soon out of the comparison of lists, or the others would vote no more.
func TestAFunctionThatHangsWithTheGuardKeepsNoVoteFromOtherNodes(t *testing.T) {
	for name, at := range places() {
		if at.node == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				p := &trap{gate: make(chan struct{})}
				nodes := c.Options()
				at.node(&nodes[0], p)
				m, err := quorumlock.New(background, nodes, quorumlock.WithTTL(ttl), quorumlock.WithRestartGuard(10*time.Second), quorumlock.WithTrustEmptyNodes())
				require.NoError(t, err)
				acquire(t, m, "before")
				p.armed.Store(true)
				c.Nodes()[0].Kill()
				c.Nodes()[0].Restart()
				for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Second) {
					l, err := m.TryAcquire(background, "job")
					require.NoError(t, err, "after %v", time.Since(began))
					require.NoError(t, l.Release(background))
				}
				require.NotZero(t, p.reached.Load(), "the place was reached")
				close(p.gate)
				time.Sleep(11 * time.Second) // the quarantine after the restart ends
				for i, n := range m.Nodes() {
					require.True(t, n.Voting, "node %d: %v", i, n.Err)
				}
				c.Nodes()[1].Kill()
				l, err := m.TryAcquire(background, "job")
				require.NoError(t, err, "its vote counts again")
				require.NoError(t, l.Release(background))
				require.NoError(t, m.Close(background))
			})
		})
	}
}

// provoke causes each event that a Manager measures, traces or logs.
func provoke(t *testing.T, c *quorumlocktest.Cluster, m *quorumlock.Manager) {
	t.Helper()
	lost := acquire(t, m, "lost", quorumlock.WithMaxHold(time.Second))
	<-lost.Done()
	short := acquire(t, m, "short")
	handed := make(chan error)
	go func() {
		defer func() {
			if recover() != nil { // this call's own backoff
				handed <- nil
			}
		}()
		l, err := m.Acquire(background, "short")
		if err == nil {
			err = l.Release(background)
		}
		handed <- err
	}()
	time.Sleep(100 * time.Millisecond)
	require.NoError(t, short.Release(background))
	require.NoError(t, <-handed)
	c.Nodes()[0].Kill()
	time.Sleep(ttl) // at risk
	c.Nodes()[0].Restart()
	time.Sleep(2 * ttl)
}

// A span that panics ends the call, and its caller does not get the lease: it must not stay.
func TestALeaseThatASpanKeepsFromItsCallerIsReleased(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		p := &trap{panics: true}
		p.armed.Store(true)
		assert.PanicsWithValue(t, "the user's", func() {
			_, _ = m.Acquire(spans{trap: p, name: "quorumlock.acquire", in: "End"}.context(), "job")
		})
		synctest.Wait()
		require.Zero(t, holders(t, c, "job"))
		l := acquire(t, m, "job")
		assert.PanicsWithValue(t, "the user's", func() {
			_ = l.Release(spans{trap: p, name: "quorumlock.release", in: "Start"}.context())
		})
		require.ErrorIs(t, l.Err(), quorumlock.ErrReleased)
		synctest.Wait()
		assert.Zero(t, holders(t, c, "job"))
	})
}

// Close does not wait forever for a function whose release span panicked.
func TestCloseDoesNotWaitForAFunctionWhoseReleaseSpanPanicked(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		p := &trap{panics: true}
		p.armed.Store(true)
		ctx := spans{trap: p, name: "quorumlock.release", in: "Start"}.context()
		assert.PanicsWithValue(t, "the user's", func() {
			_ = m.Do(ctx, "job", func(_ context.Context, l *quorumlock.Lease) error { c.ForceLost(t, l); return nil })
		})
		all, err := m.AcquireAll(background, []string{"a", "b"})
		require.NoError(t, err)
		assert.PanicsWithValue(t, "the user's", func() { _ = all.Release(ctx) })
		_, open := <-all.Lost()
		assert.False(t, open)
		began := time.Now()
		require.NoError(t, m.Close(background))
		assert.Less(t, time.Since(began), time.Second)
	})
}

// A span that had started would never end.
func TestANameAttributeThatPanicsDoesSoBeforeTheSpanStarts(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithMeterProvider(meters{}), quorumlock.WithNameAttribute(func(string) string { panic("the attribute") }))
		starts := func(name string) context.Context {
			p := &trap{panics: true}
			p.armed.Store(true)
			return spans{trap: p, name: name, in: "Start"}.context()
		}
		assert.PanicsWithValue(t, "the attribute", func() { _, _ = m.Acquire(starts("quorumlock.acquire"), "job") })
		assert.PanicsWithValue(t, "the attribute", func() {
			_, _ = m.AcquireAll(starts("quorumlock.acquire_all"), []string{"a", "b"})
		})
	})
}

func TestALeaseWhoseDowngradePanicsIsReleased(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		p := &trap{panics: true}
		p.armed.Store(true)
		l := acquire(t, manager(t, c), "job")
		assert.PanicsWithValue(t, "the user's", func() {
			_, _ = l.Downgrade(spans{trap: p, name: "quorumlock.acquire", in: "Start"}.context())
		})
		synctest.Wait()
		assert.Zero(t, holders(t, c, "job"))
	})
}

// The first of two callers of a process hangs in its backoff. The other caller gets the lease when it is released.
func TestABackoffThatHangsHoldsUpNoOtherCallerOfTheName(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		p := &trap{gate: make(chan struct{})}
		p.armed.Store(true)
		holder, m := manager(t, c), manager(t, c, quorumlock.WithRetryBackoff(func() backoff.BackOff { return &trappedBackoff{trap: p} }))
		l := acquire(t, holder, "job")
		granted := make(chan time.Time, 2)
		var calls sync.WaitGroup
		for range 2 {
			calls.Go(func() {
				l, err := m.Acquire(background, "job")
				if assert.NoError(t, err) {
					granted <- time.Now()
					assert.NoError(t, l.Release(background))
				}
			})
			time.Sleep(time.Second)
		}
		require.NotZero(t, p.reached.Load())
		released := time.Now()
		require.NoError(t, l.Release(background))
		for range 2 {
			select {
			case at := <-granted:
				assert.Less(t, at.Sub(released), 100*time.Millisecond)
			case <-time.After(time.Minute):
				assert.Fail(t, "a caller gets nothing")
			}
		}
		close(p.gate)
		calls.Wait()
	})
}

// The default replaces a backoff that hangs, until that returns.
func TestABackoffThatAnswersLateIsUsedAgain(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		p := &trap{gate: make(chan struct{})}
		p.armed.Store(true)
		m := manager(t, c, quorumlock.WithRetryBackoff(func() backoff.BackOff {
			p.spring()
			return &backoff.StopBackOff{}
		}))
		c.Nodes()[0].Kill()
		done := make(chan error)
		go func() { _, err := m.Acquire(background, "job"); done <- err }()
		time.Sleep(time.Second)
		require.Equal(t, int64(1), p.reached.Load())
		select {
		case err := <-done:
			require.Fail(t, "ended", "%v", err)
		default:
		}
		close(p.gate)
		require.ErrorIs(t, <-done, quorumlock.ErrNoQuorum, "it stops")
	})
}

// A gauge is the sum of its changes: one lost change would leave it wrong forever.
func TestAMeterThatHangsForAWhileLosesNoChangeOfAGauge(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		p := &trap{gate: make(chan struct{})}
		all := &totals{}
		m, err := quorumlock.New(background, c.Options(),
			quorumlock.WithMeterProvider(meters{trap: p, in: "quorumlock.hold.duration", totals: all}))
		require.NoError(t, err)
		p.armed.Store(true)
		const many = 50
		kept := acquire(t, m, "kept")
		for range many {
			l, err := m.Acquire(background, "job")
			require.NoError(t, err)
			require.NoError(t, l.Release(background))
		}
		require.Equal(t, int64(1), p.reached.Load())
		p.armed.Store(false)
		close(p.gate)
		synctest.Wait()
		assert.Equal(t, int64(1), all.of("quorumlock.lease.active"), "kept")
		require.NoError(t, kept.Release(background))
		require.NoError(t, m.Close(background))
		assert.Zero(t, all.of("quorumlock.lease.active"))
	})
}

func TestAPanicOfAMeterIsLoggedOnceAndCounted(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		p := &trap{panics: true}
		var out testkit.Buffer
		m, err := quorumlock.New(background, c.Options(), quorumlock.WithLogger(slog.New(slog.NewTextHandler(&out, nil))),
			quorumlock.WithMeterProvider(meters{trap: p, in: "quorumlock.node.operation.duration"}))
		require.NoError(t, err)
		p.armed.Store(true)
		acquire(t, m, "job")
		time.Sleep(time.Minute) // renewals
		require.Greater(t, p.reached.Load(), int64(2))
		assert.Equal(t, 1, strings.Count(out.String(), "panicked: its log line, span or metric is missing"), out.String())
		assert.Contains(t, out.String(), "the user's")
		assert.Contains(t, out.String(), "helpers_usercode_test.go", "the stack")
		require.NoError(t, m.Close(background))
		assert.Contains(t, out.String(), fmt.Sprintf("panicked several times\" times=%d", p.reached.Load()))
	})
}
