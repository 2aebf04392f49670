package virtual

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// The keys outlive the lease by the lock delay, also for a call under the lease, which does not ask the nodes.
func TestRetryAfterIncludesTheLockDelay(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		require.NoError(t, m.Do(background, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
			for _, client := range []*quorumlock.Manager{m, other} {
				_, err := client.TryAcquire(ctx, "job")
				var held *quorumlock.HeldError
				require.ErrorAs(t, err, &held)
				assert.InDelta(t, time.Minute+ttl, held.RetryAfter, float64(time.Second))
			}
			return nil
		}, quorumlock.WithLockDelay(time.Minute)))
	})
}

func TestACallUnderDoOfTheSameNameFailsAtOnce(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		var outside context.Context
		require.NoError(t, m.Do(background, "outer", func(ctx context.Context, _ *quorumlock.Lease) error {
			return m.Do(ctx, "inner", func(ctx context.Context, _ *quorumlock.Lease) error {
				for _, name := range []string{"outer", "inner"} {
					_, err := m.Acquire(ctx, name)
					var held *quorumlock.HeldError
					if assert.ErrorAs(t, err, &held) {
						assert.True(t, held.Self)
						assert.Equal(t, name, held.Name)
						assert.Contains(t, err.Error(), "not reentrant")
					}
				}
				outside = context.WithoutCancel(ctx)
				l, err := m.Acquire(ctx, "another")
				if assert.NoError(t, err) {
					assert.NoError(t, l.Release(ctx))
				}
				return nil
			})
		}))
		l, err := m.Acquire(outside, "outer")
		require.NoError(t, err, "the outer lease has ended")
		require.NoError(t, l.Release(background))
	})
}

func TestDoReportsThatCloseEndedItsLease(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		err := m.Do(background, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
			go func() { _ = m.Close(background) }()
			<-ctx.Done()
			return nil
		})
		require.ErrorIs(t, err, quorumlock.ErrClosed)
		_, err = m.Inspect(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrClosed)
	})
}

func TestLeadReturnsTheErrorOfTheWorkWhenItsContextEnds(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		ctx, cancel := context.WithCancel(background)
		err := manager(t, c).Lead(ctx, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
			cancel()
			<-ctx.Done()
			return fmt.Errorf("row 17 not written: %w", ctx.Err())
		})
		require.ErrorContains(t, err, "row 17")
		require.ErrorIs(t, err, context.Canceled)
	})
}

// failures is an error whose values cannot be compared.
type failures []error

func (f failures) Error() string   { return fmt.Sprint([]error(f)) }
func (f failures) Unwrap() []error { return f }

func TestTheErrorOfLeadHasTheEndOfItsContextAndItsCause(t *testing.T) {
	stop := errors.New("stop")
	for name, fails := range map[string]func(context.Context) error{
		"nothing":         func(context.Context) error { return nil },
		"the end":         func(ctx context.Context) error { return ctx.Err() },
		"the cause":       context.Cause,
		"both":            func(ctx context.Context) error { return failures{ctx.Err(), context.Cause(ctx)} },
		"the end in many": func(ctx context.Context) error { return failures{ctx.Err()} },
		"another error":   func(context.Context) error { return failures{errors.New("row 17")} },
	} {
		run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
			ctx, cancel := context.WithCancelCause(background)
			err := manager(t, c).Lead(ctx, "job", func(context.Context, *quorumlock.Lease) error {
				cancel(stop)
				return fails(ctx)
			})
			require.ErrorIs(t, err, context.Canceled, name)
			require.ErrorIs(t, err, stop, name)
		})
	}
}

// A caller that checks errors.Is(err, ErrHeld) wants to know whether the lease was not acquired.
func TestTheErrorsOfAFunctionAreNotThoseOfItsLease(t *testing.T) {
	type failure struct{ error }
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		acquire(t, other, "taken")
		disk := failure{errors.New("disk full")}
		inner := func(ctx context.Context, l *quorumlock.Lease) error {
			_, err := m.TryAcquire(ctx, "taken")
			assert.ErrorIs(t, err, quorumlock.ErrHeld)
			return fmt.Errorf("step 2: %w; %w", err, disk)
		}
		for name, call := range map[string]func(context.Context, string, func(context.Context, *quorumlock.Lease) error, ...quorumlock.AcquireOption) error{
			"Do": m.Do, "Lead": m.Lead,
		} {
			err := call(background, "job", inner)
			require.Error(t, err)
			assert.False(t, errors.Is(err, quorumlock.ErrHeld), "%s: the lease was acquired", name)
			var held *quorumlock.HeldError
			assert.False(t, errors.As(err, &held), name)
			var failed *quorumlock.FuncError
			require.ErrorAs(t, err, &failed, name)
			require.ErrorIs(t, failed.Err, quorumlock.ErrHeld, name)
			require.ErrorIs(t, err, disk, "what else the function's error wraps is found")
			var mine failure
			require.ErrorAs(t, err, &mine, name)
			assert.Equal(t, failed.Err.Error(), err.Error(), name)

			err = call(background, "job", func(context.Context, *quorumlock.Lease) error { return disk })
			assert.Equal(t, error(disk), err, "%s: any other error of the function is returned as it is", name)
			err = call(background, "taken", inner, quorumlock.WithWait(0))
			require.ErrorIs(t, err, quorumlock.ErrHeld, name)
			require.ErrorAs(t, err, &held, name)
			assert.False(t, errors.As(err, &failed), "%s: the function did not run", name)
		}
	})
}

func TestALossDuringDoIsOfItsOwnLeaseAndTheInnerErrorStaysInside(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		acquire(t, other, "taken")
		var inner error
		for name, work := range map[string]func(context.Context, *quorumlock.Lease) error{
			"the loss":      func(ctx context.Context, _ *quorumlock.Lease) error { return context.Cause(ctx) },
			"another error": func(context.Context, *quorumlock.Lease) error { return inner },
			"the loss and an error": func(ctx context.Context, _ *quorumlock.Lease) error {
				return fmt.Errorf("%w; %w", context.Cause(ctx), inner)
			},
		} {
			err := m.Do(background, name, func(ctx context.Context, l *quorumlock.Lease) error {
				_, inner = m.TryAcquire(ctx, "taken")
				c.ForceLost(t, l)
				<-ctx.Done()
				return work(ctx, l)
			})
			var lost *quorumlock.LostError
			require.ErrorAs(t, err, &lost, name)
			assert.Equal(t, name, lost.Name)
			require.ErrorIs(t, err, quorumlock.ErrLost, name)
			assert.False(t, errors.Is(err, quorumlock.ErrHeld), name)
			assert.Equal(t, 1, strings.Count(err.Error(), "lost:"), err.Error())
			var failed *quorumlock.FuncError
			if name != "the loss" {
				require.ErrorAs(t, err, &failed, name)
				require.ErrorIs(t, failed.Err, quorumlock.ErrHeld, name)
			}
		}
	})
}

func TestTheEndOfALeasesContextIsFoundInTheErrorOfLead(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		outer := acquire(t, m, "outer")
		err := m.Lead(outer.Context(), "job", func(ctx context.Context, _ *quorumlock.Lease) error {
			assert.NoError(t, outer.Release(background))
			<-ctx.Done()
			return context.Cause(ctx)
		})
		require.ErrorIs(t, err, quorumlock.ErrReleased, "it is the cause of Lead's context")
		require.ErrorIs(t, err, context.Canceled)
	})
}

// Close renews the lease of a function until it has returned, at most until Close's own context and a grace have ended.
// Then the keys stay until they expire, because the function may still work.
func TestCloseWaitsForAFunctionWhoseLeaseIsRenewed(t *testing.T) {
	const never, long, expire = time.Hour, 4 * ttl, -1
	for name, tt := range map[string]struct {
		returns, within, closed, granted time.Duration
		err                              error
	}{
		"returns soon":      {70 * time.Millisecond, never, 70 * time.Millisecond, 70 * time.Millisecond, nil},
		"returns at once":   {0, never, 0, 0, nil},
		"returns after 4 ×": {long, never, long, long, nil},
		"Close is short":    {long, 10 * time.Second, 10*time.Second + 100*time.Millisecond, expire, context.DeadlineExceeded},
		"Close has ended":   {70 * time.Millisecond, 0, 70 * time.Millisecond, 70 * time.Millisecond, nil},
		"and never ends":    {long, 0, 100 * time.Millisecond, expire, context.DeadlineExceeded},
	} {
		for _, lead := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, Lead %t", name, lead), func(t *testing.T) {
				run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
					log, text := logged()
					m, next := manager(t, c, log), manager(t, c)
					ended, returned := make(chan time.Time, 1), make(chan bool, 1)
					work := func(ctx context.Context, l *quorumlock.Lease) error {
						<-ctx.Done()
						ended <- time.Now()
						assert.ErrorIs(t, context.Cause(ctx), quorumlock.ErrClosed)
						assert.True(t, l.Valid())
						time.Sleep(tt.returns)
						returned <- l.Valid()
						return context.Cause(ctx)
					}
					var calls sync.WaitGroup
					calls.Go(func() {
						if lead {
							assert.ErrorIs(t, m.Lead(background, "job", work), quorumlock.ErrClosed)
						} else {
							assert.ErrorIs(t, m.Do(background, "job", work), quorumlock.ErrClosed)
						}
					})
					time.Sleep(time.Second)
					waiting, granted := make(chan error, 1), make(chan time.Time, 1)
					calls.Go(func() { _, err := m.Acquire(background, "job"); waiting <- err })
					calls.Go(func() {
						l, err := next.Acquire(background, "job")
						granted <- time.Now()
						if assert.NoError(t, err) {
							assert.NoError(t, l.Release(background))
						}
					})
					time.Sleep(time.Second)
					ctx, cancel := context.WithTimeout(background, tt.within)
					defer cancel()
					began := time.Now()
					require.ErrorIs(t, m.Close(ctx), tt.err)
					assert.Equal(t, tt.closed, time.Since(began), "Close returns")
					synctest.Wait()
					require.ErrorIs(t, <-waiting, quorumlock.ErrClosed)
					assert.Equal(t, began, <-ended, "the context ends at once")
					assert.Equal(t, tt.granted == expire, strings.Contains(text.String(), "closed while functions ran"))
					if after := (<-granted).Sub(began); tt.granted == expire {
						assert.Greater(t, after, tt.closed+ttl-interval-time.Second, "the keys are not deleted")
						assert.Less(t, after, tt.closed+ttl+time.Second)
						assert.False(t, <-returned, "it has lost its lease")
					} else {
						assert.Equal(t, tt.granted, after, "the successor is granted when the function has returned")
						assert.True(t, <-returned)
					}
					calls.Wait()
				})
			})
		}
	}
}

// The function's own error is not lost when Close ends its context, nor is the loss of its lease after that.
func TestDoAndLeadJoinWhatAFunctionReturnsWhileCloseWaits(t *testing.T) {
	errWork := errors.New("row 17 not written")
	for _, lose := range []bool{false, true} {
		for name, call := range map[string]func(*quorumlock.Manager, func(context.Context, *quorumlock.Lease) error) error{
			"Do": func(m *quorumlock.Manager, fn func(context.Context, *quorumlock.Lease) error) error {
				return m.Do(background, "job", fn)
			},
			"Lead": func(m *quorumlock.Manager, fn func(context.Context, *quorumlock.Lease) error) error {
				return m.Lead(background, "job", fn)
			},
		} {
			t.Run(fmt.Sprintf("%s, loss %t", name, lose), func(t *testing.T) {
				run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
					m := manager(t, c)
					done := make(chan error, 1)
					go func() {
						done <- call(m, func(ctx context.Context, l *quorumlock.Lease) error {
							if <-ctx.Done(); lose {
								c.ForceLost(t, l)
							}
							return errWork
						})
					}()
					time.Sleep(time.Second)
					require.NoError(t, m.Close(background))
					err := <-done
					require.ErrorIs(t, err, quorumlock.ErrClosed)
					require.ErrorIs(t, err, errWork)
					assert.Equal(t, lose, errors.Is(err, quorumlock.ErrLost), "%v", err)
				})
			})
		}
	}
}

// Close waits for a function, which may still make its last calls on its lease.
func TestAFunctionEndsItsLeaseWhileCloseWaits(t *testing.T) {
	for name, end := range map[string]func(context.Context, *quorumlock.Lease) error{
		"release": func(ctx context.Context, l *quorumlock.Lease) error { return l.Release(ctx) },
		"renew": func(ctx context.Context, l *quorumlock.Lease) error {
			return errors.Join(l.Renew(ctx), l.Verify(ctx))
		},
		"detach": func(ctx context.Context, l *quorumlock.Lease) error { _, err := l.Detach(ctx, time.Minute); return err },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m := manager(t, c)
				var calls sync.WaitGroup
				calls.Go(func() {
					err := m.Do(background, "job", func(ctx context.Context, l *quorumlock.Lease) error {
						<-ctx.Done()
						assert.NoError(t, end(background, l))
						time.Sleep(time.Second)
						return nil
					})
					if name == "detach" {
						assert.NoError(t, err)
					} else {
						assert.ErrorIs(t, err, quorumlock.ErrClosed)
					}
				})
				calls.Go(func() {
					assert.ErrorIs(t, m.DoAll(background, []string{"a", "b"}, func(ctx context.Context, all *quorumlock.Leases) error {
						<-ctx.Done()
						time.Sleep(100 * time.Millisecond)
						assert.True(t, all.Valid())
						assert.NoError(t, all.Release(background))
						return nil
					}), quorumlock.ErrClosed)
				})
				time.Sleep(time.Second)
				began := time.Now()
				require.NoError(t, m.Close(background))
				assert.LessOrEqual(t, time.Since(began), time.Second)
				for _, lease := range []string{"job", "a", "b"} {
					left := 0
					if lease == "job" && name == "detach" {
						left = 3
					}
					assert.Equal(t, left, holders(t, c, lease), lease)
				}
				calls.Wait()
			})
		})
	}
}

// One of the leases of a function ends while Close waits for the function. The others must end as well, before their keys
// are deleted.
func TestTheLeasesOfAFunctionEndTogetherWhileCloseWaits(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *quorumlocktest.Cluster, *quorumlock.Lease){
		"release": func(t *testing.T, _ *quorumlocktest.Cluster, l *quorumlock.Lease) {
			assert.NoError(t, l.Release(background))
		},
		"detach": func(t *testing.T, _ *quorumlocktest.Cluster, l *quorumlock.Lease) {
			_, err := l.Detach(background, time.Minute)
			assert.NoError(t, err)
		},
		"loss": func(t *testing.T, c *quorumlocktest.Cluster, l *quorumlock.Lease) { c.ForceLost(t, l) },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m := manager(t, c)
				var leases *quorumlock.Leases
				done := make(chan error, 1)
				go func() {
					done <- m.DoAll(background, []string{"a", "b"}, func(ctx context.Context, all *quorumlock.Leases) error {
						leases = all
						<-ctx.Done()
						end(t, c, all.Lease("a"))
						synctest.Wait()
						assert.False(t, all.Lease("b").Valid(), "they end together")
						return nil
					})
				}()
				time.Sleep(time.Second)
				require.NoError(t, m.Close(background))
				if err := <-done; name == "detach" {
					require.NoError(t, err, "the function has asked for it")
				} else {
					require.Error(t, err)
				}
				b := leases.Lease("b")
				require.Error(t, b.Err())
				require.Error(t, b.Context().Err())
				<-b.Done()
				<-b.Lost()
				require.Error(t, b.Release(background))
				assert.Empty(t, m.Leases())
			})
		})
	}
}

// The same for a function whose lease was lost a moment before.
func TestCloseWaitsForAFunctionWhoseLeaseWasLost(t *testing.T) {
	for name, tt := range map[string]struct {
		returns, delay time.Duration
		left           int
	}{
		"returns soon":      {50 * time.Millisecond, 0, 0},
		"returns late":      {10 * time.Second, 0, 0},
		"with a lock delay": {10 * time.Second, time.Minute, 3}, // the keys stay after Close
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m := manager(t, c)
				var calls sync.WaitGroup
				lost := make(chan struct{})
				calls.Go(func() {
					assert.ErrorIs(t, m.Do(background, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
						<-ctx.Done()
						close(lost)
						time.Sleep(tt.returns)
						return nil
					}, quorumlock.WithMaxHold(time.Second), quorumlock.WithLockDelay(tt.delay)), quorumlock.ErrLost)
				})
				<-lost
				time.Sleep(20 * time.Millisecond)
				began := time.Now()
				require.NoError(t, m.Close(background))
				assert.Equal(t, tt.returns-20*time.Millisecond, time.Since(began))
				assert.Equal(t, tt.left, holders(t, c, "job"))
				calls.Wait()
			})
		})
	}
}

// The same for a function that has released its lease itself: it may still use what the program closes after the Manager.
func TestCloseWaitsForAFunctionThatHasReleasedItsLease(t *testing.T) {
	for call, begin := range map[string]func(*quorumlock.Manager, func(release func(context.Context) error) error) error{
		"Do": func(m *quorumlock.Manager, fn func(func(context.Context) error) error) error {
			return m.Do(background, "job", func(_ context.Context, l *quorumlock.Lease) error { return fn(l.Release) })
		},
		"Lead": func(m *quorumlock.Manager, fn func(func(context.Context) error) error) error {
			return m.Lead(background, "job", func(_ context.Context, l *quorumlock.Lease) error { return fn(l.Release) })
		},
		"DoAll": func(m *quorumlock.Manager, fn func(func(context.Context) error) error) error {
			return m.DoAll(background, []string{"job", "other"}, func(_ context.Context, all *quorumlock.Leases) error { return fn(all.Release) })
		},
	} {
		for patience, took := range map[time.Duration]time.Duration{time.Minute: 10 * time.Second, time.Second: time.Second + 100*time.Millisecond} {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m := manager(t, c)
				released, done := make(chan struct{}), make(chan error, 1)
				go func() {
					done <- begin(m, func(release func(context.Context) error) error {
						assert.NoError(t, release(background))
						close(released)
						time.Sleep(10 * time.Second)
						return assert.AnError
					})
				}()
				<-released
				ctx, cancel := context.WithTimeout(background, patience)
				defer cancel()
				began := time.Now()
				err := m.Close(ctx)
				assert.Equal(t, took, time.Since(began), call)
				assert.Equal(t, took < patience, err == nil, call)
				err = <-done
				require.ErrorIs(t, err, assert.AnError, call)
				assert.ErrorIs(t, err, quorumlock.ErrClosed, call)
			})
		}
	}
}

// The lease has ended before the function could begin, so it does not begin.
func TestDoDoesNotRunAFunctionUnderALeaseThatHasEnded(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		hanging := &trap{gate: make(chan struct{})}
		hanging.armed.Store(true)
		done := make(chan error)
		go func() {
			done <- m.Do(spans{trap: hanging, name: "quorumlock.acquire", in: "End"}.context(), "job", func(context.Context, *quorumlock.Lease) error {
				assert.Fail(t, "runs")
				return nil
			})
		}()
		synctest.Wait()
		require.NoError(t, m.Close(background))
		assert.Zero(t, holders(t, c, "job"))
		close(hanging.gate)
		require.ErrorIs(t, <-done, quorumlock.ErrClosed)
	})
}
