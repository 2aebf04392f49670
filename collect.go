package quorumlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/node"
)

// answers collects what the nodes say to one request that is not an attempt:
// release, verify, inspect.
type answers struct {
	m    *Manager
	need int
	good func(*node.Reply) bool // what an answer has to be besides Done; nil for nothing
	// settled is closed when there are as many good answers as needed, or
	// when every node has answered.
	settled chan struct{}

	mu       sync.Mutex
	replies  []node.Reply // by node; Status 0 while there is none
	got, all int          // good answers, answers
	closed   bool         // no more are taken
}

// ask posts req to every node.
func (m *Manager) ask(req *node.Request, need int, good func(*node.Reply) bool) *answers {
	a := &answers{
		m: m, need: need, good: good,
		settled: make(chan struct{}), replies: make([]node.Reply, len(m.nodes)),
	}
	for i := range m.nodes {
		m.post(i, req, a)
	}
	return a
}

// Receive files one answer.
func (a *answers) Receive(i int, req *node.Request, reply *node.Reply) {
	a.m.telemetry.node(req.Kind, reply.Status)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.replies[i] = *reply
	a.all++
	if a.err(i) == nil {
		a.got++
	}
	if a.got >= a.need || a.all == len(a.replies) {
		a.closed = true
		close(a.settled)
	}
}

// err returns why node i has no good answer, nil if it has.
func (a *answers) err(i int) error {
	switch r := &a.replies[i]; {
	case r.Status == 0:
		return errSilent
	case r.Err != nil:
		return r.Err
	case a.good != nil && !a.good(r):
		return errForeign
	}
	return nil
}

// collect asks every node and waits for enough good answers, the timeout, or
// ctx.
func (m *Manager) collect(
	ctx context.Context, req *node.Request, timeout time.Duration, need int, good func(*node.Reply) bool,
) *answers {
	a := m.ask(req, need, good)
	timer := m.timer(timeout)
	defer m.putTimer(timer)
	select {
	case <-a.settled:
	case <-timer.C:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true // what comes later changes nothing that the caller reads
	return a
}

// enough returns nil when a quorum gave good answers, and the error otherwise.
func (m *Manager) enough(ctx context.Context, op, name string, a *answers) error {
	if a.got >= m.quorum() {
		return nil
	}
	err := &QuorumError{Op: op, Name: name, Need: m.quorum(), Got: a.got}
	for i := range a.replies {
		if bad := a.err(i); bad != nil {
			err.Nodes = append(err.Nodes, m.nodeError(i, bad))
		}
	}
	if ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return err
}
