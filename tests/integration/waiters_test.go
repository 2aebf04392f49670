package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// waitsAt has the addresses of the servers for the process that a test kills.
const waitsAt = "QUORUMLOCK_WAITS_AT"

// waitToBeKilled waits for "job" as a writer and with three readers, and for two permits of "pool".
func waitToBeKilled(t *testing.T, addrs []string) {
	m := testkit.Connect(t, addrs)
	go func() { _, _ = m.Acquire(t.Context(), "job") }()
	for range 3 {
		go func() { _, _ = m.Acquire(t.Context(), "job", quorumlock.Shared()) }()
	}
	for range 2 {
		go func() { _, _ = m.Acquire(t.Context(), "pool", quorumlock.Permits(1)) }()
	}
	select {}
}

// allCounts returns the number of waiters that each answer about "job" and "pool" has.
func allCounts(t *testing.T, m *quorumlock.Manager) (counts []string) {
	count := func(what string, n int) { counts = append(counts, fmt.Sprintf("%s %d", what, n)) }
	s, err := m.Inspect(t.Context(), "job")
	require.NoError(t, err)
	count("Inspect", s.Waiters)
	count("queue", len(s.Queue))
	for s, err := range m.List(t.Context(), "") {
		require.NoError(t, err)
		count("List "+s.Name, s.Waiters)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	holdings, err := m.Observe(ctx, "job")
	require.NoError(t, err)
	count("Observe", (<-holdings).Waiters)
	s, err = m.Inspect(t.Context(), "pool", quorumlock.Permits(2))
	require.NoError(t, err)
	count("queue", len(s.Queue))
	for _, slot := range s.Slots {
		count("permits", slot.Waiters)
	}
	return counts
}

// A process with waiters is killed. No count includes them from then on, though their tickets stay. The waiter of
// another process still counts.
func TestNoCountHasTheWaitersOfAKilledProcess(t *testing.T) {
	testkit.OnlyAddrs(t, "the other process dials addresses")
	if addrs := os.Getenv(waitsAt); addrs != "" {
		waitToBeKilled(t, strings.Fields(addrs))
	}
	t.Parallel()
	m, servers := testkit.Manager(t, 3, quorumlock.WithTTL(2*time.Second))
	lease, err := m.Acquire(t.Context(), "job")
	require.NoError(t, err)
	wanted := lease.Wanted()
	_, err = m.Acquire(t.Context(), "pool", quorumlock.Permits(1))
	require.NoError(t, err)
	living := testkit.Connect(t, redistest.Addrs(servers))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if l, err := living.Acquire(t.Context(), "job"); assert.NoError(t, err) {
			testkit.Released(t, l)
		}
	}()

	other := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	other.Env = append(os.Environ(), waitsAt+"="+strings.Join(redistest.Addrs(servers), " "))
	other.Stderr = os.Stderr
	require.NoError(t, other.Start())
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	counts := func(job, pool int) func() bool {
		want := fmt.Sprintf("[Inspect %[1]d queue %[1]d List job %[1]d Observe %[1]d queue %[2]d permits %[2]d permits %[2]d]", job, pool)
		return func() bool { return fmt.Sprint(allCounts(t, m)) == want }
	}
	testkit.Eventually(t, "all wait", counts(5, 2))
	require.Eventually(t, func() bool { return (<-wanted).Waiters == 5 }, 10*time.Second, time.Millisecond, "the holder is told")

	require.NoError(t, other.Process.Kill())
	killed := time.Now()
	for now := counts(1, 0); !now(); {
		require.Less(t, time.Since(killed), 10*time.Second, "it counts %v", allCounts(t, m))
	}
	t.Logf("counted no more after %v", time.Since(killed))
	assert.Equal(t, []int64{5, 5, 5}, testkit.Queues(servers), "the tickets are there")
	require.Eventually(t, func() bool { return (<-wanted).Waiters == 1 }, 10*time.Second, time.Millisecond, "the holder is told")
	testkit.Released(t, lease)
	<-ended
}

// A user created before that right existed may not ask which waiters are subscribed. Counts then follow the queues, and
// nothing fails.
func TestWithoutTheRightToPUBSUBCountsHaveTheKilledToo(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the rights at one server")
	t.Parallel()
	rules := slices.DeleteFunc(documented(t), func(rule string) bool { return rule == "+pubsub|numsub" })
	server := redistest.Start(t, 1, append([]string{"--user", "quorumlock"}, rules...)...)[0]
	m := open(t, as(t, "quorumlock", []string{server.Addr()}), patient()...)
	l := testkit.Acquired(t, m, "job")
	server.MustDo("ZADD", testkit.QueueKey("job"), "1", strings.Repeat("d", 32)+"500")
	assert.Equal(t, 1, testkit.Inspected(t, m).Waiters)
	testkit.Renewed(t, l)
	testkit.Released(t, l)
}
