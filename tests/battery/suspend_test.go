//go:build linux

package battery

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// A sleeper is a process that holds leases and is stopped. It has two at a time. For one it calls Valid continuously;
// for the other it only watches the context, so that neither check helps the other. Under each lease it writes to the
// register again and again without checking the lease, which is the case that the fence is for.
type sleeperConfig struct {
	Client  int
	Addrs   []string
	Witness string
	TTL     time.Duration
}

// sleeperCommand has a sleeper take leases of two names, or report on them.
type sleeperCommand struct {
	Take [2]string // polled, watched
	// Otherwise: when the sleeper was stopped, and when it was continued.
	Stopped, Resumed instant
}

// sleeperLease is a sleeper's report on one lease.
type sleeperLease struct {
	Error   string
	Owner   string // answer to Take
	Hold    hold   // the rest is the answer to the other command
	Lost    bool   // before the sleeper released it
	CtxDone instant
	// The first call of Valid that began after the sleeper continued.
	FirstAsked instant
	FirstValid bool
	Until      instant // S, as its loss reports it
	Refused    int     // writes that the register refused
}

func init() { roles["sleeper"] = sleeperRole }

func sleeperRole() int {
	var config sleeperConfig
	if err := roleConfig(&config); err != nil {
		return roleFailed(err)
	}
	m, err := quorumlock.New(context.Background(), quorumlock.Addrs(config.Addrs...), quorumlock.WithTTL(config.TTL))
	if err != nil {
		return roleFailed(err)
	}
	if err := answer("ready"); err != nil {
		return roleFailed(err)
	}
	var naps [2]*nap
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		var command sleeperCommand
		if err := json.Unmarshal(commands.Bytes(), &command); err != nil {
			return roleFailed(err)
		}
		var answers [2]sleeperLease
		var both sync.WaitGroup
		for i, name := range command.Take {
			both.Go(func() {
				if name == "" {
					answers[i] = naps[i].wake(&command)
					return
				}
				nap, err := takeNap(m, &config, name, i == 0)
				if err != nil {
					answers[i].Error = err.Error()
					return
				}
				naps[i], answers[i].Owner = nap, nap.g.lease.Owner()
			})
		}
		both.Wait()
		if err := answer(answers); err != nil {
			return roleFailed(err)
		}
	}
	if err := m.Close(context.Background()); err != nil {
		return roleFailed(err)
	}
	return 0
}

// A nap is one lease of a sleeper.
type nap struct {
	g        *tenure
	link     *witnessLink
	over     chan struct{} // closed to end the goroutines
	running  sync.WaitGroup
	polls    []poll // of Valid; nil if only the context is watched
	reported instant
	cause    error // of the context's end
	base     int64
	refused  int
	err      error
}

// poll is a call of Valid.
type poll struct {
	asked instant
	valid bool
}

func takeNap(m *quorumlock.Manager, config *sleeperConfig, name string, polled bool) (*nap, error) {
	link, err := dialWitness(config.Witness)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	began := now()
	l, err := m.Acquire(ctx, name)
	if err != nil {
		return nil, err
	}
	n := &nap{g: newTenure(l, config.Client, began), link: link, over: make(chan struct{})}
	reply, err := link.call(witnessCall{Kind: callEnter, Hold: n.g.h})
	if err != nil {
		return nil, err
	}
	n.base = reply.Value
	n.running.Go(n.write)
	n.running.Go(n.watch)
	if polled {
		n.running.Go(n.poll)
	}
	return n, nil
}

// write writes without checking the lease.
func (n *nap) write() {
	for every(n.over, 20*time.Millisecond) {
		reply, err := n.link.call(witnessCall{Kind: callWrite, Base: n.base, Value: n.base + 1})
		switch {
		case err != nil:
			n.err = err
			return
		case reply.Accepted:
			n.base++
		default:
			n.refused++
		}
	}
}

// poll calls Valid until it is false, and a few times more.
func (n *nap) poll() {
	for every(n.over, 2*time.Millisecond) {
		asked := now()
		n.polls = append(n.polls, poll{asked, n.g.valid()})
	}
}

func (n *nap) watch() {
	ctx := n.g.lease.Context()
	select {
	case <-ctx.Done():
		n.reported, n.cause = now(), context.Cause(ctx)
	case <-n.over:
	}
}

// every sleeps, and reports whether to continue.
func every(over <-chan struct{}, d time.Duration) bool {
	select {
	case <-over:
		return false
	case <-time.After(d):
		return true
	}
}

// wake ends a nap: it releases the lease, if it is still valid, and returns the report.
func (n *nap) wake(command *sleeperCommand) (s sleeperLease) {
	close(n.over)
	n.running.Wait()
	defer n.link.close()
	s.CtxDone, s.Refused = n.reported, n.refused
	var lost *quorumlock.LostError
	if s.Lost = errors.As(n.cause, &lost); s.Lost {
		n.g.lost(lost, n.reported)
		s.Until = instantOf(lost.ValidUntil)
	} else if err := n.g.release(context.Background()); err != nil {
		n.err = errors.Join(n.err, err)
	}
	s.Hold = n.g.h
	if i := slices.IndexFunc(n.polls, func(p poll) bool { return p.asked >= command.Resumed }); i >= 0 {
		s.FirstAsked, s.FirstValid = n.polls[i].asked, n.polls[i].valid
	}
	_, err := n.link.call(witnessCall{Kind: callExit, Hold: n.g.h})
	if err = errors.Join(n.err, err); err != nil {
		s.Error = err.Error()
	}
	return s
}

const suspendTTL = 500 * time.Millisecond

// trial is one stop of a sleeper, and its results.
type trial struct {
	stopped, resumed instant
	// keysEnd is when the last key of a majority of nodes ends by the servers' reports, or later. A sleeper that
	// continues after that is overdue, whatever the library reports.
	keysEnd   [2]instant
	successor [2]hold
	sleeper   [2]sleeperLease
}

// Row 3: a client is stopped at a random moment, for up to five TTLs, and continues. Its successor waits from before
// the stop.
func TestASuspendedClientFindsItsLeaseLostAtTheFirstLook(t *testing.T) {
	const ttl = suspendTTL
	forSizes(t, true, func(t *testing.T, n int) {
		total, atOnce := count(300, 5), 5
		if full {
			atOnce = 8
		}
		r := newRow(t, fmt.Sprintf("SIGSTOP of the client, %d times, N=%d", total, n))
		w := startWitness(t)
		servers := redistest.Start(t, n)
		successors, err := quorumlock.New(t.Context(), quorumlock.Addrs(redistest.Addrs(servers)...), quorumlock.WithTTL(ttl))
		require.NoError(t, err)
		rng := rand.New(rand.NewPCG(uint64(n), uint64(total)))
		plans := make(chan [2]time.Duration, total) // phase, length of the stop
		for range total {
			plans <- [2]time.Duration{
				time.Duration(rng.Int64N(int64(ttl))), ttl/10 + time.Duration(rng.Int64N(int64(ttl*49/10))),
			}
		}
		close(plans)
		var mu sync.Mutex
		var trials []trial
		discarded := 0
		var running sync.WaitGroup
		for i := range atOnce {
			s := spawn(t, "sleeper", sleeperConfig{
				Client: i, Addrs: redistest.Addrs(servers), Witness: w.addr, TTL: ttl,
			})
			var ready string
			require.NoError(t, s.receive(&ready))
			running.Go(func() {
				for plan := range plans {
					for again := true; again; {
						tr, err := stopOnce(t, s, fmt.Sprintf("%d-%d-%d", i, plan[0], time.Now().UnixNano()),
							plan, servers, successors, w.addr)
						if err != nil {
							t.Errorf("sleeper %d: %v", i, err)
							return
						}
						mu.Lock()
						// A machine that is too busy to renew a lease in time loses it before the stop: that isn't a
						// trial.
						if again = tr.sleeper[0].lostBefore(tr.stopped) || tr.sleeper[1].lostBefore(tr.stopped); again {
							discarded++
							again = discarded < total
						} else {
							trials = append(trials, *tr)
						}
						mu.Unlock()
					}
				}
				if err := s.end(); err != nil {
					t.Errorf("sleeper %d: %v", i, err)
				}
			})
		}
		running.Wait()
		require.NoError(t, successors.Close(context.Background()))
		tally, holds, writes, _ := w.finish(t)
		require.False(t, t.Failed())
		t.Logf("N=%d: %d trials discarded: lost before the stop", n, discarded)
		judgeStops(r, trials, total, n)
		exclusion(t, r, &tally, holds, writes)
		r.figure(fmt.Sprintf("stale writes tried and refused %d", tally.Refused), "> 0", tally.Refused > 0)
	})
}

func (s *sleeperLease) lostBefore(stopped instant) bool { return s.Lost && s.CtxDone < stopped }

// judgeStops prints the figures about the sleepers.
func judgeStops(r *row, trials []trial, total, nodes int) {
	overdue, asked, falseAtOnce, suspended, reported, inTime, late := 0, 0, 0, 0, 0, 0, 0
	notOverdue, stillHeld, past, known := 0, 0, 0, 0
	var done []time.Duration
	for i := range trials {
		tr := &trials[i]
		for j := range tr.sleeper {
			s := &tr.sleeper[j]
			// It is overdue by the lease's own report, which is earlier than the servers'. Between S and the deadline a
			// stop cannot be distinguished from a slow machine.
			if j == 0 && s.Lost && tr.resumed > s.Until {
				past++
				reason := s.Hold.End == string(quorumlock.LostSuspended) || tr.resumed.since(s.Until) < quorum.SafetyMargin(suspendTTL)
				if s.FirstAsked != 0 && !s.FirstValid && reason {
					known++
				} else {
					r.t.Logf("resumed %v after S: first Valid, %v after that, is %v; %s",
						tr.resumed.since(s.Until), s.FirstAsked.since(tr.resumed), s.FirstValid, s.Hold.End)
				}
			}
			if tr.resumed < tr.keysEnd[j] {
				notOverdue++
				if !s.Lost {
					stillHeld++
				}
				continue
			}
			overdue++
			if j == 0 {
				asked++
				if s.FirstAsked != 0 && !s.FirstValid {
					falseAtOnce++
				}
			}
			if s.Lost {
				reported++
				done = append(done, s.CtxDone.since(tr.resumed))
			}
			if s.Hold.End == string(quorumlock.LostSuspended) {
				suspended++
			}
			if tr.resumed.since(tr.keysEnd[j]) > 250*time.Millisecond {
				late++
				if tr.successor[j].Granted < tr.resumed {
					inTime++
				}
			}
		}
	}
	r.t.Logf("N=%d: %d trials of %d; of %d leases that were not overdue %d went on", nodes, len(trials), total, notOverdue, stillHeld)
	r.figure(fmt.Sprintf("first Valid after the stop false %d/%d overdue", falseAtOnce, asked), "all", falseAtOnce == asked && asked > 0)
	r.figure(fmt.Sprintf("resumed after S, by the loss's own account: first Valid false, and the reason is suspended if it was after the deadline %d/%d", known, past), "all", known == past && past > 0)
	bound := 50 * time.Millisecond
	if !full {
		bound = time.Second // two cores that also do other work
	}
	p99 := quantile(done, 0.99)
	r.figure(fmt.Sprintf("context done %d/%d, p50 %v, p99 %v, slowest %v after the stop", reported, overdue,
		quantile(done, 0.5).Round(10*time.Microsecond), p99.Round(10*time.Microsecond), quantile(done, 1).Round(10*time.Microsecond)),
		fmt.Sprintf("all, p99 %v", bound), reported == overdue && p99 <= bound)
	r.figure(fmt.Sprintf("reason is suspended %d/%d", suspended, overdue), "all", suspended == overdue)
	r.figure(fmt.Sprintf("successor granted during the stop %d/%d", inTime, late), atLeastInFull("all"), inTime == late || !full)
}

// stopOnce has a sleeper take two leases, stops it, continues it, and gets its report.
func stopOnce(
	t *testing.T, s *child, name string, plan [2]time.Duration, servers []*redistest.Server,
	successors *quorumlock.Manager, witness string,
) (*trial, error) {
	names := [2]string{name + "-polled", name + "-watched"}
	if err := s.send(sleeperCommand{Take: names}); err != nil {
		return nil, err
	}
	var taken [2]sleeperLease
	if err := s.receive(&taken); err != nil {
		return nil, err
	}
	tr := &trial{}
	over := make(chan struct{})
	var waiting sync.WaitGroup
	var failures [2]error
	for i, lease := range taken {
		if lease.Error != "" {
			return nil, errors.New(lease.Error)
		}
		waiting.Go(func() { failures[i] = succeed(t.Context(), successors, names[i], witness, over, &tr.successor[i]) })
	}
	err := func() (err error) {
		defer close(over)
		time.Sleep(plan[0])
		if tr.stopped, err = s.pause(); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond) // its requests have arrived
		for i, lease := range taken {
			if tr.keysEnd[i], err = keysEnd(servers, names[i], lease.Owner); err != nil {
				return errors.Join(err, resumed(s, tr))
			}
		}
		tr.stopped.after(plan[1]).wait()
		if err := resumed(s, tr); err != nil {
			return err
		}
		time.Sleep(200 * time.Millisecond) // it continues to write
		if err := s.send(sleeperCommand{Stopped: tr.stopped, Resumed: tr.resumed}); err != nil {
			return err
		}
		return s.receive(&tr.sleeper)
	}()
	waiting.Wait()
	for _, lease := range tr.sleeper {
		if lease.Error != "" {
			err = errors.Join(err, errors.New(lease.Error))
		}
	}
	return tr, errors.Join(err, failures[0], failures[1])
}

func resumed(s *child, tr *trial) (err error) {
	tr.resumed, err = s.resume()
	return err
}

// keysEnd asks the servers when the owner's keys end. It returns the instant at which the owner no longer has a
// majority of them, rather a little too late than too early.
func keysEnd(servers []*redistest.Server, name, owner string) (instant, error) {
	ends := make([]instant, len(servers))
	for i, s := range servers {
		key := config.DefaultPrefix + name
		left, err := s.Do("PTTL", key)
		if err != nil {
			return 0, err
		}
		at := now()
		value, err := s.Do("GET", key) // read afterwards: the present owner of the key was also the owner before
		if err != nil {
			return 0, err
		}
		if text, ok := value.(string); !ok || !strings.HasPrefix(text, owner+" ") || left.(int64) < 0 {
			ends[i] = at // gone, or its successor's
			continue
		}
		ends[i] = at.after(time.Duration(left.(int64)+2) * time.Millisecond)
	}
	slices.Sort(ends)
	return ends[len(ends)-(len(ends)/2+1)], nil
}

// succeed waits for the lease, works under it until the end, and releases it.
func succeed(
	ctx context.Context, m *quorumlock.Manager, name, witness string, over <-chan struct{}, account *hold,
) error {
	link, err := dialWitness(witness)
	if err != nil {
		return err
	}
	defer link.close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	began := now()
	l, err := m.Acquire(ctx, name)
	if err != nil {
		return fmt.Errorf("successor: %w", err)
	}
	const client = 100
	g := newTenure(l, client, began)
	reply, err := link.call(witnessCall{Kind: callEnter, Hold: g.h})
	if err != nil {
		return err
	}
	if err := g.denied(reply.Accepted, link); err != nil {
		return err
	}
	if g.valid() {
		reply, err := link.call(witnessCall{Kind: callWrite, Base: reply.Value, Value: reply.Value + 1})
		if err != nil {
			return err
		}
		if err := g.denied(reply.Accepted, link); err != nil {
			return err
		}
	}
	for g.valid() && every(over, 5*time.Millisecond) {
		continue
	}
	if err := g.release(ctx); err != nil {
		return err
	}
	*account = g.h
	_, err = link.call(witnessCall{Kind: callExit, Hold: g.h})
	return err
}
