package testkit

import (
	"os"
	"strconv"
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

// Seeds returns how many random schedules a simulation plays: QUORUMLOCK_SIM_SEEDS, or what Count returns if that is
// not set.
func Seeds(tb testing.TB, eachNight, otherwise int) int {
	tb.Helper()
	word := os.Getenv("QUORUMLOCK_SIM_SEEDS")
	if word == "" {
		return Count(eachNight, otherwise)
	}
	n, err := strconv.Atoi(word)
	if err != nil || n < 1 {
		tb.Fatalf("QUORUMLOCK_SIM_SEEDS: %q is no number of schedules", word)
	}
	return n
}

// OnlyNightly skips a test that make test has no time for.
func OnlyNightly(tb testing.TB, why string) {
	tb.Helper()
	if !nightly {
		tb.Skip("make test-nightly runs it: " + why)
	}
}
