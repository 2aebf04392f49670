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
				line, returns := l.changed(i, state(server, text))
				if line {
					lines, again = append(lines, i), returns
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

func TestTheLogSaysWhenNoMajorityIsLeft(t *testing.T) {
	l := nodeLog{states: make([]nodeState, 4)}
	for i, minority := range []bool{false, true, true, true} { // two of four are no majority
		l.changed(i, nodeState{text: "down"})
		assert.Equal(t, minority, l.minority(), i)
	}
	l.changed(0, nodeState{text: "votes", votes: true})
	l.changed(1, nodeState{text: "votes", votes: true})
	assert.True(t, l.minority())
	l.changed(2, nodeState{text: "votes", votes: true})
	assert.False(t, l.minority())
	l = nodeLog{states: make([]nodeState, 3)}
	l.changed(0, nodeState{text: "down"})
	assert.False(t, l.minority(), "two have not said anything yet")
}
