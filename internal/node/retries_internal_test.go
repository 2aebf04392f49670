package node

import (
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Each retry has its own time. A lock that may still be made must not be released too
// early because another retry is due.
func TestReleasesAreRetriedEachAtItsTime(t *testing.T) {
	n := New(Config{Option: rueidis.ClientOption{InitAddress: []string{"localhost:1"}}, Clock: func() (_ clock.Validity, _ clock.Steady) { return 0, 0 }})
	due, early := time.Now().Add(-time.Second), time.Now().Add(time.Hour)
	first, second := &wire.Request{Kind: wire.Release, Urgent: true}, &wire.Request{Kind: wire.Release, Urgent: true}
	n.courier.retries.waiting = []releaseRetry{{req: second, at: early}, {req: first, at: due}}
	n.courier.retries.due = due
	n.lanes.requeue(n.courier.retries.take())
	assert.Len(t, n.courier.retries.waiting, 1)
	assert.Equal(t, early, n.courier.retries.due)
	if assert.Len(t, n.lanes.urgent, 1) {
		assert.Same(t, first, n.lanes.urgent[0].req)
	}
	n.lanes.requeue(n.courier.retries.take())
	assert.Len(t, n.lanes.urgent, 1, "the other is not due")
	n.cancel()
}
