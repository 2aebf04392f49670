//go:build race

package sim

// slowdown divides the number of seeds, because the race detector makes a run ten times as
// long and a run has only one goroutine. make test plays all seeds without the detector.
// Only there it looks for the planted bugs.
const slowdown = 20
