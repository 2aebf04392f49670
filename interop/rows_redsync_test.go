//go:build unix

package interop_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis"

	"github.com/quorumlock/quorumlock"
)

var _, _ = withRedsync, fromRedsync

// withRedsync has the left column of the table.
func withRedsync(ctx context.Context, pools []redsyncpool.Pool, name, value string, d time.Duration) error {
	rs := redsync.New(pools...)
	mutex := rs.NewMutex(name)
	if err := mutex.LockContext(ctx); errors.Is(err, redsync.ErrFailed) {
		return err
	}
	_, err := mutex.ExtendContext(ctx)
	if errors.Is(err, redsync.ErrExtendFailed) {
		return err
	}
	valid, err := mutex.ValidContext(ctx) //nolint:staticcheck // deprecated, and in use
	log.Print(mutex.Until(), mutex.Value(), valid, err)
	_, err = mutex.UnlockContext(ctx)
	if errors.Is(err, redsync.ErrLockAlreadyExpired) {
		return err
	}
	mutex = rs.NewMutex(name, redsync.WithExpiry(d), redsync.WithTries(3), redsync.WithRetryDelay(d), redsync.WithTimeoutFactor(0.05),
		redsync.WithDriftFactor(0.01), redsync.WithFailFast(true), redsync.WithShufflePools(true), redsync.WithSetNXOnExtend(),
		redsync.WithValue(value), redsync.WithGenValueFunc(func() (string, error) { return value, nil }))
	err = mutex.TryLockContext(ctx)
	if taken := (*redsync.ErrTaken)(nil); errors.As(err, &taken) {
		log.Print(taken.Nodes)
	}
	return err
}

// fromRedsync has the right column.
func fromRedsync(ctx context.Context, name, label string, d, keep time.Duration) error {
	m, err := quorumlock.New(ctx, quorumlock.Addrs("a:6379", "b:6379", "c:6379"), quorumlock.WithPrefix(""),
		quorumlock.WithTTL(d), quorumlock.WithNodeTimeout(d), quorumlock.WithDriftFactor(0.01), quorumlock.WithHolder(label),
		quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(d) }))
	if err != nil {
		return err
	}
	defer func() { _ = m.Close(ctx) }()
	lease, err := m.TryAcquire(ctx, name)
	var held *quorumlock.HeldError
	switch {
	case errors.As(err, &held):
		log.Print(held.Holder.Owner, errors.Is(err, quorumlock.ErrHeld))
	case errors.Is(err, quorumlock.ErrNoQuorum):
		return err
	case err == nil:
		return lease.Release(ctx)
	}
	lease, err = m.Acquire(ctx, name)
	if err != nil {
		return err
	}
	handle, err := lease.Detach(ctx, keep)
	if err != nil {
		return err
	}
	_, resumed := m.Resume(ctx, handle)
	err = errors.Join(resumed, m.ReleaseHandle(ctx, handle))
	lease, failed := m.Acquire(ctx, name, quorumlock.WithoutRenewal(), quorumlock.WithWait(d))
	if failed != nil {
		return errors.Join(err, failed)
	}
	log.Print(lease.Remaining(), lease.Valid(), lease.Owner())
	err = errors.Join(err, lease.Renew(ctx), lease.Verify(ctx), lease.Release(ctx))
	log.Print(errors.Is(err, quorumlock.ErrLost))
	return err
}
