package virtual

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
	"github.com/quorumlock/quorumlock/spread"
)

const spreadTTL = 6 * time.Second

// spreadLedger knows which functions of spread members run.
type spreadLedger struct {
	t     *testing.T
	mu    sync.Mutex
	runs  map[string]*quorumlock.Lease // guarded by mu
	moves int                          // functions that have begun; guarded by mu
	left  map[string]time.Time         // when the function of a name has returned; guarded by mu
	idle  map[string]time.Duration     // how long a name that moved had no function; guarded by mu
}

// enter records that a function begins.
func (g *spreadLedger) enter(l *quorumlock.Lease, name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if before := g.runs[name]; before != nil {
		assert.False(g.t, before.Valid(), "two functions of %s", name)
		assert.NotErrorIs(g.t, before.Err(), quorumlock.ErrReleased, "the function of %s runs on after the release", name)
		assert.Greater(g.t, l.Token(), before.Token())
	}
	g.runs[name] = l
	g.moves++
	if at, known := g.left[name]; known {
		g.idle[name] = max(g.idle[name], time.Since(at))
	}
}

func (g *spreadLedger) leave(l *quorumlock.Lease, name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.runs[name] == l {
		delete(g.runs, name)
		g.left[name] = time.Now()
	}
}

// begun returns how many functions have begun since the last call.
func (g *spreadLedger) begun() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	defer func() {
		g.moves = 0
		clear(g.left)
		clear(g.idle)
	}()
	return g.moves
}

// spreadWorker is a member with a Manager of its own.
type spreadWorker struct {
	*spread.Member
	*spreadLedger
	m    *quorumlock.Manager
	cut  context.CancelCauseFunc
	done chan error    // capacity 1; Run's error
	slow time.Duration // from the end of a function's context to its return
}

func newSpreadLedger(t *testing.T) *spreadLedger {
	t.Helper()
	return &spreadLedger{t: t, runs: map[string]*quorumlock.Lease{}, left: map[string]time.Time{}, idle: map[string]time.Duration{}}
}

func spreadNames(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("shard-%02d", i))
	}
	return names
}

func (g *spreadLedger) join(c *quorumlocktest.Cluster, client string, names []string, slow time.Duration) *spreadWorker {
	m := managerFor(g.t, c, client)
	w := &spreadWorker{spreadLedger: g, m: m, done: make(chan error, 1), slow: slow}
	w.Member = spread.New(m, spread.Config{Group: "orders", Names: names, TTL: spreadTTL, Label: client, Func: w.work, Log: slog.New(slog.DiscardHandler)})
	var ctx context.Context
	ctx, w.cut = context.WithCancelCause(background)
	var running sync.WaitGroup
	running.Go(func() { w.done <- w.Run(ctx) })
	g.t.Cleanup(func() { w.cut(nil); running.Wait() })
	return w
}

func (w *spreadWorker) work(ctx context.Context, l *quorumlock.Lease, name string) error {
	w.enter(l, name)
	defer w.leave(l, name)
	<-ctx.Done()
	time.Sleep(w.slow)
	return context.Cause(ctx)
}

// spreadShares returns how many names each member runs.
func spreadShares(all ...*spreadWorker) (n []int) {
	for _, w := range all {
		n = append(n, len(w.Status().Names))
	}
	slices.Sort(n)
	return n
}

// The whole way on real Managers: members join, leave and are cut off, and names move no more than they must.
func TestNamesAreSpreadOverWhoComesAndGoes(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		g, names := newSpreadLedger(t), spreadNames(12)
		a, b := g.join(c, "a", names, 0), g.join(c, "b", names, 0)
		other := spread.New(manager(t, c), spread.Config{Group: "others", Names: names, TTL: spreadTTL, Func: func(ctx context.Context, _ *quorumlock.Lease, _ string) error {
			<-ctx.Done()
			return nil
		}})
		ctx, cut := context.WithCancel(background)
		var beside sync.WaitGroup
		beside.Go(func() { assert.ErrorIs(t, other.Run(ctx), context.Canceled) })
		defer beside.Wait()
		defer cut()

		time.Sleep(2 * spreadTTL)
		assert.Equal(t, []int{6, 6}, spreadShares(a, b))
		assert.Equal(t, 12, g.begun())

		d := g.join(c, "d", names, 0)
		time.Sleep(2 * spreadTTL)
		assert.Equal(t, []int{4, 4, 4}, spreadShares(a, b, d))
		assert.LessOrEqual(t, g.begun(), 5, "the share of the one that joins, and one more")
		assert.Equal(t, 3, d.Status().Members)
		assert.Equal(t, 4, a.Status().GivenAway+b.Status().GivenAway+d.Status().GivenAway)

		time.Sleep(5 * spreadTTL)
		assert.Zero(t, g.begun(), "a quiet time; TestNothingMovesInAQuietHour has an hour")

		enough := errors.New("deploy")
		a.cut(enough)
		err := <-a.done
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, enough)
		assert.Empty(t, a.Status().Names)
		time.Sleep(2 * spreadTTL)
		assert.Equal(t, []int{6, 6}, spreadShares(b, d))

		c.Partition("b")
		time.Sleep(2 * spreadTTL)
		assert.Equal(t, []int{0, 12}, spreadShares(b, d))
		assert.ErrorIs(t, b.Status().LastError, quorumlock.ErrNoQuorum)
		c.Rejoin("b")
		time.Sleep(2 * spreadTTL)
		assert.Equal(t, []int{6, 6}, spreadShares(b, d))
		assert.Len(t, other.Status().Names, 12, "the group beside has its own names")
	})
}

// A release can miss a node, whose key then stays as long as its TTL.
func TestANameWhoseKeyIsLeftOnAMinorityIsTaken(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		other := managerFor(t, c, "other")
		l := acquire(t, other, "orders/shard-00", quorumlock.WithTTL(time.Hour))
		c.Partition("other", 0)
		require.NoError(t, l.Release(background))
		synctest.Wait()
		require.Equal(t, 1, holders(t, c, "orders/shard-00"))
		a := newSpreadLedger(t).join(c, "a", spreadNames(2), 0)
		time.Sleep(2 * spreadTTL)
		assert.Equal(t, []int{2}, spreadShares(a))
	})
}

// Two members of one process, on one Manager, behave like any others.
func TestTwoMembersOnOneManagerShareTheNames(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		ctx, cut := context.WithCancel(background)
		var running sync.WaitGroup
		defer running.Wait()
		defer cut()
		var all []*spread.Member
		for range 2 {
			s := spread.New(m, spread.Config{Group: "orders", Names: spreadNames(5), TTL: spreadTTL, Func: func(ctx context.Context, _ *quorumlock.Lease, _ string) error {
				<-ctx.Done()
				return nil
			}})
			all = append(all, s)
			running.Go(func() { assert.ErrorIs(t, s.Run(ctx), context.Canceled) })
			time.Sleep(2 * spreadTTL)
		}
		got := []int{len(all[0].Status().Names), len(all[1].Status().Names)}
		slices.Sort(got)
		assert.Equal(t, []int{2, 3}, got)
	})
}

// A name stays with its member until the function has returned, however long that takes. Then it moves to the member
// that asked.
func TestANameIsKeptUntilItsFunctionHasReturned(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		g, names := newSpreadLedger(t), spreadNames(4)
		const slow = 25 * time.Second
		a := g.join(c, "a", names, slow)
		time.Sleep(2 * spreadTTL)
		require.Equal(t, []int{4}, spreadShares(a))
		g.begun()
		b := g.join(c, "b", names, 0)
		time.Sleep(2 * spreadTTL)
		assert.Empty(t, b.Status().Names)
		ending := 0
		for _, name := range a.Status().Names {
			if name.Ending {
				ending++
			}
		}
		assert.Equal(t, 2, ending, "it has consented for these")
		time.Sleep(slow)
		assert.Equal(t, []int{2, 2}, spreadShares(a, b))
		assert.Equal(t, 2, g.begun())
	})
}

func TestTheListChangesWhileAMemberRuns(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		g := newSpreadLedger(t)
		a, b := g.join(c, "a", spreadNames(4), 0), g.join(c, "b", spreadNames(4), 0)
		time.Sleep(2 * spreadTTL)
		for _, n := range []int{9, 3, 0, 6} {
			for _, w := range []*spreadWorker{a, b} {
				require.NoError(t, w.SetNames(spreadNames(n)))
			}
			time.Sleep(2 * spreadTTL)
			assert.Equal(t, []int{n / 2, n - n/2}, spreadShares(a, b))
		}
		require.NoError(t, a.SetNames(spreadNames(8)))
		time.Sleep(3 * spreadTTL)
		assert.Equal(t, 8, spreadShares(a, b)[0]+spreadShares(a, b)[1], "names that one of them lists")
		for _, bad := range [][]string{{""}, {"\xff"}, {string(make([]byte, 384))}, spreadMany(10_001)} {
			var invalid *quorumlock.InvalidError
			require.ErrorAs(t, a.SetNames(bad), &invalid)
			assert.NotEmpty(t, invalid.Fix)
		}
		require.NoError(t, a.SetNames(slices.Concat(spreadNames(8), spreadNames(8))), "duplicates")
		time.Sleep(3 * spreadTTL)
		assert.Equal(t, 8, spreadShares(a, b)[0]+spreadShares(a, b)[1])
	})
}

func spreadMany(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(i))
	}
	return names
}

// A function that returns is called again under the same lease, after a pause that grows.
func TestAFunctionThatReturnsIsCalledAgain(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		var calls []time.Time
		tokens := map[int64]bool{}
		s := spread.New(m, spread.Config{Group: "orders", Names: []string{"one"}, TTL: spreadTTL, Func: func(_ context.Context, l *quorumlock.Lease, name string) error {
			calls = append(calls, time.Now())
			tokens[l.Token()] = true
			assert.Equal(t, "one", name)
			return errors.New("no connection")
		}, Log: slog.New(slog.DiscardHandler)})
		ctx, cut := context.WithTimeout(background, 5*time.Minute)
		defer cut()
		require.ErrorIs(t, s.Run(ctx), context.DeadlineExceeded)
		assert.Len(t, tokens, 1)
		require.Greater(t, len(calls), 8)
		for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			assert.Equal(t, want*time.Second, calls[i+1].Sub(calls[i]))
		}
		assert.Equal(t, len(calls), s.Status().Failures)
		require.EqualError(t, s.Status().LastError, "no connection")
	})
}

func TestASpreadSaysWhatIsWrong(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		work := func(ctx context.Context, _ *quorumlock.Lease, _ string) error {
			<-ctx.Done()
			return nil
		}
		for what, cfg := range map[string]spread.Config{
			"Config.Func":  {Group: "a"},
			"Config.Group": {Func: work, Group: "a/b"},
			"Config.Label": {Func: work, Group: "a", Label: string(make([]byte, 129))},
			"Config.TTL":   {Func: work, Group: "a", TTL: 2 * time.Second},
			"name":         {Func: work, Group: "a", Names: []string{"x", ""}},
		} {
			var invalid *quorumlock.InvalidError
			require.ErrorAs(t, spread.New(m, cfg).Run(background), &invalid)
			assert.Equal(t, what, invalid.What)
		}
		require.ErrorIs(t, spread.New(nil, spread.Config{Group: "a", Func: work}).Run(background), quorumlock.ErrInvalid)
		s := spread.New(m, spread.Config{Group: "a", Names: []string{"x"}, Func: work})
		require.ErrorIs(t, s.Run(nil), quorumlock.ErrInvalid) //nolint:staticcheck // it is what is tested
		ended := make(chan error, 1)
		go func() { ended <- s.Run(background) }()
		time.Sleep(30 * time.Second)
		require.Len(t, s.Status().Names, 1)
		require.ErrorIs(t, s.Run(background), quorumlock.ErrInvalid, "a second call")
		require.NoError(t, m.Close(background))
		require.ErrorIs(t, <-ended, quorumlock.ErrClosed)
		assert.Empty(t, s.Status().Names)
	})
}

func TestInspectAllYieldsEachNameInOrder(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithHolder("a"))
		names := spreadMany(200)
		acquire(t, m, "7")
		acquire(t, m, "150")
		var held, all []string
		for s, err := range m.InspectAll(background, names) {
			require.NoError(t, err)
			if all = append(all, s.Name); s.Held {
				assert.Equal(t, "a", s.Holder.Label)
				held = append(held, s.Name)
			}
		}
		assert.Equal(t, names, all)
		assert.Equal(t, []string{"7", "150"}, held)
		count := 0
		for _, err := range m.InspectAll(background, names) {
			require.NoError(t, err)
			if count++; count == 70 {
				break
			}
		}
		for _, err := range m.InspectAll(background, []string{"x", ""}) {
			require.ErrorIs(t, err, quorumlock.ErrInvalid, "before any node is asked")
		}
		c.Hang(0, 1)
		began, count := time.Now(), 0
		var last error
		for _, err := range m.InspectAll(background, names) {
			last = err
			count++
		}
		require.ErrorIs(t, last, quorumlock.ErrNoQuorum)
		assert.Equal(t, 1, count, "it ends with the first error")
		assert.LessOrEqual(t, time.Since(began), timeout)
		c.Resume()
		require.NoError(t, m.Close(background))
		for _, err := range m.InspectAll(background, names) {
			require.ErrorIs(t, err, quorumlock.ErrClosed)
		}
	})
}
