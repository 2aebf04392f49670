package node

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A request for an acquisition is used again for the next one. A release that undoes the
// first may still wait in a lane by then: it must go out, whatever becomes of the second.
func TestAReleaseOfAnEarlierUseIsSent(t *testing.T) {
	const asked, spared = 1, 2 // nodes, by their bits
	value := Compose(strings.Repeat("0", OwnerLen), 0, "0 - -")
	acquisition := Acquisition{Lock: "p:job", Value: value, KeyTTL: "1000", Token: "0", NotAfter: time.Minute}
	r := &Request{}
	r.Init(&acquisition)
	r.sent.Store(asked)
	release := NewRelease("p:job", value, r, TicketUpdate{}, time.Minute)
	assert.False(t, release.undoesNothing(spared), "it may be sent yet")
	r.Withdraw()
	assert.True(t, release.undoesNothing(spared))
	assert.False(t, release.undoesNothing(asked))

	r.Reset()
	assert.False(t, r.withdrawn.Load())
	assert.Zero(t, r.sent.Load())
	r.Init(&acquisition)
	r.Withdraw()
	assert.False(t, release.undoesNothing(asked), "the first use was sent to this node")
	assert.True(t, NewRelease("p:job", value, r, TicketUpdate{}, time.Minute).undoesNothing(asked), "the second was not")
}
