package quorumlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// minGrace and maxGrace bound how long a node keeps a lock for whoever it has
// told that it is its turn: within that time it has to ask for it.
const (
	minGrace = 20 * time.Millisecond
	maxGrace = 200 * time.Millisecond
)

// courtesy is how long whoever has handed a lock on does not ask for it again.
const courtesy = 2 * time.Millisecond

// pastAfter is how many attempts in a row may be granted by some nodes and no
// quorum before a waiter lets others go first. The nodes' queues then differ in
// who is first, and each keeps its own.
const pastAfter = 3

// waiter is one call that acquires. If it waits, it has a ticket in the queues of
// the nodes. What the nodes tell it are hints: its attempts alone get it a lease.
type waiter struct {
	m     *Manager
	terms *terms
	keys  lockKeys
	waits bool // Acquire's; TryAcquire asks once and does not queue

	// The caller's goroutine's.
	ticket string // "" as long as it does not queue
	place  string // in the queues: when the wait began
	queued quorum.Set
	splits int // attempts in a row that were granted by some nodes

	// told has capacity 1: a node has told something. Sent by the nodes' ears; never
	// closed; nil without a ticket.
	told chan struct{}

	mu      sync.Mutex
	turns   quorum.Turns
	next    bool     // a node keeps the lock for the one before it
	again   bool     // it may have missed what a node told
	granted *attempt // that got the lease, as long as some nodes have not granted
	missing quorum.Set
}

// waiters finds waiters by their tickets.
type waiters struct {
	listening atomic.Bool // there was contention: the nodes are listened to
	last      atomic.Uint64

	mu       sync.Mutex
	byTicket map[string]*waiter
	served   fifo[string, quorum.Set]    // by ticket: nodes that need not be told any more
	gave     fifo[string, time.Duration] // by lock: when it was handed on
}

// fifo is a map that keeps the last 64 entries.
type fifo[K comparable, V any] struct {
	entries map[K]V
	order   []K
	next    int
}

func (f *fifo[K, V]) put(key K, value V) {
	if f.entries == nil {
		f.entries = map[K]V{}
	}
	if _, has := f.entries[key]; !has {
		if len(f.order) < 64 {
			f.order = append(f.order, key)
		} else {
			delete(f.entries, f.order[f.next])
			f.order[f.next] = key
			f.next = (f.next + 1) % len(f.order)
		}
	}
	f.entries[key] = value
}

// handed notes that a lock of ours was handed on to somebody who waits.
func (s *waiters) handed(lock string, at time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gave.put(lock, at)
}

// courtesy returns how long to wait before asking for a lock that was handed on a
// moment ago: the answer is known, and asking would be in the way of those who are
// taking it.
func (s *waiters) courtesy(lock string, now time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.gave.entries[lock]; ok {
		return at + courtesy - now
	}
	return 0
}

func (s *waiters) add(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTicket == nil {
		s.byTicket = map[string]*waiter{}
	}
	s.byTicket[w.ticket[:node.TicketLen]] = w
}

// remove forgets a ticket, and reports whether it was known. A message of the
// nodes served may still be on its way, and means nothing.
func (s *waiters) remove(ticket string, served quorum.Set) (waiting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := ticket[:node.TicketLen]
	_, waiting = s.byTicket[id]
	delete(s.byTicket, id)
	if served != 0 {
		s.served.put(id, served)
	}
	return waiting
}

// find returns who waits with a ticket, and whether node i has served it.
func (s *waiters) find(ticket string, i int) (w *waiter, served bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byTicket[ticket], s.served.entries[ticket].Has(i)
}

// queues reports whether w stands in line. It does not before there was
// contention: most Managers never see any, and need no second connection to each
// node.
func (m *Manager) queues(w *waiter) bool {
	return w.waits && !m.cfg.unfenced && m.waiters.listening.Load()
}

// appendTicket appends a new ticket.
func (m *Manager) appendTicket(b []byte) []byte {
	number := strconv.FormatUint(m.waiters.last.Add(1), 16)
	b = append(b, m.id...)
	b = append(b, "0000000000000000"[len(number):]...)
	b = append(b, number...)
	return strconv.AppendInt(b, m.grace().Milliseconds(), 10)
}

// grace is how long the nodes are to keep a lock for us: a few round trips.
func (m *Manager) grace() time.Duration {
	trips := make([]time.Duration, 0, MaxNodes)
	for _, n := range m.nodes {
		if trip, ok := n.RoundTrip(); ok {
			trips = append(trips, trip)
		}
	}
	if len(trips) == 0 {
		return minGrace
	}
	slices.Sort(trips)
	return min(max(4*trips[len(trips)/2], minGrace), maxGrace)
}

// turn takes what a node tells: it keeps a lock for the holder of a ticket, or for
// the one before it.
func (m *Manager) turn(i int, kept bool, ticket, lockKey string) {
	w, served := m.waiters.find(ticket, i)
	if !kept {
		if w != nil {
			w.mu.Lock()
			w.next = true
			w.mu.Unlock()
			w.ring()
		}
		return
	}
	if w != nil {
		w.mu.Lock()
		a, missing := w.granted, w.missing.Has(i)
		if a == nil {
			w.turns.Told(i)
		}
		w.mu.Unlock()
		switch {
		case a == nil:
			w.ring()
		case missing:
			a.ask(i)
		}
		return
	}
	// It has what it waited for, or has given up: whoever is next may come.
	name, ours := strings.CutPrefix(lockKey, m.cfg.prefix)
	if served || !ours || !m.enter() {
		return
	}
	defer m.inflight.Done()
	m.post(i, m.releaseRequest(&m.cfg.terms, m.keysOf(name), ticket, 0, wait{}), nobody{})
}

// heard takes that a node is listened to from now on. What it told before, nobody
// heard, and who was told is not in its queue any more.
func (m *Manager) heard(int) {
	m.waiters.mu.Lock()
	defer m.waiters.mu.Unlock()
	for _, w := range m.waiters.byTicket {
		w.mu.Lock()
		w.again = true
		w.mu.Unlock()
		w.ring()
	}
}

func (w *waiter) ring() {
	select {
	case w.told <- struct{}{}:
	default:
	}
}

// has notes that an attempt got the lease. What other nodes keep for it then is one
// more vote. It returns those that refused the attempt and keep it already. a.mu is
// held.
func (w *waiter) has(a *attempt) quorum.Set {
	votes := a.claim.Votes()
	w.mu.Lock()
	w.granted, w.missing = a, quorum.All(w.terms.Nodes)
	kept := w.turns.Kept() & votes.Refused()
	w.mu.Unlock()
	w.got(votes.Granted())
	return kept
}

// got notes votes for the lease.
func (w *waiter) got(votes quorum.Set) {
	if w.ticket == "" {
		return
	}
	w.mu.Lock()
	w.missing &^= votes
	all := w.missing == 0
	w.mu.Unlock()
	if all {
		w.m.waiters.remove(w.ticket, quorum.All(w.terms.Nodes))
	}
}

// queue notes where the ticket may be after an attempt that came to nothing. a.mu
// is held.
func (w *waiter) queue(a *attempt) {
	if w.ticket != "" {
		w.queued |= quorum.All(w.terms.Nodes) &^ a.outof
	}
}

// yield says what becomes of the ticket when a failed attempt is released: it
// stays if the wait goes on.
func (w *waiter) yield(split, over bool) wait {
	if w.splits++; !split {
		w.splits = 0
	}
	if w.ticket == "" || over {
		return wait{ticket: w.ticket}
	}
	return wait{ticket: w.ticket, place: w.place, past: w.splits >= pastAfter}
}

// leave takes the ticket back, out of the queues as well, when the wait has come to
// nothing. (With a lease its release does that.)
func (w *waiter) leave(l *Lease) {
	if w.ticket == "" || l != nil {
		return
	}
	w.m.waiters.remove(w.ticket, 0)
	// As the owner of what a node may keep for the ticket.
	req := w.m.releaseRequest(w.terms, w.keys, w.ticket[:node.TicketLen], 0, wait{ticket: w.ticket})
	for i := range w.m.nodes {
		if w.queued.Has(i) {
			w.m.post(i, req, nobody{})
		}
	}
}

// campaign makes attempts until one succeeds or there is no use in another.
// Close waits for it, and not for the span processors before and after it.
func (m *Manager) campaign(ctx context.Context, name string, t *terms, waits bool, span *acquireSpan) (l *Lease, err error) {
	if !m.enter() {
		return nil, ErrClosed
	}
	defer m.inflight.Done()
	w := &waiter{m: m, terms: t, keys: m.keysOf(name), waits: waits, turns: quorum.NewTurns(len(m.nodes))}
	defer func() { w.leave(l) }()
	if m.queues(w) {
		if d := m.waiters.courtesy(w.keys[0], m.clock.Now()); d > 0 && !w.pause(ctx, d) {
			if ctx.Err() != nil {
				return nil, cancelled(name, nil, context.Cause(ctx))
			}
			return nil, ErrClosed
		}
	}
	var retry backoff.BackOff
	var last error // of an attempt that came to an end
	for {
		w.mu.Lock()
		w.turns.Ask()
		w.mu.Unlock()
		a := m.newAttempt(w, span)
		if l, err = a.run(ctx); err == nil {
			return l, nil
		}
		if errors.Is(err, errCutShort) {
			err = last // that one says what stood in the way
		} else {
			span.refused(err)
			last = err
		}
		if ctx.Err() != nil {
			return nil, cancelled(name, err, context.Cause(ctx))
		}
		if err == nil || m.ending() {
			return nil, ErrClosed
		}
		var short *QuorumError
		if !waits || errors.As(err, &short) && short.permanent(len(m.nodes)) {
			return nil, err
		}
		if len(a.taken) > 0 {
			m.listen()
		}
		if retry == nil {
			if retry = m.cfg.retry(); retry == nil {
				retry = defaultRetry()
			}
		}
		delay := retry.NextBackOff()
		if delay == backoff.Stop {
			return nil, err
		}
		if !w.pause(ctx, a.look(delay)) {
			if ctx.Err() != nil {
				return nil, cancelled(name, err, context.Cause(ctx))
			}
			return nil, ErrClosed
		}
	}
}

// listen has the nodes listened to from now on: there is contention.
func (m *Manager) listen() {
	if m.cfg.unfenced || m.waiters.listening.Swap(true) {
		return
	}
	for _, n := range m.nodes {
		n.Listen()
	}
}

// cancelled joins what stood in the way with why the wait ended.
func cancelled(name string, err, cause error) error {
	if err == nil {
		return fmt.Errorf("quorumlock: acquire %q: %w", name, cause)
	}
	return errors.Join(err, cause)
}

// pause sleeps until it is the waiter's turn, or time to look. It reports false
// when ctx or the Manager ended first.
func (w *waiter) pause(ctx context.Context, d time.Duration) bool {
	until := w.m.clock.Now() + d
	timer := w.m.timer(d)
	defer w.m.putTimer(timer)
	for {
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		case <-w.m.closing:
			return false
		case <-w.told:
		}
		w.mu.Lock()
		turn, some := w.turns.Turn()
		next, again := w.next, w.again
		w.next, w.again = false, false
		w.mu.Unlock()
		now := w.m.clock.Now()
		switch {
		case turn:
			return true
		case some, next:
			// Told by too few: the others have somebody else before us, or what they
			// told was lost. When the grace is over they are asked, and get our
			// ticket. The same if the one before us has not come by then.
			until = min(until, now+w.m.grace()+time.Millisecond+mathrand.N(2*time.Millisecond))
		case again:
			until = min(until, now+mathrand.N(minGrace)) // not all who wait at once
		}
		timer.Reset(until - now)
	}
}

// randomHex returns so many random hex digits.
func randomHex(n int) string {
	b := make([]byte, n/2)
	_, _ = rand.Read(b) // never fails since Go 1.24
	return hex.EncodeToString(b)
}
