//go:build race

package node

// raceDetector says that tests of one goroutine take ten times as long, for nothing.
const raceDetector = true
