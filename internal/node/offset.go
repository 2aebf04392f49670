package node

import (
	"math"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// Reading is what is known of a node's clock, and when it was read last.
type Reading struct {
	Offset    time.Duration // the node's clock minus the steady clock
	RoundTrip time.Duration // about how long the node takes to answer
	At        time.Duration // of the last answer, on the steady clock
}

// Reading returns what is known of the node's clock, and false before its first answer.
func (n *Node) Reading() (Reading, bool) {
	if r := n.reading.Load(); r != nil {
		return *r, true
	}
	return Reading{}, false
}

// publishEvery is how old a published Reading may be before an answer that changes
// nothing else renews it.
const publishEvery = 5 * time.Millisecond

// observe takes a reading of the node's clock, in µs since 1970, that the node made
// between the steady instants sent and received.
func (n *Node) observe(micros int64, sent, received time.Duration) {
	before := n.offset.Low()
	reading := time.Duration(min(micros, math.MaxInt64/1000)) * time.Microsecond // a hostile node's may be huge
	step, found := n.offset.Observe(max(reading, 0), sent, received)
	if low := n.offset.Low(); low != before || n.offsetText == "0" {
		n.offsetText = strconv.FormatInt(low.Microseconds(), 10)
	}
	if found {
		n.stepped(step)
	}
	// Published last: readers that see it have heard of the step, too.
	if old := n.reading.Load(); old == nil || found || received-old.At >= publishEvery || n.offset.Mid() != old.Offset {
		n.reading.Store(&Reading{Offset: n.offset.Mid(), RoundTrip: n.offset.Width(), At: received})
	}
}

// stepped takes note of a clock that was stepped. After a step forward, keys have
// expired before their time: what the node says of locks that it no longer has must
// not count. After a step backward keys live longer, which costs no more than time.
func (n *Node) stepped(step clock.Step) {
	_, steady := n.cfg.Clock()
	if step.Forward() {
		n.quarantineFor(n.cfg.StepQuarantine, ErrClockStep)
		n.clockSuspect, n.suspectSince = n.cfg.Guard > 0, steady
		n.regreet()
	}
	if n.cfg.OnClockStep != nil {
		n.cfg.OnClockStep(n.cfg.Index, step.By)
	}
}
