package node_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// When the time of a quarantine has passed, the node does not vote before its next greeting.
func TestAQuarantineEndsWithAGreeting(t *testing.T) {
	h := node.Health{Quarantined: time.Now().Add(-time.Second), Reason: wire.ErrQuarantined}
	assert.Zero(t, h.QuarantineLeft())
	assert.False(t, h.Votes())
	assert.True(t, node.Health{}.Votes())
	assert.False(t, node.Health{Err: wire.ErrClosed}.Votes())
}
