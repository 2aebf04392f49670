//go:build unix

package interop_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/election"
)

var _, _ = fromRedisson, fromCurator

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

// fromCurator has the right column of the table. The left one is Java.
func fromCurator(ctx context.Context, m *quorumlock.Manager, e *election.Elector, name, other, reason string, n int, fn func(context.Context, *quorumlock.Lease) error) error {
	lease, err := m.Acquire(ctx, name)
	if err != nil {
		return err
	}
	select {
	case risk := <-lease.AtRisk():
		log.Print(risk)
	case wanted := <-lease.Wanted():
		log.Print(wanted.Waiters)
	case lost := <-lease.Lost():
		return errors.New(string(lost.Reason))
	}
	_, err = lease.Downgrade(ctx)
	_, shared := m.Acquire(ctx, name, quorumlock.Shared())
	_, permit := m.Acquire(ctx, name, quorumlock.Permits(n))
	_, several := m.AcquireAll(ctx, []string{name, other})
	err = errors.Join(err, shared, permit, several, m.DoAll(ctx, []string{name, other}, func(context.Context, *quorumlock.Leases) error { return nil }))
	log.Print(e.IsLeader(), e.Leader())
	return errors.Join(err, m.AskRelease(ctx, name, reason), m.Lead(ctx, name, fn))
}
