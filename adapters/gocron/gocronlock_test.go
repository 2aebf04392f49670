//go:build unix

package gocronlock_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
	gocronlock "github.com/quorumlock/quorumlock/adapters/gocron"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const second = "* * * * * *" // every second, for all schedulers at the same instant

// runs counts the runs of a job for each second.
type runs struct {
	mu    sync.Mutex
	times map[time.Time]int
}

func (r *runs) job() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.times[time.Now().Round(time.Second)]++
}

// requireOnce checks the whole seconds between two instants.
func (r *runs) requireOnce(t *testing.T, from, to time.Time) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for tick := from.Truncate(time.Second).Add(time.Second); tick.Before(to); tick = tick.Add(time.Second) {
		require.Equal(t, 1, r.times[tick], "runs at %v", tick)
	}
}

func newManager(t *testing.T, addrs []string, opts ...quorumlock.Option) *quorumlock.Manager {
	t.Helper()
	m, err := quorumlock.New(t.Context(), quorumlock.Addrs(addrs...), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, m.Close(context.Background())) })
	return m
}

// schedule runs job every second in a scheduler with this option.
func schedule(t *testing.T, option gocron.SchedulerOption, job any) gocron.Scheduler {
	t.Helper()
	s, err := gocron.NewScheduler(option)
	require.NoError(t, err)
	_, err = s.NewJob(gocron.CronJob(second, true), gocron.NewTask(job), gocron.WithName("job"))
	require.NoError(t, err)
	s.Start()
	return s
}

func shutdown(t *testing.T, schedulers ...gocron.Scheduler) {
	t.Helper()
	for _, s := range schedulers {
		require.NoError(t, s.Shutdown())
	}
}

func TestWithALockerAJobRunsOncePerTickOnRealServers(t *testing.T) {
	addrs := redistest.Addrs(redistest.Start(t, 3))
	r := &runs{times: map[time.Time]int{}}
	var schedulers []gocron.Scheduler
	for range 2 {
		locker := gocronlock.NewLocker(newManager(t, addrs), 300*time.Millisecond)
		schedulers = append(schedulers, schedule(t, gocron.WithDistributedLocker(locker), r.job))
	}
	begun := time.Now()
	time.Sleep(3 * time.Second)
	ended := time.Now()
	shutdown(t, schedulers...)
	r.requireOnce(t, begun, ended.Add(-900*time.Millisecond))
}

// Five schedulers ask at one instant, and each gets some of the nodes now and then.
func TestWithALockerNoTickIsLeftOutAndNoneRunsTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		r := &runs{times: map[time.Time]int{}}
		var schedulers []gocron.Scheduler
		var managers []*quorumlock.Manager
		for i := range 5 {
			m, err := quorumlock.New(t.Context(), cluster.OptionsFor(fmt.Sprint(i)))
			require.NoError(t, err)
			managers = append(managers, m)
			schedulers = append(schedulers, schedule(t, gocron.WithDistributedLocker(gocronlock.NewLocker(m, 800*time.Millisecond)), r.job))
		}
		begun := time.Now()
		time.Sleep(4 * time.Second)
		ended := time.Now()
		shutdown(t, schedulers...)
		for _, m := range managers {
			require.NoError(t, m.Close(t.Context()))
		}
		r.requireOnce(t, begun, ended.Add(-time.Second))
	})
}

// The grant of one tick came 250 ms late, and the name stays taken until 50 ms after the next tick.
func TestWithALockerALateGrantDoesNotLoseTheNextTick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		var lockers []*gocronlock.Locker
		var managers []*quorumlock.Manager
		for i := range 3 {
			m, err := quorumlock.New(t.Context(), cluster.OptionsFor(fmt.Sprint(i)))
			require.NoError(t, err)
			managers = append(managers, m)
			lockers = append(lockers, gocronlock.NewLocker(m, 800*time.Millisecond))
		}
		tick := time.Now()
		time.Sleep(250 * time.Millisecond)
		lock, err := lockers[0].Lock(t.Context(), "job")
		require.NoError(t, err)
		require.NoError(t, lock.Unlock(t.Context()))
		time.Sleep(time.Until(tick.Add(time.Second)))
		var granted atomic.Int32
		var all sync.WaitGroup
		for _, l := range lockers {
			all.Go(func() {
				lock, err := l.Lock(t.Context(), "job")
				if err != nil {
					assert.ErrorIs(t, err, quorumlock.ErrHeld)
					return
				}
				granted.Add(1)
				assert.NoError(t, lock.Unlock(t.Context()))
			})
		}
		all.Wait()
		assert.Equal(t, int32(1), granted.Load())
		for _, m := range managers {
			require.NoError(t, m.Close(t.Context()))
		}
	})
}

func TestAJobSeesItsLeaseAndALostLeaseEndsItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		m, err := quorumlock.New(t.Context(), cluster.Options())
		require.NoError(t, err)
		locker := gocronlock.NewLocker(m, 0)
		ended := make(chan error, 1)
		s := schedule(t, gocron.WithDistributedLocker(locker), func() {
			lease := locker.Lease("job")
			assert.Positive(t, lease.Token())
			<-lease.Context().Done()
			ended <- context.Cause(lease.Context())
		})
		time.Sleep(2 * time.Second)
		for _, n := range cluster.Nodes() {
			n.FlushAll()
		}
		for _, n := range cluster.Nodes()[:2] {
			n.Cut()
		}
		require.ErrorIs(t, <-ended, quorumlock.ErrLost)
		synctest.Wait()
		assert.Nil(t, locker.Lease("job"))
		shutdown(t, s)
		for _, n := range cluster.Nodes() {
			n.Heal()
		}
		require.NoError(t, m.Close(t.Context()))
	})
}

func TestUnlockReleasesUnderACancelledContextAndTheNameStaysTakenLongEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		var lockers []*gocronlock.Locker
		var managers []*quorumlock.Manager
		for range 2 {
			m, err := quorumlock.New(t.Context(), cluster.Options())
			require.NoError(t, err)
			managers = append(managers, m)
			lockers = append(lockers, gocronlock.NewLocker(m, 2*time.Second))
		}
		begun := time.Now()
		lock, err := lockers[0].Lock(t.Context(), "job")
		require.NoError(t, err)
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, lock.Unlock(cancelled))
		require.Zero(t, time.Since(begun), "the job's end is not held up")
		_, err = lockers[1].Lock(t.Context(), "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		require.Equal(t, time.Second, time.Since(begun), "half of the hold, because the earlier grant may have come late")
		time.Sleep(1100 * time.Millisecond)
		lock, err = lockers[1].Lock(t.Context(), "job")
		require.NoError(t, err)
		require.NoError(t, lock.Unlock(t.Context()))
		for _, m := range managers {
			require.NoError(t, m.Close(t.Context()))
		}
	})
}

func TestWithAnElectorTheLeaderRunsAllJobsAndAnotherTakesOverOnRealServers(t *testing.T) {
	addrs := redistest.Addrs(redistest.Start(t, 3))
	r := &runs{times: map[time.Time]int{}}
	var electors []*gocronlock.Elector
	var schedulers []gocron.Scheduler
	for range 2 {
		e := gocronlock.NewElector(newManager(t, addrs), "scheduler")
		defer e.Close()
		electors = append(electors, e)
		schedulers = append(schedulers, schedule(t, gocron.WithDistributedElector(e), r.job))
	}
	leader := func() int {
		for i, e := range electors {
			if e.IsLeader(t.Context()) == nil {
				return i
			}
		}
		return -1
	}
	require.Eventually(t, func() bool { return leader() >= 0 }, 5*time.Second, time.Millisecond)
	first := leader()
	require.ErrorIs(t, electors[1-first].IsLeader(t.Context()), gocronlock.ErrNotLeader)
	assert.Nil(t, electors[1-first].Lease())
	begun := time.Now()
	time.Sleep(2500 * time.Millisecond)
	r.requireOnce(t, begun, time.Now().Add(-400*time.Millisecond))

	token := electors[first].Lease().Token()
	electors[first].Close()
	require.ErrorIs(t, electors[first].IsLeader(t.Context()), gocronlock.ErrNotLeader)
	require.Eventually(t, func() bool { return leader() == 1-first }, 5*time.Second, time.Millisecond)
	assert.Greater(t, electors[1-first].Lease().Token(), token)
	shutdown(t, schedulers...)
}

func TestALeaderThatLosesItsLeaseIsNoLeaderBeforeAnotherIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		var electors []*gocronlock.Elector
		var managers []*quorumlock.Manager
		for _, name := range []string{"a", "b"} {
			m, err := quorumlock.New(t.Context(), cluster.OptionsFor(name))
			require.NoError(t, err)
			managers = append(managers, m)
			electors = append(electors, gocronlock.NewElector(m, "scheduler"))
			time.Sleep(time.Second) // a is first
		}
		a, b := electors[0], electors[1]
		require.NoError(t, a.IsLeader(t.Context()))
		cluster.Partition("a")
		for b.IsLeader(t.Context()) != nil {
			time.Sleep(time.Millisecond)
		}
		require.ErrorIs(t, a.IsLeader(t.Context()), gocronlock.ErrNotLeader)
		cluster.Rejoin("a")
		for i, e := range electors {
			e.Close()
			e.Close()
			require.NoError(t, managers[i].Close(t.Context()))
		}
	})
}

func TestAnElectorSaysWhatEndedItsCampaign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := quorumlock.New(t.Context(), quorumlocktest.Start(t, 3).Options())
		require.NoError(t, err)
		nameless := gocronlock.NewElector(m, "")
		e := gocronlock.NewElector(m, "scheduler")
		synctest.Wait()
		require.ErrorIs(t, nameless.IsLeader(t.Context()), quorumlock.ErrInvalid)
		require.NoError(t, m.Close(t.Context()))
		synctest.Wait()
		err = e.IsLeader(t.Context())
		require.ErrorIs(t, err, gocronlock.ErrNotLeader)
		require.ErrorIs(t, err, quorumlock.ErrClosed)
		e.Close()
		nameless.Close()
	})
}
