package quorumlock

import "context"

// watch has the channels and the context of a lease. It is made at the first request,
// because most leases are never watched and must stay small.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	// done has capacity 0, carries nothing, and is closed at the end.
	done chan struct{}
	// lost has capacity 1: exactly one value on a loss, then closed; closed without a
	// value on release. Nothing is dropped.
	lost chan Lost
	// renewed and atRisk have capacity 1: a new value replaces one that was not read.
	// Closed at the end, after Err was set and before everything else.
	renewed chan Renewed
	atRisk  chan AtRisk
	// wanted is the same; nil before the first request for it.
	wanted chan Wanted
	// rounds are the channels of Renew calls that wait for the end of the round: capacity
	// 1, one value, never closed.
	rounds []chan error
}

// end closes everything, in the order that readers rely on: Err was set before; first Renewed, AtRisk and
// Wanted, then the context, Done; Lost by settle.
func (w *watch) end(err error) {
	close(w.renewed)
	close(w.atRisk)
	if w.wanted != nil {
		close(w.wanted)
	}
	w.cancel(err)
	close(w.done)
	for _, round := range w.rounds {
		round <- err
	}
	w.rounds = nil
}

// settle ends the Lost channel.
func (w *watch) settle(lost *LostError) {
	if lost != nil {
		w.lost <- lost.Lost
	}
	close(w.lost)
}
