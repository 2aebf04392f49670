package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Run is the worker: it greets the node, and sends what is queued. It dials at once, and returns after Close.
// It must be called once. Only the worker and its transmitter use the connection, one at a time.
func (n *Node) Run() {
	defer close(n.done)
	defer n.drain()
	n.look()
	n.debt.asked(n.now)
	// With ForceSingleClient, NewClient returns a client even when the dial failed.
	client, err := n.open()
	if client == nil {
		n.report(fmt.Errorf("no client: %w", err))
		<-n.life.Done()
		return
	}
	n.client = client
	defer client.Close()
	defer n.greeter.oneServer.looks.Wait()
	defer n.cut() // first, because Close of rueidis would send another command
	var transmitter sync.WaitGroup
	transmitter.Go(n.courier.transmitter)
	defer transmitter.Wait()
	defer close(n.courier.toSend)
	n.connect()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	n.look()
	for !n.left() {
		timer.Reset(n.idle())
		select {
		case <-n.life.Done():
			return
		case <-n.lanes.signal:
		case <-timer.C:
		}
		n.look()
		n.serve()
	}
}

// serve sends everything that is queued, batch after batch. An urgent check runs after
// the requests already queued: a heal may be among them, and must not wait.
func (n *Node) serve() {
	for n.life.Err() == nil {
		checkNow := n.checkNow.Swap(false)
		if !n.connected() {
			n.look() // regreet may have set redialAt in between
		} else if n.group.Watches() && n.now >= n.lookAt {
			n.lookForMove()
		}
		if n.connected() && (n.now >= n.checkAt && !n.goesAlong() || n.greeter.along != nil) || !n.connected() && n.now >= n.redialAt {
			n.connect()
			n.look()
		}
		if n.listNow.Swap(false) {
			n.registerList()
		}
		if n.connected() && len(n.courier.retryQueue) > 0 && n.now >= n.courier.retryAt {
			n.lanes.requeue(n.courier.retryQueue)
			n.courier.retryQueue = nil
		}
		n.lanes.requeue(n.courier.retries.take(n.mono()))
		n.take()
		switch {
		case len(n.courier.batch) == 0 && n.along: // the requests had expired, and acquisitions may be queued
		case len(n.courier.batch) == 0 && !checkNow && n.connected() && n.now >= n.pingAt:
			n.ping()
		case len(n.courier.batch) == 0 && !checkNow:
			return
		case len(n.courier.batch) == 0:
		case n.connected():
			n.send()
		default:
			n.courier.postpone(n.Health().Err)
		}
		if checkNow {
			n.checkAt = 0
		}
	}
}

// idle returns how long the worker may sleep without a signal.
func (n *Node) idle() time.Duration {
	if !n.connected() {
		return max(n.redialAt.Sub(n.now), 0)
	}
	wait := min(n.checkAt, n.pingAt).Sub(n.now)
	if n.group.Watches() {
		wait = min(wait, n.lookAt.Sub(n.now))
	}
	if len(n.courier.retryQueue) > 0 {
		wait = min(wait, n.courier.retryAt.Sub(n.now))
	}
	if n.courier.retries.count() > 0 {
		wait = min(wait, n.courier.retries.waiting[0].at.Sub(n.mono()))
	}
	if n.vote.Lasts() {
		wait = min(wait, n.vote.Left(n.mono()))
	}
	return max(wait, 0)
}

// send sends the batch and delivers the answers. When enough requests are queued, it
// sends the next batch before it delivers the answers, so that the server and the callers
// work at the same time. There is never more than one batch on the wire: a release that
// overtook its acquisition would leave a lock behind.
func (n *Node) send() {
	t, next := &n.courier.transfers[0], &n.courier.transfers[1]
	n.courier.load(t)
	if n.along {
		t.append(n.greeter.prepare(true))
	}
	n.courier.transmit(t)
	for {
		n.courier.arrived(t)
		if t.check != nil || t.broken || t.again || !n.undisturbed() || n.lanes.queued() < aheadFrom {
			break
		}
		if n.take(); len(n.courier.batch) == 0 {
			break
		}
		n.courier.load(next)
		n.courier.toSend <- next
		n.courier.handOut(t)
		<-n.courier.replied
		t, next = next, t
	}
	n.greeter.along = t.takeCheck()
	n.courier.handOut(t)
	n.lanes.requeue(n.courier.resend)
	n.courier.resend = nil
}

// goesAlong reports whether a check goes out behind the next batch. Then no renewal waits for its answers; votes do.
func (n *Node) goesAlong() bool {
	return n.now >= n.alongAt && n.sound() && !n.group.Watches() && !n.expired() && n.lanes.keeping()
}

// sound reports whether the connection is up and has passed a greeting whose votes count.
func (n *Node) sound() bool {
	return n.connected() && n.vote.Barred(vote.Others{Term: n.group.Votes()}) == nil
}

// undisturbed reports whether the worker need only send the next batch.
func (n *Node) undisturbed() bool {
	return n.life.Err() == nil && n.connected() && !n.checkNow.Load() && !n.listNow.Load() && n.now < min(n.checkAt, n.alongAt) && !(n.group.Watches() && n.now >= n.lookAt) &&
		len(n.courier.retryQueue) == 0 && n.courier.retries.count() == 0 && !n.vote.Lasts()
}

// take moves requests from the lanes into the batch.
func (n *Node) take() {
	n.noticeEnd()
	n.along = n.goesAlong()
	n.courier.batch = n.lanes.take(n.courier.batch[:0], n.now, n.greeter.mayVote(), !n.along)
}

// connect dials, unless a connection is up, and greets. Afterwards the node is connected,
// or refused, or has the time of the next try.
func (n *Node) connect() {
	if n.expired() {
		n.conns.expire()
	}
	sound := n.sound()
	n.greeted, n.vote.Withheld = 0, nil
	before, _ := n.cfg.Clock()
	n.debt.asked(n.now)
	withheld, err := n.greet(sound)
	if n.greeted != 0 && n.greeted != n.used {
		n.used, n.since = n.greeted, before
	}
	if wire.Away(err) {
		n.conns.hangUp() // the next connection goes to the present master
	}
	if errors.Is(cmp.Or(err, withheld), wire.ErrMoving) {
		n.group.FoundMove()
	}
	n.look()
	n.pingAt, n.lookAt = n.testAt(max(n.renewed.Sub(n.now), 0)), n.now.Add(master.LookEvery)
	if err != nil {
		n.greeter.unlist()
	}
	var config *wire.ConfigError
	n.vote.Refused = errors.As(err, &config)
	switch {
	case err == nil:
		n.debt.answered()
		n.redial.Reset()
		n.lanes.requeue(n.courier.retryQueue)
		n.courier.retryQueue = nil
		n.courier.trim()
		n.vote.Withheld, err = withheld, withheld
		n.planCheck()
	case n.vote.Refused:
		n.debt.answered()
		n.redialAt = n.now.Add(vote.RetryEvery)
	default:
		n.redialAt = n.now.Add(n.redial.NextBackOff())
	}
	n.courier.expireRetries()
	if n.life.Err() == nil {
		n.report(err)
	}
}

// greet greets the node. A user's function that hangs in the dial holds the worker up, and the node's registration
// grows old: before the votes of the other nodes would end by that, the node takes no part in the comparison of lists.
// The greeting lists it again, or else the next one.
func (n *Node) greet(sound bool) (withheld, err error) {
	hangs := time.AfterFunc(checkEvery/2, n.greeter.unlist)
	defer hangs.Stop()
	return n.greeter.greet(sound)
}

// planCheck sets when the next check is due: soon, if the check may let the node vote again.
func (n *Node) planCheck() {
	if soon := n.vote.Recheck(n.greeter.others()); soon > 0 {
		n.checkAt = n.now.Add(soon)
		n.alongAt = n.checkAt
	} else {
		n.checkAt = n.nextCheck()
		n.alongAt = n.checkAt
		if !n.group.Watches() {
			n.alongAt = n.checkAt.Add(-checkAhead)
		}
	}
	if at := clock.Steady(n.expires.Load()); at != 0 {
		n.checkAt, n.alongAt = min(n.checkAt, at), min(n.alongAt, at)
	}
}

// registerList registers the list again when the Manager has met another node, and reports
// whether votes count.
func (n *Node) registerList() {
	if n.cfg.Lists == nil || !n.connected() {
		return
	}
	if n.cfg.Guard > 0 && n.vote.Withheld == nil && !n.vote.Unguarded && n.cfg.Lists.Stale(n.cfg.Index) {
		if err := n.greeter.enlist(true); err != nil {
			n.checkAt = n.now // the greeting reports what is wrong
		}
		n.look()
	}
	if reason := text(n.greeter.unlisted()); reason != n.unlistedWas {
		n.report(n.vote.Withheld)
		if n.checkAt > n.now { // soon if it no longer votes, later if it votes now
			n.checkAt = n.now
			n.planCheck()
		}
	}
}

// lookForMove asks the owner of a slot whether keys are leaving it. It asks over the connection of the votes, before
// the next batch, so that no later vote can count before the answer is known.
func (n *Node) lookForMove() {
	text, asked, err := n.ownersNodes()
	n.look()
	now, _ := n.cfg.Clock()
	n.lookAt = n.now.Add(master.LookEvery - now.Sub(asked))
	if err != nil || n.group.Look(text, asked) {
		n.checkAt = n.now // the greeting withdraws the marker, writes a new one, or reports what is wrong
	}
}

// ownersNodes returns the master's reply to CLUSTER NODES, and when it was asked. Nodes that share a trunk ask once.
func (n *Node) ownersNodes() (text string, asked clock.Validity, err error) {
	now := func() clock.Validity {
		at, _ := n.cfg.Clock()
		return at
	}
	ask := func() (string, error) {
		n.debt.asked(n.now)
		result := n.client.Do(context.Background(), n.client.B().Arbitrary("CLUSTER", "NODES").Build())
		if result.NonRedisError() == nil {
			n.debt.answered()
		}
		return result.ToString()
	}
	if t, _ := n.trunk(); t != nil {
		return t.facts.look(now, ask)
	}
	asked = now()
	text, err = ask()
	return text, asked, err
}

// noticeEnd reports the end of a quarantine.
func (n *Node) noticeEnd() {
	if !n.vote.Ended(n.mono()) {
		return
	}
	if n.connected() {
		if n.cfg.Lists != nil && !n.greeter.named {
			n.checkAt = n.now // the node gets an identity now
		}
		n.report(n.vote.Withheld)
	} else {
		n.report(n.Health().Err)
	}
}

// report publishes the health of the node, and calls OnHealth if it has changed. err is why it is down, or withholds
// its votes.
func (n *Node) report(err error) {
	now := &Health{Err: err, Withheld: n.vote.Withheld != nil, Warning: n.greeter.warning, Identity: n.greeter.identity, Master: n.group.Used().Addr}
	if at := n.mono(); n.vote.Left(at) > 0 {
		now.Reason, now.Quarantined = n.vote.Quarantined(at), n.start.Add(time.Duration(at)+n.vote.Left(at))
	}
	others := n.greeter.others()
	n.unlistedWas = text(others.Lists)
	if barred := n.vote.Barred(others); err == nil && errors.Is(barred, wire.ErrConnecting) {
		if now.Reason == nil {
			return // the greeting ends when the other nodes know of this one: in a moment
		}
	} else if err == nil && barred != nil {
		now.Err, now.Withheld = barred, true
	}
	if reason := n.subscriber.warning(); reason != nil {
		now.Warning = reason
		if n.greeter.warning != nil {
			now.Warning = fmt.Errorf("%w; %w", n.greeter.warning, reason) // on one line, which errors.Join is not
		}
	}
	before := n.health.Swap(now)
	if n.cfg.OnHealth != nil && (text(before.Err) != text(now.Err) || text(before.Reason) != text(now.Reason) ||
		text(before.Warning) != text(now.Warning)) {
		n.cfg.OnHealth(n.cfg.Index, *now)
	}
}

// left reports whether the worker has done everything that Close waits for.
func (n *Node) left() bool {
	return n.lanes.left(len(n.courier.retryQueue), n.courier.retries.count(), n.Health().up())
}

// drain answers the remaining requests when the worker has ended.
func (n *Node) drain() {
	n.lanes.close()
	fail(n.cfg.Index, n.courier.retryQueue, wire.NotApplied, wire.ErrClosed)
	n.lanes.drain()
}
