package ensemble

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Answers collects the answers of all nodes to one request that is not an attempt:
// release, verify, inspect, revoke.
type Answers struct {
	e     *Ensemble
	Began clock.Validity // when the nodes were asked, by the validity clock
	judge Judge
	// decided has capacity 1. It is sent once, when enough answers are good or every node
	// has answered. Never closed.
	decided chan struct{}

	mu       sync.Mutex
	Got      int          // good answers; read after Wait
	answered quorum.Set   // nodes that have answered
	over     bool         // later answers are ignored
	ended    bool         // the context had ended before the wait
	ending   bool         // the question ends a lease
	errors   []error      // of the nodes whose answer was not good; nil until there is one
	Replies  []wire.Reply // by node, if they are wanted; read after Wait
	waited   time.Duration
}

// errEnded is the error of a node whose answer the caller did not await at all.
var errEnded = errors.New("answer not awaited: the context had ended before the call")

// Quarantined reports whether a node is in quarantine.
func (a *Answers) Quarantined(node int) bool { return a.e.nodes[node].Health().Reason != nil }

// A Judge decides what the answers to a request mean. Its methods run with the mutex of the Answers held.
type Judge interface {
	// Judge returns why an answer does not count, nil if it does.
	Judge(i int, req *wire.Request, reply *wire.Reply) error
	// Decides reports whether this number of answers that count is enough.
	Decides(got int) bool
	// End reports that later answers are ignored: enough have arrived, or all, or the call stops waiting.
	End()
}

// count is the Judge of most requests: it needs a number of answers, and good returns why a Done answer does
// not count; nil if every Done answer counts.
type count struct {
	need int
	good func(*wire.Reply) error
}

func (c count) Judge(_ int, _ *wire.Request, reply *wire.Reply) error {
	if reply.Err != nil || c.good == nil {
		return reply.Err
	}
	return c.good(reply)
}

func (c count) Decides(got int) bool { return got >= c.need }

func (count) End() {}

// AskAll posts req to every node.
func (e *Ensemble) AskAll(req *wire.Request, need int, good func(*wire.Reply) error) *Answers {
	a := &Answers{}
	a.Ask(e, req, count{need, good})
	return a
}

// Ask posts req to every node, for a Judge that has the zero Answers.
func (a *Answers) Ask(e *Ensemble, req *wire.Request, judge Judge) {
	a.e, a.Began, a.judge, a.decided = e, e.Clock.Now(), judge, e.Signal()
	if req.Kind == wire.Read || req.Kind == wire.Mark {
		a.Replies = make([]wire.Reply, len(e.nodes))
	}
	if req.Kind == wire.Read {
		_, now := e.Clock.Both()
		e.Ask(req, a, now)
		return
	}
	for i := range e.nodes {
		e.Post(i, req, a)
	}
}

// Receive records one answer.
func (a *Answers) Receive(i int, req *wire.Request, reply *wire.Reply) {
	a.e.Answered(i, req, reply)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over {
		return
	}
	err := a.judge.Judge(i, req, reply)
	if err == nil {
		a.Got++
	} else {
		if a.errors == nil {
			a.errors = make([]error, len(a.e.nodes))
		}
		a.errors[i] = err
	}
	if a.Replies != nil {
		a.Replies[i] = *reply
	}
	a.answered = a.answered.With(i)
	if a.judge.Decides(a.Got) || a.answered == quorum.All(len(a.e.nodes)) {
		a.end()
		a.decided <- struct{}{}
	}
}

// end ends the collection, unless it has ended. a.mu is held.
func (a *Answers) end() {
	if !a.over {
		a.over, a.waited = true, a.e.Clock.Now().Sub(a.Began)
		a.judge.End()
	}
}

// Abandon ends the collection for a caller that does not Wait.
func (a *Answers) Abandon() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end()
}

// Err returns why node i has no good answer, nil if it has one.
func (a *Answers) Err(i int) error {
	switch {
	case !a.answered.Has(i) && a.ended:
		return errEnded
	case !a.answered.Has(i):
		return Silence(a.waited)
	case a.errors != nil:
		return a.errors[i]
	}
	return nil
}

// Collect asks every node and waits for enough good answers.
func (e *Ensemble) Collect(
	ctx context.Context, req *wire.Request, timeout time.Duration, need int, good func(*wire.Reply) error,
) *Answers {
	a := e.AskAll(req, need, good)
	a.Wait(ctx, timeout)
	return a
}

// WaitEnding is Wait for a question that ends a lease. Its end ends the contexts that belong to the lease, such as those
// in Do, so a context that a release has ended does not end this wait, and the end of a context around it goes unnoticed.
// earlier means that ctx had ended while the lease was held: then another lease's release has ended it.
func (a *Answers) WaitEnding(ctx context.Context, earlier bool, timeout time.Duration) {
	a.ending = !earlier
	a.Wait(ctx, timeout)
}

// EndedBy reports whether ctx has ended in a way that ends the wait.
func (a *Answers) EndedBy(ctx context.Context) bool {
	return ctx.Err() != nil && !(a.ending && errors.Is(context.Cause(ctx), errs.ErrReleased))
}

// Wait returns when there are enough good answers, when the timeout since the question has passed,
// or when ctx ends.
func (a *Answers) Wait(ctx context.Context, timeout time.Duration) {
	timer := a.e.Timer(a.Began.Add(timeout).Sub(a.e.Clock.Now()))
	defer a.e.PutTimer(timer)
	done := ctx.Done()
	before, ended := ctx.Err() != nil, false
	for waiting := true; waiting; {
		select {
		case <-a.decided:
			waiting = false
		case <-timer.C:
			waiting = false
		case <-done:
			if waiting = !a.EndedBy(ctx); waiting {
				done = nil
			}
			ended = before && !waiting
		}
	}
	a.mu.Lock()
	a.ended = ended
	a.end() // later answers do not change what the caller reads
	a.waited = min(a.waited, timeout)
	a.mu.Unlock()
	a.e.PutSignal(a.decided)
}

// Call asks node i and waits for its answer, until the timeout or the end of ctx.
func (e *Ensemble) Call(ctx context.Context, i int, req *wire.Request, timeout time.Duration) wire.Reply {
	to := only{e, make(chan wire.Reply, 1)}
	e.Post(i, req, to)
	timer := e.Timer(timeout)
	defer e.PutTimer(timer)
	select {
	case reply := <-to.answer:
		return reply
	case <-timer.C:
		return wire.Reply{Status: wire.Unknown, Err: Silence(timeout)}
	case <-ctx.Done():
		return wire.Reply{Status: wire.Unknown, Err: ctx.Err()}
	}
}

// only takes the only answer to a request.
type only struct {
	e      *Ensemble
	answer chan wire.Reply // capacity 1, nothing is dropped, never closed
}

// Receive passes the answer on.
func (o only) Receive(i int, req *wire.Request, reply *wire.Reply) {
	o.e.Answered(i, req, reply)
	o.answer <- *reply
}
