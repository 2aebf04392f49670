//go:build race

package node

// raceDetector is true where tests of one goroutine would take ten times as long for no
// benefit.
const raceDetector = true
