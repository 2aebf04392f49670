package observe

import (
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
	Readers int            // how many hold the lock together; 0 for none
	Waiters int            // the most tickets in the queue of a node
	Began   clock.Validity // just before the nodes were asked, by the validity clock
	Errors  []error        // why each node gave no answer, nil for those that did
}

// Observer gets reports of who has a lock.
type Observer struct {
	// Deliver takes a report. End says that none follows, because the Manager ends. Both run under
	// the mutex of the name, and must not block.
	Deliver func(*Report)
	End     func()

	served bool // it has had a report
}

// leastPause is between two polls at least, however soon a holder's keys end: another program may
// set a lock for a millisecond, again and again.
const leastPause = 50 * time.Millisecond

// errOlder is why the answer of a node that names a holder does not count.
var errOlder = errors.New("the holder that a majority names has a smaller token than an earlier holder: the nodes may have lost data")

// Observers finds those who observe a lock.
type Observers struct {
	ensemble *ensemble.Ensemble
	every    time.Duration // between two polls
	timeout  func() time.Duration
	ticks    sync.WaitGroup // the polls that timers have begun

	mu     sync.Mutex
	byKey  map[string]*watch
	closed bool
}

// New returns the observers of a process that has none yet. every is the interval of the polls, and
// timeout returns how long one waits for the nodes.
func New(e *ensemble.Ensemble, every time.Duration, timeout func() time.Duration) *Observers {
	return &Observers{ensemble: e, every: every, timeout: timeout, byKey: map[string]*watch{}}
}

// watch polls the nodes for one lock while somebody observes it.
type watch struct {
	of  *Observers
	key string

	mu        sync.Mutex
	observers map[*Observer]struct{}
	decides   quorum.Observer
	last      *Report // nil for none
	poll      *poll   // under way; nil between two
	polledAt  clock.Validity
	timer     *time.Timer
}

// poll is one question to every node, and receives the answers.
type poll struct {
	watch    *watch
	began    clock.Validity
	sights   []quorum.Sight
	values   []string
	readers  []int
	errors   []error
	answered quorum.Set // with success
	left     int        // nodes that have not answered
	waiters  int
}

// Add has o get the reports of a lock. It returns false after Close.
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

// Close ends all observers, and waits for the polls that begin.
func (s *Observers) Close() {
	s.mu.Lock()
	s.closed = true
	for _, w := range s.byKey {
		w.end()
	}
	clear(s.byKey)
	s.mu.Unlock()
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

// tick begins a poll, or ends the one whose time is over. The timer runs it.
func (w *watch) tick() {
	w.mu.Lock()
	if len(w.observers) == 0 {
		w.mu.Unlock()
		return
	}
	if w.poll != nil {
		w.conclude()
		w.mu.Unlock()
		return
	}
	w.of.ticks.Add(1) // under w.mu: Close has not ended the observers yet
	defer w.of.ticks.Done()
	nodes, timeout := w.of.ensemble.Size(), w.of.timeout()
	now, steady := w.of.clock().Both()
	p := &poll{watch: w, began: now, sights: make([]quorum.Sight, nodes), values: make([]string, nodes), readers: make([]int, nodes), errors: make([]error, nodes), left: nodes}
	w.poll = p
	w.timer.Reset(timeout)
	w.mu.Unlock()
	w.of.ensemble.Ask(wire.NewRead(w.key, steady.Add(timeout)), p, steady)
}

// Receive records the answer of a node.
func (p *poll) Receive(i int, req *wire.Request, reply *wire.Reply) {
	w := p.watch
	w.of.ensemble.Answered(i, req, reply)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.poll != p {
		return
	}
	p.left--
	if reply.Status == wire.Done {
		p.answered = p.answered.With(i)
		p.waiters = max(p.waiters, int(reply.Waiters))
		p.sights[i], p.values[i] = Sight(w.of.clock().Now(), reply), reply.Held
		if reply.Readers != nil {
			p.values[i], p.readers[i] = reply.Reading()
		}
	} else {
		p.errors[i] = reply.Err
	}
	if p.left == 0 {
		w.conclude()
	}
}

// Sight returns what an answer says about keys that live from now on. All readers of a lock count as one
// owner, and the register shows their token.
func Sight(now clock.Validity, reply *wire.Reply) quorum.Sight {
	if reply.Free() {
		return quorum.Sight{}
	}
	value := wire.ParseValue(reply.Held)
	if value.Shared && reply.Register > 0 {
		value.Token = reply.Register + 1
	}
	s := quorum.Sight{Held: true, Owner: value.Owner, Token: value.Token, Until: quorum.Never}
	if reply.TTL >= 0 {
		s.Until = now.Add(reply.TTL)
	}
	return s
}

// conclude ends the poll, delivers what it has shown, and sets the time of the next one. w.mu is held.
func (w *watch) conclude() {
	p := w.poll
	w.poll, w.polledAt = nil, p.began
	if len(w.observers) == 0 {
		return
	}
	changed := w.decides.Polled(p.began, w.of.every, p.sights, p.answered)
	if h, _ := w.decides.Last(); changed || w.decides.KnownAt() == p.began {
		w.last = p.report(h)
	}
	for o := range w.observers {
		if w.last != nil && (changed || !o.served) {
			w.deliver(o)
		}
	}
	w.schedule()
}

// deliver gives an observer the last report. w.mu is held.
func (w *watch) deliver(o *Observer) {
	o.served = true
	o.Deliver(w.last)
}

// schedule sets the time of the next poll: after the interval, or when the holder's keys end. w.mu is
// held.
func (w *watch) schedule() {
	next := w.polledAt.Add(w.of.every)
	if w.last != nil && w.last.Held && w.last.Until != quorum.Never && w.last.Until > w.polledAt {
		next = min(next, max(w.last.Until.Add(time.Millisecond), w.polledAt.Add(leastPause)))
	}
	w.timer.Reset(max(next.Sub(w.of.clock().Now()), 0))
}

// report returns what observers get after the poll.
func (p *poll) report(h quorum.Holding) *Report {
	r := &Report{Holding: h, Waiters: p.waiters, Began: p.began, Errors: p.errors}
	for i, s := range p.sights {
		switch {
		case h.Older && p.answered.Has(i):
			p.errors[i] = errOlder
		case !p.answered.Has(i) && p.errors[i] == nil:
			p.errors[i] = ensemble.Silence(p.watch.of.timeout())
		case h.Held && s.Held && s.Owner == h.Owner:
			r.Value, r.Readers = p.values[i], max(r.Readers, p.readers[i])
		}
	}
	return r
}
