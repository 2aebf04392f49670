package redistest

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestThePortOfAServerThatIsDownGetsNoOtherOwnerForLong(t *testing.T) {
	seen := map[int]bool{}
	for range shareSize / 2 {
		port, err := freePort()
		require.NoError(t, err)
		assert.False(t, seen[port], "port %d comes again", port)
		assert.True(t, port >= lowestPort && port <= highestPort)
		seen[port] = true
	}
}
