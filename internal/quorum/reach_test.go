package quorum

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A request that waits for the answer to the one before is answered after two round trips.
func TestANodeTimeoutIsATenthOfTheTTLAndLongerForFarNodes(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct{ ttl, trip, timeout time.Duration }{
		{ttl: 100 * ms, timeout: 20 * ms},
		{ttl: 1000 * ms, trip: 400 * ms, timeout: 100 * ms},
		{ttl: 10_000 * ms, timeout: 500 * ms},
		{ttl: 10_000 * ms, trip: 200 * ms, timeout: 500 * ms},
		{ttl: 10_000 * ms, trip: 250 * ms, timeout: 625 * ms},
		{ttl: 9000 * ms, trip: 400 * ms, timeout: 900 * ms},
		{ttl: 60_000 * ms, trip: 4000 * ms, timeout: 1000 * ms},
	} {
		assert.Equal(t, c.timeout, NodeTimeout(c.ttl, c.trip), "TTL %v, round trip %v", c.ttl, c.trip)
	}
}
