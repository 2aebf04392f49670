package gocronlock

import (
	"context"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/quorumlock/quorumlock"
)

// namePrefix keeps the names of jobs apart from the other names that the program
// locks with the same Manager.
const namePrefix = "gocron/"

// Locker gives each run of a job to one process. It is safe for concurrent use,
// also by several schedulers. It does not close its Manager.
type Locker struct {
	manager *quorumlock.Manager
	options []quorumlock.AcquireOption

	mu     sync.Mutex                   // guards leases
	leases map[string]*quorumlock.Lease // of the jobs that run here, by key
}

// The compiler checks what gocron expects.
var (
	_ gocron.Locker = (*Locker)(nil)
	_ gocron.Lock   = (*lock)(nil)
)

// NewLocker returns a Locker for gocron.WithDistributedLocker or gocron.WithDistributedJobLocker.
// The options are for each job's lease.
//
// HoldAtLeast keeps the name taken even if the job ends sooner (quorumlock.WithMinHold), in whole
// milliseconds, so that a scheduler whose clock is late does not run the job again. Make it longer
// than twice the difference between the hosts' clocks, and shorter than half of the interval: one
// second suits most hosts with NTP. A scheduler that finds the name taken waits for half of it
// (quorumlock.WithWait). With 0, a short job may run in every process, or in none.
//
// gocron.DurationJob counts from the start of each scheduler, so every process has runs of its own:
// use gocron.CronJob, or an [Elector].
func NewLocker(m *quorumlock.Manager, holdAtLeast time.Duration, options ...quorumlock.AcquireOption) *Locker {
	all := append([]quorumlock.AcquireOption{quorumlock.WithMinHold(holdAtLeast), quorumlock.WithWait(holdAtLeast / 2)}, options...)
	return &Locker{manager: m, options: all, leases: map[string]*quorumlock.Lease{}}
}

// Lock implements gocron.Locker; the key is the job's name, and the lock's name is
// "gocron/" and the key. It returns quorumlock.ErrHeld when another scheduler runs
// the job or has just run it, and otherwise the errors of Manager.Acquire.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lease, err := l.manager.Acquire(ctx, namePrefix+key, l.options...)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.leases[key] = lease
	l.mu.Unlock()
	return &lock{locker: l, key: key, lease: lease}, nil
}

// Lease returns the lease under which this process runs the job with this name,
// or nil. A job asks for it at its beginning.
func (l *Locker) Lease(jobName string) *quorumlock.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leases[jobName]
}

// lock is the lock of a job, which gocron unlocks when the job has ended.
type lock struct {
	locker *Locker
	key    string
	lease  *quorumlock.Lease
}

// Unlock implements gocron.Lock. It releases the lease apart from ctx, which gocron
// may have cancelled. gocron ignores its errors, which are as for Lease.Release.
func (u *lock) Unlock(ctx context.Context) error {
	u.locker.mu.Lock()
	if u.locker.leases[u.key] == u.lease { // a lost lease may have a successor here
		delete(u.locker.leases, u.key)
	}
	u.locker.mu.Unlock()
	return u.lease.Release(context.WithoutCancel(ctx))
}
