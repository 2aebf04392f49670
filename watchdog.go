package quorumlock

import (
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// This file has what the watchdog's work means for a lease. A background watchdog (package hold)
// renews every lock; each change of a lock comes to the lease that stands on it by Report, one
// after the other.

// tenant is a Lease as package hold knows it. (Report is no method of Lease, which is public.)
type tenant Lease

// leaseOn returns the lease that stands on a lock, or the last one.
func leaseOn(lock *hold.Lock) *Lease { return (*Lease)(lock.Tenant().(*tenant)) }

// Report carries a change of the lock out: the channels of the lease, its context, its end. The
// lock's mutex is held.
func (t *tenant) Report(e hold.Event) {
	l := (*Lease)(t)
	if e.Is(hold.Opened) {
		l.token = e.Token // nobody else sees the lease yet
		l.m.opened(l, &e)
	}
	if risky := e.State == quorum.StateAtRisk; risky != l.risky {
		l.risky = risky
		l.m.telemetry.meters.risk(l.label, risky)
	}
	if e.Is(hold.Lost | hold.Released) {
		l.end(&e)
		return
	}
	l.stop.Store(int64(e.Stop))
	if e.Is(hold.RoundOver) {
		l.finishRounds(&e)
	}
	if e.Is(hold.Renewed) {
		l.m.remind(l, e.Now)
		l.sendRenewed(&e)
	}
	if e.Is(hold.AtRisk) {
		l.sendAtRisk(&e)
	}
}

// opened reports the start of a lease to metrics and subscriptions.
func (m *Manager) opened(l *Lease, e *hold.Event) {
	path := ""
	switch {
	case e.Is(hold.Passed):
		path = pathProcess
	case e.Is(hold.Queued):
		path = pathNodes
	}
	m.telemetry.meters.opened(l.label, path)
	if m.bus.watched.Load() > 0 {
		m.bus.send(Acquired{Name: l.Name(), Token: l.token, ValidUntil: m.clock.Time(e.Stop), Margin: e.Margin})
	}
}

// finishRounds answers the callers of Renew whose round is over.
func (l *Lease) finishRounds(e *hold.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch == nil || len(l.watch.rounds) == 0 {
		return
	}
	var err error
	if e.Is(hold.Missed) {
		err = &QuorumError{
			Op: "renew", Name: l.Name(), Need: l.m.ensemble.Quorum(),
			Got: e.Confirmed, of: l.m.ensemble.Size(), Nodes: l.m.nodeErrors(e.Errors),
		}
	}
	for _, round := range l.watch.rounds {
		round <- err
	}
	l.watch.rounds = nil
}

// sendRenewed sends Renewed.
func (l *Lease) sendRenewed(e *hold.Event) {
	l.m.telemetry.meters.renewed(l.label, e.Stop-e.Now)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch == nil && l.m.bus.watched.Load() == 0 {
		return
	}
	renewed := Renewed{Name: l.Name(), Token: l.token, ValidUntil: l.m.clock.Time(e.Stop), Margin: e.Margin, Confirmed: e.Confirmed}
	if l.watch != nil {
		latest(l.watch.renewed, renewed)
	}
	l.m.bus.send(renewed)
}

// sendAtRisk sends AtRisk.
func (l *Lease) sendAtRisk(e *hold.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watch == nil && l.m.bus.watched.Load() == 0 {
		return
	}
	risk := AtRisk{
		Name: l.Name(), Token: l.token, Remaining: e.Stop - e.Now,
		Margin: e.Margin, Confirmed: e.Confirmed, Nodes: l.m.nodeErrors(e.Errors),
	}
	if l.watch != nil {
		latest(l.watch.atRisk, risk)
	}
	l.m.bus.send(risk)
}

// end ends the lease, in the order that readers rely on.
func (l *Lease) end(e *hold.Event) {
	err, lost := error(ErrReleased), (*LostError)(nil)
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
	l.mu.Unlock()
	if lost != nil {
		l.m.warnOfLoss(l, lost, wire.OwnerOf(e.Value))
	}
	if l.m.bus.watched.Load() > 0 {
		var last Event = Released{Name: l.Name(), Token: l.token}
		if lost != nil {
			last = lost.Lost
		}
		l.m.bus.send(last)
	}
	l.m.telemetry.held(l, e.Now, lost)
}

// lost returns the error of a lease whose lock was lost.
func (l *Lease) lost(e *hold.Event) *LostError {
	at := l.m.clock.Time(e.Now)
	until := at
	if stop := time.Duration(l.stop.Load()); stop < e.Now { // found late
		until = at.Add(stop - e.Now)
	}
	return &LostError{Lost{Name: l.Name(), Token: l.token, Reason: lostReason(e.Reason), At: at, ValidUntil: until, Nodes: l.m.nodeErrors(e.Errors)}}
}

// warnOfLoss logs a loss. This is the only place that does.
func (m *Manager) warnOfLoss(l *Lease, lost *LostError, owner string) {
	var evidence strings.Builder
	for i, n := range lost.Nodes {
		if i > 0 {
			evidence.WriteString("; ")
		}
		evidence.WriteString(n.Error())
	}
	m.reporter.Warn("a lease was lost", "name", lost.Name, "token", lost.Token, "reason", lost.Reason.String(),
		"holder", l.lock.Terms().Label, "owner", owner, "nodes", evidence.String())
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
