package gocronlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/quorumlock/quorumlock"
)

// ErrNotLeader means that this process is not the leader: its scheduler skips the
// job.
var ErrNotLeader = errors.New("gocronlock: not the leader")

// campaignAgain is how long an Elector waits after Lead has given up. Lead gives up when
// too few nodes can work without a fix.
const campaignAgain = 5 * time.Second

// Elector makes one process the leader. It campaigns from NewElector until Close,
// in one goroutine. It is safe for concurrent use, also by several schedulers.
type Elector struct {
	lease  atomic.Pointer[quorumlock.Lease] // of the current term, nil outside of terms
	cancel context.CancelFunc
	done   chan struct{} // closed when the campaign has ended

	mu  sync.Mutex // guards err
	err error      // the error that ended the campaign, or holds it up
}

// The compiler checks what gocron expects.
var _ gocron.Elector = (*Elector)(nil)

// NewElector returns an Elector for gocron.WithDistributedElector and begins to
// campaign for the name. All processes of one schedule use the same name. The
// options are for the leader's lease. Close it before the Manager.
func NewElector(m *quorumlock.Manager, name string, options ...quorumlock.AcquireOption) *Elector {
	ctx, cancel := context.WithCancel(context.Background())
	e := &Elector{cancel: cancel, done: make(chan struct{})}
	go e.campaign(ctx, m, name, options)
	return e
}

func (e *Elector) campaign(ctx context.Context, m *quorumlock.Manager, name string, options []quorumlock.AcquireOption) {
	defer close(e.done)
	for {
		err := m.Lead(ctx, name, e.term, options...)
		if ctx.Err() != nil {
			return
		}
		e.setErr(err)
		if errors.Is(err, quorumlock.ErrInvalid) || errors.Is(err, quorumlock.ErrClosed) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(campaignAgain):
		}
	}
}

// term lasts until the lease ends.
func (e *Elector) term(ctx context.Context, lease *quorumlock.Lease) error {
	e.setErr(nil)
	e.lease.Store(lease)
	<-ctx.Done()
	e.lease.Store(nil)
	return nil
}

func (e *Elector) setErr(err error) {
	e.mu.Lock()
	e.err = err
	e.mu.Unlock()
}

// IsLeader implements gocron.Elector. It returns nil while this process is the leader, by
// the clocks at the call (Lease.Valid), without a round trip. Otherwise it returns
// ErrNotLeader, joined with the error that ended the campaign or holds it up, if there is
// one.
func (e *Elector) IsLeader(context.Context) error {
	if lease := e.lease.Load(); lease != nil && lease.Valid() {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return errors.Join(ErrNotLeader, e.err)
	}
	return ErrNotLeader
}

// Lease returns the leader's lease, or nil when this process is not the leader. A
// job asks for it at its beginning, for the context that ends with the leadership
// and for the fencing token.
func (e *Elector) Lease() *quorumlock.Lease {
	if lease := e.lease.Load(); lease != nil && lease.Valid() {
		return lease
	}
	return nil
}

// Close ends the campaign, releases the leadership and returns when that is done.
// It is idempotent.
func (e *Elector) Close() {
	e.cancel()
	<-e.done
}
