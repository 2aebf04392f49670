//go:build unix && peers

package interop_test

import (
	"context"
	"errors"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/quorumlock/quorumlock"
)

var _, _ = withEtcd, fromEtcd

// withEtcd has the left column of the table.
func withEtcd(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID, both *recipe.RWMutex, val string) error {
	s, err := concurrency.NewSession(client, concurrency.WithLease(id))
	if err != nil {
		return err
	}
	m := concurrency.NewMutex(s, "report")
	if err := m.Lock(ctx); errors.Is(err, concurrency.ErrSessionExpired) {
		return err
	}
	_, err = client.Txn(ctx).If(m.IsOwner()).Then(clientv3.OpPut("report", val)).Commit()
	log.Print(m.Header().Revision, s.Ctx().Err(), err)
	<-s.Done()
	e := concurrency.NewElection(s, "report")
	err = errors.Join(e.Campaign(ctx, val), e.Resign(ctx))
	e = concurrency.ResumeElection(s, "report", e.Key(), e.Rev())
	leader, failed := e.Leader(ctx)
	log.Print(leader, failed, <-e.Observe(ctx))
	s.Orphan()
	_, revoked := client.Revoke(ctx, id)
	log.Print(recipe.NewRWMutex(s, "report"))
	return errors.Join(err, both.RLock(), both.RUnlock(), revoked)
}

// fromEtcd has the right column.
func fromEtcd(ctx context.Context, m *quorumlock.Manager, name, val, reason string, keep time.Duration, fn func(context.Context, *quorumlock.Lease) error) error {
	lease, err := m.Acquire(ctx, name)
	if err != nil {
		return err
	}
	handle, err := lease.Detach(ctx, keep)
	if err != nil {
		return err
	}
	if lease, err = m.Resume(ctx, handle); err != nil {
		return err
	}
	select {
	case <-lease.Context().Done():
		log.Print(errors.Is(lease.Err(), quorumlock.ErrLost), lease.Token())
	case lost := <-lease.Lost():
		log.Print(lost.Reason)
	}
	reader, err := m.Acquire(ctx, name, quorumlock.Shared())
	if err != nil {
		return err
	}
	status, err := m.Inspect(ctx, name)
	changes, failed := m.Observe(ctx, name)
	log.Print(status, <-changes)
	_, revoked := m.Revoke(ctx, name, reason)
	return errors.Join(err, failed, revoked, reader.Release(ctx), m.Lead(ctx, name, fn, quorumlock.WithHolder(val)))
}
