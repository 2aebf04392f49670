package quorumlock

import (
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// transition is the result of a step.
type transition struct {
	quorum.Output
	now   time.Duration
	over  bool        // the step ended the hold
	lost  *localQueue // the queue that has to learn that the step ended the hold, and not by a release; nil for none
	ended *Lease      // the lease that the step ended; nil if the hold carried none
}

// step applies one input to a hold and carries out the effects, except Begin and Heal,
// which the caller posts. After the grant, the hold's machine changes nowhere else, and
// every event of a lease is sent under the hold's mutex. So the events of each lease have
// one order. with runs under the hold's mutex before the step, unless the hold is over.
func (h *hold) step(in quorum.Input, with func()) transition {
	h.mu.Lock()
	s := h.stepLocked(in, with)
	h.mu.Unlock()
	h.notify(&s)
	return s
}

// tick applies the passing of time. It begins a round that is due, or due soon enough to
// go together with other holds. live is false if the hold was over before.
func (h *hold) tick(now time.Duration, heal *healing) (live, begin bool) {
	h.mu.Lock()
	live = !h.over
	s := h.stepLocked(quorum.Input{Kind: quorum.InputTick}, nil)
	heal.add(h, s.Heal)
	if live && !s.over && h.machine.Due(now+h.terms.slack) {
		s = h.stepLocked(quorum.Input{Kind: quorum.InputBegin}, nil)
		begin = s.Begin
	}
	h.mu.Unlock()
	h.notify(&s)
	return live, begin
}

// notify reports the end of a lease to the rest of the Manager. h.mu is not held.
func (h *hold) notify(s *transition) {
	if s.ended != nil {
		h.m.telemetry.held(s.ended, s.now)
	}
	if s.lost != nil {
		s.lost.lost(h)
	}
}

// stepLocked is step for a caller that holds h.mu. The caller calls notify, or does the
// same itself.
func (h *hold) stepLocked(in quorum.Input, with func()) (s transition) {
	s.now = h.m.clock.Now()
	if h.over {
		return s
	}
	if with != nil {
		with()
	}
	jumped := h.m.clock.Jumped()
	// If the deadline has passed, the watchdog did not run for so long that the process must
	// have been suspended.
	in.Jump = jumped != h.jumped || s.now > h.machine.Deadline() && h.machine.Deadline() > 0
	h.jumped = jumped
	in.Lag = h.m.dog.expectedLag()
	s.Output = h.machine.Step(s.now, in)
	running := h.lease.err == nil
	switch h.machine.State() {
	case quorum.StateLost:
		h.over = true
		// The guard starts at S, because Remaining allowed work until then. The keys stay
		// for the guard, so that work can stop, and for the lock delay, as they would if the
		// process had died.
		h.remains = max(s.now, h.machine.Stop()) + h.terms.Guard + h.terms.lockDelay
		h.m.dog.schedule(h, h.remains)
		h.lease.endLocked(h.lossLocked(s.now))
	case quorum.StateReleased:
		h.over = true
		if keep := h.lease.granted + h.terms.minHold; keep > s.now {
			h.remains = keep
			h.m.dog.schedule(h, keep)
		} else {
			h.m.dog.schedule(h, quorum.Never)
		}
		h.lease.endLocked(ErrReleased)
	default:
		h.carryOut(s.now, s.Output)
	}
	if s.over = h.over; s.over {
		h.m.own.remove(h)
		if running {
			s.ended = h.lease
		}
	}
	h.countRisk()
	if s.over && h.machine.State() == quorum.StateLost {
		s.lost = h.local
	}
	return s
}

// lossLocked returns the error of a lost hold. h.mu is held.
func (h *hold) lossLocked(now time.Duration) error {
	at := h.m.clock.Time(now)
	until := at
	if stop := time.Duration(h.lease.stop.Load()); stop < now { // found late
		until = at.Add(stop - now)
	}
	return &LostError{Lost{
		Name: h.name(), Token: h.lease.token, Reason: lostReason(h.machine.Reason()),
		At: at, ValidUntil: until, Nodes: h.m.nodeErrors(h.nodes),
	}}
}

// carryOut announces the effects of a step of a live hold, and schedules the next step.
// h.mu is held.
func (h *hold) carryOut(now time.Duration, out quorum.Output) {
	if h.lease.err == nil {
		h.lease.stop.Store(int64(h.machine.Stop()))
	}
	for i := 0; out.Silent>>i != 0; i++ {
		if out.Silent.Has(i) && (h.nodes == nil || h.nodes[i] == nil) {
			h.note(i, ensemble.Silence(h.terms.Timeout))
		}
	}
	switch {
	case h.terms.manual:
	case out.Begin:
		h.machine.Arm(now + h.nextRound())
	case out.Missed:
		if h.retry == nil {
			h.retry = backoff.NewExponentialBackOff(
				backoff.WithInitialInterval(h.terms.ttl/20), backoff.WithMaxInterval(h.terms.interval),
				backoff.WithMaxElapsedTime(0))
		}
		h.machine.Arm(now + h.retry.NextBackOff())
	}
	if out.Confirmed {
		h.retry = nil
	}
	h.lease.finishRounds(out)
	if out.Events&quorum.Renewed != 0 {
		h.lease.sendRenewed(now)
	}
	if out.Events&quorum.AtRisk != 0 {
		h.lease.sendAtRisk(now)
	}
	h.m.dog.schedule(h, max(now, h.machine.Wake())) // the watchdog measures its own delay from this instant, so it must not lie in the past
}

// nextRound returns a renewal interval with its jitter, −5 % … +10 %. A round may start
// up to 5 % of the interval earlier still, to go together with other holds.
func (h *hold) nextRound() time.Duration {
	return time.Duration(float64(h.terms.interval) * (0.95 + 0.15*rand.Float64()))
}

// finishRounds answers the callers of Renew whose round is over. The hold's mutex is held.
func (l *Lease) finishRounds(out quorum.Output) {
	if l.watch == nil || len(l.watch.rounds) == 0 || !out.Confirmed && !out.Missed || out.Begin {
		return
	}
	h := l.hold
	var err error
	if out.Missed {
		err = &QuorumError{
			Op: "renew", Name: l.Name(), Need: h.m.ensemble.Quorum(),
			Got: h.machine.Confirmed(), of: h.m.ensemble.Size(), Nodes: h.m.nodeErrors(h.nodes),
		}
	}
	for _, round := range l.watch.rounds {
		round <- err
	}
	l.watch.rounds = nil
}

// sendRenewed sends Renewed. The hold's mutex is held.
func (l *Lease) sendRenewed(now time.Duration) {
	if l.err != nil {
		return
	}
	h := l.hold
	h.m.telemetry.meters.renewed(h.label, time.Duration(l.stop.Load())-now)
	if l.watch == nil && h.m.bus.watched.Load() == 0 {
		return
	}
	e := Renewed{
		Name: l.Name(), Token: l.token, ValidUntil: h.m.clock.Time(h.machine.Stop()),
		Margin: h.machine.Margin(now), Confirmed: h.machine.Confirmed(),
	}
	if l.watch != nil {
		latest(l.watch.renewed, e)
	}
	h.m.bus.send(e)
}

// sendAtRisk sends AtRisk. The hold's mutex is held.
func (l *Lease) sendAtRisk(now time.Duration) {
	if l.err != nil {
		return
	}
	h := l.hold
	if l.watch == nil && h.m.bus.watched.Load() == 0 {
		return
	}
	e := AtRisk{
		Name: l.Name(), Token: l.token, Remaining: h.machine.Stop() - now,
		Margin: h.machine.Margin(now), Confirmed: h.machine.Confirmed(), Nodes: h.m.nodeErrors(h.nodes),
	}
	if l.watch != nil {
		latest(l.watch.atRisk, e)
	}
	h.m.bus.send(e)
}

// endLocked ends the lease, unless it has ended, in the order that readers rely on. The
// hold's mutex is held.
func (l *Lease) endLocked(err error) {
	if l.err != nil {
		return
	}
	m := l.hold.m
	l.err = err
	l.stop.Store(0)
	l.hold.retry = nil
	if l.watch != nil {
		l.watch.end(err)
	}
	lost := lossOf(err)
	if lost != nil {
		m.warnOfLoss(l, lost)
	}
	if m.bus.watched.Load() > 0 {
		var e Event = Released{Name: l.Name(), Token: l.token}
		if lost != nil {
			e = lost.Lost
		}
		m.bus.send(e)
	}
}

// lossOf returns the loss that has ended a lease, nil after a release.
func lossOf(end error) *LostError {
	if errors.Is(end, ErrReleased) { // most leases; what errors.As needs would cost each of them an allocation
		return nil
	}
	var lost *LostError
	errors.As(end, &lost)
	return lost
}

// warnOfLoss logs a loss. This is the only place that does.
func (m *Manager) warnOfLoss(l *Lease, lost *LostError) {
	var evidence strings.Builder
	for i, n := range lost.Nodes {
		if i > 0 {
			evidence.WriteString("; ")
		}
		evidence.WriteString(n.Error())
	}
	m.reporter.Warn("a lease was lost", "name", lost.Name, "token", lost.Token, "reason", lost.Reason.String(),
		"holder", l.hold.terms.label, "owner", ownerOf(l.hold.value), "nodes", evidence.String())
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
