package quorumlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A release has carried the caller's ticket to the nodes, and the caller gives up before
// it takes its turn.
func TestACallerThatGivesUpAtItsTurnRemovesItsTicket(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	m, err := New(context.Background(), Addrs(server.Addr()))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close(context.Background())) }()
	lock := wire.LockKey(m.cfg.Prefix, "job")
	server.MustDo("SET", lock, "somebody else", "PX", "60000")
	for range 20 { // select chooses at random
		ctx, cancel := context.WithCancel(context.Background())
		w := m.newWaiter(ctx, lock, &m.cfg.Terms, false)
		m.locals.enter(w)
		<-w.turn // the queue was empty
		server.MustDo("ZADD", wire.QueueKey(lock), w.enqueuedAt, w.ticket)
		w.enqueue(0)
		w.turn <- turn{enqueued: true}
		cancel()
		_, _ = w.await()
		w.done()
		w.quit()
	}
	require.Eventually(t, func() bool { return server.MustDo("EXISTS", wire.QueueKey(lock)) == int64(0) }, 20*time.Second, time.Millisecond)
}

// The lock is lost between the decision to pass it on and the pass. The caller that was
// next asks the nodes, and keeps its place before those behind it.
func TestACallerWhosePassCameTooLateKeepsItsPlace(t *testing.T) {
	m := idleManager(clock.New(), 1)
	q := &localQueue{m: m, key: "job", callers: map[quorum.CallerID]*waiter{}}
	l := idleLease(t, m, idleTerms(1, time.Hour), func(g *hold.Grant) { g.Owner = q })
	for id := quorum.CallerID(1); id <= 3; id++ {
		q.callers[id] = &waiter{m: m, terms: l.lock.Terms(), lock: "job", id: id, turn: make(chan turn, 1)}
		q.mu.Lock()
		q.do(q.queue.Enter(m.clock.Now(), quorum.Caller{ID: id}))
		q.mu.Unlock()
	}
	<-q.callers[1].turn
	q.granted(q.callers[1], l.lock)
	q.mu.Lock()
	step := q.queue.Finished(m.clock.Now(), &quorum.Hold{Tokens: 5, Proven: true, Useful: true, AnsweredAt: m.clock.Now()})
	require.Equal(t, quorum.StepPass, step.Kind)
	l.lock.Free(wire.TicketUpdate{})
	q.do(step)
	q.mu.Unlock()
	assert.Nil(t, q.lock)
	select {
	case got := <-q.callers[2].turn:
		assert.Nil(t, got.lease, "it contends")
	default:
		require.Fail(t, "the second caller comes next")
	}
	assert.Empty(t, q.callers[3].turn)
}

// The release of a lock may itself find the lock lost, after a suspend for example. The
// queue must not wait for itself then.
func TestALockThatIsFoundLostWhenItIsReleasedHoldsUpNoCaller(t *testing.T) {
	now := clock.Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
	m := idleManager(clock.From(func() clock.Reading { return now }), 1)
	q := &localQueue{m: m, key: "job", callers: map[quorum.CallerID]*waiter{}}
	l := idleLease(t, m, idleTerms(1, time.Hour), func(g *hold.Grant) { g.Owner = q })
	q.lock = l.lock
	_, _, ok := l.lock.Vacate((*tenant)(l)) // its last lease was released while a check was under way
	require.True(t, ok)
	now.Boot += 2 * time.Hour
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.mu.Lock()
		defer q.mu.Unlock()
		q.do(quorum.Step{Kind: quorum.StepRelease})
		if q.timer != nil {
			q.timer.Stop()
		}
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		require.Fail(t, "the queue waits for itself")
	}
	assert.True(t, l.lock.Over())
	assert.Nil(t, q.lock)
	require.ErrorIs(t, l.Err(), ErrReleased)
}
