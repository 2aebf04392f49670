//go:build unix

package redistest

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain proves that the clean-up of servers and proxies joins every goroutine.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
