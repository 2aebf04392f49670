//go:build unix

package interop_test

import (
	"context"
	"errors"
	"log"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/adapters/goredis"
	"github.com/quorumlock/quorumlock/election"
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
	nodes, err := goredis.Nodes(options) // or those of three or five servers
	if err != nil {
		return nil, err
	}
	return quorumlock.New(ctx, nodes, quorumlock.WithPrefix("lock:"))
}

// fromRedsync has the calls of docs/migrating.md that take the place of
// redsync's and redislock's. It is compiled, and not run.
func fromRedsync(ctx context.Context, name string, ttl time.Duration) error {
	m, err := quorumlock.New(ctx, quorumlock.Addrs("a:6379", "b:6379", "c:6379"), quorumlock.WithPrefix(""),
		quorumlock.WithTTL(ttl), quorumlock.WithNodeTimeout(50*time.Millisecond), quorumlock.WithDriftFactor(0.01),
		quorumlock.WithHolder("host-7"), quorumlock.WithMaxHold(time.Hour), quorumlock.WithRestartGuard(time.Minute),
		quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(50 * time.Millisecond) }))
	if err != nil {
		return err
	}
	defer func() { _ = m.Close(ctx) }()

	lease, err := m.TryAcquire(ctx, name, quorumlock.WithTTL(ttl))
	var held *quorumlock.HeldError
	switch {
	case errors.As(err, &held):
		log.Print(held.Holder.Owner, held.RetryAfter)
	case errors.Is(err, quorumlock.ErrNoQuorum), errors.Is(err, quorumlock.ErrHeld), errors.Is(err, quorumlock.ErrClosed):
		return err
	case err == nil:
		return lease.Release(ctx)
	}

	lease, err = m.Acquire(ctx, name, quorumlock.WithTTL(ttl), quorumlock.WithWait(ttl), quorumlock.WithoutRenewal())
	if err != nil {
		return err
	}
	log.Print(lease.Remaining(), lease.Valid(), lease.Owner(), lease.Token(), lease.Context().Err())
	err = errors.Join(lease.Renew(ctx), lease.Verify(ctx), lease.Release(ctx))
	if errors.Is(err, quorumlock.ErrLost) || errors.Is(err, quorumlock.ErrReleased) {
		log.Print(err)
	}
	status, err := m.Inspect(ctx, name)
	log.Print(status.TTL)
	return err
}

// fromRueidislock is the same for rueidislock.
func fromRueidislock(ctx context.Context, name string, work func(context.Context) error) error {
	m, err := quorumlock.New(ctx, []rueidis.ClientOption{
		{InitAddress: []string{"a:6379"}}, {InitAddress: []string{"b:6379"}}, {InitAddress: []string{"c:6379"}},
	})
	if err != nil {
		return err
	}
	defer func() { _ = m.Close(ctx) }()
	return m.Do(ctx, name, func(ctx context.Context, _ *quorumlock.Lease) error { return work(ctx) })
}

// readThenWrite is the recipe for a reader that wants to write.
func readThenWrite(ctx context.Context, m *quorumlock.Manager, decide func(context.Context, int64) (func(context.Context, int64) error, error)) error {
	err := m.Do(ctx, "prices/intent", func(ctx context.Context, _ *quorumlock.Lease) error { // nobody else writes
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

// fromReadWriteLock has the calls for readers, and those for permits.
func fromReadWriteLock(ctx context.Context, m *quorumlock.Manager, name string) error {
	writer, err := m.Acquire(ctx, name)
	if err != nil {
		return err
	}
	reader, err := writer.Downgrade(ctx)
	if err != nil {
		return err
	}
	err = m.Do(ctx, name, func(ctx context.Context, l *quorumlock.Lease) error { return l.Verify(ctx) }, quorumlock.Shared())
	permit, failed := m.Acquire(ctx, name, quorumlock.Permits(4))
	if failed != nil {
		return errors.Join(err, failed)
	}
	log.Print(permit.Slot())
	return errors.Join(err, permit.Release(ctx), reader.Release(ctx))
}

// fromElections has the calls for client-go's leaderelection, etcd's elections and Curator's.
func fromElections(ctx context.Context, m *quorumlock.Manager, name string, serve func(context.Context, *quorumlock.Lease) error) error {
	e := election.New(m, election.Config{
		Name: name, Lead: serve, NewLeader: func(h quorumlock.Status) { log.Print(h.Holder.Label, h.Token) },
		Acquire: []quorumlock.AcquireOption{quorumlock.WithTTL(15 * time.Second), quorumlock.WithHolder("host-7")},
	})
	if err := e.Run(ctx); err != nil {
		log.Print(e.IsLeader(), e.Leader())
	}
	holdings, err := m.Observe(ctx, name)
	if err != nil {
		return err
	}
	log.Print(<-holdings)
	return m.Lead(ctx, name, serve, quorumlock.WithHolder("host-7"))
}

// fromSessions has the calls for Consul, etcd's sessions, Curator and Redisson.
func fromSessions(ctx context.Context, m *quorumlock.Manager, name string) error {
	lease, err := m.Acquire(ctx, name, quorumlock.WithLockDelay(15*time.Second), quorumlock.WithMaxHold(time.Hour))
	if err != nil {
		return err
	}
	select {
	case lost := <-lease.Lost():
		return errors.New(string(lost.Reason))
	case risk := <-lease.AtRisk():
		log.Print(risk)
	case wanted := <-lease.Wanted():
		log.Print(wanted.Waiters)
	}
	handle, err := lease.Detach(ctx, time.Minute)
	if err != nil {
		return err
	}
	_, err = m.Resume(ctx, handle)
	_, failed := m.Revoke(ctx, name, "stuck")
	return errors.Join(err, failed, m.AskRelease(ctx, name, "deployment"))
}

var (
	_, _, _ = fromRedsync, fromRueidislock, fromReadWriteLock
	_, _, _ = readThenWrite, fromElections, fromSessions
)

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
	newLocker := func() rueidislock.Locker {
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{old.Addr()}, ForceSingleClient: true},
			TryNextAfter: time.Second,
		})
		require.NoError(t, err)
		t.Cleanup(locker.Close)
		return locker
	}
	first, second, m := newLocker(), newLocker(), newManager(t, addrs)
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
