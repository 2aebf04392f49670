package battery

import (
	"log/slog"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// roles are what this test binary does when it is started again as another
// process: a row registers them in an init function, and starts one with
// "QUORUMLOCK_ROLE=name" in the environment.
var roles = map[string]func() int{}

func TestMain(m *testing.M) {
	// Nodes go away here all the time, and the lines of the figures are what people read.
	slog.SetDefault(slog.New(slog.DiscardHandler))
	if role := os.Getenv("QUORUMLOCK_ROLE"); role != "" {
		os.Exit(roles[role]())
	}
	goleak.VerifyTestMain(m)
}
