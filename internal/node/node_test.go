package node_test

import (
	"testing"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire/conformance"
)

func TestMain(m *testing.M) { testkit.RunWaiting(m) }

// RESP2 has one kind of null, no maps, and no HELLO with the kind of the server. No case
// may depend on the difference. "make compat" runs everything on servers without HELLO;
// this test uses the option of the client.
func TestRealRedisConforms(t *testing.T) {
	for protocol, resp2 := range map[string]bool{"RESP3": false, "RESP2": true} {
		t.Run(protocol, func(t *testing.T) {
			if !resp2 {
				testkit.OnlyNightly(t, "in make test it runs with the documented rights, and beside the simulation's script")
			}
			t.Parallel()
			conformance.Run(t, func(tb testing.TB) conformance.Server {
				server := redistest.Start(tb, 1)[0]
				return conformance.Server{
					Option:  rueidis.ClientOption{InitAddress: []string{server.Addr()}, AlwaysRESP2: resp2},
					Do:      server.Do,
					Restart: server.Restart,
					Fill:    func() { server.MustDo("CONFIG", "SET", "maxmemory", "1") },
					Drain:   func() { server.MustDo("CONFIG", "SET", "maxmemory", "0") },
				}
			})
		})
	}
}
