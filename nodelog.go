package quorumlock

import (
	"sync"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// nodeLog decides which changes of nodes have a line in the log. The buckets of one server of a cluster change
// together, and share one line.
type nodeLog struct {
	mu     sync.Mutex
	states []nodeState // of the Manager's nodes; the zero nodeState before the first one
}

// nodeState is the part of a node's state that decides on a line.
type nodeState struct {
	text   string
	server string // of a bucket: the master that it was connected to last
	votes  bool
}

// nodeLine has what a line about a node reports in addition to its state.
type nodeLine struct {
	again bool // it grants locks again
	// How many nodes of the list grant locks, and how many do not; the others have not reported yet.
	voting, out int
}

// changed records the state of node i, and returns whether the log has a line about it, and which.
func (l *nodeLog) changed(i int, now nodeState) (line nodeLine, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.states[i]
	l.states[i] = now
	if before.text == now.text { // another error of the same outage is an event, but not a second line
		return line, false
	}
	line.again = now.votes && before.text != "" && !before.votes
	for j, other := range l.states {
		switch {
		case other.votes:
			line.voting++
		case other.text != "":
			line.out++
		}
		if j == i || now.server == "" || other.server != now.server {
			continue
		}
		if line.again && !other.votes || !line.again && other.text == now.text { // the first one that leaves, the last one that returns
			return line, false
		}
	}
	return line, true
}

// effect describes what the other nodes of a list of n do.
func (l nodeLine) effect(n int) string {
	switch {
	case l.voting >= quorum.Size(n):
		return "the others do, as they are a majority"
	case l.out > n-quorum.Size(n):
		return "too few others do: no lease is granted"
	default:
		return "the others have not all been asked yet"
	}
}
