package node

import (
	"strings"
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
	now := n.mono()
	due, early := now.Add(time.Second), now.Add(time.Hour)
	owners := []string{strings.Repeat("0", wire.OwnerLen), strings.Repeat("1", wire.OwnerLen)}
	n.courier.retries.orphans = orphans{owners[0]: {void: early, again: early}, owners[1]: {void: due, again: due}}
	for _, owner := range owners {
		release := wire.NewBatch(wire.Release, 1, 0)
		wire.Entry{Lock: owner, Value: wire.Compose(owner, 0, "0 - -")}.Delete(release)
		n.courier.retries.released(release, now)
	}
	n.lanes.requeue(n.courier.retries.take(due - 1))
	assert.Empty(t, n.lanes.urgent, "none is due")
	n.lanes.requeue(n.courier.retries.take(due))
	if assert.Len(t, n.lanes.urgent, 1) {
		assert.Equal(t, owners[1], n.lanes.urgent[0].req.Lock(0))
	}
	n.lanes.requeue(n.courier.retries.take(early - 1))
	assert.Len(t, n.lanes.urgent, 1, "the other is not due")
	n.lanes.requeue(n.courier.retries.take(early))
	assert.Len(t, n.lanes.urgent, 2)
	n.cancel()
}
