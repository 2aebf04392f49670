package quorumlock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/hold"
)

// Leases are the leases of several names that one call has acquired. Each is a lease like any
// other, with a token of its own. They end together: when one is released, the others are, too;
// when one is lost, the others end at once, and their names stay taken for as long as the name of
// the lost one: for 2 % of the TTL (at least 50 ms, at most a fifth of the TTL) and the lock delay, so
// that work can stop. All methods are safe for concurrent use.
type Leases struct {
	m      *Manager
	all    []*Lease // in the order of the call
	ctx    context.Context
	cancel context.CancelCauseFunc
	// lost has capacity 1: one value if a lease is lost, then closed; closed without a value on a
	// release. Nothing is dropped.
	lost chan Lost

	mu        sync.Mutex
	releasing bool  // a call of Release decides how they end
	err       error // why they ended
}

// end ends the leases for the error of the first that has ended. After a loss the keys of the others stay for the
// safety margin and the lock delay, as the keys of the lost one do.
func (s *Leases) end(err error) {
	s.mu.Lock()
	first := s.err == nil && !s.releasing
	if first {
		s.err = err
	}
	s.mu.Unlock()
	if !first {
		return
	}
	if s.m.mayEnd(s.all...) { // otherwise Close ends them
		how := hold.Ending{What: hold.Released, Keys: hold.Deleted}
		if errors.Is(err, ErrLost) {
			how.Keys = hold.Delayed
		}
		for _, l := range s.all {
			_, _ = l.end(how)
		}
		s.m.life.calls.Done()
	}
	s.cancel(err)
	s.tell(err)
}

// tell delivers the loss, if there is one, and closes the channel.
func (s *Leases) tell(err error) {
	var lost *LostError
	if errors.As(err, &lost) {
		s.lost <- lost.Lost
	}
	close(s.lost)
}

// ended records why the leases have ended, by Release, and ends their context.
func (s *Leases) ended(why error) {
	s.mu.Lock()
	s.err = why
	s.mu.Unlock()
	s.cancel(why)
}

// All returns the leases in the order in which the names were given.
func (s *Leases) All() []*Lease { return slices.Clone(s.all) }

// Lease returns the lease of a name, nil if the call did not ask for it.
func (s *Leases) Lease(name string) *Lease {
	for _, l := range s.all {
		if l.Name() == name {
			return l
		}
	}
	return nil
}

// Valid reports whether work under the leases may continue: each is valid.
func (s *Leases) Valid() bool { return s.Remaining() > 0 }

// Remaining returns how long work may continue unless the leases are renewed: the least of all.
func (s *Leases) Remaining() time.Duration {
	least := s.all[0].Remaining()
	for _, l := range s.all[1:] {
		least = min(least, l.Remaining())
	}
	return least
}

// Context returns a context that ends when the first of the leases ends: context.Cause is then what
// Err returns. It has the values of the context given to AcquireAll, but neither its deadline nor
// its cancellation.
func (s *Leases) Context() context.Context {
	_ = s.Err() // a lease that has ended allows no work
	return s.ctx
}

// WithContext returns a context that ends with ctx or with the leases, as Lease.WithContext does.
func (s *Leases) WithContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return either(ctx, s.Context())
}

// Done returns a channel that is closed when the leases have ended.
func (s *Leases) Done() <-chan struct{} { return s.Context().Done() }

// Err returns nil while the leases are held, then ErrReleased, or the *LostError of the lease that
// was lost first. After a release, the answers of the nodes may turn ErrReleased into a *LostError.
func (s *Leases) Err() error {
	first := s.firstEnd()
	if first != nil {
		s.end(first)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(s.err, ErrReleased) && errors.Is(first, ErrLost) {
		s.err = first
	}
	return s.err
}

// firstEnd returns why a lease has ended, nil if none has: a loss if there is one.
func (s *Leases) firstEnd() (first error) {
	for _, l := range s.all {
		if err := l.Err(); first == nil || errors.Is(err, ErrLost) {
			first = cmp.Or(err, first)
		}
	}
	return first
}

// Lost returns a channel that delivers one value when a lease is lost. Release closes it without one, unless Release
// itself finds a loss: only Err shows one that is found later.
func (s *Leases) Lost() <-chan Lost { return s.lost }

// Release gives all leases back, as Lease.Release does for one, at the same time. The errors
// are as for Lease.Release: ErrLost if one of the leases was lost before, or the nodes show
// that now; ErrReleased if they were released before; and ErrNoQuorum, with a *QuorumError for
// each name whose release too few nodes confirmed.
func (s *Leases) Release(ctx context.Context) error {
	if ctx == nil {
		return errNilContext()
	}
	began, earlier := s.m.clock.Now(), ctx.Err() != nil
	if !s.m.mayEnd(s.all...) { // Close ends them
		<-s.all[0].Done()
		<-s.Done()
		return s.Err()
	}
	s.mu.Lock()
	first := s.err == nil && !s.releasing
	s.releasing = s.releasing || first
	s.mu.Unlock()
	if !first {
		s.m.life.calls.Done()
		<-s.ctx.Done() // the call that releases them is on its way
		return s.Err()
	}
	pending, failures, done := make([]*ensemble.Answers, len(s.all)), make([]error, len(s.all)), make([]clock.Validity, len(s.all))
	for i, l := range s.all {
		pending[i], failures[i] = l.end(hold.Ending{What: hold.Released, Keys: hold.Deleted})
	}
	s.ended(s.firstEnd())
	s.m.life.calls.Done()
	for i, l := range s.all {
		if pending[i] != nil {
			failures[i] = l.returned(ctx, earlier, pending[i])
		}
		done[i] = s.m.clock.Now()
	}
	why := s.firstEnd()
	s.ended(why)
	s.tell(why)
	for i, l := range s.all { // last: a user's span may panic
		s.m.telemetry.released(ctx, l.span(l.Owner()), began, done[i], failures[i])
	}
	if errors.Is(why, ErrLost) {
		return why
	}
	if failures = slices.DeleteFunc(failures, func(err error) bool { return err == nil }); len(failures) > 0 {
		return errs.Join(failures...)
	}
	return nil
}
