// Package certmagiclock lets several processes share the storage of CertMagic (or
// Caddy), by a lock on a majority of independent Redis servers.
//
// [Wrap] takes any storage and replaces its locks: one process obtains or renews
// a certificate, and the others wait and then find it in the storage.
package certmagiclock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/quorumlock/quorumlock"
)

// namePrefix keeps the names of CertMagic apart from the other names that the
// program locks with the same Manager.
const namePrefix = "certmagic/"

// ErrNotLocked means that this process does not hold the lock that it should
// release or renew.
var ErrNotLocked = errors.New("certmagiclock: not locked by this process")

// Storage is a certmagic.Storage whose locks are leases. The leases renew
// themselves in the background, so an operation may last as long as it needs; the
// lock of a process that died ends after the TTL. It is safe for concurrent use.
// It does not close its Manager.
type Storage struct {
	certmagic.Storage // everything but locks

	manager *quorumlock.Manager
	options []quorumlock.AcquireOption

	mu     sync.Mutex                     // guards leases
	leases map[string][]*quorumlock.Lease // by CertMagic's name, the oldest first
}

// The compiler checks the interfaces that CertMagic looks for.
var (
	_ certmagic.Storage          = (*Storage)(nil)
	_ certmagic.TryLocker        = (*Storage)(nil)
	_ certmagic.LockLeaseRenewer = (*Storage)(nil)
)

// Wrap returns storage with the locks of m. All processes that share the storage
// must lock in the same way. The options are for each lease. A lock's name
// is "certmagic/" and the name that CertMagic gives, together at most 512 bytes.
func Wrap(storage certmagic.Storage, m *quorumlock.Manager, options ...quorumlock.AcquireOption) *Storage {
	return &Storage{Storage: storage, manager: m, options: options, leases: map[string][]*quorumlock.Lease{}}
}

// Lock implements certmagic.Locker: it waits for the lock until ctx ends. Its
// errors are as for Manager.Acquire.
func (s *Storage) Lock(ctx context.Context, name string) error {
	lease, err := s.manager.Acquire(ctx, namePrefix+name, s.options...)
	if err != nil {
		return err
	}
	s.push(name, lease)
	return nil
}

// TryLock implements certmagic.TryLocker: it asks once, and reports false without
// an error when another caller holds the lock. Its other errors are as for
// Manager.TryAcquire.
func (s *Storage) TryLock(ctx context.Context, name string) (bool, error) {
	lease, err := s.manager.TryAcquire(ctx, namePrefix+name, s.options...)
	if errors.Is(err, quorumlock.ErrHeld) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	s.push(name, lease)
	return true, nil
}

// Unlock implements certmagic.Locker. A cancelled ctx does not stop the release. It returns
// quorumlock.ErrLost when the lock was lost before, so that CertMagic logs it; ErrNotLocked
// for a name that is not locked; and otherwise the errors of Lease.Release.
func (s *Storage) Unlock(ctx context.Context, name string) error {
	lease := s.pop(name)
	if lease == nil {
		return fmt.Errorf("%w: %q", ErrNotLocked, name)
	}
	return lease.Release(context.WithoutCancel(ctx))
}

// RenewLockLease implements certmagic.LockLeaseRenewer. The lease renews itself,
// so the duration is not needed; the answer is whether the lock is still held.
// CertMagic gives up an operation when it is not.
func (s *Storage) RenewLockLease(_ context.Context, lockKey string, _ time.Duration) error {
	s.mu.Lock()
	leases := s.leases[lockKey]
	s.mu.Unlock()
	if len(leases) == 0 {
		return fmt.Errorf("%w: %q", ErrNotLocked, lockKey)
	}
	// There are several only after a loss: the oldest was lost, and the newest may be
	// another caller's.
	for _, lease := range leases {
		if err := lease.Err(); err != nil { // it says why
			return err
		}
		if !lease.Valid() {
			return fmt.Errorf("%w: %q: its lease has expired", quorumlock.ErrLost, lockKey)
		}
	}
	return nil
}

func (s *Storage) push(name string, lease *quorumlock.Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[name] = append(s.leases[name], lease)
}

// pop takes the oldest lease. CertMagic unlocks by name alone. After a loss two
// callers of this process may believe that they have the lock: the first to
// unlock gets the lost lease, so that no caller releases one that is in use.
func (s *Storage) pop(name string) *quorumlock.Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	leases := s.leases[name]
	if len(leases) == 0 {
		return nil
	}
	if len(leases) == 1 {
		delete(s.leases, name)
	} else {
		s.leases[name] = leases[1:]
	}
	return leases[0]
}
