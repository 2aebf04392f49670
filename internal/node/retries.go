package node

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// voidAfter is the margin after a request's "not after", translated with an exact offset,
// from which the request counts as void.
const voidAfter = 10 * time.Millisecond

// orphans lists locks that a request may still create although its answer was lost. The
// request may be in the server's socket or in the network, and requests over another
// connection may overtake it. The key of the map is the owner value of a lock.
type orphans map[string]orphan

// orphan is a lock that a request may still create. The instants are of the monotonic clock, which does not jump
// ahead: a request must not count as void before the node's clock has passed its "not after".
type orphan struct {
	void  clock.Mono // from then on the request creates no lock, by its "not after" or by the end of the lock
	again clock.Mono // the earliest instant to repeat a release that was answered before void
}

// add adds the locks of a request whose answer will no longer come.
func (o *orphans) add(req *wire.Request, one orphan) {
	req.Creates(func(owner string) {
		if *o == nil {
			*o = orphans{}
		}
		(*o)[owner] = one
	})
}

// forget removes the orphans that are void.
func (o orphans) forget(now clock.Mono) {
	maps.DeleteFunc(o, func(_ string, one orphan) bool { return now >= one.void })
}

// releaseRetry is a release that is sent once more, at its time.
type releaseRetry struct {
	req *wire.Request
	at  clock.Mono
}

// retries are the releases that are sent once more, and the orphans that require them. Only the worker uses them.
type retries struct {
	orphans orphans
	waiting []releaseRetry // the earliest first
}

// count returns how many releases wait for their time.
func (r *retries) count() int { return len(r.waiting) }

// trim frees buffers that a burst has made large, and forgets the orphans that are void.
func (r *retries) trim(now clock.Mono) {
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
func (r *retries) released(req *wire.Request, sent clock.Mono) {
	if len(r.orphans) == 0 {
		return
	}
	var latest clock.Mono
	req.Owners(func(owner string) {
		if one, ok := r.orphans[owner]; ok && sent < one.void {
			delete(r.orphans, owner) // one retry is enough
			latest = max(latest, one.again, sent)
		}
	})
	if latest == 0 {
		return
	}
	again := wire.NewPlainRelease(req, req.Expires.Add(latest.Sub(sent))) // a lock that is created later also expires later
	i, _ := slices.BinarySearchFunc(r.waiting, latest, func(one releaseRetry, at clock.Mono) int { return cmp.Compare(one.at, at) })
	r.waiting = slices.Insert(r.waiting, i, releaseRetry{req: again, at: latest})
}

// take removes and returns the releases that are due.
func (r *retries) take(now clock.Mono) (due []entry) {
	for _, one := range r.waiting { // thousands may wait, and this runs before each batch
		if one.at > now {
			break
		}
		due = append(due, entry{req: one.req, to: discard{}})
	}
	r.waiting = slices.Delete(r.waiting, 0, len(due))
	return due
}

// discard receives answers that no caller waits for.
type discard struct{}

// Receive drops the answer.
func (discard) Receive(int, *wire.Request, *wire.Reply) {}
