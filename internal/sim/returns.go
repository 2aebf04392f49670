package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// returning is the last release of a client, of which it counts the answers as the Manager does.
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

// returned checks a release that returns without an error, if each answer that it counted says something: no other client was
// granted the lock by an attempt between the grant and the release. Outside the fault model a request that comes late, or
// for the second time, can create a key again that a step of the node's clock has ended.
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
