package battery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// A restart must fit into the lease's life. When other tests run in parallel, that life is twice as long.
var (
	amnesiaTTL   = time.Duration(count(500, 1000)) * time.Millisecond
	amnesiaGuard = amnesiaTTL * 6 / 5
)

// A node of a holder with a bare majority is killed and comes back empty.
func TestANodeThatRestartsEmptyCausesNoSecondLease(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		amnesia{
			name: "kill -9 and restart without persistence",
			lose: func(w *amnesiaWorld, victim int, _ int64) { w.servers[victim].Restart() },
		}.run(t, n)
	})
}

// The same with an append-only file that was not synced when the power failed.
func TestANodeThatRestartsWithATruncatedLogCausesNoSecondLease(t *testing.T) {
	eachNight(t)
	forSizes(t, true, func(t *testing.T, n int) {
		amnesia{
			name: "kill -9 and restart with a truncated AOF",
			args: [][]string{
				{"--appendonly", "yes", "--appendfsync", "everysec"},
				{"--appendonly", "yes", "--appendfsync", "always"},
			},
			log: true,
			lose: func(w *amnesiaWorld, victim int, before int64) {
				s := w.servers[victim]
				s.Kill()
				// The file is cut at the beginning of the acquisition's writes, or within its first command: a
				// write-back may have followed. With everysec a server delays a write while it syncs. Then the file has
				// none of it, and the kill has lost it.
				if grown := s.AOFSize() - before; grown > 0 {
					s.TruncateAOF(before + rand.Int64N(min(grown, 64)))
				}
				s.Restart()
			},
		}.run(t, n)
	})
}

// The same with a FLUSHALL: no connection breaks.
func TestANodeThatIsFlushedCausesNoSecondLease(t *testing.T) {
	eachNight(t)
	forSizes(t, true, func(t *testing.T, n int) {
		amnesia{
			name: "FLUSHALL on live connections", reported: true,
			lose: func(w *amnesiaWorld, victim int, _ int64) { w.servers[victim].MustDo("FLUSHALL") },
		}.run(t, n)
	})
}

// A replica replaces its dead master, and lacks the master's last writes because
// replication does not wait. It does have the marker.
func TestAReplicaThatIsPromotedCausesNoSecondLease(t *testing.T) {
	eachNight(t)
	forSizes(t, true, func(t *testing.T, n int) {
		amnesia{
			name: "failover to a replica that lags", spare: true,
			args: [][]string{{"--repl-diskless-sync-delay", "0"}}, // otherwise each sync takes 5 s
			lose: func(w *amnesiaWorld, victim int, _ int64) {
				old := w.servers[victim]
				old.Kill()
				for _, way := range w.ways[victim] {
					way.Retarget(w.spare.Addr())
					way.Reset()
				}
				w.servers[victim], w.spare = w.spare, old
			},
		}.run(t, n)
	})
}

// amnesia is a way in which a node forgets.
type amnesia struct {
	name     string
	shared   bool       // one of the two clients reads, a random one in each round
	args     [][]string // of the servers: each set of servers takes the next ones
	log      bool       // the size of the append-only file matters
	reported bool       // the competitor must report the quarantine within a renewal interval
	spare    bool       // one more server is a replica of the victim until the lease is acquired
	// lose makes the node forget the writes since its append-only file had this size, and
	// returns when it answers again.
	lose func(w *amnesiaWorld, victim int, before int64)
}

// amnesiacs has the results of the rounds of a row.
type amnesiacs struct {
	rounds, open, overlaps, inversions atomic.Int64

	broken atomic.Bool // a round did not finish, which is an error

	mu       sync.Mutex
	reported []time.Duration // how long after the loss
}

func (a *amnesiacs) add(after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reported = append(a.reported, after)
}

// run has two clients want a lease. Then it repeats that with one of them reading.
func (a amnesia) run(t *testing.T, n int) {
	t.Helper()
	a.runOnce(t, n)
	a.name, a.shared = a.name+", one of the two reads", true
	a.runOnce(t, n)
}

func (a amnesia) runOnce(t *testing.T, n int) {
	t.Helper()
	guarded := newRow(t, fmt.Sprintf("%s, holder with a bare majority, guard on, N=%d", a.name, n))
	rounds := count(300, 5)
	on := a.rounds(t, n, true, func(on *amnesiacs) bool { return on.rounds.Load() < int64(rounds) })
	guarded.figure(fmt.Sprintf("overlaps %d in %d rounds (the holder was valid with the node back in %d)",
		on.overlaps.Load(), on.rounds.Load(), on.open.Load()), "0, the node back in at least half", on.overlaps.Load() == 0 &&
		2*on.open.Load() >= on.rounds.Load())
	guarded.figure(fmt.Sprintf("tokens out of order %d", on.inversions.Load()), "0", on.inversions.Load() == 0)

	if a.reported {
		interval := amnesiaTTL / 3
		guarded.figure("quarantine reported to the competitor after "+spread(on.reported), "max one renewal interval, "+brief(interval).String(),
			at(1, on.reported) <= limitOf(interval))
	}

	bare := newRow(t, fmt.Sprintf("%s, holder with a bare majority, guard off, N=%d", a.name, n))
	least := count(30, 2)
	off := a.rounds(t, n, false, func(off *amnesiacs) bool {
		done := off.rounds.Load()
		return done < int64(least) || off.overlaps.Load() == 0 && done < 100
	})
	bare.figure(fmt.Sprintf("overlaps %d in %d rounds", off.overlaps.Load(), off.rounds.Load()), "at least 1: the test has teeth",
		off.overlaps.Load() > 0)
}

// rounds runs rounds on several sets of servers at once, as long as more returns true.
func (a amnesia) rounds(t *testing.T, n int, guard bool, more func(*amnesiacs) bool) *amnesiacs {
	t.Helper()
	var tally amnesiacs
	var all sync.WaitGroup
	for set := range count(4, 2) {
		w := a.world(t, n, set, guard)
		all.Go(func() {
			for more(&tally) && !tally.broken.Load() {
				w.round(t, a, &tally)
			}
		})
	}
	all.Wait()
	return &tally
}

// amnesiaWorld is a set of servers, and two clients that want the same lease.
type amnesiaWorld struct {
	servers            []*redistest.Server
	spare              *redistest.Server
	ways               [][]*redistest.Proxy // to each node
	majority           []int                // the nodes that the holder reaches: it can never heal elsewhere
	holder, competitor *quorumlock.Manager
	changes            *quorumlock.Subscription // the competitor's
	guarded            bool
	job                string
	shared             bool
	ask                pair
	last               *quorumlock.Lease // the latest that was granted
}

// pair is how the two clients ask in a round.
type pair struct {
	holder, competitor func(ctx context.Context, name string, opts ...quorumlock.AcquireOption) (*quorumlock.Lease, error)
}

// draw returns how they ask. If shared is true, one of the two reads.
func draw(holder, competitor *quorumlock.Manager, shared bool) pair {
	switch {
	case !shared:
		return pair{holder.Acquire, competitor.TryAcquire}
	case rand.IntN(2) == 0:
		return pair{testkit.With(holder.Acquire, quorumlock.Shared()), competitor.TryAcquire}
	default:
		return pair{holder.Acquire, testkit.With(competitor.TryAcquire, quorumlock.Shared())}
	}
}

func (a amnesia) world(t *testing.T, n, set int, guard bool) *amnesiaWorld {
	t.Helper()
	var args []string
	if len(a.args) > 0 {
		args = a.args[set%len(a.args)]
	}
	w := &amnesiaWorld{servers: redistest.Start(t, n, args...), job: "job", guarded: guard, shared: a.shared, ways: make([][]*redistest.Proxy, n)}
	proxies, addrs := testkit.Proxied(t, w.servers)
	direct := redistest.Addrs(w.servers)
	if a.spare {
		w.spare = redistest.Start(t, 1, args...)[0]
		var others []*redistest.Proxy
		others, direct = testkit.Proxied(t, w.servers)
		for i := range n {
			w.ways[i] = []*redistest.Proxy{proxies[i], others[i]}
		}
	}
	for i := range n {
		node := (set + i) % n
		if i < quorum.Size(n) {
			w.majority = append(w.majority, node)
		} else {
			proxies[node].Refuse()
		}
	}
	opts := []quorumlock.Option{quorumlock.WithTTL(amnesiaTTL)}
	if guard {
		opts = append(opts, quorumlock.WithRestartGuard(amnesiaGuard))
	}
	w.holder = testkit.Connect(t, addrs, opts...)
	w.competitor = testkit.Connect(t, direct, opts...)
	w.changes = w.competitor.Subscribe(1000)
	return w
}

// round has the holder take the lease and a node forget it, while the competitor asks for
// it without a pause.
func (w *amnesiaWorld) round(t *testing.T, a amnesia, tally *amnesiacs) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	victim := w.majority[rand.IntN(len(w.majority))]
	w.ask = draw(w.holder, w.competitor, w.shared)
	var opts []quorumlock.AcquireOption
	if rand.IntN(2) == 0 {
		// The holder checks nothing until its time has passed: no holder can trust its lease for longer.
		opts = append(opts, quorumlock.WithoutRenewal())
	}
	var before int64
	if a.log || a.spare {
		patiently(t, "the last lease has left the node", func() bool { return len(locksOn(w.servers[victim])) == 0 })
	}
	if a.log {
		before = w.servers[victim].AOFSize()
	}
	if a.spare {
		w.follow(t, victim)
	}
	held, err := w.ask.holder(ctx, w.job, opts...)
	if err != nil {
		t.Error("the holder is not granted the lease again: ", err)
		tally.broken.Store(true)
		return
	}
	w.granted(held, tally)

	var competing sync.WaitGroup
	competing.Go(func() {
		for {
			next, err := w.ask.competitor(ctx, w.job)
			if err == nil {
				overlap(held, next, tally)
				w.granted(next, tally)
				_ = next.Release(ctx) // it may have been lost by now
				return
			}
			if ctx.Err() != nil {
				t.Error("the competitor is not granted the lease: ", err)
				tally.broken.Store(true)
				return
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	for len(w.changes.C()) > 0 { // left from the last round
		<-w.changes.C()
	}
	lost := time.Now()
	a.lose(w, victim, before)
	if a.reported && w.guarded {
		for reported := false; !reported; {
			select {
			case e := <-w.changes.C():
				change, ok := e.(quorumlock.NodeChanged)
				reported = ok && change.Node == victim && change.QuarantinedFor > 0
			case <-ctx.Done():
				t.Error("the quarantine is not reported")
				reported = true
			}
		}
		tally.add(time.Since(lost))
	}
	if !ended(held) {
		tally.open.Add(1)
	}
	// There is no release: the lease ends by its own clock, or by the answers of its nodes.
	select {
	case <-held.Done():
	case <-ctx.Done():
		t.Error("the loss is not reported to the holder")
		tally.broken.Store(true)
		_ = held.Release(context.Background())
	}
	competing.Wait()
	tally.rounds.Add(1)
}

// follow makes the spare server a copy of the node's present state.
func (w *amnesiaWorld) follow(t *testing.T, victim int) {
	host, port, err := net.SplitHostPort(w.servers[victim].Addr())
	if err != nil {
		t.Fatal(err)
	}
	w.spare.Restart() // it may be the master that died
	w.spare.MustDo("REPLICAOF", host, port)
	patiently(t, "the replica is in sync", func() bool {
		info, err := w.spare.Do("INFO", "replication")
		return err == nil && strings.Contains(info.(string), "master_link_status:up")
	})
	w.spare.MustDo("REPLICAOF", "NO", "ONE")
}

// granted compares the token with the token of the previous grant. The grants of a round are sequential: the competitor
// asks when the holder has its lease. Two readers may have one token.
func (w *amnesiaWorld) granted(l *quorumlock.Lease, tally *amnesiacs) {
	if w.last != nil && (l.Token() < w.last.Token() || l.Token() == w.last.Token() && !(l.Shared() && w.last.Shared())) {
		tally.inversions.Add(1)
	}
	w.last = l
}

// overlap checks whether both leases are valid at the same instant.
func overlap(held, next *quorumlock.Lease, tally *amnesiacs) {
	for {
		began := next.Valid()
		both := held.Valid()
		if began && both && next.Valid() { // valid before and after an instant at which the other was
			tally.overlaps.Add(1)
			return
		}
		if !both {
			return
		}
	}
}
