package campaign

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/report"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// idle returns the campaigns of a process whose nodes never run: the test delivers their answers.
func idle(nodes int) *Campaigns {
	e := ensemble.New(&ensemble.Config{
		Nodes: slices.Repeat([]rueidis.ClientOption{{InitAddress: []string{"127.0.0.1:1"}}}, nodes), Timeout: time.Hour, Clock: clock.New(),
		Report: report.New(slog.New(slog.DiscardHandler)), Closing: func() bool { return false }, Events: noEvents{},
	})
	return New(&Config{
		Ensemble: e, Locks: hold.NewWatchdog(&hold.Config{Ensemble: e, Calls: &sync.WaitGroup{}}).Locks,
		Prefix: "p:", Manager: strings.Repeat("0", wire.ManagerLen), Closing: context.Background(),
	})
}

// noEvents ignores the reports of an ensemble.
type noEvents struct{}

func (noEvents) NodeChanged(int, node.Health)               {}
func (noEvents) ClockStepped(*ensemble.Step) (apply func()) { return func() {} }
func (noEvents) Answered(int, *wire.Request, *wire.Reply)   {}
func (noEvents) HandedOn(string)                            {}
func (noEvents) Woken(int, wire.WakeKind, string, string)   {}
func (noEvents) Subscribed(int)                             {}

// begin begins the campaign of a caller.
func begin(s *Campaigns, by *caller) *Campaign {
	c := &Campaign{}
	s.Begin(c, Call{Kind: Exclusive,
		Wait: context.Background(), Key: "p:job", Caller: by,
		Terms: &config.Terms{Terms: quorum.Terms{Nodes: s.ensemble.Size(), TTL: time.Hour, Timeout: time.Hour}, Manual: true},
	})
	return c
}

// caller is a Caller without a queue.
type caller struct{ lock *hold.Lock }

func (c *caller) Open() (*hold.Lock, hold.Tenant) {
	c.lock = &hold.Lock{}
	return c.lock, lease{}
}

func (*caller) Queue() hold.Queue { return nil }

// lease is a Tenant that ignores its events.
type lease struct{}

func (lease) Report(hold.Event) {}

// granted opens the lock of an attempt that has its votes.
func granted(t *testing.T, a *attempt) *hold.Lock {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	l, err := a.grant()
	require.NoError(t, err)
	return l
}
