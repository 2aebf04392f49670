package cronlock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
	cronlock "github.com/quorumlock/quorumlock/adapters/cron"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// messages counts what a cron.Logger gets, and keeps the last error.
type messages struct {
	skipped atomic.Int32
	mu      sync.Mutex
	err     error
	text    string
}

func (m *messages) Info(msg string, _ ...any) {
	if msg == "skip" {
		m.skipped.Add(1)
	}
}

func (m *messages) Error(err error, text string, _ ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err, m.text = err, text
}

func (m *messages) last() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// process is one program that has the schedule.
type process struct {
	*messages
	m      *quorumlock.Manager
	locker *cronlock.Locker
	cron   *cron.Cron
}

func start(t *testing.T, cluster *quorumlocktest.Cluster, client string, holdAtLeast time.Duration) *process {
	t.Helper()
	m, err := quorumlock.New(t.Context(), cluster.OptionsFor(client))
	require.NoError(t, err)
	log := &messages{}
	return &process{
		messages: log, m: m, locker: cronlock.NewLocker(m, log, holdAtLeast),
		cron: cron.New(cron.WithSeconds(), cron.WithLocation(time.UTC)),
	}
}

func (p *process) schedule(t *testing.T, spec string, job cron.Job) {
	t.Helper()
	_, err := p.cron.AddJob(spec, job)
	require.NoError(t, err)
	p.cron.Start()
}

func (p *process) stop(t *testing.T) {
	t.Helper()
	<-p.cron.Stop().Done()
	require.NoError(t, p.m.Close(t.Context()))
}

// Four processes reach each tick at one instant, so their votes may split. No run may be left out for
// that. Four more have clocks that are up to 300 ms late. One node of three is down half of the time.
func TestEachTickRunsOnceThoughTheJobIsShortAndTheClocksDiffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		var mu sync.Mutex
		runs := map[time.Time]int{}
		count := func(context.Context, *quorumlock.Lease) {
			mu.Lock()
			defer mu.Unlock()
			runs[time.Now().Truncate(time.Second)]++
		}
		var processes []*process
		begun := time.Now()
		for i := range 8 {
			p := start(t, cluster, fmt.Sprint(i), 800*time.Millisecond)
			job := p.locker.Job("job", count)
			late := time.Duration(max(i-3, 0)) * 75 * time.Millisecond
			p.schedule(t, "* * * * * *", cron.FuncJob(func() { time.Sleep(late); job.Run() }))
			processes = append(processes, p)
		}
		time.Sleep(10*time.Second + 900*time.Millisecond)
		cluster.Kill(0)
		time.Sleep(10 * time.Second)
		for _, p := range processes {
			p.stop(t)
			assert.NoError(t, p.last())
		}
		for tick := begun.Truncate(time.Second).Add(time.Second); tick.Before(begun.Add(20 * time.Second)); tick = tick.Add(time.Second) {
			require.Equal(t, 1, runs[tick], "runs at %v", tick)
		}
	})
}

func TestATickIsSkippedWhileAnEarlierRunGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		a, b := start(t, cluster, "a", 200*time.Millisecond), start(t, cluster, "b", 200*time.Millisecond)
		var running, runs atomic.Int32
		long := func(context.Context, *quorumlock.Lease) {
			assert.Equal(t, int32(1), running.Add(1))
			time.Sleep(2500 * time.Millisecond)
			running.Add(-1)
			runs.Add(1)
		}
		a.schedule(t, "* * * * * *", a.locker.Job("long", long))
		b.schedule(t, "* * * * * *", b.locker.Job("long", long))
		time.Sleep(9200 * time.Millisecond)
		a.stop(t)
		b.stop(t)
		assert.Equal(t, int32(3), runs.Load(), "at 1, 4 and 7 s")
		assert.GreaterOrEqual(t, a.skipped.Load()+b.skipped.Load(), int32(12))
		assert.NoError(t, a.last())
		assert.NoError(t, b.last())
	})
}

func TestALostLeaseEndsTheContextOfTheJobAndIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		p := start(t, cluster, "a", time.Second)
		p.locker.Job("job", func(ctx context.Context, lease *quorumlock.Lease) {
			assert.Positive(t, lease.Token())
			cluster.ForceLost(t, lease)
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), quorumlock.ErrLost)
		}).Run()
		require.ErrorIs(t, p.last(), quorumlock.ErrLost)
		assert.Equal(t, "the lease was lost while the job ran", p.text)
		p.stop(t)
	})
}

func TestAPanicReleasesTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		p := start(t, cluster, "a", 0)
		job := cron.NewChain(cron.Recover(p), p.locker.Wrapper("job")).Then(cron.FuncJob(func() { panic("no disk") }))
		for range 2 {
			job.Run()
			require.EqualError(t, p.last(), "no disk")
		}
		assert.Zero(t, p.skipped.Load())
		p.stop(t)
	})
}

// The grant of one tick came 250 ms late, and the name stays taken until 50 ms after the next tick.
func TestALateGrantDoesNotLoseTheNextTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		var runs atomic.Int32
		var processes []*process
		var jobs []cron.Job
		for i := range 3 {
			p := start(t, cluster, fmt.Sprint(i), 800*time.Millisecond)
			processes = append(processes, p)
			jobs = append(jobs, p.locker.Job("job", func(context.Context, *quorumlock.Lease) { runs.Add(1) }))
		}
		tick := time.Now()
		time.Sleep(250 * time.Millisecond)
		jobs[0].Run()
		require.Equal(t, int32(1), runs.Load())
		time.Sleep(time.Until(tick.Add(time.Second)))
		runAll(jobs)
		assert.Equal(t, int32(2), runs.Load())
		for _, p := range processes {
			assert.NoError(t, p.last())
			p.stop(t)
		}
	})
}

func TestAMomentWithoutAQuorumDoesNotLoseTheTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		p := start(t, cluster, "a", time.Second)
		cluster.Partition("a", 0, 1)
		time.AfterFunc(100*time.Millisecond, func() { cluster.Rejoin("a") })
		var runs atomic.Int32
		p.locker.Job("job", func(context.Context, *quorumlock.Lease) { runs.Add(1) }).Run()
		assert.Equal(t, int32(1), runs.Load())
		assert.NoError(t, p.last())
		p.stop(t)
	})
}

// runAll runs jobs at the same time.
func runAll(jobs []cron.Job) {
	var all sync.WaitGroup
	for _, job := range jobs {
		all.Go(job.Run)
	}
	all.Wait()
}

func TestATickWithoutAQuorumRunsNothingAndIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		p := start(t, cluster, "a", time.Second)
		cluster.Kill(0, 1)
		p.locker.Job("job", func(context.Context, *quorumlock.Lease) { t.Error("ran") }).Run()
		require.ErrorIs(t, p.last(), quorumlock.ErrNoQuorum)
		assert.Equal(t, "the job did not run", p.text)
		p.stop(t)
	})
}
