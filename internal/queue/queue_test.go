package queue

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// checkOf returns the running check of a lock, nil for none.
func (p *Place) checkOf() *hold.Check {
	p.queue.mu.Lock()
	defer p.queue.mu.Unlock()
	return p.queue.check
}

func TestALockIsPassedOnInTheOrderOfTheCallers(t *testing.T) {
	r := idle(t, &hands{})
	l, last, places, callers := r.held(hour(), 3)
	for i, p := range places {
		assert.Nil(t, p.queue.Finish(l, vacate(t, l, last)), "it is not released")
		assert.True(t, last.saw(hold.Released))
		turn, ok := p.Wait(t.Context())
		require.True(t, ok)
		assert.Same(t, last, turn.Previous)
		assert.Same(t, callers[i].leases[0], turn.Lease)
		last = callers[i].leases[0]
		assert.True(t, last.saw(hold.Passed))
	}
	assert.NotNil(t, places[0].queue.Finish(l, vacate(t, l, last)), "nobody is left")
	assert.True(t, l.Over())
}

// A caller may give up when its turn has come. The lease that was passed on to it must not stay.
func TestALeaseIsAbandonedWhoseCallerHasGivenUp(t *testing.T) {
	r := idle(t, &hands{})
	l, first, places, callers := r.held(hour(), 1)
	places[0].queue.Finish(l, vacate(t, l, first))
	require.True(t, places[0].Here())
	places[0].Leave()
	assert.Equal(t, []hold.Tenant{callers[0].leases[0]}, callers[0].abandoned)
}

// The lock is lost between the decision to pass it on and the pass. The caller that was
// next asks the nodes, and keeps its place before those behind it.
func TestACallerWhosePassCameTooLateKeepsItsPlace(t *testing.T) {
	h := &hands{}
	r := idle(t, h)
	l, first, places, callers := r.held(hour(), 2)
	q := places[0].queue
	state := vacate(t, l, first)
	told := make(chan struct{})
	q.mu.Lock()
	step := q.local.Finished(q.now(), q.complete(&state))
	require.Equal(t, quorum.StepPass, step.Kind)
	h.move(2 * time.Hour)
	go func() {
		defer close(told)
		l.Tick()
	}()
	require.Eventually(t, l.Over, 5*time.Second, time.Millisecond)
	pending := q.carryOut(step)
	assert.Nil(t, q.lock)
	q.mu.Unlock()
	<-told
	assert.Nil(t, pending, "the watchdog releases it")
	asks(t, places[0])
	assert.Empty(t, callers[0].leases[0].events, "no lease")
	assert.False(t, places[1].Here())
}

// A node may show, between the decision to pass the lock on and the pass, that another client may have had it. Then no
// caller gets it, and it must not stay.
func TestALockThatCannotBePassedOnIsReleasedBeforeTheCallerAsksTheNodes(t *testing.T) {
	r := idle(t, &hands{})
	l, first, places, callers := r.held(hour(), 2)
	state := vacate(t, l, first)
	require.True(t, state.Proven, "the queue decides to pass it on")
	_, at := r.clock.Both()
	r.dog.ClockStepped(&ensemble.Step{Node: 1, By: time.Second, At: at})()

	stop := r.run()
	stop() // closed nodes refuse a release at once
	released := 0
	r.answered = func(req *wire.Request) {
		if req.Kind == wire.Release {
			released++
			assert.False(t, places[0].Here(), "the caller would find our own keys")
		}
	}
	assert.NotNil(t, places[0].queue.Finish(l, state), "the answers to its release")
	assert.Equal(t, 3, released)
	assert.True(t, l.Over())
	asks(t, places[0])
	assert.Empty(t, callers[0].leases[0].events, "no lease")
	assert.False(t, places[1].Here())
	assert.Nil(t, places[1].Obstacle().Lock)
}

// The release of a lock may itself find the lock lost, for example after a suspend. The queue must then not wait for
// itself.
func TestALockThatIsFoundLostWhenItIsReleasedHoldsUpNoCaller(t *testing.T) {
	h := &hands{}
	r := idle(t, h)
	l, first, places, _ := r.held(hour(), 1)
	q := places[0].queue
	vacate(t, l, first) // while a check was under way
	h.move(2 * time.Hour)
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.mu.Lock()
		defer q.mu.Unlock()
		q.carryOut(quorum.Step{Kind: quorum.StepRelease})
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		require.Fail(t, "the queue waits for itself")
	}
	assert.True(t, l.Over())
	assert.Nil(t, places[0].Obstacle().Lock)
}

// The keys of a lost lock stay for its lock delay. So a release that comes to the queue after the
// loss deletes nothing.
func TestALockThatIsLostBeforeItsQueueDecidesKeepsItsLockDelay(t *testing.T) {
	h := &hands{}
	r := idle(t, h)
	delayed := hour()
	delayed.LockDelay = time.Minute
	l, first, places, _ := r.held(delayed, 1)
	state := vacate(t, l, first)
	lose(t, h, l)
	asks(t, places[0])
	assert.Nil(t, places[0].queue.Finish(l, state), "no release")

	// A lock that the queue does not know yet is released.
	l, first = r.open(delayed, places[0].Queue())
	assert.NotNil(t, places[0].queue.Finish(l, vacate(t, l, first)))
	assert.True(t, l.Over())
}

// The loss comes while a release waits for the queue's mutex, and the news of it comes behind.
func TestALockWhoseLossIsOnTheWayToItsQueueKeepsItsLockDelay(t *testing.T) {
	h := &hands{}
	r := idle(t, h)
	delayed := hour()
	delayed.LockDelay = time.Minute
	l, first, places, _ := r.held(delayed, 2)
	q, state := places[0].queue, vacate(t, l, first)
	state.Useful = false // so the queue decides to release the lock
	released := make(chan bool)
	told := make(chan struct{})
	q.mu.Lock()
	go func() { released <- q.Finish(l, state) != nil }()
	time.Sleep(10 * time.Millisecond) // it waits for the mutex
	h.move(2 * time.Hour)
	go func() {
		defer close(told)
		l.Tick()
	}()
	require.Eventually(t, l.Over, 5*time.Second, time.Millisecond)
	time.Sleep(10 * time.Millisecond)
	q.mu.Unlock()
	assert.False(t, <-released)
	<-told
	asks(t, places[0])
	assert.False(t, places[1].Here(), "one at a time")
}

func TestACheckDecidesNothingOnceItsLockHasLeftTheQueue(t *testing.T) {
	// checked returns a lock that waits for its check.
	checked := func(h *hands, l *hold.Lock, of *lease, behind *Place) *hold.Check {
		h.move(quorum.CheckAfter)
		require.Nil(t, behind.queue.Finish(l, vacate(t, l, of)))
		c := behind.checkOf()
		require.NotNil(t, c)
		return c
	}
	t.Run("no lock", func(t *testing.T) {
		h := &hands{}
		r := idle(t, h)
		l, first, places, _ := r.held(hour(), 2)
		check := checked(h, l, first, places[0])
		lose(t, h, l)
		asks(t, places[0])
		check.End()
		assert.False(t, places[1].Here())
	})
	t.Run("another lock, which waits for a check of its own", func(t *testing.T) {
		h := &hands{}
		r := idle(t, h)
		l, first, places, _ := r.held(hour(), 2)
		before := checked(h, l, first, places[0])
		lose(t, h, l)
		asks(t, places[0])
		l, first = r.open(hour(), places[0].Queue())
		places[0].Granted(l)
		check := checked(h, l, first, places[1])
		before.End()
		assert.False(t, places[1].Here())
		assert.Same(t, check, places[1].checkOf())
		check.End()
		asks(t, places[1])
		assert.True(t, l.Over(), "no node has answered")
	})
}

// The caller may be the holder, and wait forever.
func TestTheQueueReportsACallerThatMayWaitForItselfOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := roomOf(t, clock.New(), "127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1")
		r.open(hour(), nil)
		p, _ := r.enter(hour())
		selves := func() []string {
			synctest.Wait()
			r.selfMu.Lock()
			defer r.selfMu.Unlock()
			return r.selves
		}
		time.Sleep(time.Hour)
		assert.Empty(t, selves(), "the lease may be another caller's, and end soon")
		time.Sleep(time.Millisecond)
		assert.Equal(t, []string{key}, selves())
		time.Sleep(10 * time.Hour)
		assert.Len(t, selves(), 1)
		p.Leave()
	})
}
