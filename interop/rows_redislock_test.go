//go:build unix

package interop_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/quorumlock"
)

var _, _ = withRedislock, fromRedislock

// withRedislock has the left column of the table.
func withRedislock(ctx context.Context, client *redis.Client, key, token string, ttl time.Duration) error {
	locker := redislock.New(client)
	lock, err := locker.Obtain(ctx, key, ttl, nil)
	if errors.Is(err, redislock.ErrNotObtained) {
		lock, err = locker.Obtain(ctx, key, ttl, &redislock.Options{
			RetryStrategy: redislock.LinearBackoff(time.Second), Token: token, Metadata: "host-7",
		})
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return nil
	case err != nil:
		return err
	}
	left, err := lock.TTL(ctx)
	log.Print(left, err, lock.Token())
	err = errors.Join(lock.Refresh(ctx, ttl, nil), lock.Release(ctx))
	log.Print(errors.Is(err, redislock.ErrLockNotHeld))
	return err
}

// fromRedislock has the right column.
func fromRedislock(ctx context.Context, key, label string, ttl, keep time.Duration) error {
	m, err := quorumlock.New(ctx, quorumlock.Addrs("a:6379"), quorumlock.WithPrefix(""), quorumlock.WithHolder(label))
	if err != nil {
		return err
	}
	defer func() { _ = m.Close(ctx) }()
	lease, err := m.TryAcquire(ctx, key, quorumlock.WithTTL(ttl))
	if errors.Is(err, quorumlock.ErrHeld) || errors.Is(err, quorumlock.ErrNoQuorum) {
		lease, err = m.Acquire(ctx, key, quorumlock.WithTTL(ttl), quorumlock.WithWait(ttl))
	}
	if err != nil {
		return err
	}
	status, err := m.Inspect(ctx, key)
	log.Print(status.TTL, err, lease.Remaining(), lease.Owner(), lease.Token())
	err = lease.Renew(ctx, quorumlock.WithTTL(ttl))
	handle, detached := lease.Detach(ctx, keep)
	if detached != nil {
		return errors.Join(err, detached)
	}
	lease, err = m.Resume(ctx, handle)
	if err != nil {
		return err
	}
	err = lease.Release(ctx)
	log.Print(errors.Is(err, quorumlock.ErrLost), errors.Is(err, quorumlock.ErrReleased))
	return err
}
