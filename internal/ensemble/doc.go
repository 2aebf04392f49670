// Package ensemble makes one of the N nodes of a Manager: it posts requests to all of them, counts their answers,
// compares their clocks, lists and identities, and reports upward what happens to them ([Events]).
//
//	a call ── Post, Ask, AskAll ──> the queues of the nodes ── workers ──> Receive
//	node.Health ──> onHealth ──> Events.NodeChanged
//	a clock that was stepped ──> onClockStep ──> Events.ClockStepped
//
// It starts no goroutine: the workers of the nodes call it, and calls wait in their own.
//
// Mutexes: the mutex of Steps is taken after the mutex of an attempt, which grants under it. The
// others (Ensemble, lists, Answers) are taken last, and no other is taken under them.
package ensemble
