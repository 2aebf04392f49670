package quorumlocktest_test

import (
	"testing"

	"github.com/quorumlock/quorumlock/internal/wire/conformance"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// The same cases run on real Redis in internal/node.
func TestInProcessNodesConform(t *testing.T) {
	for name, resp2 := range map[string]bool{"RESP3": false, "RESP2": true} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, func(tb testing.TB) conformance.Server {
				c := quorumlocktest.Start(tb, 1)
				n, option := c.Nodes()[0], c.Options()[0]
				option.AlwaysRESP2 = resp2
				return conformance.Server{
					Option: option, Do: n.Do, Restart: n.Restart,
					Fill:  func() { n.Fail(needsMemory, "OOM command not allowed when used memory > 'maxmemory'.") },
					Drain: func() { n.Fail(nil, "") },
				}
			})
		})
	}
}

// needsMemory reports whether a full Redis refuses the command.
func needsMemory(args []string) bool { return args[0] == "SET" || args[0] == "ZADD" }
