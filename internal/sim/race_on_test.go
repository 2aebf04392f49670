//go:build race

package sim

// slowdown divides the number of seeds, because the race detector makes a run ten times as
// long and a run has only one goroutine. make test plays them without the detector.
// The planted bugs are looked for only without it.
const slowdown = 20
