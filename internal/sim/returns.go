package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// returning is the last release of a client, which counts its answers as the Manager does.
type returning struct {
	owner  uint32 // 0 for none, or when the answers have decided
	grant  int    // of the judge
	at     time.Duration
	got    quorum.Set // nodes that have answered
	doubt  bool       // an answer says nothing, or a heal hides what a node had lost: the release promises nothing then
	votes  quorum.Release
	window quorum.Window[clock.Validity] // that the machine had, and the votes use
}

// begin records a release that is about to be sent.
func (r *returning) begin(c *client, now time.Duration) {
	*r = returning{owner: c.owner, grant: c.w.judge.current[c.id], at: c.w.now, doubt: c.healed, votes: c.machine.Release(clock.Validity(now)), window: r.window}
	r.window, c.window = c.window, r.window // the next lease gets the other one
}

// answered counts the answer of a node.
func (r *returning) answered(c *client, i int, m *message, now time.Duration) {
	if r.owner == 0 || m.owner != r.owner || r.got.Has(i) || m.answer != done && m.answer != notDone {
		return
	}
	r.got = r.got.With(i)
	switch {
	case m.answer == done, c.w.bugs.has(ReleaseUnread):
		r.votes.Deleted(i)
	case m.issued > r.at: // it was sent again
		r.doubt = true
		r.votes.Unclear(i)
	default:
		r.doubt = r.doubt || r.window[i] > 0 && r.window[i] <= clock.Validity(now) // the key may have ended by itself
		r.votes.Denied(i, false, clock.Validity(now))
	}
	switch n := c.w.p.Nodes; {
	case r.got.Len() >= quorum.Size(n) && r.votes.Kept():
		if !r.doubt {
			c.w.judge.returned(c, r)
		}
		r.owner = 0
	case r.got == quorum.All(n) && r.votes.Lost():
		c.w.stats[LostAtRelease]++
		r.owner = 0
	}
}

// returned checks a release that returns without an error and has only conclusive answers: no other client was granted
// the lock by an attempt between the grant and the release. Outside the fault model, a late or repeated request can
// create a key again that a step of the node's clock has ended.
func (j *judge) returned(c *client, r *returning) {
	if c := &j.w.config; !j.inside() && (c.repeat > 0 || c.slow > 0 || c.everyStall > 0) {
		return
	}
	own := &j.grants[r.grant]
	for k := range j.grants {
		if g := &j.grants[k]; g.slot == own.slot && g.owner != r.owner && g.began > own.at && g.at < r.at && !(g.reads && own.reads) {
			j.violated("returned", "client %d releases owner %d, granted at %v, at %v, and hears of no loss, though client %d was granted at %v",
				c.id, r.owner, own.at, r.at, g.client, g.at)
		}
	}
}

// remnant is a lost lease whose locks are not released yet.
type remnant struct {
	reads         bool
	slot          int8
	owner, ticket uint32
	at            time.Duration // true time
}

// leaveRemnants schedules the release of a lost lease's locks at the instant at.
func (c *client) leaveRemnants(at time.Duration) {
	w := c.w
	for i := range c.remnants {
		r := &c.remnants[i]
		if r.owner != 0 {
			continue
		}
		*r = remnant{reads: c.reads, slot: c.slot, owner: c.owner, ticket: c.ticket, at: max(c.when(at), w.now) + 1}
		e := event{kind: evRemnants, client: c.id, node: -1}
		e.life = c.life
		w.schedule(r.at, &e)
		return
	}
	// All places are in use: these keys expire by themselves.
}

// releaseRemnants releases the remnants whose time has come.
func (c *client) releaseRemnants(e *event) {
	w := c.w
	if c.phase == gone || e.life != c.life {
		return
	}
	if w.now < c.paused {
		w.schedule(c.paused+timersLast, e)
		return
	}
	for i := range c.remnants {
		if r := &c.remnants[i]; r.at <= w.now {
			c.releaseRemnant(r)
		}
	}
}

func (c *client) releaseRemnant(r *remnant) {
	if r.owner == 0 {
		return
	}
	m := message{op: opRelease.of(r.reads), owner: r.owner, ticket: r.ticket}
	m.slot = r.slot
	for i := range c.w.p.Nodes {
		c.request(i, &m)
	}
	*r = remnant{}
}
