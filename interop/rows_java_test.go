//go:build unix

package interop_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/quorumlock/quorumlock"
)

var _ = fromRedisson

// fromRedisson has the right column of the table. The left one is Java.
func fromRedisson(ctx context.Context, m *quorumlock.Manager, name, other string, n int, d time.Duration, fn func(context.Context, *quorumlock.Lease) error) error {
	lease, err := m.Acquire(ctx, name, quorumlock.WithMaxHold(d), quorumlock.WithTTL(d))
	if err != nil {
		return err
	}
	reader, err := lease.Downgrade(ctx)
	if err != nil {
		return err
	}
	log.Print(lease.Token())
	err = errors.Join(reader.Release(ctx), m.Do(ctx, name, fn), m.Do(ctx, name, fn, quorumlock.Shared()))
	all, failed := m.AcquireAll(ctx, []string{name, other})
	if failed != nil {
		return errors.Join(err, failed)
	}
	err = errors.Join(err, all.Release(ctx), m.DoAll(ctx, []string{name, other}, func(context.Context, *quorumlock.Leases) error { return nil }))
	permit, failed := m.Acquire(ctx, name, quorumlock.Permits(n))
	if failed != nil {
		return errors.Join(err, failed)
	}
	_, revoked := m.Revoke(ctx, name, "stuck")
	return errors.Join(err, permit.Release(ctx), revoked)
}
