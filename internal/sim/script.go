package sim

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// execute runs one operation of the script apply. Its time is wall, the instant at which
// the script began. The script may stall for frozen before it writes.
func (n *node) execute(m *message, wall, frozen time.Duration) answer {
	end := (wall + n.w.ttlOf(m)).Milliseconds() // an absolute instant
	if n.w.bugs.has(RelativeEnds) {
		end += frozen.Milliseconds()
	}
	switch m.op {
	case opAcquire | reads:
		return share(n, m, wall, end)
	case opExtend | reads:
		return prolong(n, m, wall, end)
	case opHeal | reads:
		return restore(n, m, wall, end)
	case opRaise | reads:
		return align(n, m, wall)
	case opRelease | reads:
		return quit(n, m, wall)
	case opGreet:
		return n.greet(m, wall)
	case opLook:
		m.open = n.half.open
		return done
	case opWithdraw:
		return n.withdraw()
	case opAcquire:
		return n.acquire(m, wall, end)
	case opExtend:
		return n.extend(m, wall, end)
	case opHeal:
		return n.heal(m, wall, end)
	case opRaise:
		return n.raise(m)
	case opPassOn:
		return n.passOn(m, wall)
	case opDetach:
		return detachLock(n, m, wall)
	case opResume:
		return resumeLock(n, m, wall, end)
	case opDrop:
		return dropLock(n, m, wall)
	default:
		return n.release(m, wall)
	}
}

// greet runs the restart guard. A quarantine starts if the marker is missing or names
// another process or an earlier term, or if the client has seen the node's clock jump ahead.
func (n *node) greet(m *message, wall time.Duration) answer {
	w := n.w
	m.open = n.half.open
	if before := n.marker; w.config.guard && !m.unguarded && !m.open && n.renews(m) {
		w.stats[Quarantines]++
		n.marker = marker{run: n.run, epoch: m.epoch, until: micros(wall + w.config.maxTTL)}
		if w.bugs.has(MarkerWithoutEpoch) {
			n.marker.epoch = 0
		}
		rebase(n)
		w.judge.marked(n, m, before)
	}
	m.marker = n.marker
	return done
}

// renews reports whether a greeting starts a quarantine. A client of an earlier term of a
// group changes nothing.
func (n *node) renews(m *message) bool {
	bugs := n.w.bugs
	if m.epoch < n.marker.epoch && !bugs.has(EarlierTermOverwrites) {
		return false
	}
	return n.marker.run != n.run || m.clockSuspect || m.forced || n.marker.epoch != m.epoch && !bugs.has(MarkerWithoutEpoch)
}

// votes reports whether the marker is the one that the client of an extend, a raise or a
// heal knows.
func (n *node) votes(m *message) bool { return !n.w.config.votesMatch || n.marker == m.marker }

// value returns the position that an attempt must exceed.
func (n *node) value() int64 { return max(n.register, n.base) }

// rebase raises the base to the end of a quarantine.
func rebase(n *node) {
	floor := n.marker.until
	switch {
	case n.w.bugs.has(NoFloor):
		floor = 0
	case n.w.bugs.has(FloorAtStart):
		floor -= micros(n.w.config.maxTTL)
	}
	n.base = max(n.base, floor)
}

// move moves the register up to the proposal, but not far ahead of the node's clock. If
// that is not an upward move, the node is ahead.
func (n *node) move(m *message, wall time.Duration) {
	w := n.w
	value := n.value()
	target := quorum.Register(min(m.t, micros(wall+w.config.ahead)))
	if w.bugs.has(NoCap) {
		target = m.t
	}
	if w.p.Nodes == 1 {
		target = max(target, quorum.NextRegister(value))
	}
	m.moved, m.before = 0, value
	if value < target || w.bugs.has(MovesNotStrictly) && value == target {
		m.moved, m.before, n.shown = target, min(value, target-1), target
		if w.bugs.has(MovesLater) {
			e := event{kind: evMoveLate, client: -1, node: n.id}
			e.t = target
			w.schedule(w.now+w.upTo(w.config.terms.TTL), &e)
			return
		}
		n.register = target
	}
}

// trusts reports whether the marker is the one that the client of an acquire or a resume knows.
func trusts(n *node, m *message) bool {
	bugs := n.w.bugs
	return !n.w.config.guard || n.marker == m.marker || bugs.has(NoMarker) || bugs.has(NoMarkerPasses) && n.marker.run == 0
}

func (n *node) acquire(m *message, wall time.Duration, end int64) answer {
	w, bugs := n.w, n.w.bugs
	if w.permits.limit > 0 {
		return permit(n, m, wall, end)
	}
	if m.way == leanWay {
		return n.acquireLean(m, wall)
	}
	if shared(n) && trusts(n, m) {
		vacate(n, wall)
	}
	n.dropOwn(m)
	ours := alone(n, m)
	forUs := n.reserved && m.ticket != 0 && (n.owner == m.ticket || bugs.has(ReservedForAnybody)) ||
		bugs.has(ReservationOverwrites) && m.ticket != 0 && n.reservedFor == m.ticket ||
		bugs.has(LapsedTakesLock) && m.lapsed || bugs.has(TakesReaders) && shared(n) ||
		bugs.has(AcquiresDetached) && n.form == detachedForm
	tooLate := micros(wall) > m.after && !bugs.has(AcquireAnytime)
	switch {
	case !trusts(n, m) && !(bugs.has(ReservationUnguarded) && forUs):
		w.stats[MarkerChanges]++
		return markerChanged
	case n.owner != 0 && !ours && !forUs:
		return n.taken(m, wall, !tooLate)
	case tooLate:
		w.stats[TooLate]++
		return late
	case ours:
		n.repeat(m, end)
		return granted
	}
	if !forUs && n.queued > 0 {
		if m.lapsed {
			n.clearQueue(m.ticket)
		} else {
			n.enqueue(m)
			if head := n.reserve(m.ticket, wall); head != 0 && head != m.ticket {
				return n.taken(m, wall, true)
			}
		}
	}
	reservation := forUs && n.reserved
	n.lock(m, end)
	n.dequeue(m.ticket)
	if reservation && bugs.has(ReservationUnmoved) {
		m.moved, m.before = min(m.t, micros(wall+w.config.ahead)), 0
		n.shown = m.moved
		return granted
	}
	n.move(m, wall)
	return granted
}

// repeat answers a second copy of a granted request. It repeats the first answer, with
// the smallest block that this answer can have meant.
func (n *node) repeat(m *message, end int64) {
	n.expires, m.again = end, true
	m.moved, m.before = n.shown, n.shown-1
	if n.shown == 0 {
		m.before = n.value()
		if n.w.bugs.has(RepeatMoves) {
			m.moved, m.before = m.t, m.t-1
		}
	}
}

// taken refuses a request: it answers how long the blocking lock lives. If the request
// came in time, its ticket enters the queue.
func (n *node) taken(m *message, wall time.Duration, inTime bool) answer {
	m.position = -1
	if inTime && n.enqueue(m) {
		m.position = n.rank(m.ticket)
	}
	woken := false
	if shared(n) {
		if m.position >= 0 && n.set.probe.ticket == m.ticket {
			n.set.probe = probe{} // it lives
		}
		trim(n, wall)
		woken = n.set.last().woken
	}
	m.left, m.reservation, m.holder = n.expires-wall.Milliseconds(), n.reserved || woken, n.owner
	return taken
}

// takeable reports whether a valid lease may take the lock of a node: no lease has it, or another owner has detached
// it, or it only waits for readers.
func takeable(n *node, m *message, wall time.Duration) bool {
	return !n.locked() || n.form == detachedForm && n.owner != m.owner || shared(n) && !n.set.reads(wall)
}

// extend never creates a lock, and touches no register.
func (n *node) extend(m *message, wall time.Duration, end int64) answer {
	bugs := n.w.bugs
	ours := n.owner == m.owner && !n.reserved && (n.form == ownedForm ||
		n.form == revokedForm && bugs.has(ExtendIgnoresMarks) || n.form == detachedForm && bugs.has(ExtendsDetached))
	switch {
	case n.owner == 0 && bugs.has(ExtendCreates), n.reserved && bugs.has(ExtendReserved):
		n.lock(m, end)
		return confirmed
	case takeable(n, m, wall):
		return missing
	case !ours && !bugs.has(ExtendForeign):
		return taken
	case bugs.has(ExtendZero):
		n.unlock() // PEXPIREAT of the past deletes the key, and reports success
		return confirmed
	case n.tooOld(m, wall):
		return missing
	}
	n.expires = end
	return n.proves(m)
}

// heal creates the lock of a lease that a majority of other nodes has confirmed. The lock shows no token, because
// another attempt may have moved the register in between.
func (n *node) heal(m *message, wall time.Duration, end int64) answer {
	bugs := n.w.bugs
	switch {
	case micros(wall) > m.after && !bugs.has(HealAnytime), !n.votes(m) && micros(wall) > m.held:
		n.w.stats[TooLate]++
		return late
	case takeable(n, m, wall), n.form == detachedForm && bugs.has(HealsDetached):
		n.lock(m, end)
		if bugs.has(HealShowsToken) {
			n.shown = m.t
		}
		if bugs.has(HealMoves) {
			n.register = m.t
		}
		return confirmed
	case n.owner == m.owner && n.form == ownedForm:
		n.expires = end
		return confirmed
	}
	return taken
}

// raise moves the register up to the top, for the owner of the lock only.
func (n *node) raise(m *message) answer {
	bugs := n.w.bugs
	value := n.value()
	switch {
	case (n.owner != m.owner || n.reserved || n.form != ownedForm) && !bugs.has(RaiseAnyOwner), !n.votes(m):
		return notDone
	case value < m.t:
	case value == m.t && bugs.has(RaiseAtTop):
		m.before = m.t - 1
		return done
	case bugs.has(RaiseDown):
		value = m.t - 1
	default:
		// The register is not below the top: this owner has lost the lock here, and a second copy of its acquire got it
		// again.
		return notDone
	}
	m.before = value
	n.register, n.shown = m.t, m.t
	return done
}

// release is a compare-and-delete. If there is a queue, the lock is reserved for its
// head. The registers do not change.
func (n *node) release(m *message, wall time.Duration) answer {
	bugs := n.w.bugs
	if m.holder != 0 {
		return giveBack(n, m)
	}
	free := n.owner == 0
	ours := !free && (n.owner == m.owner && !n.reserved && n.form != detachedForm || bugs.has(ReleaseForeign))
	if ours {
		if bugs.has(ReleaseMovesBack) && n.shown == n.register {
			n.register = n.shown - 1
		}
		n.unlock()
	}
	return settle(n, m, wall, free || ours, ours)
}

// giveBack makes the lock of a failed resume a detached one again.
func giveBack(n *node, m *message) answer {
	if n.owner != m.owner || n.reserved || n.form != ownedForm {
		return notDone
	}
	n.owner, n.form = m.holder, detachedForm
	ttl := n.w.config.terms.TTL
	n.w.handles.ends = max(n.w.handles.ends, n.w.now+ttl+ttl/50)
	return done
}

// settle brings the queue up to date after a release. free means that the lock is free, and ours that it was the
// client's.
func settle(n *node, m *message, wall time.Duration, free, ours bool) answer {
	bugs := n.w.bugs
	if n.w.permits.limit > 0 {
		return settleSlot(n, m, wall, free, ours)
	}
	update := m.place()
	stays := update != leaves
	if stays && turns(n, m.ticket, wall) {
		return notDone // already reserved for this ticket: in the queue it would get two turns
	}
	if stays && update != yields {
		n.enqueue(m)
	} else {
		n.dequeue(m.ticket)
	}
	switch available := free || bugs.has(ReservesAnyLock); {
	case available && m.leaveFree && n.queued > 0 && n.subscribed(&n.queue[0]):
		n.wake(&n.queue[0], leftFree, 0)
		m.reservation = n.queue[0].client != m.client
	case available:
		// The head may be the ticket of this release. Reserve the lock for it as well:
		// a free lock with a queue looks like a reservation that has lapsed.
		var me uint32
		if stays && bugs.has(OwnHeadLeftFree) {
			me = m.ticket
		}
		head := n.reserve(me, wall)
		if me != 0 && head == me {
			n.enqueue(m)
		}
		m.reservation = head != 0 && n.reservedClient != m.client
	case shared(n):
		admit(n, wall)
	}
	if update == yields && !turns(n, m.ticket, wall) {
		n.enqueue(m)
	}
	if ours {
		return done
	}
	return notDone
}

// passOn removes an unused ticket from the queue. If the lock is reserved for that
// ticket, passOn reserves it for the next one.
func (n *node) passOn(m *message, wall time.Duration) answer {
	if n.w.permits.limit > 0 {
		return settleSlot(n, m, wall, false, false)
	}
	n.dequeue(m.ticket)
	ours := n.set.drop(m.ticket, true)
	switch {
	case n.owner == m.ticket && n.reserved || n.owner != 0 && n.w.bugs.has(PassOnDeletes):
		n.unlock()
		ours = true
	case shared(n):
		if !vacate(n, wall) {
			admit(n, wall)
		}
	case n.owner != everybody: // a revoked lock stays
		ours = false
	}
	if n.owner == 0 {
		n.reserve(0, wall)
	}
	if ours {
		return done
	}
	return notDone
}
