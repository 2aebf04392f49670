//go:build unix

package interop_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/quorumlock/quorumlock"
)

var _, _ = withRueidislock, fromRueidislock

// withRueidislock has the left column of the table.
func withRueidislock(ctx context.Context, name string, work func(context.Context)) error {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{"a:6379"}}, ClientBuilder: rueidis.NewClient,
		KeyPrefix: "lock", KeyMajority: 2, KeyValidity: 5 * time.Second, ExtendInterval: time.Second, TryNextAfter: time.Second,
	})
	if err != nil {
		return err
	}
	defer locker.Close()
	log.Print(locker.Client().Mode())
	held, cancel, err := locker.WithContext(ctx, name)
	if errors.Is(err, rueidislock.ErrLockerClosed) {
		return err
	}
	work(held)
	cancel()
	held, cancel, err = locker.TryWithContext(ctx, name)
	if errors.Is(err, rueidislock.ErrNotLocked) {
		held, cancel, err = locker.ForceWithContext(ctx, name)
	}
	if err != nil {
		return err
	}
	defer cancel()
	work(held)
	return nil
}

// fromRueidislock has the right column.
func fromRueidislock(ctx context.Context, name, s, reason string, d time.Duration, work func(context.Context) error) error {
	m, err := quorumlock.New(ctx, []rueidis.ClientOption{
		{InitAddress: []string{"a:6379"}}, {InitAddress: []string{"b:6379"}}, {InitAddress: []string{"c:6379"}},
	}, quorumlock.WithTTL(d), quorumlock.WithNodeTimeout(d), quorumlock.WithPrefix(s))
	if err != nil {
		return err
	}
	defer func() { _ = m.Close(ctx) }()
	lease, err := m.TryAcquire(ctx, name)
	switch {
	case errors.Is(err, quorumlock.ErrHeld), errors.Is(err, quorumlock.ErrNoQuorum):
		_, err = m.Revoke(ctx, name, reason)
	case errors.Is(err, quorumlock.ErrClosed):
		return err
	case err == nil:
		err = lease.Release(ctx)
	}
	if err != nil {
		return err
	}
	if lease, err = m.Acquire(ctx, name); err == nil {
		err = lease.Release(ctx)
	}
	return errors.Join(err, m.Do(ctx, name, func(ctx context.Context, l *quorumlock.Lease) error { return work(ctx) }))
}
