package battery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

const (
	amnesiaTTL   = 500 * time.Millisecond
	amnesiaGuard = 600 * time.Millisecond
)

// A node of a holder that has no vote to spare is killed and comes back empty.
func TestANodeThatRestartsEmptyGivesNothingAway(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		amnesia{
			name: "kill -9 and restart without persistence",
			lose: func(s *redistest.Server, _ int64) { s.Restart() },
		}.run(t, n)
	})
}

// The same with an append-only file that was not synced when the power went.
func TestANodeThatRestartsWithATruncatedLogGivesNothingAway(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		amnesia{
			name: "kill -9 and restart with a truncated AOF", args: []string{"--appendonly", "yes", "--appendfsync", "everysec"},
			lose: func(s *redistest.Server, before int64) {
				s.Kill()
				// At the beginning of what the acquisition wrote, or within its
				// first command: a write-back may have followed. Under everysec a
				// server puts a write off while it syncs: then nothing of it is
				// there, and the kill has lost it.
				if grown := s.AOFSize() - before; grown > 0 {
					s.TruncateAOF(before + rand.Int64N(min(grown, 64)))
				}
				s.Restart()
			},
		}.run(t, n)
	})
}

// The same with a FLUSHALL: no connection breaks.
func TestANodeThatIsFlushedGivesNothingAway(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		amnesia{
			name: "FLUSHALL on live connections",
			lose: func(s *redistest.Server, _ int64) { s.MustDo("FLUSHALL") },
		}.run(t, n)
	})
}

// amnesia is a way in which a node forgets.
type amnesia struct {
	name string
	args []string // of the servers
	// lose makes the server forget what it wrote since its append-only file had
	// this size, and returns when it answers again.
	lose func(s *redistest.Server, before int64)
}

// amnesiacs is what the rounds of a row came to.
type amnesiacs struct {
	rounds, open, overlaps, inversions atomic.Int64

	broken atomic.Bool // a round did not come to its end, which is an error
}

func (a amnesia) run(t *testing.T, n int) {
	t.Helper()
	guarded := newRow(t, fmt.Sprintf("%s, holder with a bare majority, guard on, N=%d", a.name, n))
	rounds := count(300, 10)
	on := a.rounds(t, n, true, func(on *amnesiacs) bool { return on.rounds.Load() < int64(rounds) })
	guarded.figure(fmt.Sprintf("overlaps %d in %d rounds (the holder was valid with the node back in %d)",
		on.overlaps.Load(), on.rounds.Load(), on.open.Load()), "0, the node back in at least half", on.overlaps.Load() == 0 &&
		2*on.open.Load() >= on.rounds.Load())
	guarded.figure(fmt.Sprintf("tokens out of order %d", on.inversions.Load()), "0", on.inversions.Load() == 0)

	bare := newRow(t, fmt.Sprintf("%s, holder with a bare majority, guard off, N=%d", a.name, n))
	least := count(30, 4)
	off := a.rounds(t, n, false, func(off *amnesiacs) bool {
		done := off.rounds.Load()
		return done < int64(least) || off.overlaps.Load() == 0 && done < 100
	})
	bare.figure(fmt.Sprintf("overlaps %d in %d rounds", off.overlaps.Load(), off.rounds.Load()), "at least 1: the test has teeth",
		off.overlaps.Load() > 0)
}

// rounds plays rounds on several sets of servers at once, as long as more says.
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

// amnesiaWorld is a set of servers and the two who want the same lease.
type amnesiaWorld struct {
	servers            []*redistest.Server
	majority           []int // the nodes that the holder reaches: it can never heal elsewhere
	holder, competitor *quorumlock.Manager
	job                string
	token              int64 // of the latest grant
}

func (a amnesia) world(t *testing.T, n, set int, guard bool) *amnesiaWorld {
	t.Helper()
	w := &amnesiaWorld{servers: redistest.Start(t, n, a.args...), job: "job"}
	proxies, addrs := behindProxies(t, w.servers)
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
	w.holder = managerOn(t, addrs, opts...)
	w.competitor = managerOn(t, redistest.Addrs(w.servers), opts...)
	return w
}

// round has the holder take the lease and a node forget it, while the
// competitor asks for it without a pause.
func (w *amnesiaWorld) round(t *testing.T, a amnesia, tally *amnesiacs) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	victim := w.servers[w.majority[rand.IntN(len(w.majority))]]
	var opts []quorumlock.AcquireOption
	if rand.IntN(2) == 0 {
		// It looks at nothing until its time is over: the longest that anybody
		// can go on believing.
		opts = append(opts, quorumlock.WithoutRenewal())
	}
	var before int64
	if a.args != nil {
		patiently(t, "the last lease has left the node", func() bool { return len(locksOn(victim)) == 0 })
		before = victim.AOFSize()
	}
	held, err := w.holder.Acquire(ctx, w.job, opts...)
	if err != nil {
		t.Error("the holder is not granted the lease again: ", err)
		tally.broken.Store(true)
		return
	}
	w.granted(held, tally)

	var competing sync.WaitGroup
	competing.Go(func() {
		for {
			next, err := w.competitor.TryAcquire(ctx, w.job)
			if err == nil {
				overlap(held, next, tally)
				w.granted(next, tally)
				_ = next.Release(ctx) // it may have been lost meanwhile
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
	a.lose(victim, before)
	if !ended(held) {
		tally.open.Add(1)
	}
	// Not released: it goes by its own clock, or by what its nodes tell it.
	select {
	case <-held.Done():
	case <-ctx.Done():
		t.Error("the holder is not told that its lease is gone")
		tally.broken.Store(true)
		_ = held.Release(context.Background())
	}
	competing.Wait()
	tally.rounds.Add(1)
}

// granted compares the token with that of the grant before. Grants of a round
// come one after the other: the competitor asks when the holder has its lease.
func (w *amnesiaWorld) granted(l *quorumlock.Lease, tally *amnesiacs) {
	if l.Token() <= w.token {
		tally.inversions.Add(1)
	}
	w.token = l.Token()
}

// overlap watches whether both leases are valid at the same instant.
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
