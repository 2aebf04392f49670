package quorumlocktest

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock"
)

// Manager returns a Manager over the nodes, and closes it at the end of the test. It logs to
// the test's log, unless WithLogger among opts says otherwise.
func (c *Cluster) Manager(tb testing.TB, opts ...quorumlock.Option) *quorumlock.Manager {
	tb.Helper()
	return c.ManagerFor(tb, "", opts...)
}

// ManagerFor is Manager for a client that [Cluster.Partition] can cut off by name.
func (c *Cluster) ManagerFor(tb testing.TB, client string, opts ...quorumlock.Option) *quorumlock.Manager {
	tb.Helper()
	return manager(tb, func(first ...quorumlock.Option) (*quorumlock.Manager, error) {
		return quorumlock.New(context.Background(), c.OptionsFor(client), append(first, opts...)...)
	})
}

// manager returns the Manager of a test, which open makes with these options first.
func manager(tb testing.TB, open func(first ...quorumlock.Option) (*quorumlock.Manager, error)) *quorumlock.Manager {
	tb.Helper()
	log := &testLog{tb: tb}
	tb.Cleanup(log.end) // last, because cleanups run in reverse order
	m, err := open(quorumlock.WithLogger(log.logger()))
	if err != nil {
		tb.Fatalf("quorumlocktest: no Manager: %v", err)
	}
	tb.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			tb.Errorf("quorumlocktest: the Manager was not closed: %v", err)
		}
	})
	return m
}

// testLog writes to the log of a test, and to nothing once the test has ended, because Log then panics.
type testLog struct {
	mu sync.Mutex
	tb testing.TB // nil after the test
}

func (l *testLog) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey && len(groups) == 0 {
			return slog.Attr{} // in a bubble it is the year 2000
		}
		return a
	}}))
}

// Write writes one line, as a slog handler does.
func (l *testLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tb != nil {
		l.tb.Log(strings.TrimSuffix(string(line), "\n"))
	}
	return len(line), nil
}

func (l *testLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tb = nil
}

// forcePatience bounds ForceLost when the nodes do not answer.
const forcePatience = 10 * time.Second

// ForceLost replaces the lock on every node, as if another client had it, and returns
// when the lease has noticed: its context has ended, and Err is a *quorumlock.LostError
// with the reason LostTaken. The name stays taken until the lock expires. With a shared
// lease, all shared leases of the name are lost. The nodes must answer; if they do not, the
// lease is lost when its time has passed (see [Cluster.Cut]).
func (c *Cluster) ForceLost(tb testing.TB, l *quorumlock.Lease) {
	tb.Helper()
	found := 0
	for _, n := range c.nodes {
		found += n.revoke(tb, l.Owner())
	}
	if found == 0 {
		tb.Fatalf("quorumlocktest: no node of this cluster has the lock of lease %q, which is of another cluster, or over", l.Name())
	}
	ctx, cancel := context.WithTimeout(context.Background(), forcePatience)
	defer cancel()
	if err := l.Renew(ctx); l.Err() == nil {
		tb.Fatalf("quorumlocktest: lease %q is not lost: %v", l.Name(), err)
	}
}

// ForceLostByName is [Cluster.ForceLost] for a lease that the test does not have, such as the lease of code that calls
// Do: it replaces the lock that m holds under this name, and returns when m has reported the loss. A lease that is
// renewed notices within a third of its TTL, one WithoutRenewal only at its next Renew or at its end.
func (c *Cluster) ForceLostByName(tb testing.TB, m *quorumlock.Manager, name string) {
	tb.Helper()
	losses := m.Subscribe(1, quorumlock.Lost{})
	defer losses.Close()
	status, err := m.Inspect(context.Background(), name)
	if err != nil || !status.Held {
		tb.Fatalf("quorumlocktest: %q is not held on a majority of the nodes (%v)", name, err)
	}
	for _, n := range c.nodes {
		n.revoke(tb, status.Holder.Owner)
	}
	late := time.After(status.TTL + forcePatience)
	for {
		select {
		case e, open := <-losses.C():
			if !open {
				tb.Fatalf("quorumlocktest: the Manager was closed before %q was lost", name)
			}
			if lost, ok := e.(quorumlock.Lost); ok && lost.Name == name {
				return
			}
		case <-late:
			tb.Fatalf("quorumlocktest: no lease %q of this Manager is lost", name)
		}
	}
}

// readersTag follows the key of a lock in the key of the set of its readers.
const readersTag = "\xffs"

// heldBy returns the key of the lock that an owner has if this is its key, or the key of the set of its
// readers; "" if it is neither.
func (n *Node) heldBy(key, owner string) string {
	if lock, ofReaders := strings.CutSuffix(key, readersTag); ofReaders {
		values, _ := n.Do("ZRANGE", key, "0", "-1")
		readers, _ := values.([]any)
		if slices.ContainsFunc(readers, func(v any) bool { text, _ := v.(string); return strings.HasPrefix(text, owner+" ") }) {
			return lock
		}
		return ""
	}
	value, err := n.Do("GET", key)
	if text, ok := value.(string); err == nil && ok && strings.HasPrefix(text, owner+" ") {
		return key
	}
	return ""
}

// revoke replaces the locks of an owner by foreign ones, and returns their number.
func (n *Node) revoke(tb testing.TB, owner string) (found int) {
	tb.Helper()
	keys, err := n.Do("KEYS", "*")
	if err != nil {
		tb.Fatalf("quorumlocktest: %s: %v", n.addr, err)
	}
	list, _ := keys.([]any)
	for _, key := range list {
		name, _ := key.(string)
		if name = n.heldBy(name, owner); name == "" {
			continue
		}
		if _, err := n.Do("SET", name, "taken by quorumlocktest", "XX", "KEEPTTL"); err != nil {
			tb.Fatalf("quorumlocktest: %s: %v", n.addr, err)
		}
		found++
	}
	return found
}

// Kill kills the nodes with these indices, or all nodes if there are none: [Node.Kill].
func (c *Cluster) Kill(nodes ...int) { c.each(nodes, (*Node).Kill) }

// Restart restarts these nodes, or all, without their data: [Node.Restart].
func (c *Cluster) Restart(nodes ...int) { c.each(nodes, (*Node).Restart) }

// Hang stops the nodes with these indices, or all nodes, as SIGSTOP does: [Node.Hang].
func (c *Cluster) Hang(nodes ...int) { c.each(nodes, (*Node).Hang) }

// Resume resumes these nodes, or all: [Node.Resume].
func (c *Cluster) Resume(nodes ...int) { c.each(nodes, (*Node).Resume) }

// Cut cuts the network of the nodes with these indices, or of all nodes, without notice
// to either side: [Node.Cut].
func (c *Cluster) Cut(nodes ...int) { c.each(nodes, (*Node).Cut) }

// Heal ends the network faults of these nodes, or of all: [Node.Heal].
func (c *Cluster) Heal(nodes ...int) { c.each(nodes, (*Node).Heal) }

// StepClock steps the clocks of the nodes with these indices, or of all nodes:
// [Node.StepClock].
func (c *Cluster) StepClock(d time.Duration, nodes ...int) {
	c.each(nodes, func(n *Node) { n.StepClock(d) })
}

func (c *Cluster) each(nodes []int, do func(*Node)) {
	for _, n := range c.pick(nodes) {
		do(n)
	}
}
