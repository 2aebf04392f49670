package hold

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// running returns a process on these servers, whose nodes run until the test ends.
func running(t *testing.T, servers []*redistest.Server) process {
	t.Helper()
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr()
	}
	return runningOn(t, addrs...)
}

// runningOn is running for servers behind proxies.
func runningOn(t *testing.T, addrs ...string) process {
	t.Helper()
	options := make([]rueidis.ClientOption, len(addrs))
	for i, addr := range addrs {
		options[i].InitAddress = []string{addr}
	}
	p := processOn(ensembleOf(clock.New(), options))
	var all sync.WaitGroup
	for _, n := range p.ensemble.Nodes() {
		all.Go(n.Run)
		all.Go(n.RunSubscriber)
		all.Go(n.RunGroup)
	}
	t.Cleanup(func() {
		for _, n := range p.ensemble.Nodes() {
			n.Close(context.Background(), nil, ensemble.Nobody{})
		}
		all.Wait()
	})
	for i, n := range p.ensemble.Nodes() {
		require.Eventually(t, func() bool { return n.Health().Err == nil }, 20*time.Second, time.Millisecond, "node %d votes", i)
	}
	return p
}

// The message that a node has reserved the lock for a ticket may arrive before the node's
// refusal, which is older and travels on another connection.
func TestALeaseTakesTheReservationOfANodeThatRefusesLate(t *testing.T) {
	servers := redistest.Start(t, 3)
	p, third, late := running(t, servers), quorum.Set(0).With(2), servers[2]
	g := p.grant(&config.Terms{
		Terms:  quorum.Terms{Nodes: 3, TTL: 5 * time.Minute, Timeout: 10 * time.Second},
		KeyTTL: "300000", Manual: true, // no renewal heals it
	})
	g.Entry.Lock = wire.LockKey("p:", "job")
	*g.Ballot = quorum.NewBallot(3, true, 7)
	g.Ballot.Grant(0, 7, 3)
	g.Ballot.Grant(1, 7, 3)
	l, first := p.open(t, g)
	ticket := strings.Repeat("a", wire.TicketLen)
	late.MustDo("SET", g.Entry.Lock, ticket+" w ", "PX", "60000")
	l.RecordTicket(ticket, third, third)
	l.Vote(2, p.clock.Now(), &wire.Reply{Status: wire.Taken})
	require.Eventually(t, func() bool {
		return strings.HasPrefix(fmt.Sprint(late.MustDo("GET", g.Entry.Lock)), owner)
	}, 10*time.Second, time.Millisecond)
	assert.Equal(t, g.Entry.Lock, l.Key())
	_, _, ok := l.Vacate(first, Ending{What: Released})
	require.True(t, ok)
	answers := l.Free(wire.TicketUpdate{})
	answers.Wait(context.Background(), 10*time.Second)
	assert.GreaterOrEqual(t, answers.Got, 2)
	require.Eventually(t, func() bool { return late.MustDo("EXISTS", g.Entry.Lock) == int64(0) }, 10*time.Second, time.Millisecond)
}

// A reservation that a lock has not taken goes to the next waiter, so the lock must not say that it takes one when it has
// ended. It may end between the caller's look for it and this call.
func TestALockThatHasEndedTakesNoReservation(t *testing.T) {
	third := quorum.Set(0).With(2)
	for way, end := range map[string]func(*Lock, *lease){
		"released": func(l *Lock, first *lease) {
			_, _, ok := l.Vacate(first, Ending{What: Released})
			require.True(t, ok)
			l.Free(wire.TicketUpdate{})
		},
		"lost": func(l *Lock, _ *lease) {
			l.step(quorum.Input{Kind: quorum.InputMissing, Node: 0, At: l.of.clock.Now()}, nil)
			l.step(quorum.Input{Kind: quorum.InputMissing, Node: 1, At: l.of.clock.Now()}, nil)
		},
	} {
		p := idle(3)
		g := p.grant(hour(3))
		*g.Ballot = quorum.NewBallot(3, true, 7)
		g.Ballot.Grant(0, 7, 3)
		g.Ballot.Grant(1, 7, 3)
		l, first := p.open(t, g)
		assert.True(t, l.TakeReservations(third), "a lock that lives")
		assert.True(t, l.TakeReservations(third), "the heal that was posted takes this one")
		assert.Equal(t, third, l.is.taking)
		l.is.taking = 0 // as after the answer
		end(l, first)
		require.True(t, l.Over(), way)
		assert.False(t, l.TakeReservations(third), way)
		assert.Zero(t, l.is.taking, "%s: a node was asked for it", way)
	}
}

// Late answers find the lock by its attempt, which is used again afterwards. A release must not
// withdraw an acquisition of another lock.
func TestALockForgetsItsAcquisitionOnceEveryNodeHasAnswered(t *testing.T) {
	p := idle(3)
	for _, answered := range []bool{false, true} {
		g := p.grant(hour(3))
		g.Acquire = &wire.Request{}
		l, first := p.open(t, g)
		if answered {
			l.Answered()
		}
		_, _, ok := l.Vacate(first, Ending{What: Released})
		require.True(t, ok)
		l.Free(wire.TicketUpdate{})
		assert.Equal(t, !answered, g.Acquire.Withdrawn())
	}
}

// A heal that was decided before the lease was detached is posted after it, and a release follows. Neither
// touches the keys of the handle.
func TestAHealOfADetachedLockLeavesItsKeys(t *testing.T) {
	servers := redistest.Start(t, 1)
	p := running(t, servers)
	g := p.grant(&config.Terms{Terms: quorum.Terms{Nodes: 1, TTL: 5 * time.Minute, Timeout: 10 * time.Second}, KeyTTL: "300000", Manual: true})
	g.Entry.Lock = wire.LockKey("p:", "job")
	l, first := p.open(t, g)
	servers[0].MustDo("SET", g.Entry.Lock, g.Entry.Value, "PX", "60000")
	pending, ok := l.End(first, Ending{What: Released | Detached, Keys: Left, Keep: 2 * time.Minute})
	require.True(t, ok)
	pending.Wait(context.Background(), 10*time.Second)
	require.Equal(t, 1, pending.Got)
	assert.True(t, first.saw(Detached))
	p.heal(healing(nil).with(l, quorum.All(1)))
	after := p.ensemble.Collect(context.Background(), wire.NewRead(g.Entry.Lock, p.clock.Steady().Add(time.Minute)), 10*time.Second, 1, nil)
	require.Equal(t, 1, after.Got, "what was posted before has run")
	assert.Equal(t, "d "+g.Entry.Value, after.Replies[0].Held)
	assert.Greater(t, after.Replies[0].TTL, time.Minute)
}
