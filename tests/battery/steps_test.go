package battery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

const stepTTL = 500 * time.Millisecond

// The clocks of a minority are set, by a TTL to an hour, forward or back, while all nodes hold the lease and a
// competitor asks for it continuously.
func TestAClockThatIsSetOnAMinorityCausesNoSecondLease(t *testing.T) {
	eachNight(t)
	forSizes(t, true, func(t *testing.T, n int) {
		stepMinority(t, fmt.Sprintf("clocks of a minority stepped by TTL to 1h, lease on all nodes, N=%d", n), n, false)
		stepMinority(t, fmt.Sprintf("clocks of a minority stepped by TTL to 1h, lease on all nodes, one of the two reads, N=%d", n), n, true)
		stepBareMajority(t, n)
	})
}

// stepBareMajority sets the clock of one node of a lease that only a majority has. That node may forget the key, and
// together with the others it is a majority for the competitor.
func stepBareMajority(t *testing.T, n int) {
	t.Helper()
	r := newRow(t, fmt.Sprintf("clock of one node of a bare majority stepped by TTL to 1h, N=%d", n))
	one := func(servers []*redistest.Server) []*redistest.Server {
		i := rand.IntN(quorum.Size(n))
		return servers[i : i+1]
	}
	tally := steps(t, stepping{n: n, rounds: count(200, 5), bare: true, choose: one, play: (*stepWorld).minority})
	r.figure(fmt.Sprintf("overlaps %d in %d rounds, %d of them with the clock set forward, in which %d leases were lost", tally.overlaps.Load(),
		tally.rounds.Load(), tally.forward.Load(), tally.lost.Load()), "0, some", tally.overlaps.Load() == 0 && tally.forward.Load() > 0)
	r.figure(fmt.Sprintf("tokens out of order %d", tally.inversions.Load()), "0", tally.inversions.Load() == 0)
}

func stepMinority(t *testing.T, name string, n int, shared bool) {
	t.Helper()
	r := newRow(t, name)
	tally := steps(t, stepping{n: n, rounds: count(200, 5), shared: shared, choose: minority, play: (*stepWorld).minority})
	r.figure(fmt.Sprintf("overlaps %d in %d rounds, %d of them with a clock set forward", tally.overlaps.Load(),
		tally.rounds.Load(), tally.forward.Load()), "0", tally.overlaps.Load() == 0)
	r.figure(fmt.Sprintf("tokens out of order %d", tally.inversions.Load()), "0", tally.inversions.Load() == 0)
	r.figure(fmt.Sprintf("steps forward reported by NodeChanged %d/%d: %s", len(tally.noticed), tally.noticeable, spread(tally.noticed)),
		fmt.Sprintf("all, %s", reportBar()), len(tally.noticed) == tally.noticeable && (!full || len(tally.noticed) > 0) && at(1, tally.noticed) <= reportWithin())
	tally.backFigure(r)
	r.figure(fmt.Sprintf("leases lost %d", tally.lost.Load()), atLeastInFull("0"), !full || tally.lost.Load() == 0)
}

// reportWithin is the longest interval between renewals with its jitter, plus a round trip.
func reportWithin() time.Duration { return stepTTL/3*11/10 + limitOf(10*time.Millisecond) }

func reportBar() string {
	return fmt.Sprintf("max interval %v + round trip (%s)", brief(stepTTL/3*11/10), limit(10*time.Millisecond))
}

// The clocks of a majority are set. No lock can survive that, but the library must notify the holder, and a resource
// that checks the token must refuse holders that continue to write.
func TestAClockThatIsSetOnAMajorityIsReportedAndFoolsNoRegister(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("clocks of a majority stepped by TTL to 1h, N=%d", n))
		tally := steps(t, stepping{n: n, rounds: count(200, 10), choose: majority, play: (*stepWorld).majority})
		r.figure(fmt.Sprintf("losses reported after a step forward %d/%d: %s; kept, with a quorum that confirms it and no successor: %d",
			len(tally.reported), tally.forward.Load(), spread(tally.reported), tally.kept.Load()), fmt.Sprintf("all others, %s", reportBar()),
			int64(len(tally.reported))+tally.kept.Load() == tally.forward.Load() && at(1, tally.reported) <= reportWithin())
		r.figure(fmt.Sprintf("kept %d", tally.kept.Load()), "at most a tenth and one", tally.kept.Load() <= tally.forward.Load()/10+1)
		tally.backFigure(r)
		r.figure(fmt.Sprintf("tokens out of order %d in %d rounds", tally.inversions.Load(), tally.rounds.Load()), "0",
			tally.inversions.Load() == 0)
		r.figure(fmt.Sprintf("stale writes accepted %d, of %d that were tried", tally.stale.Load(), tally.tried.Load()), "0, of some",
			tally.stale.Load() == 0 && tally.tried.Load() > 0)
		t.Logf("two leases valid at once in %d rounds, which nothing can prevent", tally.overlaps.Load())
	})
}

// stepTally has the results of the rounds of a row.
type stepTally struct {
	rounds, forward, lost, kept, stale, tried atomic.Int64
	amnesiacs                                 // overlaps and inversions are the same

	mu         sync.Mutex
	reported   []time.Duration // losses
	noticed    []time.Duration // quarantines of nodes that were stepped forward
	noticeable int
	logged     []time.Duration // steps back, in the log
	loggable   int
}

// stepWorld is a set of servers with clocks, and two clients that want the same lease.
type stepWorld struct {
	amnesiaWorld
	offset map[*redistest.Server]time.Duration
	book   register
	votes  votes
	awaits map[string]time.Time // nodes whose quarantine must be reported, and since when
	log    stepLog
	backs  map[string]time.Time // nodes whose step back must be logged, and since when

	reached int // nodes that the holder reaches: the first ones
}

// stepping is a row: choose selects the servers whose clocks are set in a round, and play is the rest of the round. One
// of the two clients reads if shared is true. The holder reaches only a majority, the first nodes, if bare is true.
type stepping struct {
	n, rounds    int
	shared, bare bool
	choose       func([]*redistest.Server) []*redistest.Server
	play         func(*stepWorld, context.Context, *testing.T, *quorumlock.Lease, []*redistest.Server, *stepTally)
}

// steps runs rounds on several sets of servers at once.
func steps(t *testing.T, s stepping) *stepTally {
	t.Helper()
	var tally stepTally
	var all sync.WaitGroup
	for set := range count(4, 2) {
		w := &stepWorld{
			offset: map[*redistest.Server]time.Duration{}, awaits: map[string]time.Time{}, backs: map[string]time.Time{},
			log: stepLog{back: map[string]time.Time{}},
		}
		w.servers, w.job, w.shared = redistest.StartWith(t, s.n, redistest.Options{Clock: true}), "job", s.shared
		opts := []quorumlock.Option{quorumlock.WithTTL(stepTTL)}
		if set%2 == 1 { // the result must be the same with and without the guard
			opts = append(opts, quorumlock.WithRestartGuard(stepTTL+100*time.Millisecond))
		}
		addrs := redistest.Addrs(w.servers)
		w.competitor = testkit.Connect(t, addrs, opts...)
		if w.reached = s.n; s.bare {
			w.reached = quorum.Size(s.n)
			proxies, proxied := testkit.Proxied(t, w.servers)
			for _, p := range proxies[w.reached:] {
				p.Refuse()
			}
			addrs = proxied
		}
		w.holder = testkit.Connect(t, addrs, append(opts, quorumlock.WithLogger(slog.New(&w.log)))...)
		go w.votes.watch(w.holder.Subscribe(1 << 12))
		all.Go(func() {
			for tally.rounds.Load() < int64(s.rounds) && !tally.broken.Load() {
				w.stepRound(t, &s, &tally)
			}
		})
	}
	all.Wait()
	return &tally
}

func (w *stepWorld) stepRound(t *testing.T, s *stepping, tally *stepTally) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	w.ask = draw(w.holder, w.competitor, w.shared)
	held, err := w.ask.holder(ctx, w.job)
	if err != nil {
		t.Error("the holder is not granted the lease: ", err)
		tally.broken.Store(true)
		return
	}
	w.granted(held, &tally.amnesiacs)
	if !within(5*time.Second, func() bool { return holding(w.servers, w.job) == w.reached || ended(held) }) {
		t.Error("not all nodes hold the lease")
		tally.broken.Store(true)
	}
	if ended(held) { // the machine is busy: the round does not count
		return
	}
	s.play(w, ctx, t, held, s.choose(w.servers), tally)
	w.notice(tally, held)
	_ = held.Release(ctx)
	// Any remaining key would live for as long as the clock is now set back.
	if !within(5*time.Second, func() bool { return holding(w.servers, w.job) == 0 }) {
		t.Error("keys are left behind")
		tally.broken.Store(true)
	}
	for s, offset := range w.offset {
		s.StepClock(-offset)
		delete(w.offset, s)
	}
	tally.rounds.Add(1)
}

// step sets clocks, each by another amount, and returns how many went forward.
func (w *stepWorld) step(victims []*redistest.Server, forward func() bool) (n int) {
	for _, s := range victims {
		by := stepTTL + time.Duration(rand.Int64N(int64(time.Hour-stepTTL)))
		if rand.IntN(2) == 0 { // an hour has the same effect as a minute, but a TTL may not
			by = stepTTL + time.Duration(rand.Int64N(int64(2*stepTTL)))
		}
		if !forward() {
			by = -by
			w.backs[s.Addr()] = time.Now()
		} else {
			n++
			if !w.votes.quarantined(s.Addr()) { // a second reason is not a change, so it sends no event
				w.awaits[s.Addr()] = time.Now()
			}
		}
		w.offset[s] = by
		s.StepClock(by)
	}
	return n
}

// notice waits for the reports about the stepped nodes: an event for a step forward, and only the log for a step back,
// which is harmless.
func (w *stepWorld) notice(tally *stepTally, held *quorumlock.Lease) {
	delays := func(steps map[string]time.Time, reported func(addr string) time.Time, excused func() bool) (after []time.Duration, judged int) {
		for addr, since := range steps {
			delete(steps, addr)
			within(time.Second, func() bool {
				return reported(addr).After(since) || excused()
			})
			switch at := reported(addr); {
			case at.After(since):
				after = append(after, at.Sub(since))
				judged++
			case !excused():
				judged++
			}
		}
		return after, judged
	}
	// Without renewals, no answer shows the node's time.
	logged, loggable := delays(w.backs, w.log.since, func() bool { return ended(held) })
	noticed, noticeable := delays(w.awaits, w.votes.since, func() bool { return false })
	tally.mu.Lock()
	defer tally.mu.Unlock()
	tally.logged, tally.loggable = append(tally.logged, logged...), tally.loggable+loggable
	tally.noticed, tally.noticeable = append(tally.noticed, noticed...), tally.noticeable+noticeable
}

// stepLog is a log handler that records when a step back of a node was logged, by
// address.
type stepLog struct {
	mu   sync.Mutex
	back map[string]time.Time
}

// Enabled, WithAttrs and WithGroup make it a slog.Handler that accepts everything.
func (l *stepLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *stepLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *stepLog) WithGroup(string) slog.Handler            { return l }

// Handle records a line.
func (l *stepLog) Handle(_ context.Context, line slog.Record) error {
	now := time.Now()
	var addr string
	var by time.Duration
	line.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "addr":
			addr = a.Value.String()
		case "by":
			by = a.Value.Duration()
		}
		return true
	})
	if strings.Contains(line.Message, "clock was stepped, which can end leases early: set its time service") && by < 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.back[addr] = now
	}
	return nil
}

func (l *stepLog) since(addr string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.back[addr]
}

// backFigure prints the figure about steps back, for a minority and for a majority.
func (tally *stepTally) backFigure(r *row) {
	r.figure(fmt.Sprintf("steps back reported by the log %d/%d: %s", len(tally.logged), tally.loggable, spread(tally.logged)),
		"all, "+reportBar(), len(tally.logged) == tally.loggable && (!full || len(tally.logged) > 0) && at(1, tally.logged) <= reportWithin())
}

// votes has the contents of NodeChanged events, by address.
type votes struct {
	mu    sync.Mutex
	state map[string]quorumlock.NodeChanged
	began map[string]time.Time // of the latest quarantine
}

func (v *votes) watch(sub *quorumlock.Subscription) {
	for e := range sub.C() {
		if e, ok := e.(quorumlock.NodeChanged); ok {
			v.mu.Lock()
			if v.state == nil {
				v.state, v.began = map[string]quorumlock.NodeChanged{}, map[string]time.Time{}
			}
			v.state[e.Addr] = e
			if e.Err != nil && e.QuarantinedFor > 0 {
				v.began[e.Addr] = time.Now()
			}
			v.mu.Unlock()
		}
	}
}

func (v *votes) quarantined(addr string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state[addr].Err != nil
}

func (v *votes) since(addr string) time.Time {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.began[addr]
}

// compete asks until it is granted or ctx ends, and then checks for an overlap.
func (w *stepWorld) compete(ctx context.Context, held *quorumlock.Lease, tally *stepTally, work func(next *quorumlock.Lease)) (granted bool) {
	for ctx.Err() == nil {
		next, err := w.ask.competitor(ctx, w.job)
		if err == nil {
			w.granted(next, &tally.amnesiacs)
			overlap(held, next, &tally.amnesiacs)
			work(next)
			_ = next.Release(context.Background())
			return true
		}
		time.Sleep(2 * time.Millisecond)
	}
	return false
}

func (w *stepWorld) minority(ctx context.Context, _ *testing.T, held *quorumlock.Lease, victims []*redistest.Server, tally *stepTally) {
	ctx, cancel := context.WithTimeout(ctx, stepTTL*6/5)
	defer cancel()
	var competing sync.WaitGroup
	competing.Go(func() { w.compete(ctx, held, tally, func(*quorumlock.Lease) {}) })
	time.Sleep(time.Duration(rand.Int64N(int64(stepTTL / 3))))
	if w.step(victims, func() bool { return rand.IntN(2) == 0 }) > 0 {
		tally.forward.Add(1)
	}
	competing.Wait()
	if held.Err() != nil {
		tally.lost.Add(1)
	}
}

func (w *stepWorld) majority(ctx context.Context, t *testing.T, held *quorumlock.Lease, victims []*redistest.Server, tally *stepTally) {
	// If clocks are set back, their keys live on. So all clocks of a round move in one direction.
	forward := rand.IntN(4) > 0
	ctx, cancel := context.WithTimeout(ctx, 3*stepTTL)
	defer cancel()
	first := w.book.holder()
	var all sync.WaitGroup
	over := make(chan struct{})
	all.Go(func() { // a holder that does not check its lease
		for {
			select {
			case <-over:
				return
			case <-time.After(2 * time.Millisecond):
				first.write(held.Token(), tally)
			}
		}
	})
	time.Sleep(time.Duration(rand.Int64N(int64(stepTTL / 3))))
	stepped := time.Now()
	w.step(victims, func() bool { return forward })
	took := time.Since(stepped)
	reported := make(chan time.Duration, 1)
	if forward {
		tally.forward.Add(1)
		all.Go(func() {
			select {
			case <-held.Done():
				reported <- time.Since(stepped)
			case <-over:
			}
		})
	}
	granted := w.compete(ctx, held, tally, func(next *quorumlock.Lease) {
		second := w.book.holder()
		for range 20 {
			second.write(next.Token(), tally)
			time.Sleep(2 * time.Millisecond)
		}
	})
	if forward && !granted && !ended(held) && held.Verify(context.Background()) == nil {
		// A round in progress at the step had a majority of answers from before it, and healed the other nodes before
		// any competitor asked: nothing is lost.
		tally.kept.Add(1)
		t.Logf("kept: %d of %d clocks stepped within %v", len(victims), len(w.servers), took)
	} else if forward {
		select {
		case after := <-reported:
			var lost *quorumlock.LostError
			if errors.As(held.Err(), &lost) {
				tally.mu.Lock()
				tally.reported = append(tally.reported, after)
				tally.mu.Unlock()
			}
		case <-time.After(5 * time.Second):
			t.Errorf("the loss is not reported; successor granted: %v, clocks stepped within %v", granted, took)
		}
	}
	close(over)
	all.Wait()
}

// majority returns some servers without which there is no majority.
func majority(servers []*redistest.Server) []*redistest.Server {
	q := quorum.Size(len(servers))
	shuffled := append([]*redistest.Server(nil), servers...)
	rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
	return shuffled[:q+rand.IntN(len(servers)-q+1)]
}

// register is a resource that accepts a write unless it has seen a greater token.
type register struct {
	mu      sync.Mutex
	token   int64
	holders int // the number of holders so far
	latest  int // the latest of them that wrote
}

// writer is one holder, numbered in the order of the grants.
type writer struct {
	book   *register
	number int
}

func (r *register) holder() *writer {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holders++
	return &writer{book: r, number: r.holders}
}

func (w *writer) write(token int64, tally *stepTally) {
	w.book.mu.Lock()
	defer w.book.mu.Unlock()
	stale := w.number < w.book.latest
	if stale {
		tally.tried.Add(1)
	}
	if token < w.book.token {
		return
	}
	if stale {
		tally.stale.Add(1)
	}
	w.book.token, w.book.latest = token, max(w.number, w.book.latest)
}
