package quorumlock

import (
	"context"
	"fmt"
	"strings"
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

// The message that a node has reserved the lock for a ticket may arrive before the node's
// refusal, which is older and travels on another connection.
func TestALeaseTakesTheReservationOfANodeThatRefusesLate(t *testing.T) {
	servers := redistest.Start(t, 3)
	m, err := New(context.Background(), Addrs(redistest.Addrs(servers)...))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close(context.Background())) })
	key, late := DefaultPrefix+"job", servers[2]
	late.MustDo("SET", key, "the lease before", "PX", "60000")
	l, err := m.Acquire(context.Background(), "job", WithTTL(5*time.Minute)) // no renewal heals it
	require.NoError(t, err)
	h, third := l.hold, quorum.Set(0).With(2)
	require.Eventually(t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.nodes != nil && h.nodes[2] != nil
	}, 10*time.Second, time.Millisecond, "the third node has refused")
	late.MustDo("SET", key, strings.Repeat("a", wire.TicketLen)+" w ", "PX", "60000")
	h.recordTicket(strings.Repeat("a", wire.TicketLen), third, third)
	h.vote(2, m.clock.Now(), &wire.Reply{Status: wire.Taken})
	require.Eventually(t, func() bool {
		return strings.HasPrefix(fmt.Sprint(late.MustDo("GET", key)), l.Owner())
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, l.Release(context.Background()))
}
