package node

import (
	"slices"
	"time"
)

// adrift is the locks that may still be made by what was sent over a connection
// that has broken, and until when: from then on the request is void, by its "not
// after". It is in the server's socket perhaps, or in the network, and nothing
// that goes over another connection can wait for it.
type adrift struct {
	until map[string]time.Duration // by lock key
	last  time.Duration            // the latest of them
}

// add notes a request whose answer will not come any more.
func (a *adrift) add(req *Request) {
	locks := req.Keys
	switch req.Kind {
	case Acquire:
		locks = req.Keys[:1]
	case Heal:
	default:
		return // makes no lock
	}
	if a.until == nil {
		a.until = make(map[string]time.Duration, len(locks))
	}
	void := req.Expires + voidAfter
	for _, lock := range locks {
		a.until[lock] = max(a.until[lock], void)
	}
	a.last = max(a.last, void)
}

// of returns until when the lock may be made, and whether that is still ahead.
func (a *adrift) of(lock string, now time.Duration) (until time.Duration, ahead bool) {
	if now >= a.last {
		a.until = nil
		return 0, false
	}
	until = a.until[lock]
	return until, now < until
}

// echo has a release that was answered sent once more, if something that was sent
// before it may still run behind it: an acquire in the socket of a server that was
// stopped would lock for nobody, until its TTL. The first release is what the
// receiver hears of, because most often there was nothing to overtake.
func (n *Node) echo(req *Request, sent time.Duration) {
	at, ahead := n.adrift.of(req.Keys[0], sent)
	if !ahead {
		return
	}
	again := *req
	again.Expires += at - sent // a lock that is made so late lives so much longer
	if len(n.echoes) == 0 || at < n.echoAt {
		n.echoAt = at
	}
	n.echoes = append(n.echoes, entry{req: &again, to: unheard{}, at: at})
}

// resound queues the echoes whose time has come.
func (n *Node) resound() {
	now := n.cfg.Now()
	if len(n.echoes) == 0 || now < n.echoAt {
		return
	}
	var due []entry
	n.echoes = slices.DeleteFunc(n.echoes, func(e entry) bool {
		if e.at > now {
			return false
		}
		due = append(due, e)
		return true
	})
	if len(n.echoes) > 0 {
		n.echoAt = slices.MinFunc(n.echoes, func(a, b entry) int { return int(a.at - b.at) }).at
	}
	n.requeue(due)
}

// unheard receives the answers to echoes.
type unheard struct{}

func (unheard) Receive(int, *Request, *Reply) {}
