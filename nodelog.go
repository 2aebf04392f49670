package quorumlock

import (
	"sync"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// nodeLog decides which changes of nodes have a line in the log. The buckets of a cluster that one server has change together, and
// have one line together.
type nodeLog struct {
	mu     sync.Mutex
	states []nodeState // of the Manager's nodes; the zero nodeState before the first one
}

// nodeState is what a line about a node depends on.
type nodeState struct {
	text   string
	server string // of a bucket: the master that it was connected to last
	votes  bool
}

// minority reports whether so many nodes of a list grant no locks that no majority is left.
func (l *nodeLog) minority() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := 0
	for _, s := range l.states {
		if s.text != "" && !s.votes {
			out++
		}
	}
	return out > len(l.states)-quorum.Size(len(l.states))
}

// changed records the state of node i, and returns whether the log has a line about it, and whether the node grants locks again.
func (l *nodeLog) changed(i int, now nodeState) (line, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.states[i]
	l.states[i] = now
	if before.text == now.text { // another error of the same outage is an event, and no second line
		return false, false
	}
	again = now.votes && before.text != "" && !before.votes
	for j, other := range l.states {
		if j == i || now.server == "" || other.server != now.server {
			continue
		}
		if again && !other.votes || !again && other.text == now.text { // the first one that leaves, the last one that returns
			return false, again
		}
	}
	return true, again
}
