package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// lock is the name of the lock that all requests want.
const lock = "orders/4711"

// request arrives at a service at an instant, and works under the lock for a while.
type request struct {
	service int // 0 is checkout, 1 billing
	name    string
	after   time.Duration
	work    time.Duration
}

// requests take long enough for a renewal: the first one holds its lease for more than a
// third of the TTL.
var requests = []request{
	{0, "POST /orders/4711/pay", 0, 1300 * time.Millisecond},
	{1, "POST /invoices/4711", 100 * time.Millisecond, 400 * time.Millisecond},
	{0, "PUT /orders/4711/address", 250 * time.Millisecond, 200 * time.Millisecond},
	{1, "POST /refunds/4711", 400 * time.Millisecond, 300 * time.Millisecond},
}

// play makes all requests once and waits for them.
func play(ctx context.Context, services []*service) error {
	var all sync.WaitGroup
	failed := make([]error, len(requests))
	for i, r := range requests {
		all.Go(func() {
			if sleep(ctx, r.after) == nil {
				failed[i] = services[r.service].handle(ctx, r)
			}
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// handle handles a request. Its span is in the context, so the spans of the lock become
// its children.
func (s *service) handle(ctx context.Context, r request) error {
	ctx, span := s.tracer().Start(ctx, r.name, trace.WithSpanKind(trace.SpanKindServer))
	defer span.End()
	return s.manager.Do(ctx, lock, func(ctx context.Context, _ *quorumlock.Lease) error {
		return sleep(ctx, r.work)
	})
}

// sleep stands for work. It returns an error if ctx ends before.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// trouble causes faults for a dashboard to show, until ctx ends: a node dies and comes
// back, and leases are lost because their holders work beyond the maximum. It closes the
// channel after its last fault.
func trouble(ctx context.Context, cluster *quorumlocktest.Cluster, m *quorumlock.Manager) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			err := m.Do(ctx, "reports/daily", func(ctx context.Context, _ *quorumlock.Lease) error {
				return sleep(ctx, time.Second)
			}, quorumlock.WithMaxHold(500*time.Millisecond))
			if err == nil {
				fmt.Println("a lease with a maximum age was not lost")
			}
			node := cluster.Nodes()[2]
			node.Kill()
			_ = sleep(ctx, 4*time.Second)
			node.Restart()
			_ = sleep(ctx, 4*time.Second)
		}
	}()
	return done
}
