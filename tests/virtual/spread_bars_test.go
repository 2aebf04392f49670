package virtual

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// spreadTokens returns the token under which each name runs, for all members given.
func spreadTokens(all ...*spreadWorker) map[string]int64 {
	tokens := map[string]int64{}
	for _, w := range all {
		for _, name := range w.Status().Names {
			tokens[name.Name] = name.Token
		}
	}
	return tokens
}

// A member that joins gets its share and at most one name more, from members that have more. No other name stops, and
// each moved name has a runner again within a second.
func TestAJoinMovesTheShareOfTheOneThatJoins(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		g, names := newSpreadLedger(t), spreadNames(60)
		a, b, d := g.join(c, "a", names, 0), g.join(c, "b", names, 0), g.join(c, "d", names, 0)
		time.Sleep(2 * spreadTTL)
		require.Equal(t, []int{20, 20, 20}, spreadShares(a, b, d))
		before := spreadTokens(a, b, d)
		require.Len(t, before, 60)
		g.begun()
		for _, n := range c.Nodes() {
			n.Delay(5 * time.Millisecond)
		}

		e := g.join(c, "e", names, 0)
		time.Sleep(2 * spreadTTL)
		require.Equal(t, []int{15, 15, 15, 15}, spreadShares(a, b, d, e))
		var moved []string
		for name, token := range spreadTokens(a, b, d, e) {
			if before[name] != token {
				moved = append(moved, name)
			}
		}
		slices.Sort(moved)
		t.Log("moved: ", moved)
		assert.LessOrEqual(t, len(moved), 16)
		g.mu.Lock()
		defer g.mu.Unlock()
		assert.Len(t, moved, g.moves, "no name has moved twice")
		assert.ElementsMatch(t, moved, slices.Collect(maps.Keys(g.idle)), "no other function has returned")
		longest := slices.Max(slices.Collect(maps.Values(g.idle)))
		t.Log("longest time of a name without a runner: ", longest)
		assert.Less(t, longest, time.Second)
	})
}

// A member that leaves, as in a deploy, gives its names to the others: each has a runner again within a second of the
// return of its function, however long that takes. The others' shares have room for each name here; without it, two may
// want the same one (see TestNamesOfAMemberThatLeavesRunAgainSoon in package balance).
func TestANameOfAMemberThatLeavesRunsAgainWithinASecond(t *testing.T) {
	for _, kind := range []struct {
		names int
		slow  time.Duration // from the end of a function's context to its return
	}{{4, 0}, {7, 300 * time.Millisecond}, {61, 300 * time.Millisecond}, {61, 5 * time.Second}} {
		t.Run(fmt.Sprintf("%d names, %v", kind.names, kind.slow), func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				g, names := newSpreadLedger(t), spreadNames(kind.names)
				all := []*spreadWorker{g.join(c, "a", names, kind.slow), g.join(c, "b", names, 0), g.join(c, "d", names, 0), g.join(c, "e", names, 0)}
				time.Sleep(3 * spreadTTL)
				had := len(all[0].Status().Names)
				require.NotZero(t, had)
				g.begun()
				for _, node := range c.Nodes() {
					node.Delay(5 * time.Millisecond)
				}

				all[0].cut(nil)
				time.Sleep(kind.slow + 2*spreadTTL)
				shares := spreadShares(all[1:]...)
				assert.LessOrEqual(t, shares[2]-shares[0], 1, shares)
				g.mu.Lock()
				defer g.mu.Unlock()
				require.GreaterOrEqual(t, len(g.idle), had)
				longest := slices.Max(slices.Collect(maps.Values(g.idle)))
				t.Log("longest time of a name without a runner: ", longest)
				assert.Less(t, longest, time.Second)
			})
		})
	}
}

// In a quiet hour no name moves, and the group costs each node little.
func TestNothingMovesInAQuietHour(t *testing.T) {
	testkit.OnlyNightly(t, "an hour of 60 leases")
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		g, names := newSpreadLedger(t), spreadNames(60)
		all := []*spreadWorker{g.join(c, "a", names, 0), g.join(c, "b", names, 0), g.join(c, "d", names, 0), g.join(c, "e", names, 0)}
		time.Sleep(4 * spreadTTL)
		require.Equal(t, []int{15, 15, 15, 15}, spreadShares(all...))
		before := spreadTokens(all...)
		g.begun()
		looker := manager(t, c)
		presences := func() (owners []string) {
			s, err := looker.Inspect(background, "orders/")
			require.NoError(t, err)
			for _, h := range s.Holders {
				owners = append(owners, h.Owner)
			}
			slices.Sort(owners)
			return owners
		}
		present := presences()
		require.Len(t, present, 4)
		var requests, looks atomic.Int64 // of one node; a request may carry several operations
		c.Nodes()[0].Fail(func(args []string) bool {
			if args[0] == "EVALSHA" {
				requests.Add(1)
				for _, arg := range args {
					if arg == "read" {
						looks.Add(1)
					}
				}
			}
			return false
		}, "")
		const quiet = time.Hour
		time.Sleep(quiet)
		assert.Zero(t, g.begun())
		assert.Equal(t, before, spreadTokens(all...))
		assert.Equal(t, present, presences())
		each := func(n int64) float64 { return float64(n) / quiet.Seconds() / float64(len(all)) }
		t.Logf("a second, node and member: %.2f looks, %.2f requests with the renewals of 15 names", each(looks.Load()), each(requests.Load()))
		assert.LessOrEqual(t, each(looks.Load()), 2.0)
		assert.Greater(t, each(looks.Load()), 1.0, "it counts nothing")
		assert.LessOrEqual(t, each(requests.Load()), 10.0)
	})
}

// A member that leaves marks each name whose function still runs as about to be free, until the nodes have the mark.
// Then another member waits for the name, and has it when the function has returned.
func TestANameIsMarkedThoughItsHolderIsCutOffAtFirst(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		g, names := newSpreadLedger(t), spreadNames(4)
		a, b := g.join(c, "a", names, time.Minute), g.join(c, "b", names, 0)
		time.Sleep(2 * spreadTTL)
		require.Equal(t, []int{2, 2}, spreadShares(a, b))
		g.begun()
		a.cut(nil)
		time.Sleep(50 * time.Millisecond)
		c.Partition("a") // when it would mark the names
		time.Sleep(1950 * time.Millisecond)
		c.Rejoin("a")
		time.Sleep(spreadTTL)
		require.Len(t, a.Status().Names, 2)
		for _, name := range a.Status().Names {
			s, err := b.m.Inspect(background, "orders/"+name.Name)
			require.NoError(t, err)
			assert.Equal(t, "spread1 yields", s.Holder.Asked, name.Name)
		}
		time.Sleep(time.Minute)
		assert.Len(t, b.Status().Names, 4)
		g.mu.Lock()
		defer g.mu.Unlock()
		require.Len(t, g.idle, 2)
		longest := slices.Max(slices.Collect(maps.Values(g.idle)))
		assert.Less(t, longest, time.Second, "it waits for them")
	})
}

// A holder that gives nothing away, such as another program, is asked less and less often, and the members share the
// rest.
func TestAHolderThatGivesNothingIsAskedLessOften(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		g, names := newSpreadLedger(t), spreadNames(12)
		stranger := managerFor(t, c, "stranger", quorumlock.WithHolder("stranger"))
		var asks atomic.Int64
		var reading sync.WaitGroup
		defer reading.Wait()
		for _, name := range names[:8] {
			l := acquire(t, stranger, "orders/"+name)
			defer func() { assert.NoError(t, l.Release(background)) }()
			reading.Go(func() { testkit.CountAsks(l, &asks) })
		}
		a, b := g.join(c, "a", names, 0), g.join(c, "b", names, 0)
		time.Sleep(6 * spreadTTL) // at first they ask the richest, which is the stranger
		assert.Equal(t, []int{2, 2}, spreadShares(a, b))
		g.begun()
		time.Sleep(4 * time.Minute)
		assert.Equal(t, []int{2, 2}, spreadShares(a, b))
		assert.Zero(t, g.begun(), "nobody moves")
		t.Logf("%d asks", asks.Load())
		assert.Greater(t, asks.Load(), int64(10))
		assert.Less(t, asks.Load(), int64(150), "300 without a pause")
	})
}
