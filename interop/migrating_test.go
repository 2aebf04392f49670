//go:build unix

package interop_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis/rueidislock"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/adapters/goredis"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// plain is the lock that most programs begin with.
func plain(ctx context.Context, client *redis.Client, work func(context.Context) error) error {
	free, err := client.SetNX(ctx, "lock:report", "1", 30*time.Second).Result()
	if err != nil || !free {
		return err
	}
	defer client.Del(ctx, "lock:report")
	return work(ctx)
}

// fromPlain is the same with quorumlock.
func fromPlain(ctx context.Context, m *quorumlock.Manager, work func(context.Context) error) error {
	err := m.Do(ctx, "report", func(ctx context.Context, _ *quorumlock.Lease) error {
		return work(ctx) // its context ends if the lease is lost
	}, quorumlock.WithTTL(30*time.Second), quorumlock.WithWait(0)) // do not wait for another holder
	if errors.Is(err, quorumlock.ErrHeld) {
		return nil // another process works
	}
	return err
}

// managerFor uses the settings of a client, and the keys that plain has.
func managerFor(ctx context.Context, options *redis.Options) (*quorumlock.Manager, error) {
	nodes, err := goredis.Nodes(options) // or the nodes of three or five servers
	if err != nil {
		return nil, err
	}
	return quorumlock.New(ctx, nodes, quorumlock.WithPrefix("lock:"))
}

// readThenWrite is the recipe for a reader that wants to write.
func readThenWrite(ctx context.Context, m *quorumlock.Manager, decide func(context.Context, int64) (func(context.Context, int64) error, error)) error {
	err := m.Do(ctx, "prices/intent", func(ctx context.Context, _ *quorumlock.Lease) error { // no other process writes
		reader, err := m.Acquire(ctx, "prices", quorumlock.Shared()) // other readers may hold it too
		if err != nil {
			return err
		}
		change, err := decide(reader.Context(), reader.Token())
		if err := errors.Join(err, reader.Release(ctx)); err != nil || change == nil {
			return err
		}
		return m.Do(ctx, "prices", func(ctx context.Context, l *quorumlock.Lease) error { return change(ctx, l.Token()) })
	})
	return err
}

var _ = readThenWrite

// both takes the old lock, then ours: the first step of a rollout with two locks.
func both(ctx context.Context, locker rueidislock.Locker, m *quorumlock.Manager, name string, work func(context.Context) error) error {
	ctx, cancel, err := locker.WithContext(ctx, name)
	if err != nil {
		return err
	}
	defer cancel()
	return m.Do(ctx, name, func(ctx context.Context, _ *quorumlock.Lease) error { return work(ctx) })
}

func TestARolloutWithTwoLocksExcludesTheOldAndTheNewVersion(t *testing.T) {
	addrs := redistest.Addrs(redistest.Start(t, 3))
	old := redistest.Start(t, 1)[0]
	first, second, m := newLocker(t, old.Addr(), 0), newLocker(t, old.Addr(), 0), newManager(t, addrs)
	before := library{"the old lock alone", func(ctx context.Context) (func() error, error) {
		_, cancel, err := first.WithContext(ctx, key)
		return func() error { cancel(); return nil }, err
	}}
	between := library{"both locks", func(ctx context.Context) (func() error, error) {
		inside, leave, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- both(ctx, second, m, key, func(context.Context) error {
				close(inside)
				<-leave
				return nil
			})
		}()
		select {
		case <-inside:
			return func() error { close(leave); return <-done }, nil
		case err := <-done:
			return nil, err
		}
	}}
	after := ours(m)
	for _, pair := range [][2]library{{before, between}, {between, after}} {
		had, overlaps := compete(t, pair[0], pair[1])
		requireExclusion(t, had, overlaps, pair[0], pair[1])
	}
}
