package main

import "slices"

// The packages whose tests are on trial.
const (
	decisions = "internal/quorum" // golden cases, a second implementation, random walks
	scripts   = "internal/node"   // conformance on a real Redis
	virtual   = "quorumlocktest"  // the whole Manager in virtual time
	real      = "."               // the whole Manager on real Redis
	clocks    = "internal/clock"
)

// all returns every mutant: the bugs, by what they concern. A bug is a change that
// somebody could make in good faith.
func all() []mutant {
	return slices.Concat(votes, locks, registers, queues, messages, guards, lives, waiters, callers, passes, closing, nodes, comforts)
}
