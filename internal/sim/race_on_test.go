//go:build race

package sim

// slowdown divides the number of seeds: the race detector makes a run ten times as long,
// and there is one goroutine in it. make test plays all of them without the detector, and
// the planted bugs only there.
const slowdown = 20
