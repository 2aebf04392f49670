package node

import (
	"slices"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// leave queues the last requests, however many. From now on no vote is sent.
func (l *lanes) leave(last []*wire.Request, to Receiver) {
	l.mu.Lock()
	l.leaving = true
	for _, req := range last {
		l.urgent = append(l.urgent, entry{req: req, to: to})
	}
	l.mu.Unlock()
	l.wake()
}

// left reports whether everything that Close waits for is done. waiting is the number of requests that wait for a
// connection, and again the number of releases that are sent once more. Both count while the node is up.
func (l *lanes) left(waiting, again int, up bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resting = l.leaving && len(l.urgent) == 0 && len(l.acquire) == 0 && (waiting == 0 || !up)
	if l.resting {
		l.allAnswered = true
		l.closed = l.closed || again == 0 || !up
	}
	return l.closed
}

// progress reports whether everything was answered, and whether no retried release is queued
// either.
func (l *lanes) progress() (allAnswered, resting bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.allAnswered, l.resting
}

// close refuses requests from now on.
func (l *lanes) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
}

// drain answers the remaining requests when the worker has ended and the lanes are closed.
func (l *lanes) drain() {
	l.mu.Lock()
	rest := slices.Concat(l.urgent, l.hints, l.acquire)
	l.urgent, l.hints, l.acquire = nil, nil, nil
	l.mu.Unlock()
	fail(l.index, rest, wire.NotApplied, wire.ErrClosed)
}
