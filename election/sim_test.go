package election

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// The simulation plays schedules of candidates in virtual time. Its two leases are a simple model of the library's
// leases: a queue in the order of the calls, renewals each third of a TTL that carry the number of waiters and the
// latest ask, and keys that end a TTL after the last renewal. The decisions come from the production code.

// schedule is the input of a run.
type schedule struct {
	seed       uint64
	candidates int
	old        int // of an earlier version: they queue for the name and ignore asks
	rules      rules
	checks     bool
	likes      []func(at time.Duration) int  // preferences; nil for a candidate without, which neither asks nor yields
	sick       []func(at time.Duration) bool // health
	ignores    []bool                        // Lead returns late, after minutes
	crashWin   int                           // this candidate crashes after each win; -1 for none
	faults     bool                          // crashes, partitions, stops, a stranger in NAME/next
	stable     bool                          // preferences do not change
	busy       time.Duration                 // faults and changes end then
	span       time.Duration
	bug        bug
}

// bug is a planted bug.
type bug int

const (
	noBug        bug = iota
	oneQueue         // all wait for the name, and none for NAME/next
	noMinReign       // the leader yields at once
	lastValue        // the last value in place of the values of a minute
	noDoublings      // the minimal reign is never doubled
	returnsLate      // the name is released when Lead must return, and not when it has returned
	oneAsk           // an ask has no number
	skipsWaiters     // a leader yields without a waiter
	nextIsDeaf       // the holder of next does not leave for a better candidate
	nextIsSick       // it does not leave when it becomes unhealthy
)

// moment is something that happens at an instant.
type moment struct {
	at  time.Duration
	seq int
	do  func()
}

type moments []moment

func (m moments) Len() int { return len(m) }
func (m moments) Less(i, j int) bool {
	return m[i].at < m[j].at || m[i].at == m[j].at && m[i].seq < m[j].seq
}
func (m moments) Swap(i, j int) { m[i], m[j] = m[j], m[i] }
func (m *moments) Push(x any)   { *m = append(*m, x.(moment)) }
func (m *moments) Pop() any {
	last := len(*m) - 1
	x := (*m)[last]
	*m = (*m)[:last]
	return x
}

// world is a run.
type world struct {
	schedule
	rng     *rand.Rand
	now     time.Duration
	seq     int
	agenda  moments
	leases  [2]*simLease
	all     []*process
	yields  []yielded
	changes []time.Duration // a candidate began to lead
	wins    []int           // the candidates that did
	alone   time.Duration   // without a leader, sampled each second
	worst   string          // the first violation
}

// yielded is one yield.
type yielded struct {
	at     time.Duration
	who    int
	life   int
	why    error
	reign  time.Duration
	asker  int
	value  int
	handed bool // another candidate has led since
}

// simLease is one lease of the model.
type simLease struct {
	w       *world
	which   lease
	holder  *hold
	waiters []*simCall
	mark    string
	number  int
	sought  time.Duration // when a renewal last found a waiter
}

// hold is one grant.
type hold struct {
	call  *simCall
	until time.Duration // the keys end
	valid time.Duration // the holder stops
	owner string
}

// simCall is a call that waits for a lease, and then holds it.
type simCall struct {
	p     *process
	life  int
	lease lease
	hold  *hold
	gone  bool // it has ended
}

// process is a candidate and its edges.
type process struct {
	w      *world
	i      int
	old    bool
	core   *candidate
	life   int // of the process; a crash begins another one
	up     bool
	cut    bool
	frozen time.Duration // until
	calls  [2]*simCall
	lead   *hold // Lead runs, and began under this one
	seen   sight
	sick   bool // the present reign began unhealthy, by LeadAnyway
	errors int  // of Health, in a row
	first  bool // it has seen something
	told   [2]string
	trace  []preference
}

func newWorld(s schedule) *world {
	w := &world{schedule: s, rng: rand.New(rand.NewPCG(s.seed, 1))}
	for i := range w.leases {
		w.leases[i] = &simLease{w: w, which: lease(i)}
	}
	for i := range s.candidates {
		p := &process{w: w, i: i, old: i >= s.candidates-s.old}
		w.all = append(w.all, p)
		w.after(w.between(0, s.rules.ttl), p.start)
	}
	if s.faults {
		w.after(w.between(0, s.rules.minReign), w.fault)
	}
	w.after(time.Second, w.watch)
	return w
}

func (w *world) between(from, to time.Duration) time.Duration {
	return from + time.Duration(w.rng.Int64N(int64(to-from)+1))
}

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.agenda, moment{w.now + d, w.seq, do})
}

// run plays until the end, or the first violation.
func (w *world) run() {
	for len(w.agenda) > 0 && w.worst == "" {
		m := heap.Pop(&w.agenda).(moment)
		if m.at > w.span {
			return
		}
		w.now = m.at
		m.do()
	}
}

func (w *world) violated(format string, args ...any) {
	if w.worst == "" {
		w.worst = fmt.Sprintf("seed %d at %v: ", w.seed, w.now) + fmt.Sprintf(format, args...)
	}
}

// leader returns the process that leads: its Lead runs under a valid lease.
func (w *world) leader() *process {
	var leader *process
	for _, p := range w.all {
		if p.lead != nil && w.now < p.lead.valid {
			if leader != nil {
				w.violated("%d and %d lead", leader.i, p.i)
			}
			leader = p
		}
	}
	return leader
}

func (w *world) watch() {
	if w.leader() == nil {
		w.alone += time.Second
	}
	w.after(time.Second, w.watch)
}

// fault begins a fault, and ends it before the quiet time.
func (w *world) fault() {
	if w.now > w.busy {
		return
	}
	p := w.all[w.rng.IntN(len(w.all))]
	long := min(w.between(0, 6*w.rules.ttl), w.busy-w.now)
	switch w.rng.IntN(4) {
	case 0:
		p.crash(long)
	case 1:
		p.cut = true
		w.after(long, func() { p.cut = false })
	case 2:
		p.frozen = w.now + long
	case 3:
		w.leases[nextLease].stranger(long)
	}
	w.after(w.between(0, 3*w.rules.minReign), w.fault)
}

func (p *process) start() {
	w := p.w
	p.up, p.life, p.cut, p.first, p.seen, p.lead, p.trace = true, p.life+1, false, false, sight{}, nil, nil
	p.calls, p.told, p.errors = [2]*simCall{}, [2]string{}, 0
	if p.old {
		p.queue(nameLease)
		return
	}
	p.core = newCandidate(w.coreRules(), w.rng.Uint64, fmt.Sprint(p.i))
	p.tick(p.life, 0)
}

func (p *process) crash(rest time.Duration) {
	if !p.up {
		return
	}
	p.up, p.lead = false, nil
	p.life++
	for _, l := range p.w.leases {
		l.waiters = slices.DeleteFunc(l.waiters, func(c *simCall) bool { return c.p == p })
	}
	p.w.after(rest, p.start)
}

// tick does each second what the edges of a candidate do: it observes, calls Preference and Health, and lets time pass.
func (p *process) tick(life, n int) {
	w := p.w
	if p.life != life {
		return
	}
	w.after(time.Second, func() { p.tick(life, n+1) })
	if w.now < p.frozen {
		return
	}
	s := sight{}
	if !p.cut {
		s.known = true
		if h := w.leases[nameLease].holder; h != nil {
			s.held, s.owner = true, h.owner
		}
	}
	if s != p.seen || !p.first {
		p.seen, p.first = s, true
		p.step(event{what: observed, sight: s})
	}
	if n%2 == 0 && w.likes[p.i] != nil {
		v := w.likes[p.i](min(w.now, w.busy))
		p.trace = append(p.trace, preference{w.now, v})
		p.step(event{what: preferred, value: v})
	}
	if w.checks && time.Duration(n)*time.Second%w.rules.every == 0 {
		p.step(event{what: checking})
		ok := w.now > w.busy || !w.sick[p.i](w.now)
		if p.errors++; ok {
			p.errors = 0
		}
		p.step(event{what: checked, ok: ok || w.bug == nextIsSick && p.core.state == next})
	}
	p.step(event{what: ticked})
}

// step gives the core an event and carries out what it commands.
func (p *process) step(e event) {
	if p.w.now < p.frozen {
		life := p.life
		p.w.after(p.frozen-p.w.now, func() {
			if p.life == life {
				p.step(e)
			}
		})
		return
	}
	if p.old {
		return
	}
	for _, c := range p.core.step(e, p.w.now) {
		p.carryOut(c)
	}
}

func (p *process) carryOut(c command) {
	w, life := p.w, p.life
	switch c.act {
	case actQueue:
		p.queue(c.lease)
	case actLeave:
		w.leases[c.lease].leave(p.calls[c.lease])
	case actLead:
		p.begin(p.calls[nameLease].hold)
	case actRefuse:
		p.calls[nameLease].end()
	case actYield:
		w.yielded(p, c.cause)
		p.told[nameLease] = ""
		h := p.lead
		w.after(p.returns(), func() { p.stopped(life, h) })
		if w.bug == returnsLate {
			w.leases[nameLease].free(p.lead)
		}
	case actAsk:
		w.after(w.between(time.Millisecond, 50*time.Millisecond), func() {
			if p.life != life {
				return
			}
			if !p.cut && w.leases[c.lease].holder != nil {
				text := c.text
				if w.bug == oneAsk {
					a, _ := parseAsk(text)
					a.number = 0
					text = a.String()
				}
				w.leases[c.lease].mark = text
			}
			p.step(event{what: asked})
		})
	}
}

// returns is how long Lead still runs after it must return.
func (p *process) returns() time.Duration {
	if p.w.ignores[p.i] {
		return p.w.between(time.Second, 2*time.Minute)
	}
	return p.w.between(0, time.Second)
}

func (p *process) begin(h *hold) {
	w := p.w
	p.lead, p.sick = h, p.core != nil && !p.core.healthy()
	if p.errors >= inARow && w.rules.leadAnyway == 0 {
		w.violated("%d begins to lead after %d errors of Health in a row", p.i, p.errors)
	}
	w.changes, w.wins = append(w.changes, w.now), append(w.wins, p.i)
	w.leader()
	w.handedTo(p)
	if p.i == w.crashWin && w.now < w.busy {
		life := p.life
		w.after(w.between(0, 3*time.Second), func() {
			if p.life == life {
				p.crash(w.between(0, w.rules.ttl))
			}
		})
	}
}

// stopped handles the return of Lead.
func (p *process) stopped(life int, h *hold) {
	if p.life != life || p.lead != h {
		return
	}
	if p.w.now < p.frozen {
		p.w.after(p.frozen-p.w.now, func() { p.stopped(life, h) })
		return
	}
	p.lead = nil
	if c := p.calls[nameLease]; c != nil {
		c.end()
	}
}

func (p *process) queue(l lease) {
	c := &simCall{p: p, life: p.life, lease: l}
	p.calls[l] = c
	if l == nextLease && p.w.bug == oneQueue { // each candidate has a next of its own
		p.w.after(time.Millisecond, func() { c.deliver(event{what: granted, lease: l}) })
		return
	}
	p.w.leases[l].waiters = append(p.w.leases[l].waiters, c)
	p.w.after(time.Millisecond, p.w.leases[l].grant)
}

// deliver gives the process an event of the call, if it still is the same process.
func (c *simCall) deliver(e event) {
	if c.p.life == c.life && !c.gone {
		c.p.step(e)
	}
}

// end ends a call and releases its lease.
func (c *simCall) end() {
	if c.gone || c.p.life != c.life {
		return
	}
	l := c.p.w.leases[c.lease]
	l.waiters = slices.DeleteFunc(l.waiters, func(other *simCall) bool { return other == c })
	l.free(c.hold)
	c.p.w.after(c.p.w.between(0, 3*time.Millisecond), func() {
		c.deliver(event{what: ended, lease: c.lease})
		c.gone = true
	})
}

// leave ends a call that waits, or that holds next. The call under which Lead runs ends when Lead returns.
func (l *simLease) leave(c *simCall) {
	if l.which == nameLease && c.p.lead != nil {
		c.p.w.violated("%d leaves the name while it leads", c.p.i)
		return
	}
	c.end()
}

// stranger takes next for a time: another program, or a candidate whose elector hangs.
func (l *simLease) stranger(long time.Duration) {
	if l.holder == nil {
		h := &hold{until: l.w.now + long}
		l.holder, l.mark = h, ""
		l.w.after(long, func() { l.free(h) })
	}
}

// free ends a hold, and grants the lease to the next waiter.
func (l *simLease) free(h *hold) {
	if h == nil || l.holder != h {
		return
	}
	h.valid = min(h.valid, l.w.now)
	if l.w.bug == returnsLate {
		h.valid = h.until // nothing ends the work
	}
	l.holder, l.mark = nil, ""
	l.w.after(l.w.between(time.Millisecond, 5*time.Millisecond), l.grant)
}

// grant gives a free lease to the first waiter that can be reached.
func (l *simLease) grant() {
	w := l.w
	if l.holder != nil {
		return
	}
	for i, c := range l.waiters {
		if c.p.cut || w.now < c.p.frozen {
			continue
		}
		l.waiters = slices.Delete(l.waiters, i, i+1)
		l.number++
		c.hold = &hold{call: c, owner: fmt.Sprint(l.number)}
		l.holder, l.mark, c.p.told[l.which] = c.hold, "", ""
		l.renew(c.hold)
		if c.p.old {
			c.p.begin(c.hold)
			return
		}
		c.deliver(event{what: granted, lease: l.which})
		return
	}
	if len(l.waiters) > 0 {
		w.after(100*time.Millisecond, l.grant)
	}
}

// renew runs a round of renewal, and plans the next one.
func (l *simLease) renew(h *hold) {
	w, p := l.w, h.call.p
	switch {
	case l.holder != h:
		return
	case p.life != h.call.life || p.cut || w.now < p.frozen: // it cannot renew; the keys end
		if w.now >= h.until {
			l.lose(h)
			return
		}
		w.after(min(w.rules.ttl/20, h.until-w.now), func() { l.renew(h) })
		return
	case h.valid > 0 && w.now >= h.valid:
		l.lose(h)
		return
	}
	h.until, h.valid = w.now+w.rules.ttl, w.now+w.rules.ttl*97/100
	if len(l.waiters) > 0 {
		l.sought = w.now
	}
	if now := fmt.Sprint(len(l.waiters), " ", l.mark); p.told[l.which] != now {
		p.told[l.which] = now
		waiters := len(l.waiters)
		if w.bug == skipsWaiters {
			waiters = 1
		}
		if w.bug != nextIsDeaf || l.which != nextLease {
			h.call.deliver(event{what: wanted, lease: l.which, waiters: waiters, ask: l.mark})
		}
	}
	w.after(w.rules.ttl/3*time.Duration(90+w.rng.IntN(21))/100, func() { l.renew(h) })
}

// lose ends a hold that was not renewed. Lead returns some time later.
func (l *simLease) lose(h *hold) {
	c := h.call
	l.holder, l.mark = nil, ""
	l.w.after(0, l.grant)
	if c.p.life != c.life {
		return
	}
	if l.which == nameLease && c.p.lead == h {
		life := c.p.life
		l.w.after(c.p.returns(), func() { c.p.stopped(life, h) })
		if c.p.old {
			l.w.after(3*time.Minute, func() { c.p.crash(0) })
		}
		return
	}
	c.end()
}

// yielded checks a yield.
func (w *world) yielded(p *process, why error) {
	y := yielded{at: w.now, who: p.i, life: p.life, why: why, reign: w.now - p.core.reignBegan, asker: -1}
	if why == ErrYielded { //nolint:errorlint // this very value
		a := p.core.heard[nameLease]
		y.value = a.value
		if _, err := fmt.Sscan(a.id, &y.asker); err != nil {
			w.violated("no asker in %v", a)
		}
		w.judgeYield(p, a, &y)
	}
	for i := len(w.yields) - 1; i >= 0; i-- {
		last := w.yields[i]
		if last.why != why { //nolint:errorlint // this very value
			continue
		}
		if why == ErrYielded { //nolint:errorlint // this very value
			if w.now-last.at < w.rules.minReign {
				w.violated("%d yields %v after the last yield", p.i, w.now-last.at)
			}
			break
		}
		if last.who == p.i {
			if last.life == p.life && !p.sick && w.now-last.at < 2*inARow*w.rules.every {
				w.violated("%d is unhealthy again after %v", p.i, w.now-last.at)
			}
			break
		}
	}
	w.yields = append(w.yields, y)
}

// judgeYield checks, from its own record, that the asker was better by the margin for a minute.
func (w *world) judgeYield(p *process, a ask, y *yielded) {
	if len(p.trace) == 0 {
		w.violated("%d yields, and has no preference", p.i)
		return
	}
	if y.reign < w.rules.minReign {
		w.violated("%d yields after %v", p.i, y.reign)
	}
	if l := w.leases[nameLease]; w.now-l.sought > w.rules.ttl && !w.faults {
		w.violated("%d yields to nobody", p.i)
	}
	greatest, asker := p.trace[len(p.trace)-1].value, w.all[y.asker]
	for _, v := range p.trace {
		if w.now-v.at <= minute {
			greatest = max(greatest, v.value)
		}
	}
	if a.value-greatest < w.rules.margin {
		w.violated("%d yields to %d, which says %d, and was %d itself", p.i, y.asker, a.value, greatest)
	}
	for _, v := range asker.trace {
		// The ask arrived up to about a renewal after it was sent.
		if v.at <= a.at-w.rules.ttl && a.at-v.at <= minute-2*time.Second && v.value < a.value && asker.up {
			w.violated("%d yields to %d, which says %d, and was %d %v before", p.i, y.asker, a.value, v.value, a.at-v.at)
		}
	}
}

// handedTo checks the leader after a yield: the asker, or a better one, unless others may be in the queue.
func (w *world) handedTo(p *process) {
	if len(w.yields) == 0 {
		return
	}
	y := &w.yields[len(w.yields)-1]
	if y.handed {
		return
	}
	y.handed = true
	if y.why == ErrYielded && w.stable && !w.faults && !w.checks && w.old == 0 && (w.likes[p.i] == nil || w.likes[p.i](0) < y.value) { //nolint:errorlint // this very value
		w.violated("%d leads, and %d (%d) had asked", p.i, y.asker, y.value)
	}
}

// judgeEnd checks the state after the quiet time.
func (w *world) judgeEnd() {
	if w.worst != "" {
		return
	}
	l := w.leader()
	switch {
	case l == nil:
		w.violated("nobody leads after the quiet time: %v", w.states())
	case w.old > 0 || w.likes[l.i] == nil:
		return
	}
	best := w.likes[l.i](w.busy)
	for _, like := range w.likes {
		if like != nil {
			best = max(best, like(w.busy))
		}
	}
	if best-w.likes[l.i](w.busy) >= w.rules.margin {
		w.violated("%d leads with %d, and the best is %d: %v", l.i, w.likes[l.i](w.busy), best, w.states())
	}
	if w.stable && !w.faults && !w.checks && w.crashWin < 0 && w.count(ErrYielded) > 1 {
		w.violated("%d yields until the best leads", w.count(ErrYielded))
	}
}

func (w *world) count(why error) (n int) {
	for _, y := range w.yields {
		if y.why == why { //nolint:errorlint // this very value
			n++
		}
	}
	return n
}

func (w *world) states() string {
	var all []string
	for _, p := range w.all {
		if p.core != nil {
			all = append(all, fmt.Sprintf("%d: state %d calls %v doubts %d", p.i, p.core.state, p.core.calls, p.core.reigns.doubts(w.now)))
		}
	}
	return strings.Join(all, "; ")
}
