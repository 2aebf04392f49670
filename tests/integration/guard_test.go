package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

func TestARestartedNodeDoesNotVoteUnderTheGuard(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the markers of one server")
	t.Parallel()
	servers := redistest.Start(t, 3)
	guard := []quorumlock.Option{
		quorumlock.WithTTL(time.Second), quorumlock.WithRestartGuard(3 * time.Second), quorumlock.WithTrustEmptyNodes(),
	}
	m := testkit.Connect(t, redistest.Addrs(servers), guard...)
	// The marker exists, but trusting empty nodes must not hide a restart.
	var log transcript
	strict := testkit.Connect(t, redistest.Addrs(servers), append(guard[:2:2], quorumlock.WithLogger(log.logger()))...)
	l, err := strict.Acquire(background, "job", quorumlock.WithoutRenewal())
	require.NoError(t, err)
	require.NoError(t, m.Close(background))
	restarted := time.Now()
	servers[0].Restart()
	servers[1].Restart()
	// Both nodes of the majority have forgotten the lease. Without the guard another
	// client could be granted the lock now.
	var quarantined time.Duration
	var next *quorumlock.Lease
	testkit.Eventually(t, "the nodes vote after the quarantine", func() bool {
		s, _ := strict.Inspect(background, "job") // no majority while it reconnects
		quarantined = max(quarantined, s.Nodes[0].QuarantinedFor)
		next, err = strict.TryAcquire(background, "job")
		return err == nil
	})
	assert.GreaterOrEqual(t, time.Since(restarted), 3*time.Second)
	assert.Positive(t, quarantined)
	assert.Greater(t, next.Token(), l.Token())
	testkit.Eventually(t, "the log has the start and the end of the quarantine", func() bool {
		_, after, quarantined := strings.Cut(log.String(), "node is in quarantine: it grants no locks until that ends")
		return quarantined && strings.Contains(after, "quorumlock: node grants locks again")
	})
}

// docs/kubernetes.md says so: pods keep nothing.
func TestTwoOfThreeNodesThatRestartEmptyEndTheLeases(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the markers of one server")
	t.Parallel()
	servers := redistest.Start(t, 3)
	m := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTTL(10*time.Second), quorumlock.WithRestartGuard(10*time.Second), quorumlock.WithTrustEmptyNodes())
	l := testkit.Acquired(t, m, "job")
	testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	began := time.Now()
	servers[0].Kill()
	servers[1].Kill()
	servers[0].Restart()
	servers[1].Restart()
	lost := <-l.Lost()
	assert.Equal(t, quorumlock.LostMissing, lost.Reason)
	assert.Less(t, time.Since(began), 9*time.Second, "at a renewal, and not at the end")
}

// A new client that trusts empty nodes writes a marker after a data loss. Managers that
// knew the data notice it: they ignore the node's votes until no lease can have been
// forgotten.
func TestAMarkerThatATrustingClientWroteAfterALossIsNoticed(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the markers of one server")
	t.Parallel()
	const longest = 4 * time.Second
	guard := []quorumlock.Option{
		quorumlock.WithTTL(2 * time.Second), quorumlock.WithRestartGuard(longest), quorumlock.WithTrustEmptyNodes(),
	}
	m, servers := testkit.Manager(t, 3, guard...)
	markers := func() (all []any) {
		for _, s := range servers {
			all = append(all, s.MustDo("GET", markerKey))
		}
		return all
	}
	l, err := m.Acquire(background, "job", quorumlock.WithoutRenewal())
	require.NoError(t, err)
	before := markers()
	for _, s := range servers {
		s.MustDo("FLUSHALL")
	}
	testkit.Connect(t, redistest.Addrs(servers), guard...)
	flushed := time.Now()
	for i, marker := range markers() {
		assert.NotEqual(t, before[i], marker, "the same process, and other data")
	}
	_, err = m.TryAcquire(background, "job")
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum, "the former holder is unknown: %v", err)
	var next *quorumlock.Lease
	testkit.Eventually(t, "the nodes vote after the quarantine", func() bool {
		next, err = m.TryAcquire(background, "job")
		return err == nil
	})
	assert.GreaterOrEqual(t, time.Since(flushed), longest-time.Second)
	assert.Greater(t, next.Token(), l.Token())
}

func TestAnInvalidGuardMarkerIsAQuarantineOrAnErrorAndNoRegisterTrustsIt(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the markers of one server")
	t.Parallel()
	const farAway = "7258118400000000" // µs
	for claim, c := range map[string]struct {
		put     func(s *redistest.Server) []string
		refused bool // by New; otherwise a quarantine
	}{
		"text":          {put: func(*redistest.Server) []string { return []string{"SET", "", "text"} }},
		"empty":         {put: func(*redistest.Server) []string { return []string{"SET", "", ""} }},
		"binary":        {put: func(*redistest.Server) []string { return []string{"SET", "", "\xff\x00 1 2000 nonce"} }},
		"1 MiB":         {put: func(*redistest.Server) []string { return []string{"SETRANGE", "", fmt.Sprint(1<<20 - 1), "x"} }},
		"a number more": {put: func(s *redistest.Server) []string { return []string{"SET", "", runID(s) + " 1 2000 nonce 3"} }},
		"a float":       {put: func(s *redistest.Server) []string { return []string{"SET", "", runID(s) + " 1.5 2000 nonce"} }},
		"another run": {put: func(*redistest.Server) []string {
			return []string{"SET", "", "run 99999999999999999999999999 2000 nonce"}
		}},
		"hash": {put: func(*redistest.Server) []string { return []string{"HSET", "", "run", "x", "until", "0"} }, refused: true},
		"list": {put: func(*redistest.Server) []string { return []string{"RPUSH", "", "x"} }, refused: true},
		// The marker has our own run_id, and an end that is possible only if a clock was set back. Lua does not count
		// beyond 2^53.
		"an end in the year 2200": {put: func(s *redistest.Server) []string {
			return []string{"SET", "", runID(s) + " " + farAway + " 2000 nonce"}
		}},
		"an end beyond 2^53": {put: func(s *redistest.Server) []string {
			return []string{"SET", "", runID(s) + " 9000000000000000000 2000 nonce"}
		}},
		"an end beyond int64": {put: func(s *redistest.Server) []string {
			return []string{"SET", "", runID(s) + " 99999999999999999999999999 2000 nonce"}
		}},
		// No list of a guarded client is stored, so no client uses this marker: it is replaced.
		"an endless maximum": {put: func(s *redistest.Server) []string {
			return []string{"SET", "", runID(s) + " 1 99999999999999999999999999 nonce"}
		}},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			servers := redistest.Start(t, 3)
			for _, s := range servers {
				put([]*redistest.Server{s}, c.put(s), markerKey)
			}
			const longest = 2 * time.Second
			opts := []quorumlock.Option{
				quorumlock.WithTTL(longest), quorumlock.WithNodeTimeout(time.Second), quorumlock.WithRestartGuard(longest),
			}
			m, err := start(t, quorumlock.Addrs(redistest.Addrs(servers)...), opts...)
			if c.refused {
				require.ErrorIs(t, err, quorumlock.ErrInvalid)
				assert.Less(t, len(err.Error()), 1024)
				return
			}
			require.NoError(t, err)
			defer func() { require.NoError(t, m.Close(background)) }()
			ctx, cancel := context.WithTimeout(background, 20*longest)
			defer cancel()
			last := int64(0)
			for range 2 { // the second lease would find a register that the first has spoiled
				l, err := m.Acquire(ctx, "job")
				require.NoError(t, err)
				assert.Greater(t, l.Token(), last)
				assert.Less(t, l.Token(), int64(1)<<53)
				last = l.Token()
				_ = l.Release(background) // or its key expires
			}
		})
	}
}

// runID returns the run_id of the server's process.
func runID(s *redistest.Server) string {
	_, rest, _ := strings.Cut(s.MustDo("INFO", "server").(string), "\r\nrun_id:")
	id, _, _ := strings.Cut(rest, "\r\n")
	return id
}
