package hold

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// endings are the ways in which a lease ends. sent lists the operations that a node gets at the end, and later those
// that it gets when the watchdog, or the last act of Close, deletes the keys.
var endings = []struct {
	way    string
	change func(*Grant)
	end    func(process, *Lock, *lease)
	is     string
	learns string
	sent   string
	later  string
}{
	{
		way: "Release", end: released,
		is: "Released, Deleted", learns: "Released+Asking Settled", sent: "release",
	},
	{
		way: "Release of a shared lease", change: shared, end: released,
		is: "Released, Deleted", learns: "Released+Asking Settled", sent: "quit",
	},
	{
		way: "Release under WithMinHold", change: minHold, end: released,
		is: "Released, Deleted", learns: "Released+Asking Settled", sent: "extend 1m0s", later: "release",
	},
	{
		way: "Release under WithMinHold while a renewal is on its way to the queues", change: minHold,
		end: func(p process, l *Lock, first *lease) {
			post := p.renewing(l)
			released(p, l, first)
			post()
		},
		is: "Released, Deleted", learns: "Released+Asking Settled", sent: "extend 1m0s, extend 1h0m0s, extend 1h0m0s, extend 1m0s", later: "release",
	},
	{
		way: "Release, and the queue of the process frees the lock for its next caller", change: queued, end: released,
		is: "Released, Deleted", learns: "Released+Asking Settled", sent: "leave",
	},
	{
		way: "AcquireAll gives up, or a tracer panics, so no caller has seen the lease", change: minHold,
		end: ends(Ending{What: Released, Keys: Unseen}),
		is:  "Released, Unseen", learns: "Released+Asking Settled", sent: "release",
	},
	{
		way: "another lease of AcquireAll is lost", end: ends(Ending{What: Released, Keys: Delayed}),
		is: "Released, Delayed", learns: "Released", later: "release",
	},
	{
		way: "Downgrade", end: ends(Ending{What: Released, Keys: Left}),
		is: "Released, Left", learns: "Released",
	},
	{
		way: "Release while the watchdog looks at the lock",
		end: func(p process, l *Lock, first *lease) {
			due := p.schedule.take(p.clock.Now().Add(10 * time.Hour))
			_, _, ok := l.Vacate(first, Ending{What: Released})
			p.tend(p.clock.Now(), due)
			if ok {
				l.Free(wire.TicketUpdate{}).Wait(context.Background(), 10*time.Second)
			}
		},
		is: "Released, Deleted", learns: "Released+Asking Settled", sent: "release",
	},
	{
		way: "Release while the watchdog looks at the lock, and Close begins",
		end: func(p process, l *Lock, first *lease) {
			p.schedule.take(p.clock.Now().Add(10 * time.Hour))
			_, _, ok := l.Vacate(first, Ending{What: Released})
			p.End()
			if ok {
				l.Free(wire.TicketUpdate{}).Wait(context.Background(), 10*time.Second)
			}
		},
		is: "Released, Deleted", learns: "Released+Asking Settled", sent: "release",
	},
	{
		way: "Downgrade that the nodes refuse", change: minHold,
		end: func(p process, l *Lock, first *lease) {
			ends(Ending{What: Released, Keys: Left})(p, l, first)
			l.DeleteKeys(Ending{Keys: Left})
		},
		is: "Released, Unseen", learns: "Released", sent: "release",
	},
	{
		way: "Detach", end: ends(Ending{What: Released | Detached, Keys: Left, Keep: 2 * time.Minute}),
		is: "Released+Detached, Left", learns: "Released+Detached", sent: "mark d 2m0s, release",
	},
	{
		way: "Detach that too few nodes confirm", change: minHold,
		end: func(p process, l *Lock, first *lease) {
			ends(Ending{What: Released | Detached, Keys: Left, Keep: 2 * time.Minute})(p, l, first)
			l.DeleteKeys(Ending{Keys: Left, Keep: 2 * time.Minute})
		},
		is: "Released+Detached, Unseen", learns: "Released+Detached", sent: "mark d 2m0s, release, drop, release",
	},
	{
		way: "loss by the clock, or at the maximum hold", change: func(g *Grant) { g.Terms.MaxHold = time.Millisecond },
		end: func(_ process, l *Lock, _ *lease) {
			time.Sleep(5 * time.Millisecond)
			l.Tick()
		},
		is: "Lost, Delayed", learns: "Lost", later: "release",
	},
	{
		way: "loss by Revoke", end: answered(quorum.InputRevoked),
		is: "Lost, Delayed", learns: "Lost", later: "release",
	},
	{
		way: "loss to another owner", end: answered(quorum.InputTaken),
		is: "Lost, Delayed", learns: "Lost", later: "release",
	},
	{
		way: "loss of the keys", end: answered(quorum.InputMissing),
		is: "Lost, Delayed", learns: "Lost", later: "release",
	},
	{
		way: "loss by a step of a node's clock",
		end: func(p process, _ *Lock, _ *lease) { p.stepClock(0, 2*time.Hour) },
		is:  "Lost, Delayed", learns: "Lost", later: "release",
	},
	{
		way: "Close", end: closed,
		is: "Released, Deleted", learns: "Released", sent: "release",
	},
	{
		way: "Close under WithMinHold", change: minHold, end: closed,
		is: "Released, Deleted", learns: "Released", sent: "extend 1m0s",
	},
	{
		way: "Close under WithMinHold, before AcquireAll has all names", change: minHold,
		end: func(p process, l *Lock, first *lease) {
			l.OnClose(Unseen)
			closed(p, l, first)
		},
		is: "Released, Unseen", learns: "Released", sent: "release",
	},
	{
		way: "Close after a loss", end: func(p process, l *Lock, first *lease) {
			answered(quorum.InputRevoked)(p, l, first)
			closed(p, l, first)
		},
		is: "Lost, Delayed", learns: "Lost", sent: "release",
	},
	{
		way: "Close after a loss under WithLockDelay", change: func(g *Grant) { g.Terms.LockDelay = time.Minute },
		end: func(p process, l *Lock, first *lease) {
			answered(quorum.InputRevoked)(p, l, first)
			closed(p, l, first)
		},
		is: "Lost, Delayed", learns: "Lost",
	},
	{
		way: "Close stops waiting for a function under the lease",
		end: func(p process, l *Lock, first *lease) {
			l.Work(first)
			closed(p, l, first)
			p.Desert()
		},
		is: "Released, Left", learns: "Released",
	},
}

// renewing builds one request that renews the lock and another one. post posts it.
func (p process) renewing(l *Lock) (post func()) {
	other := &Lock{of: l.of, key: l.key + " 2", value: l.value, machine: l.machine, is: flags{over: true}}
	other.terms.Store(l.Terms())
	other.mu.Lock()
	var posted sync.WaitGroup
	posted.Go(func() { p.extend([]*Lock{l, other}, quorum.All(1)) })
	for built := false; !built; time.Sleep(time.Millisecond) {
		l.mu.Lock()
		built = l.is.unposted > 0
		l.mu.Unlock()
	}
	return func() {
		other.mu.Unlock()
		posted.Wait()
	}
}

func minHold(g *Grant) { g.Terms.MinHold = time.Minute }
func queued(g *Grant)  { g.Queue = &queue{next: wire.TicketUpdate{Ticket: "t", EnqueuedAt: "1"}} }
func shared(g *Grant)  { g.Entry.Shared = true }

func released(p process, l *Lock, first *lease) { ends(Ending{What: Released})(p, l, first) }
func closed(p process, _ *Lock, _ *lease)       { p.End() }

// ends ends the lease, and waits for the answers if there are any.
func ends(e Ending) func(process, *Lock, *lease) {
	return func(_ process, l *Lock, first *lease) {
		if pending, _ := l.End(first, e); pending != nil {
			pending.Wait(context.Background(), 10*time.Second)
		}
	}
}

// answered has the node's answer to a renewal deny the lock.
func answered(kind quorum.Kind) func(process, *Lock, *lease) {
	return func(p process, l *Lock, _ *lease) {
		l.step(quorum.Input{Kind: kind, At: p.clock.Now()}, nil)
	}
}

// A new way of ending a lease gets a row: what it is, what the lease learns, and what the nodes are asked.
func TestEachWayOfEndingALeaseIsAnEndingAndSendsTheseRequests(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	for i, c := range endings {
		t.Run(c.way, func(t *testing.T) {
			var log operations
			proxy := redistest.NewProxy(t, server.Addr())
			proxy.DelayCommand(log.record, 0)
			p := runningOn(t, proxy.Addr())
			g := p.grant(&config.Terms{
				Terms: quorum.Terms{Nodes: 1, TTL: time.Hour, Timeout: 10 * time.Second, SafetyMargin: time.Minute}, KeyTTL: "3600000", Manual: true,
			})
			g.Entry.Lock = wire.LockKey("p:", strconv.Itoa(i))
			if c.change != nil {
				c.change(g)
			}
			l, first := p.open(t, g)
			if server.MustDo("SET", l.key, l.value, "PX", "3600000"); g.Entry.Shared {
				server.MustDo("SET", l.key, "s "+wire.Nobody+" 0 0 - ", "PX", "3600000")
				server.MustDo("ZADD", wire.ReadersKey(l.key), strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10), l.value)
			}
			first.events = nil
			c.end(p, l, first)
			assert.Equal(t, c.sent, log.until(t, p, l))
			assert.Equal(t, c.is, l.is.what.words()+", "+[...]string{"Deleted", "Unseen", "Delayed", "Left"}[l.is.keys])
			var learns []string
			for _, e := range first.events {
				if e.What != 0 { // more than a new stop
					learns = append(learns, e.What.words())
				}
			}
			assert.Equal(t, c.learns, strings.Join(learns, " "))
			in := p.clock.Now().Add(10 * time.Hour)
			l.Terms().MinHold = 0 // it has passed by then
			p.tend(in, p.schedule.take(in))
			assert.Equal(t, c.later, log.until(t, p, l))
		})
	}
}

// The node runs the last one last. A renewal with the TTL from before would shorten the keys that count for longer.
func TestAChangeOfTheTTLWaitsForARenewalOnItsWayToTheQueues(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	var log operations
	proxy := redistest.NewProxy(t, server.Addr())
	proxy.DelayCommand(log.record, 0)
	p := runningOn(t, proxy.Addr())
	l, first := p.open(t, p.grant(&config.Terms{
		Terms: quorum.Terms{Nodes: 1, TTL: time.Hour, Timeout: 10 * time.Second}, KeyTTL: "3600000", Manual: true,
	}))
	server.MustDo("SET", l.key, l.value, "PX", "3600000")
	longer := *l.Terms()
	longer.TTL, longer.KeyTTL = 2*longer.TTL, "7200000"
	post := p.renewing(l)
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		l.Renew(first, &longer, nil)
	}()
	waits := func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.is.awaited
	}
	require.Eventually(t, func() bool { return waits() || l.Terms().TTL == longer.TTL }, 10*time.Second, time.Millisecond)
	post()
	<-changed
	assert.Equal(t, "extend 1h0m0s, extend 1h0m0s, extend 2h0m0s", log.until(t, p, l))
	assert.False(t, waits())
}

func (w What) words() string {
	var all []string
	for _, one := range []struct {
		What
		word string
	}{{Settled, "Settled"}, {Lost, "Lost"}, {Released, "Released"}, {Detached, "Detached"}, {Asking, "Asking"}} {
		if w&one.What != 0 {
			all = append(all, one.word)
		}
	}
	return strings.Join(all, "+")
}

// operations records the operations on locks that a node gets.
type operations struct {
	mu   sync.Mutex
	all  []string
	lean bool // the last one went to the script for one operation, which may decline it
}

// record takes a command on its way to the server. It delays none.
func (o *operations) record(command []string) bool {
	if !strings.EqualFold(command[0], "EVALSHA") {
		return false
	}
	keys, _ := strconv.Atoi(command[2])
	args := command[3+keys:]
	lean := keys < 6 // the usual script has five keys, plus the keys of the locks
	if !lean {
		args = args[6:] // of the whole call
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if last := len(o.all) - 1; !lean && o.lean && last >= 0 && len(args) > 0 && strings.Fields(o.all[last])[0] == args[0] {
		o.all = o.all[:last] // it was declined, and is sent again
	}
	o.lean = lean
	arguments := map[string]int{"release": 1, "leave": 4, "extend": 2, "mark": 5, "drop": 1, "quit": 4, "read": 0, "look": 1}
	for len(args) > 0 {
		n, known := arguments[args[0]]
		if !known {
			break // of the node itself
		}
		text := args[0]
		switch text {
		case "extend":
			text += " " + roughly(args[2])
		case "mark":
			text += " " + args[2] + " " + roughly(args[3])
		}
		o.all = append(o.all, text)
		args = args[1+n:]
	}
	return false
}

// roughly returns a time in ms, to ten seconds.
func roughly(ms string) string {
	n, _ := strconv.Atoi(ms)
	return (time.Duration(n) * time.Millisecond).Round(10 * time.Second).String()
}

// until returns the operations so far, when the node has run what was posted.
func (o *operations) until(t *testing.T, p process, l *Lock) string {
	t.Helper()
	require.Equal(t, 1, p.ensemble.Collect(context.Background(), wire.NewRead(l.key, p.clock.Steady().Add(time.Minute)), 10*time.Second, 1, nil).Got)
	o.mu.Lock()
	defer o.mu.Unlock()
	all := slices.DeleteFunc(o.all, func(op string) bool { return op == "read" })
	o.all = nil
	return strings.Join(all, ", ")
}
