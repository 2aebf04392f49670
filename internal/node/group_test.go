package node_test

import (
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire/conformance"
)

// The master of a group is a node like any other, while nothing fails.
func TestAFailoverGroupConforms(t *testing.T) {
	for name, start := range map[string]func(testing.TB) (server *redistest.Server, option rueidis.ClientOption, prefix string){
		"Sentinel": func(tb testing.TB) (*redistest.Server, rueidis.ClientOption, string) {
			g := redistest.StartGroup(tb, redistest.GroupOptions{Replicas: 1, DownAfter: time.Minute, Args: []string{"--repl-diskless-sync-delay", "0"}})
			return g.Servers()[0], rueidis.ClientOption{
				InitAddress: g.SentinelAddrs(), Sentinel: rueidis.SentinelOption{MasterSet: g.Name()},
			}, ""
		},
		"ClusterSlot": func(tb testing.TB) (*redistest.Server, rueidis.ClientOption, string) {
			const tag = "{conformance}"
			c := redistest.StartCluster(tb, redistest.ClusterOptions{NodeTimeout: time.Minute, Args: []string{"--repl-diskless-sync-delay", "0"}})
			owner, _ := c.Owner(redistest.Slot(tag))
			return c.Servers()[owner], master.SlotOption(tag, c.Addrs()[:3]), tag + ":"
		},
	} {
		for protocol, resp2 := range map[string]bool{"RESP3": false, "RESP2": true} {
			t.Run(name+"/"+protocol, func(t *testing.T) {
				if resp2 || name == "ClusterSlot" {
					testkit.OnlyNightly(t, "in make test one server speaks RESP2, and one group RESP3")
				}
				t.Parallel()
				conformance.Run(t, func(tb testing.TB) conformance.Server {
					server, option, prefix := start(tb)
					option.AlwaysRESP2 = resp2
					return conformance.Server{
						Option: option, Prefix: prefix, Do: server.Do, Group: true,
						Fill:  func() { server.MustDo("CONFIG", "SET", "maxmemory", "1") },
						Drain: func() { server.MustDo("CONFIG", "SET", "maxmemory", "0") },
					}
				})
			})
		}
	}
}
