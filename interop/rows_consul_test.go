//go:build unix && peers

package interop_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/quorumlock/quorumlock"
)

var _, _ = withConsul, fromConsul

// withConsul has the left column of the table.
func withConsul(client *api.Client, prefix string, n int, stopCh <-chan struct{}) error {
	lock, err := client.LockOpts(&api.LockOptions{
		Key: "report", SessionTTL: "15s", LockTryOnce: true, LockWaitTime: time.Second, LockDelay: 15 * time.Second,
	})
	if err != nil {
		return err
	}
	lost, err := lock.Lock(stopCh)
	if err != nil {
		return err
	}
	<-lost
	var pair *api.KVPair
	if pair, _, err = client.KV().Get("report", nil); err != nil {
		return err
	}
	log.Print(pair.LockIndex)
	err = client.Session().RenewPeriodic("15s", pair.Session, nil, make(chan struct{}))
	_, destroyed := client.Session().Destroy(pair.Session, nil)
	_, failed := client.SemaphorePrefix(prefix, n)
	return errors.Join(err, destroyed, failed)
}

// fromConsul has the right column.
func fromConsul(ctx context.Context, m *quorumlock.Manager, name, reason string, n int, d time.Duration) error {
	lease, err := m.Acquire(ctx, name, quorumlock.WithWait(d), quorumlock.WithTTL(d), quorumlock.WithLockDelay(d))
	if err != nil {
		return err
	}
	log.Print(lease.Token(), lease.Context().Err(), <-lease.Lost())
	_, err = m.Revoke(ctx, name, reason)
	permit, failed := m.Acquire(ctx, name, quorumlock.Permits(n))
	if failed != nil {
		return errors.Join(err, failed)
	}
	return errors.Join(err, permit.Release(ctx))
}
