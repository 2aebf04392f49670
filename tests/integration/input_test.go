package integration

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// A message names the value, the bound and the fix.
func TestBadInputIsRefusedWithTheFix(t *testing.T) {
	testkit.OnlyAddrs(t, "groups have other bounds")
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
	refused(`node 0 ("`+host+`"): must be host:port; add the port, 6379 as a rule`, quorumlock.Addrs(host))
	refused(`must be host:port`, quorumlock.Addrs("::1"))
	refused(`is a list of addresses; split it`, quorumlock.Addrs(addr+",b:"+port))
	refused(`has a space around the address; trim it`, quorumlock.Addrs(" "+addr))
	good := quorumlock.Addrs(addr)
	refused("WithTTL 30ns: must be within 100ms … 24h0m0s; write 30*time.Second if seconds were meant, because a bare number counts nanoseconds",
		good, quorumlock.WithTTL(30))
	refused("write 5*time.Second", good, quorumlock.WithNodeTimeout(5))
	refused("write 60*time.Second", good, quorumlock.WithMaxHold(60))
	refused("write 2*time.Second", good, quorumlock.WithMinHold(2))
	refused("WithMinHold 2s: must be at most WithMaxHold's 1s", good, quorumlock.WithMinHold(2*time.Second), quorumlock.WithMaxHold(time.Second))
	refused("WithMinHold 25h0m0s", good, quorumlock.WithMinHold(25*time.Hour))
}

func TestANilContextOrFunctionIsAnErrorAndNoPanic(t *testing.T) {
	m, _ := testkit.Manager(t, 1)
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
		assert.Contains(t, err.Error(), "must not be nil; pass ", call)
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
	assert.NotContains(t, log.String(), "level=INFO", "a program that starts says nothing of nodes that vote")
	assert.Contains(t, log.String(), `level=DEBUG msg="quorumlock: node grants locks"`)
}
