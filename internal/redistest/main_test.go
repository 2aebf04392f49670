//go:build unix

package redistest_test

import (
	"testing"

	"github.com/quorumlock/quorumlock/internal/testkit"
)

// TestMain proves that the clean-up of servers and proxies joins every goroutine.
func TestMain(m *testing.M) { testkit.RunWaiting(m) }
