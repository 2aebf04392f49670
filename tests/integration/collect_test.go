package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// Clients drop old registers even if they live only for a moment, and even on servers without free memory.

// plant adds registers to each server. The first was moved at the given instant, the others after it.
func plant(servers []*redistest.Server, count int, at time.Time) {
	const add = `for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
		redis.call('ZADD', KEYS[1], string.format('%.0f', ARGV[3] + i), ARGV[4] .. 'job-' .. i)
	end`
	const most = 5000 // in one command
	for _, s := range servers {
		for begun := 0; begun < count; begun += most {
			s.MustDo("EVAL", add, "1", registersKey, strconv.Itoa(begun), strconv.Itoa(min(begun+most, count)-1), strconv.FormatInt(at.UnixMicro(), 10), testkit.Prefix)
		}
	}
}

// fill sets the limit of each server this many bytes below its used memory, or to one byte if it uses less.
func fill(t *testing.T, servers []*redistest.Server, below int) {
	t.Helper()
	for _, s := range servers {
		s.MustDo("CONFIG", "SET", "maxmemory", strconv.FormatInt(max(s.Info("memory", "used_memory")-int64(below), 1), 10))
	}
}

// registers returns how many registers each server has.
func registers(servers []*redistest.Server) (n []int64) {
	for _, s := range servers {
		n = append(n, s.MustDo("ZCARD", registersKey).(int64))
	}
	return n
}

// The limit is reached and only old registers can give way. The servers serve again within 10 s of the instant at which
// the registers are a day old.
func TestFullServersServeAgainWhenTheirRegistersAreOld(t *testing.T) {
	testkit.OnlyNightly(t, "servers are filled for 20 s")
	t.Parallel()
	const count, soon = 30_000, 20 * time.Second // planting them takes a loaded machine some seconds
	m, servers := testkit.Manager(t, 3)
	old := time.Now().Add(soon)
	plant(servers, count, old.Add(-24*time.Hour))
	fill(t, servers, 1<<20)
	_, err := m.TryAcquire(background, "job")
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	require.ErrorContains(t, err, "OOM")
	require.Greater(t, time.Until(old), time.Duration(0), "planting took too long")
	for {
		l, err := m.TryAcquire(background, "job")
		if err == nil {
			testkit.Released(t, l)
			break
		}
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		require.Less(t, time.Since(old), 10*time.Second, "%v, registers %v", err, registers(servers))
		time.Sleep(20 * time.Millisecond)
	}
	assert.Greater(t, time.Since(old), time.Duration(0), "no young register is dropped")
	t.Logf("served %v after the age", time.Since(old))
	testkit.Eventually(t, "all are dropped", func() bool { return slices.Max(registers(servers)) <= 1 })
	for _, s := range servers {
		text, _ := s.MustDo("GET", baseKey).(string)
		base, err := strconv.ParseInt(text, 10, 64)
		require.NoError(t, err)
		assert.Equal(t, old.Add(-24*time.Hour).UnixMicro()+count-1, base, "the base is the largest that was dropped")
	}
}

// Clients that live for a moment, and take new names all the time, drop old registers too.
func TestShortLivedClientsDropOldRegisters(t *testing.T) {
	servers := testkit.Start(t, 3)
	plant(servers, 1000, time.Now().Add(-25*time.Hour))
	for i := range 20 {
		m, err := testkit.New(t, redistest.Addrs(servers))
		require.NoError(t, err)
		l, err := m.TryAcquire(background, fmt.Sprint("new-", i))
		if !errors.Is(err, quorumlock.ErrNoQuorum) {
			require.NoError(t, err)
			testkit.Released(t, l)
		}
		require.NoError(t, m.Close(context.Background()))
	}
	for i, n := range registers(servers) {
		assert.LessOrEqual(t, n, int64(20), "server %d", i)
	}
}

// The marker of the restart guard needs memory. A restarted server that is full drops old registers for it, and so
// votes after the quarantine.
func TestAFullServerGetsAMarkerForOldRegisters(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about a full server, and a group is full as a whole")
	servers := testkit.Start(t, 1)
	plant(servers, 1000, time.Now().Add(-25*time.Hour))
	fill(t, servers, 1<<20) // more than the registers take
	_, err := servers[0].Do("SET", "other", "x")
	require.ErrorContains(t, err, "OOM")
	m, err := quorumlock.New(background, testkit.Nodes(t, redistest.Addrs(servers)...), testkit.Options(quorumlock.WithRestartGuard(time.Minute))...)
	if err == nil {
		defer func() { assert.NoError(t, m.Close(context.Background())) }()
	}
	testkit.Eventually(t, "the marker is written", func() bool { return servers[0].MustDo("EXISTS", markerKey) == int64(1) })
}
