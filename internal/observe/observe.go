package observe

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Report is what observers get.
type Report struct {
	quorum.Holding
	Value   string         // of the holder's keys, or of a reader; "" for none
	Lock    string         // the value of the lock itself, which says whether readers were asked to release it
	Readers int            // how many hold the lock together; 0 for none
	Waiters int            // the most tickets in the queue of a node
	Began   clock.Validity // just before the nodes were asked, by the validity clock
	Errors  []error        // why each node gave no answer, nil for nodes that did
}

// Observer gets reports of who has a lock.
type Observer struct {
	// Deliver takes a report. End reports that none follows, because the Manager ends. Both run under the mutex of the
	// name, and must not block.
	Deliver func(*Report)
	End     func()

	served bool // it has had a report
}

// leastPause is the least time between two polls, however soon a holder's keys end: another program may set a lock for
// a millisecond, again and again.
const leastPause = 50 * time.Millisecond

// errOlder is why the answer of a node that names a holder does not count.
var errOlder = errors.New("the current holder has a smaller token than an earlier one: the nodes may have lost data")

// Observers finds the observers of a lock.
type Observers struct {
	ensemble *ensemble.Ensemble
	every    time.Duration // between two polls
	timeout  func() time.Duration
	polling  context.Context // of the polls; Close ends it
	stop     context.CancelFunc
	ticks    sync.WaitGroup // the polls that timers have begun

	mu     sync.Mutex
	byKey  map[string]*watch
	closed bool
}

// New returns the observers of a process that has none yet. every is the interval of the polls, and
// timeout returns how long one waits for the nodes.
func New(e *ensemble.Ensemble, every time.Duration, timeout func() time.Duration) *Observers {
	polling, stop := context.WithCancel(context.Background())
	return &Observers{ensemble: e, every: every, timeout: timeout, polling: polling, stop: stop, byKey: map[string]*watch{}}
}

// watch polls the nodes for one lock while it has observers.
type watch struct {
	of  *Observers
	key string

	mu        sync.Mutex
	observers map[*Observer]struct{}
	decides   quorum.Observer
	last      *Report // nil for none
	timer     *time.Timer
}

// Add makes o get the reports of a lock. It returns false after Close.
func (s *Observers) Add(key string, o *Observer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	w := s.byKey[key]
	if w == nil {
		w = &watch{of: s, key: key, observers: map[*Observer]struct{}{}, decides: quorum.NewObserver(s.clock().Now())}
		s.byKey[key] = w
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.observers[o] = struct{}{}
	if w.timer == nil {
		w.timer = time.AfterFunc(0, w.tick)
	} else if w.last != nil && s.clock().Now().Sub(w.last.Began) < s.every {
		w.deliver(o)
	}
	return true
}

func (s *Observers) clock() *clock.Clock { return s.ensemble.Clock }

// Remove ends what Add began. It returns false if End has run, or will. No report follows.
func (s *Observers) Remove(key string, o *Observer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.byKey[key]
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, found := w.observers[o]
	delete(w.observers, o)
	if len(w.observers) == 0 {
		w.timer.Stop()
		delete(s.byKey, key)
	}
	return found
}

// Close ends all observers and their polls.
func (s *Observers) Close() {
	s.mu.Lock()
	s.closed = true
	for _, w := range s.byKey {
		w.end()
	}
	clear(s.byKey)
	s.mu.Unlock()
	s.stop()
	s.ticks.Wait()
}

// end ends the observers of one lock.
func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	for o := range w.observers {
		o.End()
	}
	clear(w.observers)
}

// tick polls the nodes. The timer runs it.
func (w *watch) tick() {
	w.mu.Lock()
	if len(w.observers) == 0 {
		w.mu.Unlock()
		return
	}
	w.of.ticks.Add(1) // under w.mu: Close has not ended the observers yet
	w.mu.Unlock()
	defer w.of.ticks.Done()
	e, timeout := w.of.ensemble, w.of.timeout()
	answers := e.Collect(w.of.polling, wire.NewRead(w.key, w.of.clock().Steady().Add(timeout)), timeout, e.Size(), nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.observers) > 0 {
		w.conclude(answers)
	}
}

// Sights returns what the answers to a read show of the lock, and which nodes have answered.
func Sights(answers *ensemble.Answers) (sights []quorum.Sight, answered quorum.Set) {
	sights = make([]quorum.Sight, len(answers.Replies))
	for i := range answers.Replies {
		if reply := &answers.Replies[i]; reply.Status == wire.Done {
			sights[i], answered = sight(answers.Began, reply, answers.Quarantined(i)), answered.With(i)
		}
	}
	return sights, answered
}

// sight returns what an answer shows of keys that live from the question on. All readers of a lock count as one owner,
// also after their leases were revoked, and the register shows their token. Not in a quarantine, in which no register is
// below the end of the quarantine: other nodes may grant the name with a smaller token until then.
func sight(asked clock.Validity, reply *wire.Reply, quarantined bool) quorum.Sight {
	if reply.Free() {
		return quorum.Sight{}
	}
	value := wire.ParseValue(reply.Held)
	readers := value.Owner == wire.Nobody
	if readers && reply.Register > 0 && !quarantined {
		value.Token = reply.Register + 1
	}
	s := quorum.Sight{Held: true, Owner: value.Owner, Reused: readers, Token: value.Token, Until: quorum.Never}
	if reply.TTL >= 0 {
		s.Until = asked.Add(reply.TTL)
	}
	return s
}

// conclude delivers what a poll has shown, and sets the time of the next one. w.mu is held.
func (w *watch) conclude(answers *ensemble.Answers) {
	sights, answered := Sights(answers)
	changed := w.decides.Polled(answers.Began, w.of.every, sights, answered)
	if h, _ := w.decides.Last(); changed || w.decides.KnownAt() == answers.Began {
		w.last = report(h, answers, sights, answered)
	}
	for o := range w.observers {
		if w.last != nil && (changed || !o.served) {
			w.deliver(o)
		}
	}
	w.schedule(answers.Began)
}

// deliver gives an observer the last report. w.mu is held.
func (w *watch) deliver(o *Observer) {
	o.served = true
	o.Deliver(w.last)
}

// schedule sets the time of the next poll: after the interval, or when the holder's keys end. A node has counted their
// time from the arrival of the question on, so the duration of the last poll is added. w.mu is held.
func (w *watch) schedule(polledAt clock.Validity) {
	next, now := polledAt.Add(w.of.every), w.of.clock().Now()
	if w.last != nil && w.last.Held && w.last.Until != quorum.Never && w.last.Until > polledAt {
		next = min(next, max(w.last.Until.Add(now.Sub(polledAt)+time.Millisecond), polledAt.Add(leastPause)))
	}
	w.timer.Reset(max(next.Sub(now), 0))
}

// report returns what observers get after a poll.
func report(h quorum.Holding, answers *ensemble.Answers, sights []quorum.Sight, answered quorum.Set) *Report {
	r := &Report{Holding: h, Began: answers.Began, Errors: make([]error, len(sights))}
	for i, s := range sights {
		reply := &answers.Replies[i]
		if !answered.Has(i) {
			r.Errors[i] = answers.Err(i)
			continue
		}
		r.Waiters = max(r.Waiters, int(reply.Waiters))
		switch {
		case h.Older:
			r.Errors[i] = errOlder
		case h.Held && s.Held && s.Owner == h.Owner:
			if r.Value, r.Lock = reply.Held, reply.Held; reply.Readers != nil {
				value, readers := reply.Reading()
				r.Value, r.Readers = value, max(r.Readers, readers)
			}
		}
	}
	return r
}
