package quorumlock

import (
	"fmt"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/otel"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// This file has the effects of the watchdog on a lease. A background watchdog (package hold) renews every lock; Report
// passes each change of a lock to the lease that stands on it, one after the other.

// tenant is a Lease as package hold knows it. (Report is not a method of Lease, which is public.)
type tenant Lease

// leaseOn returns the lease that stands on a lock, or the last one.
func leaseOn(lock *hold.Lock) *Lease { return (*Lease)(lock.Tenant().(*tenant)) }

// Report applies a change of the lock to the lease: its channels, its context, its end. The lock's mutex is held.
func (t *tenant) Report(e hold.Event) {
	l := (*Lease)(t)
	if e.Is(hold.Settled) { // the lock may be another lease's by now
		var lost *LostError
		if e.Is(hold.Lost) {
			lost = l.lost(&e)
		}
		l.mu.Lock()
		l.settle(lost)
		l.mu.Unlock()
		l.conclude(&e, lost)
		return
	}
	if e.Is(hold.Opened) {
		l.token = e.Token // the caller does not see the lease yet
		l.opened(&e)
	}
	if risky := e.State == quorum.StateAtRisk && !e.Is(hold.Lost|hold.Released); risky != l.risky { // the lock may outlive the lease
		l.risky = risky
		l.m.telemetry.meters.Risk(l.onMetrics(), risky)
	}
	if e.Is(hold.Lost | hold.Released) {
		l.ended(&e)
		return
	}
	l.stop.Store(int64(e.Stop))
	if e.Is(hold.RoundOver) {
		l.finishRounds(&e)
	}
	if e.Is(hold.Renewed) {
		l.remind(&e)
		l.sendRenewed(&e)
	}
	if e.Is(hold.AtRisk) {
		l.sendAtRisk(&e)
	}
	if e.Is(hold.Wanted) {
		l.sendWanted(e.Want)
	}
}

// onMetrics returns the label of a lease on metrics.
func (l *Lease) onMetrics() otel.Label { return otel.Label{Name: l.label, Mode: l.mode} }

// opened reports the start of a lease to metrics and subscriptions.
func (l *Lease) opened(e *hold.Event) {
	m := l.m
	m.telemetry.meters.Opened(l.onMetrics())
	if e.Is(hold.Passed) {
		m.telemetry.meters.HandedOver(l.onMetrics(), otel.PathProcess)
	}
	if m.events.Watched() {
		m.events.Send(Acquired{Name: l.Name(), Token: l.token, ValidUntil: m.clock.Time(e.Stop), Margin: e.Margin, Shared: l.Shared()})
	}
}

// finishRounds answers the callers of Renew whose round has ended.
func (l *Lease) finishRounds(e *hold.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch == nil || len(l.watch.rounds) == 0 {
		return
	}
	var err error
	if e.Is(hold.Missed) {
		err = noQuorum(l.shard().ensemble, "renew", l.Name(), e.Confirmed, e.Errors)
	}
	for _, round := range l.watch.rounds {
		round <- err
	}
	l.watch.rounds = nil
}

// sendRenewed sends Renewed.
func (l *Lease) sendRenewed(e *hold.Event) {
	l.m.telemetry.meters.Renewed(l.onMetrics(), e.Stop.Sub(e.Now))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch == nil && !l.m.events.Watched() {
		return
	}
	renewed := Renewed{Name: l.Name(), Token: l.token, ValidUntil: l.m.clock.Time(e.Stop), Margin: e.Margin, Confirmed: e.Confirmed}
	if l.watch != nil {
		latest(l.watch.renewed, renewed)
	}
	l.m.events.Send(renewed)
}

// sendAtRisk sends AtRisk.
func (l *Lease) sendAtRisk(e *hold.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch == nil && !l.m.events.Watched() {
		return
	}
	risk := AtRisk{
		Name: l.Name(), Token: l.token, Remaining: e.Stop.Sub(e.Now),
		Margin: e.Margin, Confirmed: e.Confirmed, Nodes: nodeErrors(l.shard().ensemble, e.Errors),
	}
	if l.watch != nil {
		latest(l.watch.atRisk, risk)
	}
	l.m.events.Send(risk)
}

// sendWanted sends Wanted.
func (l *Lease) sendWanted(w *hold.Want) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && l.watch != nil && l.watch.wanted != nil {
		latest(l.watch.wanted, Wanted{Waiters: w.Waiters, Asked: w.Asked, By: w.Note.By, Reason: w.Note.Reason})
	}
}

// ended ends the lease, in the order that readers rely on.
func (l *Lease) ended(e *hold.Event) {
	err, lost := ErrReleased, (*LostError)(nil)
	if e.Is(hold.Detached) {
		err = ErrDetached
	}
	if e.Is(hold.Lost) {
		lost = l.lost(e)
		err = lost
	}
	l.mu.Lock()
	l.err = err
	l.stop.Store(0)
	if l.watch != nil {
		l.watch.end(err)
	}
	asking := e.Is(hold.Asking)
	if !asking { // under the same mutex, so that no reader finds Done closed and Lost open
		l.settle(lost)
	}
	l.mu.Unlock()
	if !asking {
		l.conclude(e, lost)
	}
}

// settle makes the error of an ended lease final and ends the Lost channel. lost is nil after a release, unless
// the nodes have shown that the lease was lost before. l.mu is held.
func (l *Lease) settle(lost *LostError) {
	l.settled = true
	if lost != nil {
		l.err = lost
	}
	if l.watch != nil {
		l.watch.settle(lost)
	}
}

// conclude reports the end of a lease, which is settled, to the log, subscriptions, metrics and traces.
func (l *Lease) conclude(e *hold.Event, lost *LostError) {
	if lost != nil {
		l.warnOfLoss(lost, wire.OwnerOf(e.Value))
	}
	if l.m.events.Watched() {
		var last Event = Released{Name: l.Name(), Token: l.token}
		if lost != nil {
			last = lost.Lost
		}
		l.m.events.Send(last)
	}
	lostBy := ""
	if lost != nil {
		lostBy = lost.Reason.slug()
	}
	l.m.telemetry.meters.Held(l.onMetrics(), e.Now.Sub(e.Granted), lostBy)
	l.m.telemetry.held(l.span(wire.OwnerOf(e.Value)), e.Granted, e.Now, lost)
}

// lost returns the error of a lease whose lock was lost.
func (l *Lease) lost(e *hold.Event) *LostError {
	at := l.m.clock.Time(e.Now)
	until := at
	if e.Is(hold.Settled) {
		at = l.m.clock.Time(l.m.clock.Now())
	} else if stop := clock.Validity(l.stop.Load()); stop < e.Now { // found late
		until = at.Add(stop.Sub(e.Now))
	}
	free := at
	if !e.Reason.Denied() {
		free = l.m.clock.Time(e.Free)
	}
	nodes := nodeErrors(l.shard().ensemble, e.Errors)
	if e.Reason == quorum.ReasonExpired {
		shortOfCPU(l.shard().ensemble, nodes, l.lock.Terms().Timeout)
	}
	return &LostError{Lost{Name: l.Name(), Token: l.token, Reason: lostReason(e.Reason), At: at, ValidUntil: until, AnotherFrom: free, Nodes: nodes}}
}

// shortOfCPU adds to the errors of nodes that have not answered in time why this process may be the cause.
func shortOfCPU(e *ensemble.Ensemble, nodes []*NodeError, timeout time.Duration) {
	late := e.Late(e.Clock.Steady())
	for _, n := range nodes {
		switch {
		case e.Nodes()[n.Node-e.First()].Unread():
			n.Err = fmt.Errorf("%w; this process was short of CPU and has not read an answer", n.Err)
		case late >= timeout/2:
			n.Err = fmt.Errorf("%w; this process was short of CPU and read answers %v late", n.Err, late.Round(time.Millisecond))
		}
	}
}

// warnOfLoss logs a loss. This is the only place that does.
func (l *Lease) warnOfLoss(lost *LostError, owner string) {
	log, label := l.m.cfg.Log, l.lock.Terms().Label
	l.m.reporter.Add(func() { // the error of a user's dial function has methods of its own
		var evidence strings.Builder
		for i, n := range lost.Nodes {
			if i > 0 {
				evidence.WriteString("; ")
			}
			evidence.WriteString(n.Error())
		}
		log.Warn("quorumlock: a lease was lost: its context has ended, and others may get the lock", "name", lost.Name, "token", lost.Token, "reason", string(lost.Reason),
			"holder", label, "owner", owner, "nodes", evidence.String())
	})
}

// forgottenAfter is how long a lease must have been renewed, at least, to look forgotten.
const forgottenAfter = time.Minute

// remind warns, once, when a lease that was renewed looks forgotten: a hint for the author of the
// program.
func (l *Lease) remind(e *hold.Event) {
	m, age := l.m, e.Now.Sub(e.Granted)
	if l.asked.Load() || m.said.forgotten.Load() {
		return
	}
	if age > max(forgottenAfter, 10*l.lock.Terms().TTL) && !m.said.forgotten.Swap(true) {
		m.reporter.Warn("a lease has been renewed for a long time, and the program has never checked it; "+
			"release it if it is no longer used, or watch its Context or Lost while work runs",
			"name", l.Name(), "token", l.token, "owner", wire.OwnerOf(e.Value), "for", age.Round(time.Second))
	}
}

// latest sends v on a channel of capacity 1, and replaces a value that was not read. The
// caller is the only sender.
func latest[T any](c chan T, v T) {
	select {
	case <-c:
	default:
	}
	c <- v
}
