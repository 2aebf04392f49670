package node

import (
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

const (
	// retryMax is how many releases wait for a node that is down or recovering. There may
	// be twice as many before the oldest are dropped.
	retryMax = 4096
	// retryAfter is how long requests that insist wait after a node answered BUSY,
	// LOADING and the like.
	retryAfter = 50 * time.Millisecond
)

// postpone handles the batch without a connection: requests that insist wait for the next connection, the others fail.
// err is the last known reason.
func (c *courier) postpone(err error) {
	status := wire.NotApplied
	switch {
	case c.vote.Refused:
		status = wire.Misconfigured
	case err == nil || c.vote.Withheld != nil:
		err = wire.ErrConnecting // the connection has just broken
	}
	failed, waiting := split(c.batch, func(e entry) bool { return e.req.Insists })
	c.retryQueue = append(c.retryQueue, waiting...)
	if over := len(c.retryQueue) - retryMax; over > retryMax { // dropping them one by one would move the others each time
		fail(c.cfg.Index, c.retryQueue[:over], wire.NotApplied, wire.ErrExpired)
		c.retryQueue = slices.Clone(c.retryQueue[over:])
	}
	fail(c.cfg.Index, failed, status, err)
	clear(c.batch) // the next one may be shorter, and an old entry would keep its caller's context alive
}

// expireRetries answers the requests that have expired while they waited for a connection. A
// node may be down for days, and a release keeps what it undoes in memory.
func (c *courier) expireRetries() {
	rest, expired := split(c.retryQueue, func(e entry) bool { return e.req.Expires <= c.now })
	c.retryQueue = rest
	fail(c.cfg.Index, expired, wire.NotApplied, wire.ErrExpired)
}

// trim frees buffers that a burst has made large. It runs at every greeting only, so that
// buffers are reused between greetings.
func (c *courier) trim() {
	c.batch, c.transfers = nil, [2]transfer{}
	c.reader.Trim()
	c.retries.trim(c.mono())
	c.lanes.trim()
}

// orphaned records that an acquisition or a heal may still create its locks. The lean way compares no "not after", but
// gives the lock an absolute end.
func (c *courier) orphaned(t *transfer, req *wire.Request) {
	one := orphan{void: c.voidAt(req, t.steady, t.mono)}
	one.again = one.void
	if t.lean && req.Kind == wire.Acquire {
		req.MarkUnproven(1 << c.cfg.Index)
		life := req.Lifetime() + c.meter.offset.High(t.steady) - c.meter.offset.Low()
		one.void = max(one.void, t.mono.Add(life+time.Duration(float64(life)*c.cfg.Drift)+voidAfter))
	}
	c.retries.orphans.add(req, one)
}

// voidAt returns when a request that was sent at sent is void: from then on it creates no
// lock, even if it arrives later. By then the node's clock has passed the request's "not
// after", if the rates of the clocks differ by no more than the drift factor allows.
func (c *courier) voidAt(req *wire.Request, sent clock.Steady, at clock.Mono) clock.Mono {
	stale := voidAfter
	if c.meter.offset.Known() {
		stale += time.Duration(float64(req.Expires.Sub(c.meter.offset.At())) * c.cfg.Drift)
	}
	return at.Add(req.Expires.Sub(sent) + stale)
}

// forget drops old registers when a greeting has left some, or the server is full. Each greeting drops some, so that
// short-lived clients collect as well.
func (c *courier) forget() {
	if c.forgetting || c.cfg.Cap == 0 {
		return
	}
	c.forgetting = true
	c.lanes.requeue([]entry{{req: newForget(c.greeter.script.registersKey, c.now), to: forgotten{c}}})
}

// forgotten receives the answer, and drops the next ones while there are more.
type forgotten struct{ c *courier }

// Receive is called by the node's own worker.
func (f forgotten) Receive(_ int, _ *wire.Request, r *wire.Reply) {
	f.c.forgetting = false
	f.c.forgetMore(r)
}

// forgetMore drops more old registers if this answer shows that there may be some.
func (c *courier) forgetMore(r *wire.Reply) {
	if r.Status == wire.Done && r.N >= forgetMost {
		c.forget()
	}
}
