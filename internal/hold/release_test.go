package hold

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// The release of a lock may itself find the lock lost, for example after a suspend. The queue must then not wait for
// itself.
func TestAHoldThatIsFoundLostWhenItIsReleasedHoldsUpNoCaller(t *testing.T) {
	now := clock.Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
	p := idleOn(clock.From(func() clock.Reading { return now }), 3)
	g, q := p.grant(hour(3)), &queue{}
	g.Queue = q
	l, first := p.open(t, g)
	_, _, ok := l.Vacate(first, Ending{What: Released}) // its last lease is released while a check is under way
	require.True(t, ok)
	now.Boot += 2 * time.Hour
	done := make(chan struct{})
	go func() {
		defer close(done)
		q.mu.Lock()
		defer q.mu.Unlock()
		l.Free(wire.TicketUpdate{})
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		require.Fail(t, "the queue waits for itself")
	}
	assert.True(t, l.Over())
	assert.False(t, first.saw(Lost), "its lease was released before")
}

// A lease that is found lost is not handed on, so its keys are released like any others.
func TestALeaseThatIsFoundLostWhenItIsHandedOnIsReleased(t *testing.T) {
	for _, as := range []What{Released, Released | Detached} {
		for _, late := range []time.Duration{0, 2 * time.Hour} {
			now := clock.Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
			p := idleOn(clock.From(func() clock.Reading { return now }), 3)
			l, first := p.open(t, p.grant(hour(3)))
			now.Boot += late
			_, ok := l.End(first, Ending{What: as, Keys: Left, Keep: time.Minute})
			assert.Equal(t, late == 0, ok)
			requests := p.releaseAll([]*Lock{l})
			assert.Equal(t, !ok, len(requests) == 1, "%v", as)
			assert.Equal(t, !ok, first.saw(Lost))
		}
	}
}

// A release of a permit may wake many waiters. The nodes put few of them into a script, and cannot divide a
// request.
func TestPermitsAreReleasedOneByOne(t *testing.T) {
	now := clock.Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
	p := idleOn(clock.From(func() clock.Reading { return now }), 3)
	var locks []*Lock
	for i := range 3 {
		g := p.grant(hour(3))
		g.Entry.Lock = wire.SlotKey("job", i)
		l, first := p.open(t, g)
		_, _, ok := l.Vacate(first, Ending{What: Released})
		require.True(t, ok)
		locks = append(locks, l)
	}
	requests := p.releaseAll(locks)
	require.Len(t, requests, 3)
	for _, req := range requests {
		assert.Less(t, req.Weight(nil), wire.MaxLocks)
	}
}

// A lease that was valid when it was released is not lost because the process is late to post the release, or the
// machine sleeps before: no node has denied it.
func TestALeaseIsNotLostByALateRelease(t *testing.T) {
	for _, queued := range []bool{false, true} {
		now := clock.Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
		p := idleOn(clock.From(func() clock.Reading { return now }), 3)
		g := p.grant(hour(3))
		if queued {
			g.Queue = &queue{}
		}
		l, first := p.open(t, g)
		_, _, ok := l.Vacate(first, Ending{What: Released})
		require.True(t, ok)
		now.Boot += 2 * time.Hour
		l.Free(wire.TicketUpdate{}).Abandon()
		assert.False(t, first.saw(Lost))
		assert.Equal(t, Settled, first.events[len(first.events)-1].What)
	}
}

// A server without enough replicas refuses each write of the script, and answers all the same. What it has refused is
// sent again, also where another operation of the request has succeeded.
func TestAReleaseThatTheServerRefusesInsideTheScriptIsSentAgain(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	p := runningOn(t, server.Addr())
	grant := func(name string, minHold time.Duration) *Grant {
		g := p.grant(&config.Terms{
			Terms: quorum.Terms{Nodes: 1, TTL: time.Hour, Timeout: 10 * time.Second}, KeyTTL: "3600000", Manual: true, MinHold: minHold,
		})
		g.Entry.Lock = wire.LockKey("p:", name)
		return g
	}
	kept, first := p.open(t, grant("kept", 2*time.Hour))
	server.MustDo("SET", kept.key, kept.value, "PX", "3600000")
	absent, _ := p.open(t, grant("absent", 0))
	there, _ := p.open(t, grant("there", 0))
	server.MustDo("SET", there.key, there.value, "PX", "3600000")
	server.MustDo("CONFIG", "SET", "min-replicas-to-write", "1")
	_, _, ok := kept.Vacate(first, Ending{What: Released})
	require.True(t, ok)
	kept.Free(wire.TicketUpdate{}).Abandon()
	absent.endForClose(false)
	there.endForClose(false)
	p.clear([]*Lock{absent, there})
	time.Sleep(100 * time.Millisecond) // until the refusals have come: later ones would prove nothing
	server.MustDo("CONFIG", "SET", "min-replicas-to-write", "0")
	require.Eventually(t, func() bool {
		left, _ := server.MustDo("PTTL", kept.key).(int64)
		return left > 3_600_000 && server.MustDo("EXISTS", there.key) == int64(0)
	}, 10*time.Second, 10*time.Millisecond)
}

// The wait may end while a server refuses writes, for example because its memory is full.
func TestAReleaseThatIsSentAgainPutsNoTicketBack(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	p := runningOn(t, server.Addr())
	lock := wire.LockKey("p:", "job")
	server.MustDo("SET", lock, "another's", "PX", "3600000")
	p.ensemble.Nodes()[0].Subscribe()
	require.Eventually(t, func() bool { return len(server.MustDo("PUBSUB", "CHANNELS").([]any)) == 1 }, 10*time.Second, time.Millisecond)
	time.Sleep(100 * time.Millisecond) // until the client knows that: without it, its tickets do not queue
	server.MustDo("CONFIG", "SET", "min-replicas-to-write", "1")
	ticket := strings.Repeat("0", wire.ManagerLen) + strings.Repeat("1", wire.TicketLen-wire.ManagerLen) + "1000"
	soon := func() clock.Steady { return p.clock.Steady().Add(time.Minute) }
	entry := wire.Entry{Lock: lock, Value: wire.Compose(owner, 7, "1 - ")}
	p.ensemble.PostTo(quorum.All(1), entry.Release(nil, wire.TicketUpdate{Ticket: ticket, EnqueuedAt: "5"}, soon()), ensemble.Nobody{})
	time.Sleep(100 * time.Millisecond) // until it is refused: later it would prove nothing
	server.MustDo("CONFIG", "SET", "min-replicas-to-write", "0")
	time.Sleep(500 * time.Millisecond)
	assert.Equal(t, int64(0), server.MustDo("EXISTS", wire.QueueKey(lock)))
}
