package wire

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// An acquisition's request is reused for the next one. A release that undoes the first
// use may still wait in a lane by then. It must be sent, whatever happens to the second
// use.
func TestAReleaseOfAnEarlierUseIsSent(t *testing.T) {
	const asked, untouched = 1, 2 // nodes, by their bits
	value := Compose(strings.Repeat("0", OwnerLen), 0, "0 - -")
	acquisition := Acquisition{Lock: "p:job", Value: value, KeyTTL: "1000", Token: "0", NotAfter: time.Minute}
	r := &Request{}
	r.Init(&acquisition)
	r.sent.Store(asked)
	release := NewRelease("p:job", value, r, TicketUpdate{}, time.Minute)
	assert.False(t, release.UndoesNothing(untouched), "it may still be sent")
	r.Withdraw()
	assert.True(t, release.UndoesNothing(untouched))
	assert.False(t, release.UndoesNothing(asked))

	r.Reset()
	assert.False(t, r.Withdrawn())
	assert.Zero(t, r.sent.Load())
	r.Init(&acquisition)
	r.Withdraw()
	assert.False(t, release.UndoesNothing(asked), "the first use was sent to this node")
	assert.True(t, NewRelease("p:job", value, r, TicketUpdate{}, time.Minute).UndoesNothing(asked), "the second use was not")
}

// An unused reservation lapses on one node only: the other queues have another head.
func TestALapseIsReportedToItsNodeAlone(t *testing.T) {
	r := &Request{}
	r.Init(&Acquisition{Value: Compose(strings.Repeat("0", OwnerLen), 0, "0 - -"), Ticket: "t", EnqueuedAt: "5", Lapsed: 0b10})
	for node, want := range map[uint32]string{0b1: "", 0b10: "l", 0b100: ""} {
		args := r.ArgsFor(node)
		assert.Equal(t, want, args[len(args)-1], "node %b", node)
	}
}
