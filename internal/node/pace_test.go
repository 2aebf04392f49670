package node

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// crowd is a number of callers that each ask three nodes for a lock of their own. Time is
// virtual and the nodes' capacity is fixed, so the load of the machine does not matter.
type crowd struct {
	trip, cost, timeout time.Duration
	plain               bool // without a limit on batches
	rng                 *rand.Rand

	now    time.Duration
	events events
	nodes  [3]*Node
	busy   [3]bool
	grants int
	late   time.Duration // the longest time from a renewal's post to its answer
}

// event is something that happens at an instant.
type event struct {
	at time.Duration
	do func()
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }

// Push is heap.Interface's.
func (e *events) Push(x any) { *e = append(*e, x.(event)) }

// Pop is heap.Interface's.
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (c *crowd) after(d time.Duration, do func()) { heap.Push(&c.events, event{c.now + d, do}) }

// post queues a request, and starts the node's next batch if the node is idle.
func (c *crowd) post(i int, req *wire.Request, to Receiver) {
	if !c.nodes[i].Post(req, to) {
		to.Receive(i, req, &wire.Reply{Status: wire.NotApplied})
		return
	}
	c.serve(i)
}

// serve makes a node take a batch, and answers it after the time that the batch takes.
func (c *crowd) serve(i int) {
	n := c.nodes[i]
	if c.busy[i] {
		return
	}
	if c.plain {
		n.lanes.pace.most = acquireMax
	}
	c.busy[i] = true // answers to dropped requests lead to more requests
	n.now = clock.Steady(c.now)
	if n.take(); len(n.courier.batch) == 0 {
		c.busy[i] = false
		return
	}
	batch := append([]entry(nil), n.courier.batch...)
	took := c.trip + c.cost*time.Duration(len(batch)) + time.Duration(c.rng.Int64N(int64(5*time.Millisecond)))
	c.after(took, func() {
		n.lanes.pace.observe(took)
		for _, e := range batch {
			r := wire.Reply{Status: wire.Done}
			if e.req.Kind == wire.Acquire {
				r.Status = wire.Granted
			}
			e.to.Receive(i, e.req, &r)
		}
		c.busy[i] = false
		c.serve(i)
	})
}

// pacedAttempt is one attempt of a caller.
type pacedAttempt struct {
	c          *crowd
	caller     int
	req        *wire.Request
	value      string
	votes, bad int
	over       bool
}

func (c *crowd) attempt(caller int) {
	a := &pacedAttempt{c: c, caller: caller, value: wire.Compose(fmt.Sprintf("%016x%016x", c.rng.Uint64(), caller), 1, "1 - "), req: &wire.Request{}}
	a.req.Init(&wire.Acquisition{Lock: fmt.Sprint(caller), Value: a.value, KeyTTL: "2000", NotAfter: clock.Steady(c.now + c.timeout), Token: "1"})
	for i := range c.nodes {
		c.post(i, a.req, a)
	}
	c.after(c.timeout, func() { a.conclude(false) })
}

// Receive counts a vote.
func (a *pacedAttempt) Receive(i int, req *wire.Request, r *wire.Reply) {
	switch {
	case req.Kind != wire.Acquire || a.over:
		return
	case r.Status == wire.Granted:
		a.votes++
	default:
		a.bad++
	}
	if a.votes == 2 || a.bad == 2 {
		a.conclude(a.votes == 2)
	}
}

// conclude has the caller release what it was granted, and try again: a moment later
// after a refusal.
func (a *pacedAttempt) conclude(granted bool) {
	if a.over {
		return
	}
	a.over = true
	delay := 10 * time.Millisecond
	if granted {
		a.c.grants++
		delay = a.c.trip
	} else {
		a.req.Withdraw()
	}
	release := wire.Entry{Lock: fmt.Sprint(a.caller), Value: a.value}.Release(a.req, wire.TicketUpdate{}, clock.Steady(a.c.now+time.Second))
	for i := range a.c.nodes {
		a.c.post(i, release, discard{})
	}
	a.c.after(delay, func() { a.c.attempt(a.caller) })
}

// renewal measures how long a renewal takes.
type renewal struct {
	c    *crowd
	sent time.Duration
}

// Receive records the delay.
func (r renewal) Receive(int, *wire.Request, *wire.Reply) { r.c.late = max(r.c.late, r.c.now-r.sent) }

// run simulates a number of callers for a duration, and returns the grants per second.
func (c *crowd) run(callers int, lasting time.Duration) float64 {
	c.rng = rand.New(rand.NewPCG(1, 2))
	for i := range c.nodes {
		c.nodes[i] = New(Config{Index: i, Option: rueidis.ClientOption{InitAddress: []string{"127.0.0.1:1"}}, Prefix: "p:", Clock: func() (a clock.Validity, b clock.Steady) { return clock.Validity(c.now), clock.Steady(c.now) }})
	}
	for i := range callers {
		c.after(time.Duration(c.rng.Int64N(int64(c.timeout))), func() { c.attempt(i) })
	}
	var renew func()
	renew = func() {
		req := wire.NewBatch(wire.Extend, 1, clock.Steady(c.now+time.Second))
		wire.Entry{Lock: "held", Value: wire.Compose("0123456789abcdef0123456789abcdef", 1, "1 - ")}.Extend(req, "2000")
		for i := range c.nodes {
			c.post(i, req, renewal{c, c.now})
		}
		c.after(100*time.Millisecond, renew)
	}
	renew()
	warm := 0
	for len(c.events) > 0 && c.now < lasting {
		next := heap.Pop(&c.events).(event)
		if c.now < lasting/3 && next.at >= lasting/3 {
			warm, c.late = c.grants, 0
		}
		c.now = next.at
		next.do()
	}
	return float64(c.grants-warm) / (lasting * 2 / 3).Seconds()
}

func TestMoreCallersThanANodeCanServeCostNoGoodput(t *testing.T) {
	for _, c := range []crowd{
		{trip: 80 * time.Millisecond, cost: 20 * time.Microsecond, timeout: 200 * time.Millisecond},
		{trip: 80 * time.Millisecond, cost: 60 * time.Microsecond, timeout: 200 * time.Millisecond},
		{trip: time.Millisecond, cost: 100 * time.Microsecond, timeout: 50 * time.Millisecond},
		{trip: time.Millisecond, cost: 300 * time.Microsecond, timeout: 500 * time.Millisecond},
		{trip: 20 * time.Millisecond, cost: 100 * time.Microsecond, timeout: 100 * time.Millisecond},
	} {
		if raceDetector && c.trip < 80*time.Millisecond {
			continue // the race detector finds nothing in one goroutine, and it would take a minute
		}
		t.Run(fmt.Sprintf("trip=%v,cost=%v,timeout=%v", c.trip, c.cost, c.timeout), func(t *testing.T) {
			few, many, plain := c, c, c
			plain.plain = true
			const lasting = 8 * time.Second
			without := 0.0
			if !raceDetector {
				without = plain.run(3000, lasting)
			}
			least, most := few.run(100, lasting), many.run(3000, lasting)
			t.Logf("100 callers %.0f/s, 3000 callers %.0f/s (without a bound %.0f/s), renewals within %v and %v (%v)", least, most, without,
				few.late, many.late, plain.late)
			assert.GreaterOrEqual(t, most, .8*least)
			assert.LessOrEqual(t, many.late, 2*c.timeout)
		})
	}
}
