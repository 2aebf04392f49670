package hold

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// queueing returns a lock of three nodes for which callers of the process queue. Its leases have the
// tokens from 4 to 7.
func queueing(t *testing.T, p process) (*Lock, *lease) {
	t.Helper()
	g := p.grant(hour(3))
	g.Queue = &queue{}
	return p.open(t, g)
}

// The queue decides by the state of the lock at the end of a lease. Until it passes the lock on, an
// answer may show that another client may have had the lock.
func TestALockWhoseProofWasWithdrawnMeanwhileIsNotPassedOn(t *testing.T) {
	p := idle(3)
	l, first := queueing(t, p)
	_, state, ok := l.Vacate(first, Ending{What: Released})
	require.True(t, ok)
	require.True(t, state.Proven, "the queue decides to pass it on")
	p.stepClock(1, time.Second)
	next := &lease{}
	_, ok = l.Pass(next)
	assert.False(t, ok)
	assert.Empty(t, next.events)
	assert.False(t, l.Over(), "its queue has to free it")
	assert.Same(t, first, l.Tenant())
}

// A token is granted once, and none beyond the block: the nodes know no other.
func TestALockIsPassedOnAsOftenAsItHasTokens(t *testing.T) {
	p := idle(3)
	l, current := queueing(t, p)
	for token := int64(4); token <= 7; token++ {
		require.Len(t, current.events, 1)
		assert.True(t, current.saw(Opened))
		assert.Equal(t, token != 4, current.saw(Passed))
		assert.Equal(t, token, current.events[0].Token)
		_, state, ok := l.Vacate(current, Ending{What: Released})
		require.True(t, ok)
		assert.Equal(t, int(7-token), state.Tokens)
		current = &lease{}
		check, ok := l.Pass(current)
		require.Equal(t, token < 7, ok)
		assert.Equal(t, ok, check, "few tokens are left")
	}
	assert.Empty(t, current.events)
}

// The queue may have decided before the loss, or before Close has ended the lock.
func TestALockThatIsOverIsNotPassedOn(t *testing.T) {
	for name, end := range map[string]func(process, *Lock){
		"lost":     func(p process, _ *Lock) { p.stepClock(0, 2*time.Hour); p.stepClock(1, 2*time.Hour) },
		"released": func(p process, _ *Lock) { p.End() },
	} {
		p := idle(3)
		l, first := queueing(t, p)
		_, _, ok := l.Vacate(first, Ending{What: Released})
		require.True(t, ok)
		end(p, l)
		require.True(t, l.Over())
		l.proof.nodes = quorum.All(3)
		next := &lease{}
		_, ok = l.Pass(next)
		assert.False(t, ok, name)
		assert.Empty(t, next.events, name)
	}
}

// A call of Renew may come late.
func TestARenewalOfALeaseThatHasEndedLeavesTheTTLOfTheNext(t *testing.T) {
	p := idle(3)
	l, first := queueing(t, p)
	_, _, ok := l.Vacate(first, Ending{What: Released})
	require.True(t, ok)
	longer := *l.Terms()
	longer.TTL *= 2
	refused := func() { assert.Fail(t, "no round begins") }
	l.Renew(first, &longer, refused)
	_, ok = l.Pass(&lease{})
	require.True(t, ok)
	l.Renew(first, &longer, refused)
	assert.Equal(t, time.Hour, l.Terms().TTL)
}

// The end of a lease must not end the lease to which the lock was passed on.
func TestALeaseEndsOnceAndNotThatOfTheNext(t *testing.T) {
	p := idle(3)
	l, first := queueing(t, p)
	_, _, ok := l.Vacate(first, Ending{What: Released})
	require.True(t, ok)
	_, _, ok = l.Vacate(first, Ending{What: Released})
	assert.False(t, ok)
	next := &lease{}
	_, ok = l.Pass(next)
	require.True(t, ok)
	_, _, ok = l.Vacate(first, Ending{What: Released})
	assert.False(t, ok)
	assert.False(t, l.Work(first))
	l.Rest(first)
	assert.False(t, next.saw(Lost|Released))
	p.stepClock(0, 2*time.Hour)
	p.stepClock(1, 2*time.Hour)
	assert.True(t, next.saw(Lost))
	assert.Equal(t, Settled, first.events[len(first.events)-1].What, "before the pass, which asks no node")
	ends := slices.DeleteFunc(first.events, func(e Event) bool { return !e.Is(Lost | Released) })
	require.Len(t, ends, 1)
	assert.Equal(t, Released|Asking, ends[0].What, "the loss is the next lease's")
}

// The clocks step after the release, so the loss is not the lease's. The queue learns of it, because callers wait for the
// lock.
func TestALossBetweenTwoLeasesIsTheOwnersAlone(t *testing.T) {
	p := idle(3)
	g, q := p.grant(hour(3)), &queue{}
	g.Queue = q
	l, first := p.open(t, g)
	_, _, ok := l.Vacate(first, Ending{What: Released})
	require.True(t, ok)
	p.stepClock(0, 2*time.Hour)
	p.stepClock(1, 2*time.Hour)
	assert.Equal(t, []*Lock{l}, q.lost)
	assert.False(t, first.saw(Lost))
}

// The answers to a renewal may come before the lock is passed on or freed. They count as the answers to the release would:
// another client may have had the lock under the lease.
func TestALossThatNodesShowRightAfterAReleaseIsTheReleasedLeases(t *testing.T) {
	type act func(p process, now *clock.Reading, l *Lock)
	wait := func(by time.Duration) act {
		return func(_ process, now *clock.Reading, _ *Lock) {
			*now = clock.Reading{Mono: now.Mono + by, Boot: now.Boot + by, Wall: now.Wall + by}
		}
	}
	step := func(node int, by time.Duration) act {
		return func(p process, _ *clock.Reading, _ *Lock) { p.stepClock(node, by) }
	}
	answer := func(node int, kind quorum.Kind) act {
		return func(p process, _ *clock.Reading, l *Lock) {
			l.take(meaning{in: quorum.Input{Kind: kind, Node: node, At: p.clock.Now()}, err: ErrMissing})
		}
	}
	begin := func(_ process, _ *clock.Reading, l *Lock) { l.step(quorum.Input{Kind: quorum.InputBegin}, nil) }
	for name, c := range map[string]struct {
		before, after []act
		reason        quorum.Reason // 0 if the lease was released
	}{
		"another client has the keys": {nil, []act{answer(0, quorum.InputTaken), answer(1, quorum.InputTaken)}, quorum.ReasonTaken},
		"the keys are gone":           {nil, []act{answer(0, quorum.InputMissing), answer(1, quorum.InputMissing)}, quorum.ReasonMissing},
		"an operator has revoked it":  {nil, []act{answer(0, quorum.InputRevoked), answer(1, quorum.InputRevoked)}, 0},
		"a node's clock steps":        {nil, []act{answer(0, quorum.InputMissing), step(1, 2*time.Hour)}, 0},
		"the answer comes too late":   {nil, []act{answer(0, quorum.InputMissing), wait(2 * time.Hour), answer(1, quorum.InputMissing)}, 0},
		"the keys may have gone since": {
			nil, []act{wait(time.Second), begin, answer(0, quorum.InputTaken), answer(1, quorum.InputTaken)}, 0,
		},
		"two nodes had the keys until the release": {
			[]act{step(1, time.Hour/2-10*time.Second), wait(time.Hour / 2)}, []act{answer(0, quorum.InputMissing)}, 0,
		},
	} {
		now := &clock.Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
		p := idleOn(clock.From(func() clock.Reading { return *now }), 3)
		g := p.grant(hour(3))
		g.Queue, g.Terms.SafetyMargin = &queue{}, time.Minute
		l, first := p.open(t, g)
		for _, do := range c.before {
			do(p, now, l)
		}
		_, _, ok := l.Vacate(first, Ending{What: Released})
		require.True(t, ok, name)
		for _, do := range c.after {
			do(p, now, l)
		}
		require.True(t, l.Over(), name)
		last := first.events[len(first.events)-1]
		if c.reason == 0 {
			assert.Equal(t, Settled, last.What, name)
			continue
		}
		assert.Equal(t, Settled|Lost, last.What, name)
		assert.Equal(t, c.reason, last.Reason, name)
		assert.Equal(t, []error{ErrMissing, ErrMissing, nil}, last.Errors, name)
	}
}

// A caller that it blocks learns no time: the keys may be deleted at any moment.
func TestALockThatHasEndedHasNoTimeLeft(t *testing.T) {
	for name, end := range map[string]func(process, *Lock){
		"lost": func(p process, _ *Lock) {
			p.stepClock(0, 30*time.Minute)
			p.stepClock(1, 50*time.Minute)
			p.stepClock(2, 50*time.Minute)
		},
		"released": func(p process, _ *Lock) { p.End() },
	} {
		p := idle(3)
		g := p.grant(hour(3))
		g.Terms.SafetyMargin = 20 * time.Minute
		l, _ := p.open(t, g)
		assert.Positive(t, l.Left(), name)
		end(p, l)
		require.True(t, l.Over(), name)
		require.Greater(t, l.machine.Deadline(), p.clock.Now(), name)
		assert.Zero(t, l.Left(), name)
	}
}

// Passing on a lock with a maximum or minimum hold, or without renewal, would give the next
// caller less than it has asked for.
func TestWhatMakesALockUselessForAnotherLease(t *testing.T) {
	p := idle(3)
	for name, c := range map[string]struct {
		change func(*Grant)
		after  time.Duration // how much earlier the keys end than the grant has promised
		useful bool
	}{
		"nothing":            {func(*Grant) {}, 0, true},
		"a maximum hold":     {func(g *Grant) { g.Terms.MaxHold = 2 * time.Hour }, 0, false},
		"a minimum hold":     {func(g *Grant) { g.Terms.MinHold = time.Minute }, 0, false},
		"its holder renews":  {func(g *Grant) { g.Terms.Manual = true }, 0, false},
		"enough is left":     {func(g *Grant) { g.Terms.MinUseful = 40 * time.Minute }, 10 * time.Minute, true},
		"too little is left": {func(g *Grant) { g.Terms.MinUseful = 40 * time.Minute }, 30 * time.Minute, false},
	} {
		g := p.grant(hour(3))
		g.Queue, g.Terms.Manual, g.Terms.Interval = &queue{}, false, time.Hour
		c.change(g)
		l, first := p.open(t, g)
		if c.after > 0 {
			p.stepClock(0, c.after)
			p.stepClock(1, c.after)
		}
		_, state, ok := l.Vacate(first, Ending{What: Released})
		require.True(t, ok, name)
		assert.Equal(t, c.useful, state.Useful, name)
		l.Free(wire.TicketUpdate{})
	}
}
