package battery

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// Failover groups under real Sentinels. A holds a lease, B waits for it, and a fault makes
// another server the master. Two leases at once are an overlap. With the guard off there
// have to be some, where docs/managed.md says so: otherwise the row could not see them.

// failover is a fault of a group.
type failover struct {
	name     string
	replicas int      // 2 by default
	args     []string // of the servers of the group
	ttl      time.Duration
	window   time.Duration // of WithFailover
	direct   bool          // A reaches a server that is cut off from everybody else
	alone    bool          // A reaches nobody from the fault on
	fault    func(t *testing.T, g *redistest.Group)
	// kept means that the failover is over before the TTL, so that A keeps its lease.
	kept bool
}

// fenced are the settings of a group that refuses writes without a replica that followed
// within the last second: D is L + 4 s, the window is 5 s.
var fenced = []string{"--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"}

const fencedWindow = 5 * time.Second

// failovers has the results of the rounds of a row.
type failovers struct {
	rounds, overlaps, inversions, late, kept atomic.Int64

	mu      sync.Mutex
	longest time.Duration   // overlap
	waited  []time.Duration // until B was granted, from the fault
}

// run runs the rounds of a row. With the guard, nodes is 1 or 3; without it, the group is
// a plain node that is dialled at its master, as one behind a DNS name is.
func (f failover) run(t *testing.T, nodes int, guard bool) *failovers {
	t.Helper()
	var sum failovers
	rounds := count(20, 1)
	t.Run("rounds", func(t *testing.T) {
		for i := range rounds {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				f.round(t, nodes, guard, &sum)
			})
		}
	})
	return &sum
}

// manager returns a Manager over the group, and over plain masters.
func (f failover) manager(t *testing.T, g *redistest.Group, others []*redistest.Server, guard, direct bool, down *atomic.Bool) *quorumlock.Manager {
	opts := []quorumlock.Option{quorumlock.WithTTL(f.ttl), quorumlock.WithLogger(slog.New(slog.DiscardHandler))}
	node := quorumlock.Sentinel(g.Name(), g.SentinelAddrs()...)
	if guard {
		opts = append(opts, quorumlock.WithRestartGuard(f.ttl+f.window), quorumlock.WithFailover(f.window))
	} else {
		node = quorumlock.Addrs("group:1")[0]
	}
	node.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if !guard {
			master, _ := g.Master()
			addr = g.Addrs()[master]
		}
		if down.Load() {
			return nil, net.ErrClosed
		}
		if direct {
			addr = g.Direct(addr)
		}
		return d.DialContext(ctx, "tcp", addr)
	}
	m, err := quorumlock.New(context.Background(), append([]rueidis.ClientOption{node}, quorumlock.Addrs(redistest.Addrs(others)...)...), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close(context.Background()) }) // may say that a node does not answer
	return m
}

func (f failover) round(t *testing.T, nodes int, guard bool, sum *failovers) {
	g := redistest.StartGroup(t, redistest.GroupOptions{
		Replicas: f.replicas, Args: append([]string{"--repl-diskless-sync-delay", "0", "--repl-timeout", "5"}, f.args...),
	})
	var others []*redistest.Server
	if nodes > 1 {
		others = redistest.Start(t, nodes-1)
	}
	var down, up atomic.Bool
	a, b := f.manager(t, g, others, guard, f.direct, &down), f.manager(t, g, others, guard, false, &up)
	ctx, cancel := context.WithTimeout(t.Context(), f.ttl+f.window+60*time.Second)
	defer cancel()
	held, err := a.Acquire(ctx, "job") // when the first quarantine is over
	require.NoError(t, err)
	require.Eventually(t, func() bool { return held.Renew(ctx) == nil }, 10*time.Second, 10*time.Millisecond)

	type grant struct {
		lease *quorumlock.Lease
		at    time.Time
		valid bool // A's lease, at that instant
		err   error
	}
	granted := make(chan grant, 1)
	go func() {
		l, err := b.Acquire(ctx, "job")
		granted <- grant{l, time.Now(), err == nil && held.Valid(), err}
	}()
	begun := time.Now()
	down.Store(f.alone)
	f.fault(t, g)
	// A has lost its lease, or goes on for longer than anything that may end it.
	patience := time.After(f.ttl + f.window + 15*time.Second)
	var got grant
	select {
	case got = <-granted:
	case <-patience:
		if held.Valid() {
			sum.kept.Add(1)
		}
		_ = held.Release(ctx)
		got = <-granted
		got.valid = false
	}
	require.NoError(t, got.err)
	sum.rounds.Add(1)
	sum.mu.Lock()
	sum.waited = append(sum.waited, got.at.Sub(begun))
	sum.mu.Unlock()
	if got.valid {
		sum.overlaps.Add(1)
		select {
		case <-held.Done():
		case <-time.After(5 * time.Second):
		}
		sum.mu.Lock()
		sum.longest = max(sum.longest, time.Since(got.at))
		sum.mu.Unlock()
	}
	if got.lease.Token() <= held.Token() {
		sum.inversions.Add(1)
	}
	_ = got.lease.Release(ctx)
}

// report prints the figures of a row with the guard.
func (sum *failovers) report(t *testing.T, name string, kept bool) {
	r := newRow(t, name)
	rounds := sum.rounds.Load()
	r.figure(fmt.Sprintf("%d of %d rounds with an overlap, %v the longest", sum.overlaps.Load(), rounds, brief(sum.longest)), "none", sum.overlaps.Load() == 0 && rounds > 0)
	r.figure(fmt.Sprintf("%d of %d tokens not above the last", sum.inversions.Load(), rounds), "none", sum.inversions.Load() == 0)
	if kept {
		r.figure(fmt.Sprintf("%d of %d leases kept", sum.kept.Load(), rounds), "all", sum.kept.Load() == rounds)
	} else {
		r.figure(fmt.Sprintf("%d of %d leases kept; the next one granted after %s", sum.kept.Load(), rounds, spread(sum.waited)), "no bar", true)
	}
}

// harm prints the figure of a row without the guard, which has to do harm.
func (sum *failovers) harm(t *testing.T, name string) {
	r := newRow(t, name+", guard off")
	r.figure(fmt.Sprintf("%d of %d rounds with an overlap, %v the longest", sum.overlaps.Load(), sum.rounds.Load(), brief(sum.longest)), "some", sum.overlaps.Load() > 0)
}

func TestAMasterThatIsKilledCausesNoSecondLease(t *testing.T) {
	t.Parallel()
	kill := failover{name: "group: master killed", args: fenced, ttl: 2 * time.Second, window: fencedWindow,
		fault: func(_ *testing.T, g *redistest.Group) { g.Servers()[0].Kill(); g.AwaitMaster(0, 30*time.Second) }}
	kill.run(t, 1, true).report(t, kill.name, false)
}

func TestALeaseThatIsLongerThanAFailoverIsKept(t *testing.T) {
	t.Parallel()
	kill := failover{name: "group: master killed, TTL 12 s", args: fenced, ttl: 12 * time.Second, window: fencedWindow, kept: true,
		fault: func(_ *testing.T, g *redistest.Group) { g.Servers()[0].Kill(); g.AwaitMaster(0, 30*time.Second) }}
	kill.run(t, 1, true).report(t, kill.name, true)
}

func TestAMasterThatIsCutOffCausesNoSecondLease(t *testing.T) {
	t.Parallel()
	split := failover{name: "group: split, A at the old master", args: fenced, ttl: 2 * time.Second, window: fencedWindow, direct: true,
		fault: func(t *testing.T, g *redistest.Group) {
			g.Isolate(0)
			t.Cleanup(func() { g.Rejoin(0) })
			g.AwaitMaster(0, 30*time.Second)
		}}
	split.run(t, 1, true).report(t, split.name, false)
	split.name += ", N=3"
	split.kept = true
	split.run(t, 3, true).report(t, split.name, true)
	split.name, split.args = "group: split, no min-replicas", nil
	split.run(t, 1, false).harm(t, split.name)
}

// The lock has not reached the replicas when the master dies.
func TestALockThatReplicationLostCausesNoSecondLease(t *testing.T) {
	t.Parallel()
	lost := failover{name: "group: the lock lost in replication", ttl: 6 * time.Second, window: fencedWindow, alone: true,
		args: []string{"--min-replicas-to-write", "1", "--min-replicas-max-lag", "30"},
		fault: func(_ *testing.T, g *redistest.Group) {
			for _, replica := range g.Servers()[1:] {
				replica.MustDo("CONFIG", "SET", "replica-read-only", "no")
				replica.MustDo("DEL", "quorumlock:job")
			}
			g.Servers()[0].Kill() // long before the next renewal
			g.AwaitMaster(0, 30*time.Second)
		}}
	lost.run(t, 1, true).report(t, lost.name, false)
	lost.run(t, 1, false).harm(t, lost.name)
}
