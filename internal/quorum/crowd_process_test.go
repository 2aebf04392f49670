package quorum_test

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// worker is a caller that takes the lock again and again.
type worker struct {
	id      quorum.CallerID
	p       *process
	hold    time.Duration
	think   time.Duration
	arrived time.Duration
	grants  int
	longest time.Duration // wait
	gotAt   time.Duration
	firstAt time.Duration
	once    bool // it calls only once
}

// process is a Manager.
type process struct {
	w       *crowd
	trip    time.Duration // a message takes 3/8 to 5/8 of it
	lines   [3 * quorum.MaxNodes]time.Duration
	timeout time.Duration
	frozen  bool
	local   quorum.Local
	workers []*worker

	subscribed quorum.Set
	left       bool
	waiter     *quorum.Waiter // of the contender
	ticket     *ticket
	contender  *worker
	retry      int
	generation int // of its timer
	try        *try
	waiters    map[*ticket]*quorum.Waiter

	holder     *worker
	owner      int
	heldTicket *ticket
	heldWaiter *quorum.Waiter
	handOff    quorum.HandOff
	releasedAt time.Duration
	hold       quorum.Hold
	attempts   int
	yields     int
	block      int // tokens
}

// try is an attempt.
type try struct {
	owner  int
	ticket *ticket
	began  time.Duration
	tally  quorum.Tally
	result quorum.AttemptResult
	others int
	over   bool
	won    *quorum.Waiter
}

func (w *crowd) process(trip time.Duration, workers int, hold time.Duration) *process {
	p := &process{w: w, trip: trip, timeout: 100 * time.Millisecond, waiters: map[*ticket]*quorum.Waiter{}, block: 1 << 20}
	w.procs = append(w.procs, p)
	for range workers {
		c := &worker{id: quorum.CallerID(w.number()), p: p, hold: hold}
		p.workers = append(p.workers, c)
		w.at(w.now+w.upTo(time.Millisecond), c.call)
	}
	return p
}

func (p *process) grace() time.Duration {
	return min(max(4*p.trip, 20*time.Millisecond), 200*time.Millisecond)
}

// travel returns when a message arrives. It does not overtake the previous message on its
// line.
func (p *process) travel(line int) time.Duration {
	at := p.w.now + p.trip*3/8 + p.w.upTo(p.trip/4)
	p.lines[line] = max(p.lines[line], at)
	return p.lines[line]
}

// The lines between a process and node i: requests, answers, and wake-ups.
func there(i int) int   { return 3 * i }
func back(i int) int    { return 3*i + 1 }
func wakeUps(i int) int { return 3*i + 2 }

// send runs do on node i, and passes its answer to receive.
func (p *process) send(i int, do func(*lockNode) answer, receive func(answer)) {
	p.w.at(p.travel(there(i)), func() {
		a := do(p.w.nodes[i])
		p.w.at(p.travel(back(i)), func() {
			if !p.frozen && receive != nil {
				receive(a)
			}
		})
	})
}

func (c *worker) call() {
	p := c.p
	if p.frozen || c.once && c.arrived != 0 {
		return
	}
	c.arrived = p.w.now
	p.step(p.local.Enter(p.w.now, quorum.Caller{ID: c.id, Arrived: c.arrived}))
}

func (p *process) worker(id quorum.CallerID) *worker {
	for _, c := range p.workers {
		if c.id == id {
			return c
		}
	}
	return nil
}

// step carries out a demand of the local queue.
func (p *process) step(s quorum.Step) {
	switch s.Kind {
	case quorum.StepContend:
		p.contend(p.worker(s.Caller), s.At, false, nil)
	case quorum.StepPass:
		p.hold.Tokens--
		p.grant(p.worker(s.Caller))
	case quorum.StepCheck:
		p.check()
	case quorum.StepRelease:
		owner, t := p.owner, p.heldTicket
		p.heldWaiter.Done()
		p.handOff.Released()
		p.releasedAt = p.w.now
		var carried *ticket
		if s.Enqueue {
			carried = &ticket{id: p.w.number(), at: p.worker(s.Caller).arrived, p: p, grace: p.grace()}
		}
		for i := range p.w.nodes {
			p.send(i, func(n *lockNode) answer {
				return n.release(owner, t, quorum.TicketLeave, carried, s.LeaveFree)
			}, func(a answer) { p.released(i, a) })
		}
		if s.Caller != 0 {
			p.contend(p.worker(s.Caller), s.At, s.Enqueue, carried)
		}
	}
}

func (p *process) released(i int, a answer) {
	if a.reserved != nil && a.reserved.p != p {
		p.local.HandedOn(p.w.now)
		p.handOff.Reserved(p.w.now, i, a.reserved.grace, p.trip)
		p.w.at(p.handOff.At(), p.look)
	}
}

func (p *process) look() {
	p.lapse(p.handOff.Look(p.w.now))
}

func (p *process) lapse(ask quorum.Set) {
	for i := range p.w.nodes {
		if ask.Has(i) {
			var lapsed bool
			p.send(i, func(n *lockNode) answer { lapsed = n.passOnLapsed(); return answer{} },
				func(answer) { p.lapse(p.handOff.Answered(i, lapsed)) })
		}
	}
}

func (p *process) check() {
	q, answers := quorum.Size(len(p.w.nodes)), 0
	asked := p.w.now
	others := 0
	for i := range p.w.nodes {
		p.send(i, func(n *lockNode) answer { n.calls++; return answer{waiting: len(n.queue)} }, func(a answer) {
			others = max(others, a.waiting)
			if answers++; answers == q {
				p.hold.Others, p.hold.AnsweredAt, p.hold.Tokens = others, asked, p.block
				p.step(p.local.Checked(p.w.now, &p.hold))
			}
		})
	}
}

// contend makes a worker the contender.
func (p *process) contend(c *worker, at time.Duration, enqueued bool, t *ticket) {
	p.contender, p.ticket, p.retry = c, t, 0
	w := quorum.NewWaiter(quorum.WaiterConfig{
		Nodes: len(p.w.nodes), Arrived: c.arrived, NotBefore: at, Grace: p.grace(),
		Subscribed: p.subscribed, Enqueued: enqueued, Left: p.left,
	})
	p.waiter = &w
	if t != nil {
		p.waiters[t] = &w
	}
	p.arm()
}

// arm schedules the waiter's timer.
func (p *process) arm() {
	p.generation++
	g, w := p.generation, p.waiter
	p.w.at(w.At(), func() {
		if !p.frozen && g == p.generation && p.waiter == w && p.w.now >= w.At() {
			p.attempt()
		}
	})
}

func (p *process) attempt() {
	p.attempts++
	ask := p.waiter.Begin(p.w.now)
	if ask.Ticket && p.ticket == nil {
		p.ticket = &ticket{id: p.w.number(), at: ask.EnqueuedAt, p: p, grace: p.grace()}
		p.waiters[p.ticket] = p.waiter
	}
	a := &try{owner: p.w.number(), began: p.w.now, tally: quorum.NewTally(len(p.w.nodes))}
	if ask.Ticket {
		a.ticket = p.ticket
	}
	p.try = a
	for i := range p.w.nodes {
		p.ask(i, a, ask.Lapsed.Has(i))
	}
	p.w.at(p.w.now+p.timeout, func() {
		if !a.over && !p.frozen {
			a.result.Failed = a.tally.Silent()
			a.tally.Expire()
			p.decide(a)
		}
	})
}

func (p *process) ask(i int, a *try, lapsed bool) {
	bound := p.w.now + p.timeout
	p.send(i, func(n *lockNode) answer { return n.acquire(a.owner, a.ticket, lapsed, bound) }, func(r answer) {
		if a.over {
			if a.won != nil && a.won == p.heldWaiter && a.won.Vote(i, r.granted) {
				p.ask(i, a, false)
			}
			return
		}
		switch {
		case r.granted:
			a.tally.Grant(i)
			a.others = max(a.others, r.waiting)
		case r.late:
			a.tally.Fail(i)
			a.result.Failed = a.result.Failed.With(i)
		default:
			a.tally.Refuse(i)
			a.result.Refusals = append(a.result.Refusals, r.refusal)
			if !r.refusal.Reserved && p.holder == nil {
				p.handOff.QueueMoved()
			}
			if r.refusal.Stranger {
				p.local.StrangerSeen(p.w.now)
			}
		}
		p.decide(a)
	})
}

func (p *process) decide(a *try) {
	outcome := a.tally.Outcome()
	if outcome == quorum.OutcomePending {
		return
	}
	a.over = true
	now := p.w.now
	if outcome == quorum.OutcomeWon {
		a.won = p.waiter
		p.handOff.QueueMoved()
		p.left = false
		p.owner, p.heldTicket, p.heldWaiter = a.owner, a.ticket, p.waiter
		p.hold = quorum.Hold{Tokens: p.block, Proven: true, Useful: true, Others: a.others, AnsweredAt: a.began}
		more := p.waiter.Won(a.tally.Granted(), a.tally.Refused())
		p.local.Granted(now)
		p.waiter = nil
		for i := range p.w.nodes {
			if more.Has(i) {
				p.ask(i, a, false)
			}
		}
		p.grant(p.contender)
		return
	}
	a.result.Outcome, a.result.Granted = outcome, a.tally.Granted()
	p.retry++
	poll := min(5*time.Millisecond<<min(p.retry, 7), 500*time.Millisecond)
	next := p.waiter.Ended(now, &a.result, poll/2+p.w.upTo(poll/2), p.w.rng.Float64())
	p.left = p.waiter.Left()
	if next.Ticket == quorum.TicketYield {
		p.yields++
	}
	for i := range p.w.nodes {
		if !a.tally.Refused().Has(i) || next.Leave.Has(i) {
			t := p.ticket
			if next.Ticket == quorum.TicketNone {
				t = nil
			}
			p.send(i, func(n *lockNode) answer { return n.release(a.owner, t, next.Ticket, nil, false) }, nil)
		}
		if next.PassOn.Has(i) {
			p.sendPassOn(i, p.ticket)
		}
	}
	if len(a.result.Refusals) > 0 {
		p.subscribe()
	}
	p.arm()
}

// subscribe is called when there is contention.
func (p *process) subscribe() {
	if p.subscribed != 0 {
		return
	}
	p.w.at(p.w.now+2*p.trip, func() {
		for i := range p.w.nodes {
			p.subscribed = p.subscribed.With(i)
			if p.waiter != nil && p.waiter.Subscribed(p.w.now, i, p.w.rng.Float64()) == quorum.ReactionReschedule {
				p.arm()
			}
		}
	})
}

func (p *process) sendPassOn(i int, t *ticket) {
	p.send(i, func(n *lockNode) answer { n.passOn(t); return answer{} }, nil)
}

// grant gives a worker the lease.
func (p *process) grant(c *worker) {
	p.holder = c
	if c.grants++; c.grants == 1 {
		c.firstAt = p.w.now
	}
	c.gotAt = p.w.now
	c.longest = max(c.longest, p.w.now-c.arrived)
	p.w.at(p.w.now+c.hold+p.w.upTo(c.hold/10), func() {
		if p.frozen {
			return
		}
		p.holder = nil
		p.hold.Subscribed = p.subscribed != 0
		if p.hold.Others > 0 {
			p.subscribe()
		}
		p.step(p.local.Finished(p.w.now, &p.hold))
		p.w.at(p.w.now+c.think, c.call)
	})
}

// wake handles a wake-up from a node.
func (p *process) wake(i int, t *ticket, what quorum.WakeUp) {
	if p.frozen {
		return
	}
	if what != quorum.WakeAskAgain {
		p.handOff.QueueMoved()
	}
	reaction := quorum.ReactionNone
	w := p.waiters[t]
	if w != nil {
		reaction = w.Wake(p.w.now, i, what, p.w.rng.Float64())
	} else if what == quorum.WakeReserved {
		reaction = quorum.ReactionPassOn
	}
	switch reaction {
	case quorum.ReactionReschedule:
		p.arm()
	case quorum.ReactionPassOn:
		p.sendPassOn(i, t)
	case quorum.ReactionAskForVote:
		p.ask(i, &try{owner: p.owner, ticket: t, over: true, won: w}, false)
	}
}
