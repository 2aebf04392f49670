//go:build unix && peers

package interop_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/quorumlock/quorumlock/internal/testkit"
)

// record is the Lease object of an API server that can be cut off. One elector uses it.
type record struct {
	cut     atomic.Bool
	present *resourcelock.LeaderElectionRecord
}

var errCut = errors.New("no answer")

func (r *record) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	switch {
	case r.cut.Load():
		return nil, nil, errCut
	case r.present == nil:
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "report")
	}
	raw, err := json.Marshal(r.present)
	return r.present, raw, err
}

func (r *record) Create(ctx context.Context, l resourcelock.LeaderElectionRecord) error {
	return r.Update(ctx, l)
}

func (r *record) Update(_ context.Context, l resourcelock.LeaderElectionRecord) error {
	if r.cut.Load() {
		return errCut
	}
	r.present = &l
	return nil
}

func (r *record) RecordEvent(string) {}
func (r *record) Identity() string   { return "host-7" }
func (r *record) Describe() string   { return "report" }

// The leader's renewals fail. RunOrDie returns while OnStartedLeading still works, and the adaptor fails.
func TestClientGoReturnsAfterALossBeforeTheWorkHasEndedAndItsAdaptorFails(t *testing.T) {
	lock, started, end := &record{}, make(chan struct{}), make(chan struct{})
	health, worked := leaderelection.NewLeaderHealthzAdaptor(0), make(chan struct{})
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		leaderelection.RunOrDie(t.Context(), leaderelection.LeaderElectionConfig{
			Lock: lock, WatchDog: health, LeaseDuration: 2 * time.Second, RenewDeadline: time.Second, RetryPeriod: 100 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) { close(started); <-end; close(worked) }, OnStoppedLeading: func() {},
			},
		})
	}()
	<-started
	require.NoError(t, health.Check(nil))
	lock.cut.Store(true)
	<-returned
	select {
	case <-worked:
		t.Error("the work has ended")
	default:
	}
	testkit.Eventually(t, "the adaptor fails", func() bool { return health.Check(nil) != nil })
	close(end)
	<-worked
}
