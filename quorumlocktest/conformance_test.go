package quorumlocktest_test

import (
	"testing"

	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/wire/conformance"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// The same cases run on real Redis in internal/node.
func TestInProcessNodesConform(t *testing.T) {
	const tag = "{conformance}"
	for name, start := range map[string]func(testing.TB) (n *quorumlocktest.Node, server conformance.Server){
		"independent": func(tb testing.TB) (*quorumlocktest.Node, conformance.Server) {
			c := quorumlocktest.Start(tb, 1)
			n := c.Nodes()[0]
			return n, conformance.Server{Option: c.Options()[0], Restart: n.Restart}
		},
		"ClusterSlot": func(tb testing.TB) (*quorumlocktest.Node, conformance.Server) {
			c := quorumlocktest.StartRedisCluster(tb, 3)
			option := c.Option()
			option.InitAddress = master.SlotOption(tag, option.InitAddress).InitAddress
			return c.Nodes()[3*master.Slot(tag)/master.HashSlots], conformance.Server{Option: option, Prefix: tag + ":", Group: true}
		},
	} {
		for protocol, resp2 := range map[string]bool{"RESP3": false, "RESP2": true} {
			t.Run(name+"/"+protocol, func(t *testing.T) {
				t.Parallel()
				conformance.Run(t, func(tb testing.TB) conformance.Server {
					n, server := start(tb)
					server.Option.AlwaysRESP2 = resp2
					server.Do = n.Do
					server.Fill = func() { n.Fail(needsMemory, "OOM command not allowed when used memory > 'maxmemory'.") }
					server.Drain = func() { n.Fail(nil, "") }
					return server
				})
			})
		}
	}
}

// needsMemory reports whether a full Redis refuses the command.
func needsMemory(args []string) bool { return args[0] == "SET" || args[0] == "ZADD" }
