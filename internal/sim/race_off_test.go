//go:build !race

package sim

// slowdown divides the number of seeds.
const slowdown = 1
