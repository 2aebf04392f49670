package sim

import (
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/vote"
)

// This file has the lean way of an acquisition without a ticket: three commands in one batch, which decide together
// whether the lock is a vote. Between two of them the node may run commands of other clients, and other faults may
// occur. A connection delivers each command once, so the network repeats none.

// drawLean draws how often the clients of a run go the lean way, which has no slots.
func (w *world) drawLean() {
	c := &w.config
	if w.lean.Seed(uint64(w.p.Seed), 0x1ea4); w.p.Mutation == 0 {
		c.alone = int(w.lean.Uint64() % 8)
	}
	if w.permits.limit > 0 {
		c.alone = 0
	}
}

// goLean makes the request of an attempt a lean one, unless others are in the batch. The end of its lock is an instant of
// the node's clock by the client's upper estimate.
func (c *client) goLean(i int, m *message) {
	w, offset := c.w, &c.known[i].offset
	if m.op != opAcquire || m.ticket != 0 {
		return
	}
	if c.unproven != 0 { // of the attempt whose votes this one keeps
		if c.unproven.Has(i) {
			m.way = anewWay
		}
		return
	}
	if w.config.alone == 0 || c.known[i].rests || int(w.lean.Uint64()%8) >= w.config.alone {
		return
	}
	if w.config.instant > 0 && offset.Width() > w.config.terms.Timeout/4 {
		return // production always checks the round trip; here a decline would come too late for a call that asks once
	}
	at := c.ruler()
	high := offset.High(clock.Steady(at))
	m.way, m.ends = leanWay, (at + high + c.w.ttlOf(m) + time.Millisecond - 1).Milliseconds()
	m.slack = 2 * (high - offset.Low()) // the rates may differ the other way
	c.lean = c.lean.With(i)
}

// locks reports whether the next command of a lean acquisition is the one that makes the lock.
func (n *node) locks(m *message) bool {
	first := int8(0)
	if n.w.bugs.has(LeanReadsFirst) {
		first = 1
	}
	return m.way != leanWay || m.step == first
}

// acquireLean runs the lean script.
func (n *node) acquireLean(m *message, wall time.Duration) answer {
	bugs := n.w.bugs
	switch {
	case m.t-micros(wall) > micros(n.w.config.ahead) && !bugs.has(LeanUncapped):
		return behind
	case n.owner != 0:
		return notMade
	}
	if n.lock(m, m.ends); bugs.has(LeanRelativeEnds) {
		n.expires = (wall + n.w.ttlOf(m)).Milliseconds()
	}
	if m.t <= n.register && !bugs.has(LeanStands) {
		n.unlock()
		return behind
	}
	n.register, n.shown = max(n.register, m.t), m.t
	return made
}

// dropOwn deletes a lock that shows the owner of a request which does not count it.
func (n *node) dropOwn(m *message) {
	if m.way == anewWay && alone(n, m) {
		n.unlock()
	}
}

// ends answers a request, unless other commands of its batch follow.
func (n *node) ends(e *event, a answer, frozen time.Duration) {
	if a == made {
		n.continues(e)
		return
	}
	n.answer(&e.message, a, frozen)
}

// look runs MGET, and then TIME.
func (n *node) look(e *event) {
	m := &e.message
	if m.step == 2 {
		n.answer(m, made, 0)
		return
	}
	m.read = !n.half.open
	m.base, m.hint, m.seen = n.base, n.queued > 0, n.marker
	n.continues(e)
}

// continues schedules the next command of a batch: mostly it runs at once.
func (n *node) continues(e *event) {
	w := n.w
	var gap time.Duration
	switch chance := w.lean.Uint64() % 16; {
	case w.quiet || chance < 8:
	case chance < 14 || w.config.instant > 0:
		gap = time.Duration(w.lean.Uint64() % uint64(w.config.latency))
	default:
		gap = time.Duration(w.lean.Uint64() % uint64(w.config.terms.Timeout))
	}
	e.step++
	e.admitted = true
	w.schedule(w.now+gap, e)
}

// readLean makes a vote of the answer to a lean acquisition, or asks the usual script, and reports whether it has
// asked. It does what the worker of a node does in production.
func (c *client) readLean(i int, m *message, now time.Duration) (asked bool) {
	w := c.w
	switch {
	case m.way == anewWay && m.answer != granted && m.answer != taken && m.answer != late && m.answer != markerChanged:
		return false
	case m.way == anewWay:
		c.lean, c.unproven = c.lean.Without(i), c.unproven.Without(i)
		return false
	case m.answer == made && c.countsLean(m):
		w.stats[LeanVotes]++
		c.lean = c.lean.Without(i)
		m.answer, m.moved, m.before = granted, m.t, m.t-1
		return false
	case m.answer == made:
		w.stats[LeanNoVotes]++
		c.unproven = c.unproven.With(i)
	default:
		c.lean = c.lean.Without(i)
	}
	if m.answer != made && m.answer != notMade && m.answer != behind {
		return false // nothing has run
	}
	c.known[i].rests = m.answer != behind
	if c.phase == resting {
		return true // the request was withdrawn
	}
	end := c.began + w.config.terms.Timeout
	if now >= end || !c.mayVote(i) {
		if m.answer == made {
			m.answer = unknown
		}
		return false
	}
	w.stats[LeanDeclined]++
	again := message{op: opAcquire, owner: c.owner, t: m.t, marker: c.known[i].marker}
	if m.answer == made && !w.bugs.has(LeanCountsAgain) {
		again.way = anewWay
	}
	c.limit(i, &again, end)
	c.request(i, &again)
	return true
}

// countsLean reports whether a lock of the lean way is a vote, by what the client has read after it.
func (c *client) countsLean(m *message) bool {
	bugs := c.w.bugs
	look := vote.Look{Marker: m.seen.text()}
	if m.hint {
		look.Hint = "1"
	}
	if m.base > 0 && !bugs.has(LeanBelowBase) {
		look.Base = strconv.FormatInt(m.base, 10)
	}
	if bugs.has(LeanOnOtherData) {
		look.Marker = m.marker.text()
	}
	return m.read && look.Counts(strconv.FormatInt(m.t, 10), m.marker.text())
}

// text returns the marker as the database has it.
func (m marker) text() string {
	if m == (marker{}) {
		return ""
	}
	b := strconv.AppendUint(nil, uint64(m.run), 10)
	b = strconv.AppendUint(append(b, ' '), uint64(m.epoch), 10)
	return string(strconv.AppendInt(append(b, ' '), m.until, 10))
}

// createdLean checks a new lock of the lean way. It may come late, but lives no longer than one that comes in time.
func (j *judge) createdLean(n *node, m *message) {
	latest := (n.clock.read(m.issued) + j.w.ttlOf(m) + m.slack).Milliseconds() + 1
	if over := n.expires - latest; over > 0 {
		j.violated("leftover", "a lean acquisition of client %d makes a key on node %d that ends %d ms too late", m.client, n.id, over)
	}
}
