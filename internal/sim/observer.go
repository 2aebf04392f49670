package sim

import (
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// observer asks the nodes who has the lock, as Manager.Observe does, in one of observedRuns runs. It
// takes no part in the run, and draws from a generator of its own: the run is the same without it.
type observer struct {
	nodes   int
	timeout time.Duration
	bug     Mutation
	patient time.Duration // how long polls may decide nothing before the holder is unknown
	pcg     rand.PCG
	decides quorum.Observer

	began    time.Duration
	before   [quorum.MaxNodes]uint32 // the owner on each node when the poll begins
	owners   [quorum.MaxNodes]uint32 // and by the answers
	sights   [quorum.MaxNodes]quorum.Sight
	answered quorum.Set

	seen    uint32 // the last owner that was reported
	seenTop int64  // the last token of its grant
}

const observedRuns = 4

// sighted is what a node shows at an instant.
type sighted struct {
	owner uint32 // 0: none
	shown int64
	left  time.Duration // until its lock ends
}

// reset begins a run.
func (o *observer) reset(seed int64, terms *quorum.Terms, bug Mutation) {
	*o = observer{nodes: terms.Nodes, timeout: terms.Timeout, bug: bug, decides: quorum.NewObserver(0)}
	o.pcg.Seed(uint64(seed), 0x0b5e)
	o.patient = o.upTo(4 * o.timeout)
}

// upTo returns a time in [0, d).
func (o *observer) upTo(d time.Duration) time.Duration {
	return time.Duration(o.pcg.Uint64() % uint64(d))
}

// begin begins a poll. looks returns the instants at which the nodes are read, or -1 for a node that is not
// reached.
func (o *observer) begin(now time.Duration, show func(node int) sighted) (looks [quorum.MaxNodes]time.Duration) {
	o.began, o.answered = now, 0
	o.sights, o.owners = [quorum.MaxNodes]quorum.Sight{}, [quorum.MaxNodes]uint32{}
	for i := range o.nodes {
		o.before[i] = show(i).owner
		looks[i] = now + o.upTo(o.timeout)
		if o.pcg.Uint64()%8 == 0 {
			looks[i] = -1
		}
	}
	return looks
}

// look records the answer of a node.
func (o *observer) look(node int, now time.Duration, s sighted) {
	o.answered = o.answered.With(node)
	o.owners[node] = s.owner
	if s.owner != 0 {
		o.sights[node] = quorum.Sight{Held: true, Owner: strconv.Itoa(int(s.owner)), Reused: s.owner == everybody, Token: s.shown, Until: clock.Validity(now + s.left)}
	}
}

// conclude ends a poll, and returns the owner that it has found, 0 for none, and whether that is known.
func (o *observer) conclude() (owner uint32, known bool) {
	answered := o.answered
	switch o.bug {
	case ForgetsTheNewest:
		o.decides = quorum.NewObserver(0)
	case SilenceIsNobody:
		answered = quorum.All(o.nodes)
	default:
	}
	o.decides.Polled(clock.Validity(o.began), o.patient, o.sights[:o.nodes], answered)
	if o.decides.KnownAt() != clock.Validity(o.began) {
		return 0, false
	}
	h, _ := o.decides.Last()
	if h.Held {
		n, _ := strconv.Atoi(h.Owner)
		owner = uint32(n)
	}
	return owner, h.Known
}

// kept returns the owner that had a majority of the nodes during the whole poll, 0 for none.
func (o *observer) kept(show func(node int) sighted) uint32 {
	for i := range o.nodes {
		votes := 0
		for k := range o.nodes {
			if o.before[k] == o.before[i] && show(k).owner == o.before[i] && (o.owners[k] == o.before[i] || !o.answered.Has(k)) {
				votes++
			}
		}
		if o.before[i] != 0 && votes >= quorum.Size(o.nodes) {
			return o.before[i]
		}
	}
	return 0
}
