package gooselock

import (
	"context"
	"database/sql"
	"sync"

	"github.com/pressly/goose/v3/lock"

	"github.com/quorumlock/quorumlock"
)

// Locker lets one process migrate at a time. It is safe for concurrent use, also by several
// providers. It does not close its Manager.
type Locker struct {
	manager *quorumlock.Manager
	name    string
	options []quorumlock.AcquireOption
}

// The compiler checks what goose expects.
var _ lock.Locker = (*Locker)(nil)

// NewLocker returns a Locker for goose.WithLocker. The name is the name of the lock, one for
// each database: all processes give the same one. The options are for the lease. Without
// quorumlock.WithWait a process waits for the one that migrates until its own context ends.
func NewLocker(m *quorumlock.Manager, name string, options ...quorumlock.AcquireOption) *Locker {
	return &Locker{manager: m, name: name, options: options}
}

// Context returns the context for operations of a provider, such as Provider.Up, one after the
// other. It ends with ctx, by cancel, and when the lease is lost; then context.Cause is a
// *quorumlock.LostError, and so the operation's error is quorumlock.ErrLost. Call cancel when
// the operations have ended, and close the Manager after that: Close releases the lease of an
// operation that still runs.
func (l *Locker) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	r := &run{locker: l}
	ctx, r.end = context.WithCancelCause(context.WithValue(ctx, key{}, r))
	return ctx, func() { r.end(context.Canceled) }
}

// Lease returns the lease under which a migration runs, nil outside of one. Ctx is the context
// that a Go migration gets.
func Lease(ctx context.Context) *quorumlock.Lease {
	r, ok := ctx.Value(key{}).(*run)
	if !ok {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lease
}

// key is the key of a run in its context.
type key struct{}

// run is the operations of one context.
type run struct {
	locker *Locker
	end    context.CancelCauseFunc // of the context

	mu    sync.Mutex // guards what follows
	taken bool       // from the beginning of Lock to the end of Unlock
	lease *quorumlock.Lease
	leave func() bool // ends the watch for a loss
}

// Lock implements lock.Locker: goose calls it. It returns the errors of Manager.Acquire, and a
// *quorumlock.InvalidError if ctx is not from Context of this Locker, or if another operation with
// that context is under way.
func (l *Locker) Lock(ctx context.Context, _ *sql.DB) error {
	r, err := l.runOf(ctx)
	if err != nil {
		return err
	}
	if !r.take() {
		return &quorumlock.InvalidError{What: "goose context", Bound: "is in use by another operation of a provider", Fix: "give each operation at a time a Locker.Context of its own"}
	}
	lease, err := l.manager.Acquire(ctx, l.name, l.options...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.taken = false
		return err
	}
	r.lease = lease
	r.leave = context.AfterFunc(lease.Context(), func() { r.end(context.Cause(lease.Context())) })
	return nil
}

// Unlock implements lock.Locker: goose calls it, with a context that does not end. It returns the
// errors of Lease.Release: quorumlock.ErrLost if the lease was lost while goose migrated.
func (l *Locker) Unlock(ctx context.Context, _ *sql.DB) error {
	r, err := l.runOf(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	lease, leave := r.lease, r.leave
	r.lease, r.leave = nil, nil
	r.mu.Unlock()
	if lease == nil {
		return quorumlock.ErrReleased
	}
	leave() // the end of the lease by its release is not a loss
	err = lease.Release(ctx)
	r.mu.Lock()
	r.taken = false
	r.mu.Unlock()
	return err
}

func (l *Locker) runOf(ctx context.Context) (*run, error) {
	r, ok := ctx.Value(key{}).(*run)
	if !ok || r.locker != l {
		return nil, &quorumlock.InvalidError{What: "goose context", Bound: "would not end if the lease were lost", Fix: "call the provider with the context that Locker.Context returns"}
	}
	return r, nil
}

// take begins an operation. It returns false if another one is under way.
func (r *run) take() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken {
		return false
	}
	r.taken = true
	return true
}
