package node

import (
	"math"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Reading is the last measurement of a node's clock.
type Reading struct {
	Offset    time.Duration // the node's clock minus the steady clock
	RoundTrip time.Duration // about how long the node takes to answer
	At        time.Duration // of the last answer, on the steady clock
}

// Reading returns the last measurement of the node's clock, and false before the first
// answer.
func (n *Node) Reading() (Reading, bool) {
	if r := n.reading.Load(); r != nil {
		return *r, true
	}
	return Reading{}, false
}

// publishEvery is the age at which a published Reading is renewed by an answer that
// changes nothing else.
const publishEvery = 5 * time.Millisecond

// observe evaluates a reading of the node's clock, in µs since 1970, that the node made
// between the steady instants sent and received.
func (n *Node) observe(micros int64, sent, received time.Duration) {
	before := n.offset.Low()
	reading := time.Duration(min(micros, math.MaxInt64/1000)) * time.Microsecond // a hostile node may send a huge number
	step, found := n.offset.Observe(max(reading, 0), sent, received)
	if low := n.offset.Low(); low != before || n.offsetText == "0" {
		n.offsetText = strconv.FormatInt(low.Microseconds(), 10)
	}
	if found {
		n.stepped(step)
	}
	// Published last: a reader that sees it can rely on the step being reported.
	if old := n.reading.Load(); old == nil || found || received-old.At >= publishEvery || n.offset.Mid() != old.Offset {
		n.reading.Store(&Reading{Offset: n.offset.Mid(), RoundTrip: n.offset.Width(), At: received})
	}
}

// stepped handles a step of the node's clock. After a step forward, keys have expired
// before their time, so the node's votes must not count: it may have lost locks. After a
// step backward keys live longer, which costs only time.
func (n *Node) stepped(step clock.Step) {
	_, steady := n.cfg.Clock()
	if step.Forward() {
		n.quarantineFor(n.cfg.StepQuarantine, wire.ErrClockStep)
		n.clockSuspect, n.suspectSince = n.cfg.Guard > 0, steady
		n.regreet()
	}
	if n.cfg.OnClockStep != nil {
		n.cfg.OnClockStep(n.cfg.Index, step.By)
	}
}
