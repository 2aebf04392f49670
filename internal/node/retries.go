package node

import (
	"maps"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// voidAfter is the margin after a request's "not after", translated with an exact offset,
// from which the request counts as void.
const voidAfter = 10 * time.Millisecond

// orphans lists locks that a request may still create although its answer was lost. The
// request may be in the server's socket or in the network, and requests over another
// connection may overtake it. The key of the map is the owner value of a lock. Its value is
// the instant at which the request is void, by its "not after".
//
// The instants are of the monotonic clock, which does not jump ahead: a request must not
// count as void before the node's clock has passed its "not after".
type orphans map[string]time.Time

// add adds the locks of a request whose answer will not come any more.
func (o *orphans) add(req *wire.Request, void time.Time) {
	req.Creates(func(owner string) {
		if *o == nil {
			*o = orphans{}
		}
		(*o)[owner] = void
	})
}

// forget removes the orphans that are void.
func (o orphans) forget(now time.Time) {
	maps.DeleteFunc(o, func(_ string, void time.Time) bool { return !now.Before(void) })
}

// releaseRetry is a release that is sent once more, at its time.
type releaseRetry struct {
	req *wire.Request
	at  time.Time
}

// retries are the releases that are sent once more, and the orphans for which they are. Only
// the worker uses them.
type retries struct {
	orphans orphans
	waiting []releaseRetry
	due     time.Time // the earliest time of a retry
}

// count returns how many releases wait for their time.
func (r *retries) count() int { return len(r.waiting) }

// trim frees what a burst has made large, and forgets the orphans that are void.
func (r *retries) trim(now time.Time) {
	r.orphans.forget(now)
	if len(r.orphans) == 0 {
		r.orphans = nil
	}
	r.waiting = slices.Clone(r.waiting)
}

// released schedules a second release, if an earlier request may still run after the
// first one: an acquisition in the socket of a stopped server would hold the lock until
// its TTL. The receiver gets the answer to the first release, because usually there is
// nothing to release again.
func (r *retries) released(req *wire.Request, sent time.Time) {
	if len(r.orphans) == 0 {
		return
	}
	var latest time.Time
	req.Owners(func(owner string) {
		if void, ok := r.orphans[owner]; ok && sent.Before(void) {
			delete(r.orphans, owner) // one retry is enough
			if void.After(latest) {
				latest = void
			}
		}
	})
	if latest.IsZero() {
		return
	}
	again := wire.NewPlainRelease(req, req.Expires.Add(latest.Sub(sent))) // a lock that is created later also expires later
	if len(r.waiting) == 0 || latest.Before(r.due) {
		r.due = latest
	}
	r.waiting = append(r.waiting, releaseRetry{req: again, at: latest})
}

// take removes and returns the releases that are due.
func (r *retries) take() []entry {
	if len(r.waiting) == 0 {
		return nil
	}
	now := time.Now()
	if now.Before(r.due) { // thousands may wait, and this runs before each batch
		return nil
	}
	var due []entry
	r.waiting = slices.DeleteFunc(r.waiting, func(one releaseRetry) bool {
		if now.Before(one.at) {
			return false
		}
		due = append(due, entry{req: one.req, to: discard{}})
		return true
	})
	if len(r.waiting) > 0 {
		r.due = slices.MinFunc(r.waiting, func(a, b releaseRetry) int { return a.at.Compare(b.at) }).at
	}
	return due
}

// discard receives answers that no caller waits for.
type discard struct{}

// Receive drops the answer.
func (discard) Receive(int, *wire.Request, *wire.Reply) {}
