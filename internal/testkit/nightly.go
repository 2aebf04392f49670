package testkit

import (
	"os"
	"testing"
)

// nightly reports whether this is make test-nightly. Otherwise counts are small, so that make test takes few
// minutes on two processors.
var nightly = os.Getenv("QUORUMLOCK_NIGHTLY") != ""

// Count returns how often a test repeats its case each night, and otherwise.
func Count(eachNight, otherwise int) int {
	if nightly {
		return eachNight
	}
	return otherwise
}

// OnlyNightly skips a test that make test has no time for.
func OnlyNightly(tb testing.TB, why string) {
	tb.Helper()
	if !nightly {
		tb.Skip("make test-nightly runs it: " + why)
	}
}
