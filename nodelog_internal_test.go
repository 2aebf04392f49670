package quorumlock

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A server that goes away, or returns, has one line in the log, and not one for each of its buckets.
func TestTheLogHasOneLineForEachServerOfACluster(t *testing.T) {
	l := nodeLog{states: make([]nodeState, 6)} // 0 to 2 are on a, 3 to 5 on b
	state := func(server, text string) nodeState {
		return nodeState{text: text, server: server, votes: strings.HasPrefix(text, "votes")}
	}
	var again bool
	all := func(server, text string, nodes ...int) (lines []int) {
		for _, i := range nodes {
			for range 2 { // an error has many texts, and one state
				if line, ok := l.changed(i, state(server, text)); ok {
					lines, again = append(lines, i), line.again
				}
			}
		}
		return lines
	}
	for _, step := range []struct {
		server, text string
		nodes, lines []int
		again        bool
	}{
		{"a", "quarantine", []int{0, 1, 2}, []int{0}, false},
		{"b", "votes", []int{3, 4, 5}, []int{3}, false},
		{"a", "votes", []int{0, 1, 2}, []int{2}, true},
		{"a", "down", []int{1, 0, 2}, []int{1}, false},
		{"b", "quarantine", []int{2, 0}, []int{2}, false},
		{"b", "quarantine", []int{1}, nil, false},
		{"b", "votes", []int{0, 2, 1}, []int{1}, true},
		{"b", "down", []int{0, 1, 2, 3, 4, 5}, []int{0}, false},
		{"b", "votes", []int{0, 1, 2, 3, 4, 5}, []int{5}, true},
		{"b", "down", []int{4}, []int{4}, false}, // its slot moves
		{"c", "votes", []int{4}, []int{4}, true},
		{"b", "votes, and a warning", []int{0, 1, 2, 3, 5}, []int{0}, false},
		{"b", "votes", []int{0, 1, 2, 3, 5}, []int{0}, false},
	} {
		again = false
		assert.Equal(t, step.lines, all(step.server, step.text, step.nodes...), fmt.Sprint(step))
		assert.Equal(t, step.again, again, fmt.Sprint(step))
	}

	l = nodeLog{states: make([]nodeState, 3)} // of a list
	assert.Equal(t, []int{0, 1, 2}, all("", "votes", 0, 1, 2))
	assert.Equal(t, []int{0, 1, 2}, all("", "down", 0, 1, 2))
}

func TestTheLogSaysWhetherAMajorityIsLeft(t *testing.T) {
	const unknown, left, lost = "the others have not all been asked yet", "the others do, as they are a majority", "too few others do: no lease is granted"
	l := nodeLog{states: make([]nodeState, 4)}
	for i, step := range []struct {
		node   int
		votes  bool
		effect string
	}{
		{0, false, unknown},
		{1, false, lost}, // two of four are not a majority
		{2, false, lost},
		{3, true, lost},
		{0, true, lost},
		{1, true, left},
		{2, true, left},
		{3, false, left},
		{2, false, lost},
	} {
		line, ok := l.changed(step.node, nodeState{text: fmt.Sprint("votes: ", step.votes), votes: step.votes})
		assert.True(t, ok, i)
		assert.Equal(t, step.effect, line.effect(4), i)
	}
}
