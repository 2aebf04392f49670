//go:build race

package sim

// slowdown divides the number of seeds: the race detector makes a run ten
// times as long, and there is one goroutine in it.
const slowdown = 5
