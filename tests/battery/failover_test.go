package battery

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// Failover groups under real Sentinels. A holds a lease, B waits for it, and a fault makes another server the master.
// Two leases at once are an overlap. With the guard off, some overlaps must occur where docs/reports/failovers.md lists
// them: otherwise the row could not detect them. No server has min-replicas, so an old master continues until it is
// demoted.

// failover is a fault of a group.
type failover struct {
	name    string
	cluster bool // one slot of a cluster instead of a group under Sentinels
	ttl     time.Duration
	direct  bool          // A is on the side of the server that is cut off, and reaches only that server
	harmful bool          // without the guard, two leases overlap
	alone   bool          // A reaches no server from the fault on
	parted  bool          // of two nodes outside the group, each side reaches one from the fault on
	clocks  time.Duration // how far the replicas' clocks are ahead of the master's
	fault   func(t *testing.T, g *redistest.Group)
	move    func(t *testing.T, c *redistest.Cluster, owner int) // the fault of a cluster
	// kept means that A keeps its lease: the TTL is longer than the failover, or other nodes are a majority.
	kept bool
}

// toRenew is the part of its TTL that a holder needs to find the next master and to renew there.
const toRenew = 3 * time.Second

// window is WithFailover's.
const window = 3 * time.Second

// failovers has the results of the rounds of a row.
type failovers struct {
	rounds, overlaps, inversions, kept atomic.Int64
	late                               atomic.Int64 // failovers that took longer than any lease could live
	unreported                         atomic.Int64 // leases that had ended when B was granted, without a report

	mu      sync.Mutex
	longest time.Duration   // overlap
	waited  []time.Duration // from the fault until B was granted, where A has lost its lease
}

// run runs the rounds of a row. With the guard, nodes is 1 or 3. Without it, the group is a plain node whose
// connections lead to its master, as behind a DNS name.
func (f failover) run(t *testing.T, nodes int, guard bool) *failovers {
	t.Helper()
	var sum failovers
	rounds := failoverRounds(t)
	t.Run("rounds", func(t *testing.T) {
		for i := range rounds {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for range 3 {
					if f.round(t, nodes, guard, &sum) {
						return
					}
				}
				t.Error("three groups were no use for a round: see the log")
			})
		}
	})
	return &sum
}

// manyRounds is enough rounds to show an effect that occurs only in some of them.
const manyRounds = 20

// failoverRounds returns how often a row repeats its failover.
func failoverRounds(t *testing.T) int {
	t.Helper()
	return fromEnv(t, "QUORUMLOCK_FAILOVERS", manyRounds, strconv.Atoi)
}

// scene is a group that was started for a round.
type scene struct {
	node   rueidis.ClientOption
	master func() string            // its announced address
	direct func(addr string) string // the true address behind an announced one
	fault  func()
}

const slotTag = "{battery}"

func (f failover) start(t *testing.T) scene {
	args := []string{"--repl-diskless-sync-delay", "0", "--repl-timeout", "5"}
	if f.cluster {
		c := redistest.StartCluster(t, redistest.ClusterOptions{Args: args})
		slot := redistest.Slot(slotTag)
		return scene{
			node:   quorumlock.ClusterSlot(slotTag, c.Addrs()[:3]...),
			master: func() string { owner, _ := c.Owner(slot); return c.Addrs()[owner] },
			direct: c.Direct,
			fault:  func() { owner, _ := c.Owner(slot); f.move(t, c, owner) },
		}
	}
	g := redistest.StartGroup(t, redistest.GroupOptions{Args: args, Clock: f.clocks != 0})
	if f.clocks != 0 {
		for _, replica := range g.Servers()[1:] {
			replica.StepClock(f.clocks)
		}
	}
	return scene{
		node:   quorumlock.Sentinel(g.Name(), g.SentinelAddrs()...),
		master: func() string { master, _ := g.Master(); return g.Addrs()[master] },
		direct: g.Direct,
		fault:  func() { f.fault(t, g) },
	}
}

// manager returns a Manager over the group, and over plain masters.
func (f failover) manager(t *testing.T, s scene, others []string, guard, direct bool, down *atomic.Bool, ways *[]*redistest.Proxy) *quorumlock.Manager {
	opts := []quorumlock.Option{quorumlock.WithTTL(f.ttl), quorumlock.WithPrefix(slotTag), quorumlock.WithLogger(slog.New(slog.DiscardHandler)),
		quorumlock.WithStartupWait(30 * time.Second)} // eleven other groups run on the same cores
	node := s.node
	if direct {
		node.InitAddress = slices.Clone(node.InitAddress)
		for i, addr := range node.InitAddress {
			if !strings.HasPrefix(addr, "slot:") {
				way := redistest.NewProxy(t, s.direct(addr)) // to a Sentinel or seed
				node.InitAddress[i], *ways = way.Addr(), append(*ways, way)
			}
		}
	}
	if guard {
		opts = append(opts, quorumlock.WithRestartGuard(f.ttl+window), quorumlock.WithFailover(window))
	} else {
		node = quorumlock.Addrs("group:1")[0]
	}
	node.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
		if !guard {
			addr = s.master()
		}
		if down.Load() {
			return nil, net.ErrClosed
		}
		if direct {
			addr = s.direct(addr)
		}
		return d.DialContext(ctx, "tcp", addr)
	}
	m, err := quorumlock.New(context.Background(), append([]rueidis.ClientOption{node}, quorumlock.Addrs(others...)...), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close(context.Background()) }) // it may return that a node does not answer
	return m
}

// round returns false if the group got another master before the fault, and A lost its lease by it, as may happen on a
// machine that stands still for a second.
func (f failover) round(t *testing.T, nodes int, guard bool, sum *failovers) bool {
	s := f.start(t)
	var ways []*redistest.Proxy // they drop all packets from the fault on
	var ofA, ofB []string
	if nodes > 1 {
		ofA = redistest.Addrs(redistest.Start(t, nodes-1))
		ofB = slices.Clone(ofA)
	}
	if f.parted {
		ways = []*redistest.Proxy{redistest.NewProxy(t, ofA[1]), redistest.NewProxy(t, ofB[0])}
		ofA[1], ofB[0] = ways[0].Addr(), ways[1].Addr()
	}
	var down, up atomic.Bool
	a, b := f.manager(t, s, ofA, guard, f.direct, &down, &ways), f.manager(t, s, ofB, guard, false, &up, nil)
	ctx, cancel := context.WithTimeout(t.Context(), f.ttl+window+60*time.Second)
	defer cancel()
	master := s.master()
	held, err := a.Acquire(ctx, "job") // when the first quarantine has ended
	require.NoError(t, err)
	for held.Renew(ctx) != nil {
		if !held.Valid() {
			require.NotEqual(t, master, s.master(), "A has lost its lease before the fault: %v", held.Err())
			return false
		}
		time.Sleep(10 * time.Millisecond)
	}

	type grant struct {
		lease *quorumlock.Lease
		at    time.Time
		valid bool // A's lease, at that instant
		ended bool // A's lease was reported as ended: its channel was closed
		err   error
	}
	granted := make(chan grant, 1)
	go func() {
		l, err := b.Acquire(ctx, "job")
		g := grant{l, time.Now(), err == nil && held.Valid(), false, err}
		select {
		case <-held.Done():
			g.ended = true
		default:
		}
		granted <- g
	}()
	begun := time.Now()
	down.Store(f.alone)
	for _, way := range ways {
		way.Swallow()
	}
	s.fault()
	failover := time.Since(begun)
	// Either A loses its lease, or it keeps the lease for longer than any cause of a loss can take.
	patience := time.After(f.ttl + window + 15*time.Second)
	var got grant
	var kept, patient bool
	select {
	case got = <-granted:
	case <-patience:
		kept, patient = held.Valid(), true
		_ = held.Release(ctx)
		got = <-granted
		got.valid = false
	}
	if !guard && nodes == 1 && got.err != nil && strings.Contains(got.err.Error(), "this address leads to several servers") {
		t.Logf("a flap behind one address looks like two servers: %v", got.err)
		return false
	}
	switch {
	case kept:
		sum.kept.Add(1)
	case !patient:
		sum.mu.Lock()
		sum.waited = append(sum.waited, got.at.Sub(begun))
		sum.mu.Unlock()
		late := nodes == 1 && failover > f.ttl-toRenew
		if f.kept {
			t.Logf("A has lost its lease: %v; the next master after %v, B granted after %v", held.Err(), brief(failover), brief(got.at.Sub(begun)))
		}
		if late {
			sum.late.Add(1)
		}
	}
	require.NoError(t, got.err)
	sum.rounds.Add(1)
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
	if !got.valid && !got.ended {
		sum.unreported.Add(1)
	}
	if got.lease.Token() <= held.Token() {
		sum.inversions.Add(1)
	}
	_ = got.lease.Release(ctx)
	return true
}

// report prints the figures of a row with the guard.
func (sum *failovers) report(t *testing.T, name string, kept bool) {
	r := newRow(t, name)
	rounds := sum.rounds.Load()
	r.figure(fmt.Sprintf("%d of %d rounds with an overlap, %v the longest", sum.overlaps.Load(), rounds, brief(sum.longest)), "none", sum.overlaps.Load() == 0 && rounds > 0)
	r.figure(fmt.Sprintf("%d of %d losses not reported before the next grant", sum.unreported.Load(), rounds), "none", sum.unreported.Load() == 0)
	r.figure(fmt.Sprintf("%d of %d tokens not above the last", sum.inversions.Load(), rounds), "none", sum.inversions.Load() == 0)
	if kept {
		late := sum.late.Load()
		r.figure(fmt.Sprintf("%d of %d leases kept, %d failovers longer than the TTL less %v", sum.kept.Load(), rounds, late, toRenew),
			"all others", sum.kept.Load() > 0 && sum.kept.Load()+late == rounds)
	} else {
		r.figure(fmt.Sprintf("%d of %d leases kept; the next one granted after %s", sum.kept.Load(), rounds, spread(sum.waited)), "no bar", true)
	}
}

// harm prints the figure of a row that must do harm.
func (sum *failovers) harm(t *testing.T, name string) {
	r := newRow(t, name)
	r.figure(fmt.Sprintf("%d of %d rounds with an overlap, %v the longest", sum.overlaps.Load(), sum.rounds.Load(), brief(sum.longest)), "some", sum.overlaps.Load() > 0)
}

// noBar prints the figures of a row without the guard. Whether two holders meet there depends only on the pace of the
// set-up.
func (sum *failovers) noBar(t *testing.T, name string) {
	r := newRow(t, name)
	r.figure(fmt.Sprintf("%d of %d rounds with an overlap, %v the longest; %d kept; the next one granted after %s",
		sum.overlaps.Load(), sum.rounds.Load(), brief(sum.longest), sum.kept.Load(), spread(sum.waited)), "no bar", sum.rounds.Load() > 0)
}

// everywhere runs a row with one node and with three, with the guard and without it. With three nodes the lease is
// kept. Many rounds show the effects without the guard where none is required.
func (f failover) everywhere(t *testing.T) {
	t.Helper()
	rows := map[string]func(t *testing.T){
		"N=1": func(t *testing.T) { f.run(t, 1, true).report(t, f.name, f.kept) },
		"N=3": func(t *testing.T) { f.run(t, 3, true).report(t, f.name+", N=3", true) },
	}
	many := failoverRounds(t) >= manyRounds && !f.cluster // New refuses a cluster's master as a plain node
	if many {
		rows["N=1, guard off"] = func(t *testing.T) { f.run(t, 1, false).noBar(t, f.name+", guard off") }
		rows["N=3, guard off"] = func(t *testing.T) { f.run(t, 3, false).report(t, f.name+", N=3, guard off", true) }
	}
	if f.harmful {
		rows["N=1, guard off"] = func(t *testing.T) { f.run(t, 1, false).harm(t, f.name+", guard off") }
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) { t.Parallel(); row(t) })
	}
}

// inFull skips a row that waits for a minute in a short run.
func inFull(t *testing.T) {
	t.Helper()
	onlyFull(t)
	t.Parallel()
}

// onlyFull is inFull for a row that needs the whole machine.
func onlyFull(t *testing.T) {
	t.Helper()
	if !full {
		t.Skip("make failover and make battery run it: it waits for a minute")
	}
}

func TestAMasterThatIsKilledCausesNoSecondLease(t *testing.T) {
	inFull(t)
	kill := failover{name: "group: master killed", ttl: 2 * time.Second, fault: killed}
	kill.everywhere(t)
}

func killed(_ *testing.T, g *redistest.Group) {
	g.Servers()[0].Kill()
	g.AwaitMaster(0, 30*time.Second)
}

// A8 asks for clocks that agree. Clocks that differ by half a second or by much more do not change the length of a
// term's quarantine: the clock of one server writes its end and reads it.
func TestAMasterWithAnotherClockCausesNoSecondLease(t *testing.T) {
	inFull(t)
	offsets := []time.Duration{-20 * time.Second, 20 * time.Second}
	if failoverRounds(t) >= manyRounds {
		offsets = append(offsets, -500*time.Millisecond, 500*time.Millisecond)
	}
	for _, clocks := range offsets {
		t.Run(clocks.String(), func(t *testing.T) {
			t.Parallel()
			kill := failover{name: fmt.Sprintf("group: master killed, the clock of the next one %v ahead", clocks),
				ttl: 2 * time.Second, clocks: clocks, fault: killed}
			kill.run(t, 1, true).report(t, kill.name, false)
		})
	}
}

// A lease is kept only if the Sentinels or cluster nodes choose a master in time. So no other row runs alongside this
// one, and a round that took longer shows nothing: a Sentinel that could not run for two seconds does nothing for
// thirty.
func TestALeaseThatIsLongerThanAFailoverIsKept(t *testing.T) {
	onlyFull(t)
	rows := []failover{{name: "group: master killed", fault: killed}}
	if failoverRounds(t) >= manyRounds {
		rows = append(rows, slotFailovers()[:3]...) // a split keeps no lease
	}
	for _, f := range rows {
		f.ttl, f.kept = 12*time.Second, true
		f.run(t, 1, true).report(t, f.name+", TTL 12 s", true)
	}
}

func TestAMasterThatIsCutOffCausesNoSecondLease(t *testing.T) {
	inFull(t)
	split := failover{name: "group: split, A at the old master", ttl: 2 * time.Second, direct: true, harmful: true,
		fault: func(t *testing.T, g *redistest.Group) {
			// A group whose new master does not know the identity is refused until the old list has ended.
			patiently(t, "the replicas know the group's identity", func() bool {
				return !slices.ContainsFunc(g.Servers()[1:], func(replica *redistest.Server) bool {
					return replica.MustDo("EXISTS", slotTag+"\xffl") != g.Servers()[0].MustDo("EXISTS", slotTag+"\xffl")
				})
			})
			g.Isolate(0)
			t.Cleanup(func() { g.Rejoin(0) })
			g.AwaitMaster(0, 30*time.Second)
		}}
	split.everywhere(t)
	parted := split
	parted.name, parted.parted = "group: split that parts the other two nodes as well, N=3", true
	t.Run("N=3, parted", func(t *testing.T) { t.Parallel(); parted.run(t, 3, true).report(t, parted.name, false) })
}

// The lock has not reached the replicas when the master dies.
func TestALockThatReplicationLostCausesNoSecondLease(t *testing.T) {
	inFull(t)
	lost := failover{name: "group: the lock lost in replication", ttl: 6 * time.Second, alone: true, harmful: true,
		fault: func(t *testing.T, g *redistest.Group) {
			for _, replica := range g.Servers()[1:] {
				replica.MustDo("CONFIG", "SET", "replica-read-only", "no")
				replica.MustDo("DEL", slotTag+"job")
			}
			killed(t, g) // long before the next renewal
		}}
	lost.everywhere(t)
}

func TestAMasterThatIsStoppedCausesNoSecondLease(t *testing.T) {
	inFull(t)
	stop := failover{name: "group: master stopped", ttl: 2 * time.Second,
		fault: func(t *testing.T, g *redistest.Group) {
			g.Servers()[0].Stop()
			t.Cleanup(g.Servers()[0].Continue)
			g.AwaitMaster(0, 30*time.Second)
		}}
	stop.everywhere(t)
}

// The master continues while the Sentinels replace it. Until they demote it, its clients find everything unchanged.
func TestAMasterThatIsFrozenForAMomentCausesNoSecondLease(t *testing.T) {
	inFull(t)
	freeze := failover{name: "group: master frozen for 2 s", ttl: 2 * time.Second,
		fault: func(_ *testing.T, g *redistest.Group) {
			g.Servers()[0].Stop()
			time.Sleep(2 * time.Second)
			g.Servers()[0].Continue()
		}}
	freeze.everywhere(t)
	// A reaches no Sentinel, and so does not learn that the master was replaced.
	replaced := failover{name: "group: master frozen until it is replaced, A at the old master", ttl: 6 * time.Second, direct: true,
		fault: func(_ *testing.T, g *redistest.Group) {
			g.Servers()[0].Stop()
			g.AwaitMaster(0, 30*time.Second)
			g.Servers()[0].Continue()
		}}
	t.Run("until it is replaced", func(t *testing.T) {
		t.Parallel()
		replaced.run(t, 1, true).report(t, replaced.name, false)
	})
}

// The old master is the master again, without the writes of the term in between. Its data has the marker of its own
// first term.
func TestAMasterThatIsPromotedAgainCausesNoSecondLease(t *testing.T) {
	inFull(t)
	flap := failover{name: "group: flap, the old master again", ttl: 6 * time.Second,
		fault: func(_ *testing.T, g *redistest.Group) {
			old := g.Servers()[0]
			g.Servers()[2].MustDo("CONFIG", "SET", "replica-priority", "0") // never a master
			time.Sleep(1500 * time.Millisecond)                             // the Sentinels read it once a second in a failover, else every ten
			old.Stop()
			between, _ := g.AwaitMaster(0, 30*time.Second)
			g.Servers()[between].Kill()
			old.Continue()
			g.AwaitMaster(between, 60*time.Second)
		}}
	flap.everywhere(t)
}

// slotFailovers are failovers of a cluster. Its masters stop by themselves when they are cut
// off from the majority, after the node timeout of 2 s.
func slotFailovers() []failover {
	base := failover{cluster: true, ttl: 2 * time.Second}
	slot := redistest.Slot(slotTag)
	kill, stop, planned, split := base, base, base, base
	kill.name = "slot: master killed"
	kill.move = func(_ *testing.T, c *redistest.Cluster, owner int) {
		c.Servers()[owner].Kill()
		c.AwaitOwner(slot, owner, 30*time.Second)
	}
	stop.name = "slot: master stopped"
	stop.move = func(t *testing.T, c *redistest.Cluster, owner int) {
		c.Servers()[owner].Stop()
		t.Cleanup(c.Servers()[owner].Continue)
		c.AwaitOwner(slot, owner, 30*time.Second)
	}
	planned.name = "slot: manual failover"
	planned.move = func(_ *testing.T, c *redistest.Cluster, _ int) { c.Failover(slot) }
	split.name, split.direct = "slot: split, A at the old master", true
	split.move = func(t *testing.T, c *redistest.Cluster, owner int) {
		c.Isolate(owner)
		t.Cleanup(func() { c.Rejoin(owner) })
		c.AwaitOwner(slot, owner, 30*time.Second)
	}
	return []failover{kill, stop, planned, split}
}

func TestAFailoverInAClusterCausesNoSecondLease(t *testing.T) {
	inFull(t)
	for _, f := range slotFailovers() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.everywhere(t)
		})
	}
}
