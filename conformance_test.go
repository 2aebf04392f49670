package quorumlock_test

import (
	"testing"

	"github.com/quorumlock/quorumlock/internal/node/conformance"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

func TestTheDocumentedRightsPassTheWholeConformance(t *testing.T) {
	conformance.Run(t, func(tb testing.TB) conformance.Server {
		server := redistest.Start(tb, 1, append([]string{"--user", "quorumlock"}, documented(t)...)...)[0]
		return conformance.Server{
			Option:  as("quorumlock", []string{server.Addr()})[0],
			Prefix:  "quorumlock:", // so that the documented pattern is tested unchanged
			Do:      server.Do,
			Restart: server.Restart,
		}
	})
}
