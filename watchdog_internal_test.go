package quorumlock

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// A lease may be released while its lock is at risk, and callers of its process wait for the lock: the
// lease is over, and the lock is not yet.
func TestALeaseThatIsOverDoesNotCountAsAtRisk(t *testing.T) {
	nodes := Addrs("127.0.0.1:1")
	cfg, err := newSettings(nodes, []Option{WithPrefix("")})
	require.NoError(t, err)
	m, err := build(clock.New(), cfg, nodes)
	require.NoError(t, err)
	l := &Lease{m: m, lock: &hold.Lock{}, values: context.Background()}
	(*tenant)(l).Report(hold.Event{What: hold.AtRisk, State: quorum.StateAtRisk})
	assert.True(t, l.risky)
	(*tenant)(l).Report(hold.Event{What: hold.Released, State: quorum.StateAtRisk})
	assert.False(t, l.risky)
}
