package node_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/node/conformance"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRealRedisConforms(t *testing.T) {
	conformance.Run(t, func(tb testing.TB) conformance.Server {
		server := redistest.Start(tb, 1)[0]
		return conformance.Server{
			Option:  rueidis.ClientOption{InitAddress: []string{server.Addr()}},
			Do:      server.Do,
			Restart: server.Restart,
		}
	})
}
