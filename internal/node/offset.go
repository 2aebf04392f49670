package node

import (
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// Reading is the last measurement of a node's clock.
type Reading struct {
	Offset    time.Duration // the node's clock minus the steady clock
	RoundTrip time.Duration // about how long the node takes to answer
	At        time.Duration // of the last answer, on the steady clock
}

// meter measures the node's clock against the steady clock. Only the worker uses it, but for
// what it publishes.
type meter struct {
	offset    clock.Offset
	text      string // its low end, µs
	published atomic.Pointer[Reading]
}

// newMeter returns a meter for clocks whose rates differ by drift at most.
func newMeter(drift float64) meter { return meter{offset: clock.NewOffset(drift), text: "0"} }

// last returns the last measurement, and false before the first answer.
func (m *meter) last() (Reading, bool) {
	if r := m.published.Load(); r != nil {
		return *r, true
	}
	return Reading{}, false
}

// publishEvery is the age at which a published Reading is renewed by an answer that
// changes nothing else.
const publishEvery = 5 * time.Millisecond

// observe evaluates a reading of the node's clock, in µs since 1970, that the node made
// between the steady instants sent and received. It calls stepped if the clock was stepped.
func (m *meter) observe(micros int64, sent, received time.Duration, stepped func(clock.Step)) {
	before := m.offset.Low()
	reading := time.Duration(min(micros, math.MaxInt64/1000)) * time.Microsecond // a hostile node may send a huge number
	step, found := m.offset.Observe(max(reading, 0), sent, received)
	if low := m.offset.Low(); low != before || m.text == "0" {
		m.text = strconv.FormatInt(low.Microseconds(), 10)
	}
	if found {
		stepped(step)
	}
	// Published last: a reader that sees it can rely on the step being reported.
	if old := m.published.Load(); old == nil || found || received-old.At >= publishEvery || m.offset.Mid() != old.Offset {
		m.published.Store(&Reading{Offset: m.offset.Mid(), RoundTrip: m.offset.Width(), At: received})
	}
}
