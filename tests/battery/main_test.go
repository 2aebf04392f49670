package battery

import (
	"log/slog"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// roles has the functions of this test binary in other processes. A row registers them in
// an init function, and starts one with "QUORUMLOCK_ROLE=name" in the environment.
var roles = map[string]func() int{}

func TestMain(m *testing.M) {
	// Nodes fail here continuously, and only the figures should be printed.
	slog.SetDefault(slog.New(slog.DiscardHandler))
	if role := os.Getenv("QUORUMLOCK_ROLE"); role != "" {
		os.Exit(roles[role]())
	}
	goleak.VerifyTestMain(m)
}
