package virtual

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/election"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// lastWords is how long the work of a candidate continues after its lease.
const lastWords = 500 * time.Millisecond

// candidate is one process of an election.
type candidate struct {
	*election.Elector
	name string
	cut  context.CancelFunc
	done chan error

	mu   sync.Mutex
	seen []string // the leaders that NewLeader got
}

func runCandidate(t *testing.T, c *quorumlocktest.Cluster, name string) *candidate {
	t.Helper()
	m := managerFor(t, c, name, quorumlock.WithHolder(name))
	one := &candidate{name: name, done: make(chan error, 1)}
	var ctx context.Context
	ctx, one.cut = context.WithCancel(background)
	one.Elector = election.New(m, election.Config{
		Name: "leader",
		Lead: func(ctx context.Context, _ *quorumlock.Lease) error {
			<-ctx.Done()
			time.Sleep(lastWords)
			return nil
		},
		NewLeader: func(h quorumlock.Status) {
			one.mu.Lock()
			defer one.mu.Unlock()
			switch {
			case !h.Known:
				one.seen = append(one.seen, "unknown")
			case !h.Held:
				one.seen = append(one.seen, "nobody")
			default:
				one.seen = append(one.seen, h.Holder.Label)
			}
		},
	})
	var running sync.WaitGroup
	running.Go(func() { one.done <- one.Run(ctx) })
	t.Cleanup(func() { one.cut(); running.Wait() })
	return one
}

// leaders returns the candidates whose IsLeader is true.
func leaders(all []*candidate) (names []string) {
	for _, one := range all {
		if one.IsLeader() {
			names = append(names, one.name)
		}
	}
	return names
}

func TestOneCandidateLeadsAndAllKnowWho(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		var all []*candidate
		for i := range 3 {
			all = append(all, runCandidate(t, c, fmt.Sprint("candidate-", i)))
			assert.False(t, all[i].Leader().Known, "before the first answers")
		}
		var terms []string
		for range 2 {
			time.Sleep(3 * time.Second)
			now := leaders(all)
			require.Len(t, now, 1)
			terms = append(terms, now[0])
			for _, one := range all {
				assert.Equal(t, now[0], one.Leader().Holder.Label, one.name)
			}
			first := all[slices.IndexFunc(all, func(one *candidate) bool { return one.name == now[0] })]
			first.cut()
			require.ErrorIs(t, <-first.done, context.Canceled)
			assert.False(t, first.IsLeader())
			all = slices.DeleteFunc(all, func(one *candidate) bool { return one == first })
		}
		time.Sleep(3 * time.Second)
		last := all[0]
		assert.True(t, last.IsLeader())
		last.mu.Lock()
		seen := slices.DeleteFunc(slices.Clone(last.seen), func(s string) bool { return s == "nobody" })
		last.mu.Unlock()
		assert.Equal(t, append(terms, last.name), seen)
	})
}

// The old leader has stopped before the new one begins, and learns of it when it reaches the nodes.
func TestALeaderThatIsCutOffStopsAndAnotherFollows(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a := runCandidate(t, c, "a")
		time.Sleep(time.Second)
		b := runCandidate(t, c, "b")
		time.Sleep(2 * time.Second)
		require.True(t, a.IsLeader())
		c.Partition("a")
		for began := time.Now(); !b.IsLeader(); time.Sleep(10 * time.Millisecond) {
			require.Less(t, time.Since(began), 2*ttl)
			assert.LessOrEqual(t, len(leaders([]*candidate{a, b})), 1)
		}
		assert.False(t, a.IsLeader())
		assert.False(t, a.Leader().Known)
		c.Rejoin("a")
		time.Sleep(3 * time.Second)
		assert.Equal(t, "b", a.Leader().Holder.Label)
		assert.Equal(t, []*candidate{b}, slices.DeleteFunc([]*candidate{a, b}, func(one *candidate) bool { return !one.IsLeader() }))
	})
}

func TestAnElectionWithoutWorkIsRefused(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		require.ErrorIs(t, election.New(m, election.Config{Name: "leader"}).Run(background), quorumlock.ErrInvalid)
		work := func(context.Context, *quorumlock.Lease) error { return nil }
		require.ErrorIs(t, election.New(m, election.Config{Lead: work}).Run(background), quorumlock.ErrInvalid, "no name")
		require.NoError(t, election.New(m, election.Config{Name: "leader", Lead: work}).Run(background), "it has done its work")
	})
}
