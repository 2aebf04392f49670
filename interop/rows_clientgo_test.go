//go:build unix && peers

package interop_test

import (
	"context"
	"errors"
	"log"
	"net/http"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/election"
)

var _, _ = withClientGo, fromClientGo

// withClientGo has the left column of the table.
func withClientGo(ctx context.Context, set kubernetes.Interface, lock resourcelock.Interface, health *leaderelection.HealthzAdaptor, lead func(context.Context)) error {
	config := leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		ReleaseOnCancel: true, WatchDog: health, Coordinated: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: lead, OnStoppedLeading: func() {}, OnNewLeader: func(identity string) { log.Print(identity) },
		},
	}
	log.Print(config.Lock.Identity())
	elector, err := leaderelection.NewLeaderElector(config)
	if err != nil {
		return err
	}
	log.Print(elector.GetLeader(), elector.IsLeader())
	var candidate *leaderelection.LeaseCandidate
	candidate, _, err = leaderelection.NewCandidate(set, "default", "host-7", "report", "1.0.0", "1.0.0", "OldestEmulationVersion")
	if err != nil {
		return err
	}
	go candidate.Run(ctx)
	leaderelection.RunOrDie(ctx, config)
	return health.Check(&http.Request{})
}

// fromClientGo has the right column.
func fromClientGo(ctx context.Context, m *quorumlock.Manager, name, label string, d time.Duration, fn func(context.Context, *quorumlock.Lease) error) error {
	config := election.Config{
		Name: name, Lead: fn, NewLeader: func(s quorumlock.Status) { log.Print(s.Holder.Label, s.Token) },
		Acquire: []quorumlock.AcquireOption{quorumlock.WithTTL(d), quorumlock.WithHolder(label)},
	}
	elector := election.New(m, config)
	if err := elector.Run(ctx); err != nil {
		log.Print(elector.IsLeader(), elector.Leader(), m.Ready())
	}
	config.Acquire, config.TTL = nil, d
	config.Health, config.Preference = func(context.Context) error { return nil }, func() int { return 1 }
	err := errors.Join(election.New(m, config).Run(ctx), m.Lead(ctx, name, fn))
	lease, failed := m.Acquire(ctx, name)
	if failed != nil {
		return errors.Join(err, failed)
	}
	handle, failed := lease.Detach(ctx, d)
	if failed != nil {
		return errors.Join(err, failed)
	}
	_, failed = m.Resume(ctx, handle)
	return errors.Join(err, failed)
}
