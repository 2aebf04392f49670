package quorumlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// answers collects the answers of all nodes to one request that is not an attempt:
// release, verify, inspect.
type answers struct {
	m    *Manager
	need int
	good func(*wire.Reply) error // returns why a Done answer does not count; nil if every Done answer counts
	// decided has capacity 1. It is sent once, when enough answers are good or every node
	// has answered. Never closed.
	decided chan struct{}

	mu       sync.Mutex
	got      int          // good answers
	answered quorum.Set   // nodes that have answered
	errs     []error      // of the nodes whose answer was not good; nil until there is one
	replies  []wire.Reply // by node, if they are wanted
	over     bool         // later answers are ignored
	waited   time.Duration
}

// askAll posts req to every node.
func (m *Manager) askAll(req *wire.Request, need int, good func(*wire.Reply) error) *answers {
	a := &answers{m: m, need: need, good: good, decided: m.signals.get()}
	if req.Kind == wire.Read {
		a.replies = make([]wire.Reply, len(m.nodes))
	}
	if req.Kind == wire.Read {
		_, now := m.clock.Both()
		m.ask(req, a, now)
		return a
	}
	for i := range m.nodes {
		m.post(i, req, a)
	}
	return a
}

// Receive records one answer.
func (a *answers) Receive(i int, req *wire.Request, reply *wire.Reply) {
	a.m.answered(i, req, reply)
	if req.Kind == wire.Release && reply.N == wire.HandedOn {
		a.m.locals.handedOn(a.m, req.Lock(0))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	err := reply.Err
	if err == nil && a.good != nil {
		err = a.good(reply)
	}
	if err == nil {
		a.got++
	} else {
		if a.errs == nil {
			a.errs = make([]error, len(a.m.nodes))
		}
		a.errs[i] = err
	}
	if a.replies != nil {
		a.replies[i] = *reply
	}
	a.answered = a.answered.With(i)
	if a.got >= a.need || a.answered == quorum.All(len(a.m.nodes)) {
		a.over = true
		a.decided <- struct{}{}
	}
}

// err returns why node i has no good answer, nil if it has one.
func (a *answers) err(i int) error {
	switch {
	case !a.answered.Has(i):
		return silence(a.waited)
	case a.errs != nil:
		return a.errs[i]
	}
	return nil
}

// collect asks every node and waits for enough good answers.
func (m *Manager) collect(
	ctx context.Context, req *wire.Request, timeout time.Duration, need int, good func(*wire.Reply) error,
) *answers {
	a := m.askAll(req, need, good)
	a.wait(ctx, timeout)
	return a
}

// wait returns when there are enough good answers, after the timeout, or when
// ctx ends.
func (a *answers) wait(ctx context.Context, timeout time.Duration) {
	began := a.m.clock.Now()
	timer := a.m.timer(timeout)
	defer a.m.putTimer(timer)
	done := ctx.Done()
	for waiting := true; waiting; {
		select {
		case <-a.decided:
			waiting = false
		case <-timer.C:
			waiting = false
		case <-done:
			// The release ends the contexts that belong to the lease, such as those in
			// Do. So ErrReleased does not end this wait.
			if waiting = errors.Is(context.Cause(ctx), ErrReleased); waiting {
				done = nil
			}
		}
	}
	a.mu.Lock()
	a.over = true // later answers do not change what the caller reads
	a.waited = min(a.m.clock.Now()-began, timeout)
	a.mu.Unlock()
	a.m.signals.put(a.decided)
}

// enough returns nil when a quorum gave good answers, and the error otherwise.
func (m *Manager) enough(ctx context.Context, op, name string, a *answers) error {
	if a.got >= m.quorum() {
		return nil
	}
	err := &QuorumError{Op: op, Name: name, Need: m.quorum(), Got: a.got, of: len(m.nodes)}
	for i := range m.nodes {
		if bad := a.err(i); bad != nil {
			err.Nodes = append(err.Nodes, m.nodeError(i, bad))
		}
	}
	if ctx.Err() == nil || errors.Is(context.Cause(ctx), ErrReleased) {
		return err
	}
	what := "stopped waiting for answers"
	if op == "release" {
		what += ", while the deletion goes on"
	}
	return errs.Ended(ctx, err, what)
}

// unreleased receives the answers to the releases of Close, and records the locks that
// may remain on a node.
type unreleased struct {
	m *Manager

	mu    sync.Mutex
	locks map[string]struct{} // lock keys
	nodes quorum.Set
}

// Receive implements node.Receiver.
func (u *unreleased) Receive(i int, req *wire.Request, reply *wire.Reply) {
	u.m.answered(i, req, reply)
	if reply.Status == wire.Done {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.locks == nil {
		u.locks = map[string]struct{}{}
	}
	for j := range req.Locks() {
		u.locks[req.Lock(j)] = struct{}{}
	}
	u.nodes = u.nodes.With(i)
}

// count returns how many locks may remain, and on how many nodes.
func (u *unreleased) count() (locks, nodes int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.locks), u.nodes.Len()
}
