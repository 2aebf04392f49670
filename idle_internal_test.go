package quorumlock

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/bus"
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/report"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// idleManager returns a Manager whose goroutines do not run, on nodes that never answer.
func idleManager(c *clock.Clock) *Manager {
	m := &Manager{cfg: &settings{}, clock: c, reporter: report.New(slog.New(slog.DiscardHandler)), telemetry: &telemetry{clock: c}, events: bus.New(weight)}
	m.life.work, m.life.end = context.WithCancelCause(context.Background())
	m.shards = []*shard{{m: m}}
	m.shards[0].ensemble = ensemble.New(&ensemble.Config{
		Nodes: Addrs("127.0.0.1:1"), Clock: c, Report: m.reporter, Closing: m.life.ending, Events: m.shards[0],
	})
	m.shards[0].dog = hold.NewWatchdog(&hold.Config{Ensemble: m.shards[0].ensemble, Calls: &m.life.calls})
	return m
}

// idleTerms returns the terms of a lease that its holder renews.
func idleTerms(ttl time.Duration) *config.Terms {
	return &config.Terms{Terms: quorum.Terms{Nodes: 1, TTL: ttl, Timeout: ttl}, Manual: true}
}

// idleLease opens a lease of a lock that all nodes have granted. change may alter the grant.
func idleLease(t testing.TB, m *Manager, terms *config.Terms, change func(*hold.Grant)) *Lease {
	t.Helper()
	ballot := quorum.NewBallot(terms.Nodes, true, 7)
	for i := range terms.Nodes {
		ballot.Grant(i, 7, 3)
	}
	began, steady := m.clock.Both()
	g := &hold.Grant{
		Terms: terms, Entry: wire.Entry{Lock: m.cfg.Prefix + "job", Value: strings.Repeat("0", wire.OwnerLen) + " 7 1 - "}, Proposal: 7, Ballot: &ballot, Began: began, Steady: steady,
	}
	if change != nil {
		change(g)
	}
	l := &Lease{m: m, lock: &hold.Lock{}, values: context.Background()}
	require.NoError(t, m.shards[0].dog.Open(g, l.lock, (*tenant)(l)))
	return l
}
