package quorumlock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

func TestAnEndedWaitHasAllItsCausesOnOneLine(t *testing.T) {
	m, _ := newManager(t, 3, quorumlock.WithHolder("web-1"))
	_, err := m.Acquire(background, "job")
	require.NoError(t, err)
	mine := errors.New("the request is over")
	ctx, cancel := context.WithTimeoutCause(background, 50*time.Millisecond, mine)
	defer cancel()
	_, err = m.Acquire(ctx, "job")
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	require.ErrorIs(t, err, context.DeadlineExceeded, "a cause does not hide the context's error")
	require.ErrorIs(t, err, mine)
	assert.Regexp(t, `^quorumlock: "job" is held by web-1 \(this very Manager\), for 9\.\d+s more unless renewed; `+
		`stopped waiting: context deadline exceeded \(the request is over\)$`, err.Error())

	_, err = m.Acquire(ctx, "other")
	require.ErrorIs(t, err, mine)
	assert.Equal(t, `quorumlock: acquire "other": context deadline exceeded (the request is over)`, err.Error())

	lead := m.Lead(ctx, "leader", func(context.Context, *quorumlock.Lease) error { return nil })
	require.ErrorIs(t, lead, context.DeadlineExceeded)
	assert.NotContains(t, lead.Error(), "\n")
}

func TestErrorsOfDoAndItsFunctionAreOnOneLine(t *testing.T) {
	m, servers := newManager(t, 3, quorumlock.WithTTL(2*time.Second))
	mine := errors.New("half done")
	err := m.Do(background, "job", func(_ context.Context, l *quorumlock.Lease) error {
		forgotten(t, l, servers[:2])
		return mine
	})
	require.ErrorIs(t, err, quorumlock.ErrLost)
	require.ErrorIs(t, err, mine)
	assert.NotContains(t, err.Error(), "\n")
}

// A release ends the context of its lease, and the contexts of Do derived from it.
func TestAReleaseIsNotCutShortByTheContextThatItEnds(t *testing.T) {
	m, servers := newManager(t, 3)
	for range 20 {
		l, err := m.Acquire(background, "job")
		require.NoError(t, err)
		derived, cancel := context.WithCancel(l.Context())
		require.NoError(t, l.Release(derived))
		cancel()
		require.NoError(t, m.Do(background, "job", func(ctx context.Context, l *quorumlock.Lease) error { return l.Release(ctx) }))
	}
	eventually(t, "the last node has also answered", func() bool { return locks(t, servers, "job") == 0 })
}

func TestAReleaseThatIsCutShortSaysThatItGoesOn(t *testing.T) {
	m, servers := newManager(t, 3)
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	for _, s := range servers {
		s.Stop()
	}
	ctx, cancel := context.WithTimeout(background, 10*time.Millisecond)
	defer cancel()
	err = l.Release(ctx)
	for _, s := range servers {
		s.Continue()
	}
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Contains(t, err.Error(), `quorumlock: release "job": reached 0 nodes, need 2 of 3`)
	assert.Contains(t, err.Error(), "stopped waiting for answers, while the deletion goes on: context deadline exceeded")
	eventually(t, "the deletion goes on", func() bool { return locks(t, servers, "job") == 0 })
}

// A message names the value, the bound and the fix.
func TestBadInputIsRefusedWithTheFix(t *testing.T) {
	addr := redistest.Start(t, 1)[0].Addr()
	host, port, _ := strings.Cut(addr, ":")
	refused := func(what string, nodes []rueidis.ClientOption, opts ...quorumlock.Option) {
		t.Helper()
		m, err := quorumlock.New(background, nodes, opts...)
		if err == nil {
			require.NoError(t, m.Close(background))
		}
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
		assert.Contains(t, err.Error(), what)
	}
	refused(`node 0: InitAddress is empty`, quorumlock.Addrs(""))
	refused(`node 0 ("`+host+`"): has to be host:port; add the port, 6379 as a rule`, quorumlock.Addrs(host))
	refused(`has to be host:port`, quorumlock.Addrs("::1"))
	refused(`is a list of addresses; split it`, quorumlock.Addrs(addr+",b:"+port))
	refused(`has a space around the address; trim it`, quorumlock.Addrs(" "+addr))
	good := quorumlock.Addrs(addr)
	refused("WithTTL 30ns: has to be within 100ms … 24h0m0s; write 30*time.Second if seconds were meant, because a bare number counts nanoseconds",
		good, quorumlock.WithTTL(30))
	refused("write 5*time.Second", good, quorumlock.WithNodeTimeout(5))
	refused("write 60*time.Second", good, quorumlock.WithMaxHold(60))
	refused("write 2*time.Second", good, quorumlock.WithMinHold(2))
	refused("WithMinHold 2s: has to be at most WithMaxHold's 1s", good, quorumlock.WithMinHold(2*time.Second), quorumlock.WithMaxHold(time.Second))
	refused("WithMinHold 25h0m0s", good, quorumlock.WithMinHold(25*time.Hour))
}

func TestANilContextOrFunctionIsAnErrorAndNoPanic(t *testing.T) {
	m, _ := newManager(t, 1)
	l, err := m.Acquire(background, "job")
	require.NoError(t, err)
	var none context.Context
	_, errNew := quorumlock.New(none, quorumlock.Addrs("localhost:1"))
	_, errAcquire := m.Acquire(none, "other")
	_, errTry := m.TryAcquire(none, "other")
	_, errInspect := m.Inspect(none, "other")
	work := func(context.Context, *quorumlock.Lease) error { return nil }
	for call, err := range map[string]error{
		"New": errNew, "Acquire": errAcquire, "TryAcquire": errTry, "Inspect": errInspect,
		"Do": m.Do(none, "other", work), "Lead": m.Lead(none, "other", work), "Close": m.Close(none),
		"Renew": l.Renew(none), "Verify": l.Verify(none), "Release": l.Release(none),
		"Do without a function": m.Do(background, "other", nil), "Lead without a function": m.Lead(background, "other", nil),
	} {
		require.ErrorIs(t, err, quorumlock.ErrInvalid, call)
		assert.Contains(t, err.Error(), "is nil; pass ", call)
	}
	assert.True(t, l.Valid())
}

// A program that configures no logger still sees the warnings that need attention.
func TestWarningsGoToTheDefaultLogger(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer slog.SetDefault(before)
	servers := redistest.Start(t, 2)
	for _, quiet := range []bool{true, false} {
		opts := []quorumlock.Option{nil}
		if quiet {
			opts = []quorumlock.Option{quorumlock.WithLogger(slog.New(slog.DiscardHandler))}
		}
		m, err := quorumlock.New(background, quorumlock.Addrs(redistest.Addrs(servers)...), opts...)
		require.NoError(t, err)
		require.NoError(t, m.Close(background)) // everything is logged when it returns
		if quiet {
			assert.Empty(t, log.String())
		}
	}
	assert.Contains(t, log.String(), "even number of nodes")
	assert.NotContains(t, log.String(), "level=INFO", "no warning for nodes that vote")
}

func TestNodesReturnsWhatAHealthEndpointNeeds(t *testing.T) {
	m, servers := newManager(t, 3)
	for i, n := range m.Nodes() {
		assert.Equal(t, servers[i].Addr(), n.Addr)
		assert.Regexp(t, `^\d+\.\d+`, n.Version)
		assert.True(t, n.Voting)
		assert.NoError(t, n.Err)
		assert.NoError(t, n.Warning)
		assert.Positive(t, n.RoundTrip)
		assert.Less(t, n.ClockOffset.Abs(), time.Second, "both clocks are of one machine")
	}
	servers[1].Kill()
	eventually(t, "the failure is noticed", func() bool { return !m.Nodes()[1].Voting })
	assert.Error(t, m.Nodes()[1].Err)
	assert.True(t, m.Nodes()[0].Voting)

	guarded := connect(t, []string{servers[0].Addr()}, quorumlock.WithRestartGuard(time.Minute))
	n := guarded.Nodes()[0]
	assert.False(t, n.Voting)
	assert.InDelta(t, time.Minute, n.QuarantinedFor, float64(20*time.Second))
	assert.ErrorContains(t, n.Err, "quarantine")
}
