package virtual

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// apart is a client's report that another client's list of nodes excludes its own.
const apart = "two clients could be granted the same lock"

// lister is a Manager with some of a cluster's nodes, and its reports.
type lister struct {
	*quorumlock.Manager
	log    testkit.Buffer
	lines  int // of the log, already counted by told
	events *quorumlock.Subscription
}

func listing(t *testing.T, c *quorumlocktest.Cluster, nodes []int, opts ...quorumlock.Option) *lister {
	t.Helper()
	all, some := c.OptionsFor("client"+string(rune('a'+nodes[0]))), []rueidis.ClientOption(nil)
	for _, i := range nodes {
		some = append(some, all[i])
	}
	l := &lister{}
	m, err := quorumlock.New(background, some, append([]quorumlock.Option{
		quorumlock.WithTTL(ttl), quorumlock.WithLogger(slog.New(slog.NewTextHandler(&l.log, nil))),
	}, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close(background)) })
	l.Manager, l.events = m, m.Subscribe(1000)
	return l
}

// warned returns the warnings about other lists, by the indices of the nodes.
func (l *lister) warned() map[int]string {
	all := map[int]string{}
	for i, n := range l.Nodes() {
		if n.Warning != nil && strings.Contains(n.Warning.Error(), apart) {
			all[i] = n.Warning.Error()
		}
	}
	return all
}

// told returns how many lines of the log and how many events mention other lists since the last call.
func (l *lister) told() (lines, events int) {
	synctest.Wait()
	lines = strings.Count(l.log.String(), apart) - l.lines
	l.lines += lines
	if l.Ready() != nil { // closed
		return lines, 0
	}
	for _, e := range changes(l.events) {
		if e.Warning != nil && strings.Contains(e.Warning.Error(), apart) {
			events++
		}
	}
	return lines, events
}

// Without the guard two clients hold one lock, because their lists share a node and no majority. Both report it, once,
// as long as both are there.
func TestListsThatExcludeEachOtherAreNoticedWithoutTheGuard(t *testing.T) {
	run(t, 5, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b := listing(t, c, []int{0, 1, 2}), listing(t, c, []int{2, 3, 4})
		held := acquire(t, a.Manager, "job")
		second, err := b.TryAcquire(background, "job")
		require.NoError(t, err)
		require.True(t, held.Valid() && second.Valid(), "two holders")
		time.Sleep(35 * time.Second)
		for who, l := range map[string]*lister{"a": a, "b": b} {
			shared := map[string]int{"a": 2, "b": 0}[who]
			warned := l.warned()
			require.Len(t, warned, 1, who)
			for _, addr := range []string{c.Nodes()[0].Addr(), c.Nodes()[4].Addr()} {
				assert.Contains(t, warned[shared], addr, "both lists are named")
			}
			assert.Contains(t, warned[shared], "give every client the same nodes")
			lines, events := l.told()
			assert.Equal(t, []int{1, 1}, []int{lines, events}, who)
		}
		time.Sleep(time.Minute)
		lines, events := a.told()
		assert.Zero(t, lines+events, "said once")
		require.True(t, held.Valid() && second.Valid(), "renewed: nothing is withheld")
		require.NoError(t, acquire(t, a.Manager, "other").Release(background))

		require.NoError(t, b.Close(background))
		time.Sleep(45 * time.Second)
		assert.Empty(t, a.warned(), "the other one is gone")
		require.NoError(t, held.Release(background))
		require.NoError(t, a.Close(background))
		time.Sleep(31 * time.Second)
		for _, n := range c.Nodes() {
			for _, key := range do(t, n, "KEYS", "*").([]any) {
				assert.NotContains(t, key, "\xffu", "forgotten")
			}
		}
	})
}

// A client with the guard and one without it have lists that exclude each other. The marker refuses the client without
// the guard. If an option admits it, both report the problem.
func TestAClientWithTheGuardNoticesTheListOfOneWithoutIt(t *testing.T) {
	guarded := []quorumlock.Option{quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes()}
	for open, opts := range map[bool][]quorumlock.Option{false: guarded, true: append(guarded[:2:2], quorumlock.WithGuardRollout())} {
		run(t, 5, func(t *testing.T, c *quorumlocktest.Cluster) {
			plain := listing(t, c, []int{2, 3, 4})
			acquire(t, plain.Manager, "job")
			strict := listing(t, c, []int{0, 1, 2}, opts...)
			time.Sleep(time.Minute + 40*time.Second) // the third node has a quarantine: it is not empty
			acquire(t, strict.Manager, "job")
			time.Sleep(40 * time.Second)
			assert.Len(t, strict.warned(), 1, "open %v", open)
			assert.Len(t, plain.warned(), 1, "open %v", open)
			_, err := plain.TryAcquire(background, "other")
			assert.Equal(t, open, err == nil, "%v", err)
		})
	}
}

// Lists are compared by their servers, and only living clients that ask for leases count.
func TestNothingIsSaidOfListsThatFit(t *testing.T) {
	quiet := func(t *testing.T, all ...*lister) {
		t.Helper()
		for _, l := range all {
			lines, events := l.told()
			assert.Zero(t, lines+events, l.log.String())
		}
	}
	for claim, c := range map[string]struct {
		a, b  []int
		until func(*testing.T, *quorumlocktest.Cluster, *lister, *lister)
	}{
		"one node more": {[]int{0, 1, 2}, []int{2, 1, 0, 3}, nil},
		"a client that only looks": {[]int{0, 1, 2}, []int{2, 3, 4}, func(t *testing.T, _ *quorumlocktest.Cluster, _, b *lister) {
			t.Helper()
			_, err := b.Inspect(background, "job")
			require.NoError(t, err)
		}},
		"nodes restart one after another": {[]int{0, 1, 2}, []int{2, 1, 0}, func(_ *testing.T, c *quorumlocktest.Cluster, _, _ *lister) {
			for i := range 3 {
				c.Restart(i)
				time.Sleep(23 * time.Second)
			}
		}},
		"a node restarts that one of the clients does not reach": {[]int{0, 1, 2}, []int{2, 1, 0}, func(_ *testing.T, c *quorumlocktest.Cluster, _, _ *lister) {
			c.Partition("clientc", 1)
			c.Restart(1)
			time.Sleep(time.Minute)
			c.Rejoin("clientc")
		}},
		"all clients change at once": {[]int{0, 1, 2}, []int{2, 3, 4}, func(t *testing.T, _ *quorumlocktest.Cluster, a, b *lister) {
			t.Helper()
			acquire(t, a.Manager, "job")
			time.Sleep(25 * time.Second)
			a.told() // its subscription ends
			require.NoError(t, a.Close(background))
			acquire(t, b.Manager, "job")
		}},
	} {
		t.Run(claim, func(t *testing.T) {
			run(t, 5, func(t *testing.T, cluster *quorumlocktest.Cluster) {
				a, b := listing(t, cluster, c.a), listing(t, cluster, c.b)
				for _, l := range []*lister{a, b} {
					if c.until == nil || strings.Contains(claim, "restart") || strings.Contains(claim, "looks") && l == a {
						require.NoError(t, acquire(t, l.Manager, "first").Release(background))
					}
				}
				if c.until != nil {
					c.until(t, cluster, a, b)
				}
				time.Sleep(45 * time.Second)
				quiet(t, a, b)
			})
		})
	}
}
