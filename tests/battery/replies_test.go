package battery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// Each case runs on a node, which reports the exact status, and on a Manager of two nodes, the other of which always
// grants. A fault must never be reported as contention. A transient fault must not be reported as a misconfiguration,
// or the other way round. After the fault the node must recover by itself, with no keys left behind.
func TestEveryErrorReplyIsClassifiedAsListed(t *testing.T) {
	r := newRow(t, "error replies of real servers")
	healthy := redistest.Start(t, 1)[0]
	cluster := newReplyCluster(t)
	quotes := newQuotes(t)
	var mu sync.Mutex
	right := 0
	t.Run("each", func(t *testing.T) {
		for i, c := range replyCases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				rig := newReplyRig(t, fmt.Sprintf("reply-%d", i))
				rig.healthy, rig.cluster, rig.quotes = healthy, cluster, quotes
				ok := rig.run(c)
				mu.Lock()
				defer mu.Unlock()
				if ok && !t.Failed() {
					right++
				}
			})
		}
	})
	r.figure(fmt.Sprintf("classified as listed, and back after the fault: %d/%d", right, len(replyCases)), "all",
		right == len(replyCases))
}

// At its memory limit a server refuses commands that allocate. The result must be: no new lease, and none lost. Without
// renewals all would be lost.
func TestHoldersKeepTheirLeasesWhenTheNodesAreFull(t *testing.T) {
	const ttl = 3 * time.Second // long enough that a busy machine still renews
	leases, rounds := 50, count(20, 1)
	r := newRow(t, fmt.Sprintf("all nodes out of memory for 1.5 TTL %d times, N=3", rounds))
	servers := redistest.Start(t, 3)
	m := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTTL(ttl))
	kept, refused, released, left, grants := 0, 0, 0, 0, 0
	for round := range rounds {
		var live []*quorumlock.Lease
		for i := range leases {
			l, err := m.Acquire(t.Context(), fmt.Sprintf("held-%d-%d", round, i))
			require.NoError(t, err)
			live = append(live, l)
		}
		for _, s := range servers {
			s.MustDo("CONFIG", "SET", "maxmemory", "1")
		}
		for end := time.Now().Add(ttl * 3 / 2); time.Now().Before(end); time.Sleep(ttl / 30) {
			l, err := m.TryAcquire(t.Context(), "new")
			switch {
			case err == nil:
				grants++
				require.NoError(t, l.Release(t.Context()))
			case !errors.Is(err, quorumlock.ErrNoQuorum) || errors.Is(err, quorumlock.ErrHeld):
				t.Errorf("refused as %v", err)
			case strings.Contains(err.Error(), "OOM"):
				refused++
			}
		}
		for _, l := range live {
			if l.Valid() {
				kept++
			}
			if err := l.Release(t.Context()); err == nil {
				released++
			}
		}
		within(10*time.Second, func() bool { return countLocks(servers) == 0 })
		left += countLocks(servers)
		for _, s := range servers {
			s.MustDo("CONFIG", "SET", "maxmemory", "0")
		}
		patiently(t, "a lease is granted", func() bool {
			l, err := m.TryAcquire(t.Context(), "new")
			return err == nil && l.Release(t.Context()) == nil
		})
	}
	r.figure(fmt.Sprintf("leases kept %d/%d", kept, leases*rounds), "all", kept == leases*rounds)
	r.figure(fmt.Sprintf("new leases granted %d, refused for want of memory %d", grants, refused), "none, all",
		grants == 0 && refused > 0)
	r.figure(fmt.Sprintf("released while full %d/%d, keys left %d", released, leases*rounds, left), "all, 0",
		released == leases*rounds && left == 0)
}

// Valkey names its mode differently from Redis. Under either name, a cluster isn't a set of independent nodes.
func TestAClusterIsRefusedByEitherNameOfItsMode(t *testing.T) {
	r := newRow(t, "a cluster refused by its mode")
	names := []string{"redis_mode", "server_mode"}
	refused := 0
	for _, name := range names {
		board := newSwitchboard(t, redistest.Start(t, 1)[0].Addr())
		info := "# Server\r\nrun_id:0123456789012345678901234567890123456789\r\n" + name + ":cluster\r\n"
		board.quote(fmt.Sprintf("$%d\r\n%s\r\n", len(info), info), func(cmd []string) bool {
			return len(cmd) == 2 && cmd[0] == "INFO" && cmd[1] == "server"
		})
		m, err := quorumlock.New(t.Context(), quorumlock.Addrs(board.addr()))
		if err == nil {
			require.NoError(t, m.Close(context.Background()))
		}
		if errors.Is(err, quorumlock.ErrInvalid) && strings.Contains(err.Error(), "cluster") {
			refused++
		} else {
			t.Errorf("INFO says %s:cluster, and New returns %v", name, err)
		}
	}
	r.figure(fmt.Sprintf("refused %d/%d", refused, len(names)), "all", refused == len(names))
}

// The user of the cases with a login.
const (
	user     = "worker"
	password = "right"
)

// countLocks returns how many locks there are on servers.
func countLocks(servers []*redistest.Server) (n int) {
	for _, s := range servers {
		for _, key := range s.MustDo("KEYS", lockKey("*")).([]any) {
			if !strings.Contains(key.(string), "\xff") {
				n++
			}
		}
	}
	return n
}
