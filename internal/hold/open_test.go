package hold

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A lease that would be reported lost at once is not granted.
func TestAGrantIsJudgedByHowLateTheWatchdogIs(t *testing.T) {
	p, terms := idle(1), lagging()
	terms.MinUseful = 6 * time.Minute
	_, first := p.open(t, p.grant(terms))
	require.Greater(t, first.events[0].Stop, p.clock.Now())
	p.measure(p.clock.Now().Add(-(28 * time.Minute)), 0)
	err := p.Open(p.grant(terms), &Lock{}, &lease{})
	require.ErrorIs(t, err, ErrTooSlow, "four minutes are left until the loss would be reported")
}

// The clock of a granting node was stepped forward while the attempt ran. The lease ends
// before the caller gets it, so no event reports it.
func TestAGrantThatAClockStepHasEndedIsNotReported(t *testing.T) {
	for _, c := range []struct {
		name  string
		steps []time.Duration
		lost  bool
	}{
		{"one step", []time.Duration{2 * time.Hour}, true},
		{"several steps, each of which the lease outlives", []time.Duration{40 * time.Minute, 15 * time.Minute, 10 * time.Minute}, true},
		{"steps that the lease outlives", []time.Duration{10 * time.Minute, 5 * time.Minute}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := idle(1)
			before, _ := p.open(t, p.grant(hour(1)))
			require.Same(t, before, p.Find("job"))
			g, l, first := p.grant(hour(1)), &Lock{}, &lease{}
			for _, by := range c.steps {
				p.ensemble.Steps.Lock()
				p.ensemble.Steps.Add(&ensemble.Step{Node: 0, By: by, At: g.Steady})
				p.ensemble.Steps.Unlock()
			}
			err := p.Open(g, l, first)
			if !c.lost {
				require.NoError(t, err)
				require.Len(t, first.events, 1)
				assert.True(t, first.saw(Opened))
				assert.Less(t, clock.Validity(first.events[0].Stop.Sub(p.clock.Now())), clock.Validity(46*time.Minute), "every step counts")
				assert.Zero(t, l.proof.nodes, "another client may have had the lock on that node")
				return
			}
			require.ErrorIs(t, err, ErrStepped)
			assert.Empty(t, first.events, "neither its grant nor its loss")
			assert.Equal(t, []*Lock{before}, p.schedule.all(), "the watchdog does not schedule it")
			assert.Same(t, before, p.Find("job"), "nor is it found by its key")
		})
	}
}

// Node 1 was below the token and was raised. Node 2 is above the token, so its answer is
// a vote but no proof.
func TestAGrantRecordsTheTopTokenAndTheNodesAtIt(t *testing.T) {
	p := idle(3)
	g := p.grant(hour(3))
	*g.Ballot = quorum.NewBallot(3, true, 7)
	g.Ballot.Grant(0, 9, 6)
	g.Ballot.Grant(1, 0, 8)
	g.Ballot.Raised(1, 8, true)
	g.Ballot.Grant(2, 0, 12)
	l, first := p.open(t, g)
	assert.EqualValues(t, 9, first.events[0].Token)
	assert.EqualValues(t, 9, wire.ParseValue(l.Value()).Token, "the token in renewals")
	assert.Equal(t, quorum.All(2), l.proof.nodes)

	for _, c := range []struct {
		queue Queue
		first int64
		more  int
	}{{nil, 7, 0}, {&queue{}, 4, 3}} {
		g := p.grant(hour(3))
		g.Queue = c.queue
		*g.Ballot = quorum.NewBallot(3, true, 7)
		g.Ballot.Grant(0, 7, 3)
		g.Ballot.Grant(2, 7, 2)
		l, first := p.open(t, g)
		assert.Equal(t, c.first, first.events[0].Token)
		assert.Equal(t, c.more, l.tokensLeft(), "tokens for callers that queue in this process")
		assert.EqualValues(t, 7, wire.ParseValue(l.Value()).Token)
	}
}

// Close ends the locks that are open, so none may be opened afterwards.
func TestNoLockIsOpenedOnceCloseHasBegun(t *testing.T) {
	p := idle(1)
	l, first := p.open(t, p.grant(hour(1)))
	p.End()
	assert.True(t, l.Over())
	assert.True(t, first.saw(Released))
	late := &lease{}
	require.ErrorIs(t, p.Open(p.grant(hour(1)), &Lock{}, late), ErrEnded)
	assert.Empty(t, late.events)
}

// The first caller that looks for a lock fills the registry. A second caller must wait until it is filled: otherwise it
// would not learn that this process has the lock, and would not wait behind it.
func TestALockIsFoundWhileTheRegistryIsFilled(t *testing.T) {
	p := idle(1)
	l, _ := p.open(t, p.grant(hour(1)))
	var callers sync.WaitGroup
	find := func() { assert.Same(t, l, p.Find("job")) }
	l.mu.Lock() // the first caller waits for it
	callers.Go(find)
	for !p.registry.used.Load() {
		runtime.Gosched()
	}
	callers.Go(find)
	time.Sleep(50 * time.Millisecond) // the second caller waits as well, or has found nothing
	l.mu.Unlock()
	callers.Wait()
}
