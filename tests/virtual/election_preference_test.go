package virtual

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/election"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// contender is a candidate with a preference.
type contender struct {
	*election.Elector
	name    string
	cut     context.CancelFunc
	done    chan error // capacity 1: the result of Run
	value   atomic.Int64
	running atomic.Int32 // calls of Lead
	terms   atomic.Int32
	mu      sync.Mutex
	causes  []error // of the ends of Lead's contexts
}

// seen returns the causes of the ends of Lead's contexts.
func (c *contender) seen() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]error(nil), c.causes...)
}

const minReign = 30 * time.Second // above 3 * ttl

// contend runs a contender. work is its Lead; nil waits for the context.
func contend(t *testing.T, c *quorumlocktest.Cluster, name string, value int, change func(*election.Config), work func(context.Context, *contender) error) *contender {
	t.Helper()
	one := &contender{name: name, done: make(chan error, 1)}
	one.value.Store(int64(value))
	cfg := election.Config{
		Name: "leader", TTL: ttl, MinReign: minReign,
		Preference: func() int { return int(one.value.Load()) },
		Lead: func(ctx context.Context, _ *quorumlock.Lease) error {
			assert.EqualValues(t, 1, one.running.Add(1))
			defer one.running.Add(-1)
			one.terms.Add(1)
			var err error
			if work == nil {
				<-ctx.Done()
			} else {
				err = work(ctx, one)
			}
			one.mu.Lock()
			defer one.mu.Unlock()
			one.causes = append(one.causes, context.Cause(ctx))
			return err
		},
	}
	if change != nil {
		change(&cfg)
	}
	one.Elector = election.New(managerFor(t, c, name, quorumlock.WithHolder(name)), cfg)
	var ctx context.Context
	ctx, one.cut = context.WithCancel(background)
	var running sync.WaitGroup
	running.Go(func() { one.done <- one.Run(ctx) })
	t.Cleanup(func() { one.cut(); running.Wait() })
	return one
}

// leading waits until a contender leads, and checks that there is never another leader.
func leading(t *testing.T, one *contender, all []*contender, within time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	for ; !one.IsLeader(); time.Sleep(5 * time.Millisecond) {
		require.Less(t, time.Since(began), within, "%s does not lead", one.name)
		n := 0
		for _, other := range all {
			if other.IsLeader() {
				n++
			}
		}
		require.LessOrEqual(t, n, 1)
	}
	return time.Since(began)
}

// The leader yields once, to the best of three candidates and not to the first in the queue. The two others send
// requests to the one that waits for the name. It reads only the latest, every third of a TTL, and the reign is long
// enough for it to read the best one's.
func TestOneYieldHandsTheLeadToTheBest(t *testing.T) {
	const reign = 3 * minReign
	longer := func(cfg *election.Config) { cfg.MinReign = reign }
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		var all []*contender
		for i, value := range []int{1, 3, 2, 9} {
			all = append(all, contend(t, c, fmt.Sprint("candidate-", i), value, longer, nil))
			time.Sleep(time.Second)
		}
		require.True(t, all[0].IsLeader())
		passed := leading(t, all[3], all, reign+time.Minute)
		assert.Greater(t, passed, reign-4*time.Second, "it leads for MinReign")
		time.Sleep(3 * reign)
		assert.True(t, all[3].IsLeader())
		for i, terms := range []int32{1, 0, 0, 1} {
			assert.Equal(t, terms, all[i].terms.Load(), all[i].name)
		}
		assert.Equal(t, []error{election.ErrYielded}, all[0].seen())
		assert.Equal(t, 1, holders(t, c, "leader/next")/3, "one waits for the name")
	})
}

// A leader that finishes its step continues until it returns: it keeps its lease, and no other candidate leads.
func TestALeaderThatYieldsFinishesItsStep(t *testing.T) {
	const within, step = 10 * time.Second, 40 * time.Second
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		var closed, cancelled, returned time.Time
		first := contend(t, c, "first", 1, func(cfg *election.Config) { cfg.YieldWithin = within }, func(ctx context.Context, one *contender) error {
			select {
			case <-one.Yielding():
			case <-ctx.Done(): // its second reign
				return nil
			}
			closed = time.Now()
			assert.NoError(t, ctx.Err())
			<-ctx.Done()
			cancelled = time.Now()
			time.Sleep(step)
			assert.True(t, one.IsLeader(), "the lease is kept until it returns")
			returned = time.Now()
			return errors.New("it was in the middle of something")
		})
		time.Sleep(time.Second)
		better := contend(t, c, "better", 2, nil, nil)
		leading(t, better, []*contender{first, better}, 3*minReign)
		assert.Equal(t, []error{election.ErrYielded}, first.seen())
		assert.Equal(t, within, cancelled.Sub(closed))
		assert.Less(t, time.Since(returned), 20*time.Millisecond)
		select {
		case err := <-first.done:
			assert.NoError(t, err, "it campaigns again")
			t.Fail()
		default:
		}
		better.cut()
		require.ErrorIs(t, <-better.done, context.Canceled)
		leading(t, first, []*contender{first, better}, time.Second)
		first.cut() // the Yielding of this reign is a new channel
		select {
		case <-first.Yielding():
			assert.Fail(t, "the channel of the last reign")
		default:
		}
	})
}

// An error that Lead returns while it finishes its step is the error of Run.
func TestAnErrorWhileTheLeaderYieldsEndsRun(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		broken := errors.New("broken")
		first := contend(t, c, "first", 1, func(cfg *election.Config) { cfg.YieldWithin = time.Minute }, func(_ context.Context, one *contender) error {
			<-one.Yielding()
			return broken
		})
		time.Sleep(time.Second)
		better := contend(t, c, "better", 2, nil, nil)
		require.ErrorIs(t, <-first.done, broken)
		leading(t, better, []*contender{first, better}, time.Second)
	})
}

// A leader that is unhealthy yields at once. It does not come back before MinReign has passed, and then only if it is
// healthy.
func TestAnUnhealthyLeaderYields(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		var sick atomic.Bool
		first := contend(t, c, "first", 5, func(cfg *election.Config) {
			cfg.HealthEvery = time.Second
			cfg.Health = func(context.Context) error {
				if sick.Load() {
					return errors.New("sick")
				}
				return nil
			}
		}, nil)
		time.Sleep(time.Second)
		second := contend(t, c, "second", 1, nil, nil)
		all := []*contender{first, second}
		time.Sleep(time.Second)
		require.True(t, first.IsLeader())
		sick.Store(true)
		took := leading(t, second, all, 10*time.Second)
		assert.Greater(t, took, 2*time.Second, "three errors")
		assert.Less(t, took, 4*time.Second)
		assert.Equal(t, []error{election.ErrUnhealthy}, first.seen())
		sick.Store(false)
		time.Sleep(15 * time.Second)
		assert.Zero(t, holders(t, c, "leader/next"), "it cools off")
		assert.Greater(t, leading(t, first, all, 3*time.Minute), minReign-20*time.Second, "it has not led for MinReign")
		assert.Equal(t, []error{election.ErrYielded}, second.seen())
	})
}

// Without LeadAnyway an unhealthy leader yields although no candidate waits. With it, it continues as long as none
// waits.
func TestAnUnhealthyLeaderLeadsAnywayWhileNobodyWaits(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		var sick atomic.Bool
		sick.Store(true)
		alone := contend(t, c, "alone", 5, func(cfg *election.Config) {
			cfg.HealthEvery, cfg.LeadAnyway, cfg.Preference = time.Second, 20*time.Second, nil
			cfg.Health = func(context.Context) error {
				if sick.Load() {
					return errors.New("sick")
				}
				return nil
			}
		}, nil)
		assert.Greater(t, leading(t, alone, nil, 30*time.Second), 19*time.Second)
		time.Sleep(minReign)
		require.True(t, alone.IsLeader())
		healthy := contend(t, c, "healthy", 1, nil, nil)
		assert.Less(t, leading(t, healthy, []*contender{alone, healthy}, time.Minute), ttl, "with the next renewal")
		assert.Equal(t, []error{election.ErrUnhealthy}, alone.seen())
	})
}

// A Health that hangs is an error in each HealthEvery, and delays nothing but the end of Run.
func TestAHealthThatHangsIsUnhealthy(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		hung, calls := make(chan struct{}), atomic.Int32{}
		first := contend(t, c, "first", 5, func(cfg *election.Config) {
			cfg.HealthEvery = time.Second
			cfg.Health = func(context.Context) error {
				if calls.Add(1) > 3 {
					<-hung
				}
				return nil
			}
		}, nil)
		leading(t, first, nil, time.Second)
		second := contend(t, c, "second", 1, nil, nil)
		assert.Less(t, leading(t, second, []*contender{first, second}, 20*time.Second), 12*time.Second)
		assert.Equal(t, []error{election.ErrUnhealthy}, first.seen())
		assert.EqualValues(t, 4, calls.Load(), "one call at a time")
		first.cut()
		time.Sleep(time.Second)
		assert.Empty(t, first.done, "Run waits for it")
		close(hung)
		require.ErrorIs(t, <-first.done, context.Canceled)
	})
}

// A Preference that hangs for a minute has no value: its candidate neither yields nor asks.
func TestAPreferenceThatHangsMovesNoLeader(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		hang := make(chan struct{})
		after := func(calls *atomic.Int32, value int) func(*election.Config) {
			return func(cfg *election.Config) {
				cfg.Preference = func() int {
					if calls.Add(1) > 3 {
						<-hang
					}
					return value
				}
				cfg.MinReign = 90 * time.Second
			}
		}
		var a, b atomic.Int32
		first := contend(t, c, "first", 0, after(&a, 1), nil)
		time.Sleep(time.Second)
		second := contend(t, c, "second", 0, after(&b, 9), nil)
		time.Sleep(time.Second)
		third := contend(t, c, "third", 5, func(cfg *election.Config) { cfg.MinReign = 90 * time.Second }, nil)
		time.Sleep(3 * time.Minute)
		assert.True(t, first.IsLeader(), "it has no value to compare, and does not yield to the third")
		close(hang)
		leading(t, second, []*contender{first, second, third}, 10*time.Minute)
	})
}

// A candidate that holds NAME/next and isn't the best leaves it. A candidate of an earlier version waits for the name.
func TestAnOlderCandidateMayTakePart(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		first := contend(t, c, "first", 1, nil, nil)
		time.Sleep(time.Second)
		old := contend(t, c, "old", 0, func(cfg *election.Config) { cfg.Preference, cfg.TTL = nil, 0 }, nil)
		time.Sleep(time.Second)
		better := contend(t, c, "better", 9, nil, nil)
		all := []*contender{first, old, better}
		leading(t, old, all, 3*minReign) // the head of the queue
		time.Sleep(5 * minReign)
		require.True(t, old.IsLeader(), "it ignores asks")
		old.cut()
		require.ErrorIs(t, <-old.done, context.Canceled)
		leading(t, better, all, time.Second)
		time.Sleep(5 * minReign)
		assert.True(t, better.IsLeader())
	})
}

// A name whose NAME/next is taken by another program still has a leader.
func TestALeaderIsElectedThoughAStrangerHoldsNext(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		stranger := acquire(t, manager(t, c), "leader/next")
		one := contend(t, c, "one", 1, nil, nil)
		assert.Greater(t, leading(t, one, nil, time.Minute), 3*ttl-time.Second)
		require.NoError(t, stranger.Release(background))
		time.Sleep(time.Second)
		assert.True(t, one.IsLeader())
	})
}

// The leader is cut off: its Lead ends before the next candidate leads, and it campaigns again.
func TestALeaderWithAPreferenceThatIsCutOffIsFollowed(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a := contend(t, c, "a", 1, nil, nil)
		time.Sleep(time.Second)
		b := contend(t, c, "b", 1, nil, nil)
		time.Sleep(time.Second)
		all := []*contender{a, b}
		c.Partition("a")
		leading(t, b, all, 2*ttl)
		assert.False(t, a.IsLeader())
		seen := a.seen()
		require.Len(t, seen, 1)
		require.ErrorIs(t, seen[0], quorumlock.ErrLost)
		c.Rejoin("a")
		time.Sleep(5 * time.Second)
		b.cut()
		require.ErrorIs(t, <-b.done, context.Canceled)
		leading(t, a, all, time.Second)
	})
}

// Run ends with its context in each state, joins what it has started, and releases both leases.
func TestRunEndsInEachState(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		var all []*contender
		for i := range 3 { // leading, next, queued
			all = append(all, contend(t, c, fmt.Sprint("candidate-", i), 1, nil, nil))
			time.Sleep(time.Second)
		}
		sick := contend(t, c, "idle", 1, func(cfg *election.Config) {
			cfg.Health = func(context.Context) error { return errors.New("sick") }
		}, nil)
		time.Sleep(20 * time.Second)
		for _, one := range []*contender{sick, all[2], all[1], all[0]} {
			one.cut()
			err := <-one.done
			require.ErrorIs(t, err, context.Canceled)
			assert.NotContains(t, err.Error(), "\n")
		}
		time.Sleep(time.Second)
		assert.Zero(t, holders(t, c, "leader"))
		assert.Zero(t, holders(t, c, "leader/next"))
	})
}

// Close of the Manager ends Lead's context, and Run says so.
func TestCloseEndsAnElectionWithPreferences(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, err := quorumlock.New(background, c.OptionsFor("closing"))
		require.NoError(t, err)
		var cause error
		e := election.New(m, election.Config{Name: "leader", Preference: func() int { return 1 }, Lead: func(ctx context.Context, _ *quorumlock.Lease) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			cause = context.Cause(ctx)
			return nil
		}})
		done := make(chan error, 1)
		go func() { done <- e.Run(background) }()
		time.Sleep(time.Second)
		require.True(t, e.IsLeader())
		require.NoError(t, m.Close(background))
		require.ErrorIs(t, <-done, quorumlock.ErrClosed)
		require.ErrorIs(t, cause, quorumlock.ErrClosed)
		require.ErrorIs(t, e.Run(background), quorumlock.ErrClosed)
	})
}

// Close of its Manager ends Run in each state of a follower.
func TestCloseEndsTheRunOfAFollower(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		leader := contend(t, c, "leader", 1, nil, nil)
		time.Sleep(time.Second)
		require.True(t, leader.IsLeader())
		managers, done := [2]*quorumlock.Manager{}, make(chan error, 2)
		for i := range managers { // the first has leader/next, the second waits for it
			managers[i] = managerFor(t, c, fmt.Sprint("follower-", i))
			e := election.New(managers[i], election.Config{Name: "leader", TTL: ttl, Preference: func() int { return 1 }, Lead: func(context.Context, *quorumlock.Lease) error {
				return errors.New("leads")
			}})
			go func() { done <- e.Run(background) }()
			time.Sleep(time.Second)
		}
		for _, m := range []*quorumlock.Manager{managers[1], managers[0]} {
			began := time.Now()
			require.NoError(t, m.Close(background))
			require.ErrorIs(t, <-done, quorumlock.ErrClosed)
			assert.Less(t, time.Since(began), time.Second)
		}
		assert.True(t, leader.IsLeader())
	})
}

// An error of a call that the candidate has not left ends Run, as it ends Lead.
func TestAnErrorOfACallEndsAnElectionWithPreferences(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := managerFor(t, c, "m", quorumlock.WithRestartGuard(2*ttl))
		elects := func(ttl time.Duration, o quorumlock.AcquireOption) error {
			return election.New(m, election.Config{
				Name: "leader", TTL: ttl, Preference: func() int { return 1 }, Acquire: []quorumlock.AcquireOption{o},
				Lead: func(context.Context, *quorumlock.Lease) error { return nil },
			}).Run(background)
		}
		require.NoError(t, elects(ttl, quorumlock.WithWait(time.Minute)), "it leads")
		require.ErrorIs(t, elects(2*ttl+time.Second, quorumlock.WithWait(time.Minute)), quorumlock.ErrInvalid, "longer than the guard")
		require.ErrorIs(t, elects(ttl, quorumlock.WithHolder(strings.Repeat("h", 300))), quorumlock.ErrInvalid)
		acquire(t, m, "leader")
		began := time.Now()
		require.ErrorIs(t, elects(ttl, quorumlock.WithWait(time.Minute)), quorumlock.ErrHeld)
		assert.InDelta(t, time.Minute, time.Since(began), float64(ttl))
	})
}

// When Lead returns by itself, Run ends as without a preference.
func TestLeadThatReturnsEndsAnElectionWithPreferences(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		for _, want := range []error{nil, errors.New("failed")} {
			one := contend(t, c, "one", 1, nil, func(context.Context, *contender) error { return want })
			assert.Equal(t, want, <-one.done)
			time.Sleep(time.Second)
			assert.Zero(t, holders(t, c, "leader"))
		}
	})
}

func TestBadElectionsAreRefused(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for _, bad := range []struct {
			change func(*election.Config)
			says   string
		}{
			{func(c *election.Config) { c.Margin = -1 }, "Margin"},
			{func(c *election.Config) { c.MinReign = 29 * time.Second }, "3 TTL, which is 30s"},
			{func(c *election.Config) { c.MinReign = -time.Hour }, "MinReign"},
			{func(c *election.Config) { c.HealthEvery = -1 }, "HealthEvery"},
			{func(c *election.Config) { c.LeadAnyway = -1 }, "LeadAnyway"},
			{func(c *election.Config) { c.YieldWithin = -1 }, "YieldWithin"},
			{func(c *election.Config) { c.TTL = -1 }, "TTL"},
			{func(c *election.Config) { c.TTL = 99 * time.Millisecond }, "100ms"},
			{func(c *election.Config) { c.TTL, c.Preference = time.Second, nil }, "TTL"},
			{func(c *election.Config) { c.Acquire = []quorumlock.AcquireOption{quorumlock.Permits(2)} }, "Permits"},
			{func(c *election.Config) { c.Acquire = []quorumlock.AcquireOption{quorumlock.Shared()} }, "Shared"},
			{func(c *election.Config) { c.Name = strings.Repeat("n", 508) }, "/next"},
			{func(c *election.Config) { c.Name = "" }, "name"},
			{func(c *election.Config) { c.Lead = nil }, "function"},
		} {
			cfg := election.Config{Name: "leader", Preference: func() int { return 1 }, Lead: func(context.Context, *quorumlock.Lease) error { return nil }}
			bad.change(&cfg)
			began := time.Now()
			err := election.New(m, cfg).Run(background)
			var invalid *quorumlock.InvalidError
			require.ErrorAs(t, err, &invalid, bad.says)
			require.ErrorContains(t, err, bad.says)
			assert.NotEmpty(t, invalid.Fix)
			assert.Zero(t, time.Since(began), bad.says)
		}
		cfg := election.Config{Name: strings.Repeat("n", 507), Preference: func() int { return 1 }, Lead: func(context.Context, *quorumlock.Lease) error { return nil }}
		require.NoError(t, election.New(m, cfg).Run(background))
		require.ErrorIs(t, election.New(m, cfg).Run(nil), quorumlock.ErrInvalid) //nolint:staticcheck // that is the point
	})
}

// Without Preference and Health there is no second lease.
func TestWithoutPreferenceAndHealthThereIsNoNext(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a := runCandidate(t, c, "a")
		time.Sleep(time.Second)
		runCandidate(t, c, "b")
		time.Sleep(30 * time.Second)
		assert.True(t, a.IsLeader())
		for _, node := range c.Nodes() {
			keys, _ := do(t, node, "KEYS", "*next*").([]any)
			assert.Empty(t, keys)
		}
		select {
		case <-a.Yielding():
			assert.Fail(t, "nobody yields")
		default:
		}
	})
}

// A panic of Preference or Health is the program's, and ends it.
func TestAPanicOfAPreferenceEndsTheProcess(t *testing.T) {
	const inside = "QUORUMLOCK_TEST_PANIC"
	if which := os.Getenv(inside); which != "" {
		run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
			one := contend(t, c, "one", 1, func(cfg *election.Config) {
				if which == "Preference" {
					cfg.Preference = func() int { panic("of Preference") }
				} else {
					cfg.Health = func(context.Context) error { panic("of Health") }
				}
			}, nil)
			t.Error("Run has returned", <-one.done)
		})
		return
	}
	for _, which := range []string{"Preference", "Health"} {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=1m") //nolint:gosec // this very test
		cmd.Env = append(os.Environ(), inside+"="+which)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		assert.Contains(t, string(out), "panic: of "+which)
	}
}
