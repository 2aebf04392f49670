package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// worker is the goroutine that has the connection: it greets the node, and sends what is queued.
type worker struct {
	*link
	greeter  *greeter
	courier  *courier
	lanes    *lanes
	health   *bulletin
	checkNow *atomic.Bool // an urgent check: greet again after the queued requests
	listNow  *atomic.Bool // the list of nodes may have to be registered again
	warn     func() error // why the node cannot wake waiters, nil if it can
	cut      func()       // ends all waits

	along       bool   // a check goes out behind the batch
	unlistedWas string // why the last report said that the lists keep it from voting
}

// run is the worker. Only the worker and its transmitter use the connection, one at a time.
func (w *worker) run() {
	defer w.drain()
	w.look()
	w.debt.asked(w.now)
	// With ForceSingleClient, NewClient returns a client even when the dial failed.
	client, err := rueidis.NewClient(forWorker(requiredOptions(w.life, w.option(true), w.conns.watch)))
	if client == nil {
		w.report(fmt.Errorf("no client: %w", err))
		<-w.life.Done()
		return
	}
	w.client = client
	defer client.Close()
	defer w.greeter.oneServer.looks.Wait()
	defer w.cut() // first, because Close of rueidis would send another command
	var transmitter sync.WaitGroup
	transmitter.Go(w.courier.transmitter)
	defer transmitter.Wait()
	defer close(w.courier.toSend)
	w.connect()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	w.look()
	for !w.left() {
		timer.Reset(w.idle())
		select {
		case <-w.life.Done():
			return
		case <-w.lanes.signal:
		case <-timer.C:
		}
		w.look()
		w.serve()
	}
}

// serve sends everything that is queued, batch after batch. An urgent check runs after
// the requests already queued: a heal may be among them, and must not wait.
func (w *worker) serve() {
	for w.life.Err() == nil {
		checkNow := w.checkNow.Swap(false)
		if !w.connected() {
			w.look() // regreet may have set redialAt meanwhile
		} else if w.group.Watches() && w.now >= w.lookAt {
			w.lookForMove()
		}
		if w.connected() && (w.now >= w.checkAt && !w.goesAlong() || w.greeter.along != nil) || !w.connected() && w.now >= w.redialAt {
			w.connect()
			w.look()
		}
		if w.listNow.Swap(false) {
			w.relist()
		}
		if w.connected() && len(w.courier.retryQueue) > 0 && w.now >= w.courier.retryAt {
			w.lanes.requeue(w.courier.retryQueue)
			w.courier.retryQueue = nil
		}
		w.lanes.requeue(w.courier.retries.take())
		w.take()
		switch {
		case len(w.courier.batch) == 0 && w.along: // the requests had expired, and acquisitions may be queued
		case len(w.courier.batch) == 0 && !checkNow && w.connected() && w.now >= w.pingAt:
			w.ping()
		case len(w.courier.batch) == 0 && !checkNow:
			return
		case len(w.courier.batch) == 0:
		case w.connected():
			w.send()
		default:
			w.courier.postpone(w.health.load().Err)
		}
		if checkNow {
			w.checkAt = 0
		}
	}
}

// idle returns how long the worker may sleep without a signal.
func (w *worker) idle() time.Duration {
	if !w.connected() {
		return max(w.redialAt.Sub(w.now), 0)
	}
	wait := min(w.checkAt, w.pingAt).Sub(w.now)
	if w.group.Watches() {
		wait = min(wait, w.lookAt.Sub(w.now))
	}
	if len(w.courier.retryQueue) > 0 {
		wait = min(wait, w.courier.retryAt.Sub(w.now))
	}
	if w.courier.retries.count() > 0 {
		wait = min(wait, time.Until(w.courier.retries.due))
	}
	if w.vote.Lasts() {
		wait = min(wait, w.vote.Left(w.mono()))
	}
	return max(wait, 0)
}

// send sends the batch and delivers the answers. When enough requests are queued, it
// sends the next batch before it delivers the answers, so that the server and the callers
// work at the same time. There is never more than one batch on the wire: a release that
// overtook its acquisition would leave a lock behind.
func (w *worker) send() {
	t, next := &w.courier.transfers[0], &w.courier.transfers[1]
	w.courier.load(t)
	if w.along {
		t.append(w.greeter.prepare(true))
	}
	w.courier.transmit(t)
	for {
		w.courier.arrived(t)
		if t.check != nil || t.broken || t.flushed || !w.undisturbed() || w.lanes.queued() < aheadFrom {
			break
		}
		if w.take(); len(w.courier.batch) == 0 {
			break
		}
		w.courier.load(next)
		w.courier.toSend <- next
		w.courier.handOut(t)
		<-w.courier.replied
		t, next = next, t
	}
	w.greeter.along = t.takeCheck()
	w.courier.handOut(t)
	w.lanes.requeue(w.courier.resend)
	w.courier.resend = nil
}

// goesAlong reports whether a check goes out behind the next batch. So no renewal waits for its answers; votes do.
func (w *worker) goesAlong() bool {
	return w.now >= w.alongAt && w.sound() && !w.group.Watches() && w.lanes.keeping()
}

// sound reports whether the connection is up and has passed a greeting whose votes count.
func (w *worker) sound() bool {
	return w.connected() && w.vote.Barred(vote.Others{Term: w.group.Votes()}) == nil
}

// undisturbed reports whether the worker has nothing else to do than to send the next
// batch.
func (w *worker) undisturbed() bool {
	return w.life.Err() == nil && w.connected() && !w.checkNow.Load() && !w.listNow.Load() && w.now < min(w.checkAt, w.alongAt) && !(w.group.Watches() && w.now >= w.lookAt) &&
		len(w.courier.retryQueue) == 0 && w.courier.retries.count() == 0 && !w.vote.Lasts()
}

// take moves requests from the lanes into the batch.
func (w *worker) take() {
	w.noticeEnd()
	w.along = w.goesAlong()
	w.courier.batch = w.lanes.take(w.courier.batch[:0], w.now, w.greeter.mayVote(), !w.along)
}

// connect dials, unless a connection is up, and greets. Afterwards the node is connected,
// or refused, or has the time of the next try.
func (w *worker) connect() {
	sound := w.sound()
	w.greeted, w.vote.Withheld = 0, nil
	w.debt.asked(w.now)
	withheld, err := w.greeter.greet(sound)
	if wire.Away(err) {
		w.conns.hangUp() // the next connection goes to the master of that time
	}
	if errors.Is(cmp.Or(err, withheld), wire.ErrMoving) {
		w.group.FoundMove()
	}
	w.look()
	w.pingAt, w.lookAt = w.testAt(max(w.renewed.Sub(w.now), 0)), w.now.Add(master.LookEvery)
	if err != nil {
		w.greeter.unlist()
	}
	var config *wire.ConfigError
	w.vote.Refused = errors.As(err, &config)
	switch {
	case err == nil:
		w.debt.answered()
		w.redial.Reset()
		w.lanes.requeue(w.courier.retryQueue)
		w.courier.retryQueue = nil
		w.courier.trim()
		w.vote.Withheld, err = withheld, withheld
		w.planCheck()
	case w.vote.Refused:
		w.debt.answered()
		w.redialAt = w.now.Add(vote.RetryEvery)
	default:
		w.redialAt = w.now.Add(w.redial.NextBackOff())
	}
	w.courier.expireRetries()
	if w.life.Err() == nil {
		w.report(err)
	}
}

// planCheck sets when the next check is due: soon, if that may end what keeps the node from voting.
func (w *worker) planCheck() {
	if soon := w.vote.Recheck(w.greeter.others()); soon > 0 {
		w.checkAt = w.now.Add(soon)
		w.alongAt = w.checkAt
		return
	}
	w.checkAt = w.nextCheck()
	w.alongAt = w.checkAt
	if !w.group.Watches() {
		w.alongAt = w.checkAt.Add(-checkAhead)
	}
}

// relist registers the list again when the Manager has met another node, and reports
// whether votes count.
func (w *worker) relist() {
	if w.cfg.Lists == nil || !w.connected() {
		return
	}
	if w.cfg.Guard > 0 && w.vote.Withheld == nil && !w.vote.Unguarded && w.cfg.Lists.Stale(w.cfg.Index) {
		if err := w.greeter.enlist(true); err != nil {
			w.checkAt = w.now // the greeting says what is wrong
		}
		w.look()
	}
	if reason := text(w.greeter.unlisted()); reason != w.unlistedWas {
		w.report(w.vote.Withheld)
		if w.checkAt > w.now { // soon if it votes no more, and not so soon if it votes now
			w.checkAt = w.now
			w.planCheck()
		}
	}
}

// lookForMove asks the owner of a slot whether keys leave it. It asks over the connection of the votes, before the
// next batch: so no later vote can count before the answer is known.
func (w *worker) lookForMove() {
	w.debt.asked(w.now)
	asked, _ := w.cfg.Clock()
	result := w.client.Do(context.Background(), w.client.B().Arbitrary("CLUSTER", "NODES").Build())
	if result.NonRedisError() == nil {
		w.debt.answered()
	}
	w.look()
	w.lookAt = w.now.Add(master.LookEvery)
	if text, err := result.ToString(); err != nil || w.group.Look(text, asked) {
		w.checkAt = w.now // the greeting withdraws the marker, writes a new one, or says what is wrong
	}
}

// noticeEnd reports the end of a quarantine.
func (w *worker) noticeEnd() {
	if !w.vote.Ended(w.mono()) {
		return
	}
	if w.connected() {
		if w.cfg.Lists != nil && !w.greeter.named {
			w.checkAt = w.now // the node gets an identity now
		}
		w.report(w.vote.Withheld)
	} else {
		w.report(w.health.load().Err)
	}
}

// report publishes the health of the node, and calls OnHealth if it has changed. err is why it is down, or withholds
// its votes.
func (w *worker) report(err error) {
	now := &Health{Err: err, Withheld: w.vote.Withheld != nil, Warning: w.greeter.warning, Identity: w.greeter.identity, Master: w.group.Used().Addr}
	if at := w.mono(); w.vote.Left(at) > 0 {
		now.Reason, now.Quarantined = w.vote.Quarantined(at), w.start.Add(time.Duration(at)+w.vote.Left(at))
	}
	others := w.greeter.others()
	w.unlistedWas = text(others.Lists)
	if barred := w.vote.Barred(others); err == nil && errors.Is(barred, wire.ErrConnecting) {
		if now.Reason == nil {
			return // the greeting is over when the other nodes know of this one: in a moment
		}
	} else if err == nil && barred != nil {
		now.Err, now.Withheld = barred, true
	}
	if reason := w.warn(); reason != nil {
		now.Warning = reason
		if w.greeter.warning != nil {
			now.Warning = fmt.Errorf("%w; %w", w.greeter.warning, reason) // on one line, which errors.Join is not
		}
	}
	w.health.publish(now)
}

// left reports whether the worker has done everything that Close waits for.
func (w *worker) left() bool {
	return w.lanes.left(len(w.courier.retryQueue), w.courier.retries.count(), w.health.load().up())
}

// drain answers the remaining requests when the worker has ended.
func (w *worker) drain() {
	w.lanes.close()
	fail(w.cfg.Index, w.courier.retryQueue, wire.NotApplied, wire.ErrClosed)
	w.lanes.drain()
}
