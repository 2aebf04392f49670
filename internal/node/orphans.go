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

// voidAt returns when a request that was sent at sent is void: from then on it creates no
// lock, even if it arrives later. By then the node's clock has passed the request's "not
// after", if the rates of the clocks differ by no more than the drift factor allows.
func (n *Node) voidAt(req *wire.Request, sent time.Duration, at time.Time) time.Time {
	stale := voidAfter
	if n.offset.Known() {
		stale += time.Duration(float64(req.Expires-n.offset.At()) * n.cfg.Drift)
	}
	return at.Add(req.Expires - sent + stale)
}

// releaseRetry is a release that is sent once more, at its time.
type releaseRetry struct {
	req *wire.Request
	at  time.Time
}

// retryRelease schedules a second release, if an earlier request may still run after the
// first one: an acquisition in the socket of a stopped server would hold the lock until
// its TTL. The receiver gets the answer to the first release, because usually there is
// nothing to release again.
func (n *Node) retryRelease(req *wire.Request, sent time.Time) {
	if len(n.orphans) == 0 {
		return
	}
	var latest time.Time
	req.Owners(func(owner string) {
		if void, ok := n.orphans[owner]; ok && sent.Before(void) {
			delete(n.orphans, owner) // one retry is enough
			if void.After(latest) {
				latest = void
			}
		}
	})
	if latest.IsZero() {
		return
	}
	again := wire.NewPlainRelease(req, req.Expires+latest.Sub(sent)) // a lock that is created later also expires later
	if len(n.retries) == 0 || latest.Before(n.retriesAt) {
		n.retriesAt = latest
	}
	n.retries = append(n.retries, releaseRetry{req: again, at: latest})
}

// retryReleases queues the releases that are due.
func (n *Node) retryReleases() {
	if len(n.retries) == 0 {
		return
	}
	now := time.Now()
	if now.Before(n.retriesAt) { // thousands may wait, and this runs before each batch
		return
	}
	var due []entry
	n.retries = slices.DeleteFunc(n.retries, func(r releaseRetry) bool {
		if now.Before(r.at) {
			return false
		}
		due = append(due, entry{req: r.req, to: discard{}})
		return true
	})
	if len(n.retries) > 0 {
		n.retriesAt = slices.MinFunc(n.retries, func(a, b releaseRetry) int { return a.at.Compare(b.at) }).at
	}
	n.requeue(due)
}

// discard receives answers that no caller waits for.
type discard struct{}

// Receive drops the answer.
func (discard) Receive(int, *wire.Request, *wire.Reply) {}
