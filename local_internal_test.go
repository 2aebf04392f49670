package quorumlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	lock := wire.LockKey(m.cfg.prefix, "job")
	server.MustDo("SET", lock, "somebody else", "PX", "60000")
	for range 20 { // select chooses at random
		ctx, cancel := context.WithCancel(context.Background())
		w := m.newWaiter(ctx, lock, &m.cfg.terms, false)
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

// The hold is lost between the decision to pass it on and the pass. The caller that was
// next asks the nodes, and keeps its place before those behind it.
func TestACallerWhosePassCameTooLateKeepsItsPlace(t *testing.T) {
	m, l := idleDog(time.Hour, quorum.Terms{})
	h := l.hold
	q := &localQueue{m: m, lock: "job", callers: map[quorum.CallerID]*waiter{}}
	for id := quorum.CallerID(1); id <= 3; id++ {
		q.callers[id] = &waiter{m: m, terms: h.terms, lock: "job", id: id, turn: make(chan turn, 1)}
		q.mu.Lock()
		q.do(q.queue.Enter(m.clock.Now(), quorum.Caller{ID: id}))
		q.mu.Unlock()
	}
	<-q.callers[1].turn
	h.local = q
	q.granted(q.callers[1], h)
	q.mu.Lock()
	step := q.queue.Finished(m.clock.Now(), &quorum.Hold{Tokens: 5, Proven: true, Useful: true, AnsweredAt: m.clock.Now()})
	require.Equal(t, quorum.StepPass, step.Kind)
	h.over = true
	q.do(step)
	q.mu.Unlock()
	assert.Nil(t, q.hold)
	select {
	case got := <-q.callers[2].turn:
		assert.Nil(t, got.lease, "it contends")
	default:
		require.Fail(t, "the second caller comes next")
	}
	assert.Empty(t, q.callers[3].turn)
}

// The watchdog checks a queue once, at its earliest instant.
func TestTheAgendaHasTheEarliestInstantOfEachQueue(t *testing.T) {
	var a agenda
	first, second := &localQueue{}, &localQueue{}
	assert.Equal(t, quorum.Never, a.earliest())
	assert.Empty(t, a.take(time.Hour))
	assert.True(t, a.add(first, 5))
	assert.False(t, a.add(first, 7), "it is checked earlier")
	assert.False(t, a.add(second, 6), "the other comes first")
	assert.True(t, a.add(second, 3))
	assert.EqualValues(t, 3, a.earliest())
	assert.Empty(t, a.take(2))
	assert.Equal(t, []*localQueue{second}, a.take(4))
	assert.Equal(t, []*localQueue{first}, a.take(6))
	assert.Empty(t, a.take(10), "replaced instants are void")
	assert.Equal(t, quorum.Never, a.earliest())
	assert.True(t, a.add(second, 11), "it may be scheduled again")
}
