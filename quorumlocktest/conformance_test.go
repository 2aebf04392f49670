package quorumlocktest_test

import (
	"testing"

	"github.com/quorumlock/quorumlock/internal/node/conformance"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// The same cases run on real Redis in internal/node.
func TestInProcessNodesConform(t *testing.T) {
	conformance.Run(t, func(tb testing.TB) conformance.Server {
		c := quorumlocktest.Start(tb, 1)
		n := c.Nodes()[0]
		return conformance.Server{Option: c.Options()[0], Do: n.Do, Restart: n.Restart}
	})
}
