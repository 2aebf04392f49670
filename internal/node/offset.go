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
	At        clock.Steady  // of the last answer, on the steady clock
	// Late is by how much this process has read an answer late: the worst of the last one to two
	// latePeriods.
	Late time.Duration
}

// latePeriod is the shortest time for which a late answer is remembered: a shortage of CPU lasts for seconds.
const latePeriod = 5 * time.Second

// meter measures the node's clock against the steady clock. Only the worker uses it, except the published reading.
type meter struct {
	offset    clock.Offset
	lateSince clock.Steady // when the current period of lateness began
	// The worst of the current period and of the one before.
	worst, before time.Duration
	text          string // the low end of offset, in µs
	published     atomic.Pointer[Reading]
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
func (m *meter) observe(micros int64, sent, received clock.Steady, stepped func(clock.Step)) {
	before := m.offset.Low()
	m.tardy(micros, sent, received)
	step, found := m.offset.Observe(sinceEpoch(micros), sent, received)
	if low := m.offset.Low(); low != before || m.text == "0" {
		m.text = strconv.FormatInt(low.Microseconds(), 10)
	}
	if found {
		stepped(step)
	}
	// Published last: a reader that sees it can rely on the step being reported.
	if old := m.published.Load(); old == nil || found || received.Sub(old.At) >= publishEvery || m.offset.Mid() != old.Offset {
		m.published.Store(&Reading{Offset: m.offset.Mid(), RoundTrip: m.offset.Width(), At: received, Late: m.recent(received)})
	}
}

// tardy records how late the answer to a question sent at sent was read. With a stepped or wrong clock, the lateness is
// still at most the age of the question.
func (m *meter) tardy(micros int64, sent, received clock.Steady) {
	switch age := received.Sub(m.lateSince); {
	case age >= 2*latePeriod:
		m.lateSince, m.worst, m.before = received, 0, 0
	case age >= latePeriod:
		m.lateSince, m.worst, m.before = m.lateSince.Add(latePeriod), 0, m.worst
	}
	m.worst = max(m.worst, min(m.offset.Late(sinceEpoch(micros), received), received.Sub(sent)))
}

// recent returns by how much this process has lately read answers late.
func (m *meter) recent(now clock.Steady) time.Duration {
	switch age := now.Sub(m.lateSince); {
	case age >= 2*latePeriod: // an idle connection measures no more often
		return 0
	case age >= latePeriod:
		return m.worst
	default:
		return max(m.worst, m.before)
	}
}

// sinceEpoch returns what a node's clock shows, as time since 1970. A hostile node may send a huge number.
func sinceEpoch(micros int64) time.Duration {
	return time.Duration(min(max(micros, 0), math.MaxInt64/1000)) * time.Microsecond
}
