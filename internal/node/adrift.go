package node

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// voidAfter is how much later than its "not after", as it was translated by an
// exact offset, a request is taken for void.
const voidAfter = 10 * time.Millisecond

// adrift is the locks that may still be made by what was sent over a connection
// that has broken, and until when: from then on the request is void, by its "not
// after". It is in the server's socket perhaps, or in the network, and nothing
// that goes over another connection can wait for it.
//
// Locks are known by their owner values, of which each attempt has its own. The
// instants are of the monotonic clock, which does not jump ahead: neither does
// the node's, by which the request is void.
type adrift map[string]time.Time

// add notes the locks of a request whose answer will not come any more.
func (a *adrift) add(req *Request, void time.Time) {
	if *a == nil {
		*a = adrift{}
	}
	switch req.Kind { // the others make no lock
	case Acquire:
		(*a)[req.Args[0]] = void
	case Heal:
		for i := 0; i < len(req.Args); i += 3 {
			owner, _, _ := strings.Cut(req.Args[i], " ")
			(*a)[owner] = void
		}
	}
}

// forget drops what is void.
func (a adrift) forget(now time.Time) {
	maps.DeleteFunc(a, func(_ string, void time.Time) bool { return !now.Before(void) })
}

// void returns when a request that was sent then does not lock any more, whenever
// it arrives: by then the node's clock has passed its "not after", if the rates of
// the clocks differ by no more than the measurement of the offset allows for.
func (n *Node) void(req *Request, sent time.Duration, at time.Time) time.Time {
	stale := voidAfter
	if o := n.clock.Load(); o != nil {
		stale += (req.Expires - o.at) / drift
	}
	return at.Add(req.Expires - sent + stale)
}

// An echo is a release that is sent once more, at its time.
type echo struct {
	req *Request
	at  time.Time
}

// echo has a release that was answered sent once more, if something that was sent
// before it may still run behind it: an acquire in the socket of a server that was
// stopped would lock for nobody, until its TTL. The first release is what the
// receiver hears of, because most often there was nothing to overtake.
func (n *Node) echo(req *Request, sent time.Time) {
	owner := req.Args[0]
	void, ok := n.adrift[owner]
	if !ok || !sent.Before(void) {
		return
	}
	delete(n.adrift, owner) // one echo is enough
	again := *req
	if len(again.Args) > releaseTicket { // its wait may be over: the ticket must not be put back
		again.Args = append(slices.Clone(again.Args[:releaseTicket]), "", "", "0")
	}
	again.Expires += void.Sub(sent) // a lock that is made so late lives so much longer
	if len(n.echoes) == 0 || void.Before(n.echoAt) {
		n.echoAt = void
	}
	n.echoes = append(n.echoes, echo{req: &again, at: void})
}

// resound queues the echoes whose time has come.
func (n *Node) resound() {
	if len(n.echoes) == 0 {
		return
	}
	now := time.Now()
	if now.Before(n.echoAt) {
		return
	}
	var due []entry
	n.echoes = slices.DeleteFunc(n.echoes, func(e echo) bool {
		if now.Before(e.at) {
			return false
		}
		due = append(due, entry{req: e.req, to: unheard{}})
		return true
	})
	if len(n.echoes) > 0 {
		n.echoAt = slices.MinFunc(n.echoes, func(a, b echo) int { return a.at.Compare(b.at) }).at
	}
	n.requeue(due)
}

// unheard receives the answers to echoes.
type unheard struct{}

func (unheard) Receive(int, *Request, *Reply) {}
