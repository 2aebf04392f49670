package virtual

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// Health reports of nodes, and when nodes may vote.

// checkup is the longest time until an idle node is checked.
const checkup = 10*time.Second + timeout

// changes returns the reported changes of nodes since the last call.
func changes(s *quorumlock.Subscription) (all []quorumlock.NodeChanged) {
	synctest.Wait()
	for {
		select {
		case e := <-s.C():
			if c, ok := e.(quorumlock.NodeChanged); ok {
				all = append(all, c)
			}
		default:
			return all
		}
	}
}

// Without a run_id the marker could not show a restart.
func TestTheGuardRefusesAServerWithoutARunID(t *testing.T) {
	for _, id := range []string{"", "two words"} {
		run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
			c.Nodes()[1].SetInfo("run_id", id)
			m := manager(t, c, quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes())
			assert.ErrorContains(t, m.Nodes()[1].Err, "run_id")
			assert.NoError(t, m.Ready(), "the others are a majority")
			require.NoError(t, m.Close(background))
			for _, node := range c.Nodes() {
				node.FlushAll() // the other nodes have a marker
			}
			require.NoError(t, acquire(t, manager(t, c), "without the guard").Release(background))
		})
	}
}

func TestAFlushOfAnIdleNodeStartsItsQuarantineAtTheNextCheckup(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes())
		events := m.Subscribe(100)
		changes(events)
		c.Nodes()[1].FlushAll()
		time.Sleep(checkup)
		now := changes(events)
		require.Len(t, now, 1)
		assert.Equal(t, 1, now[0].Node)
		assert.ErrorContains(t, now[0].Err, "quarantine")
		assert.InDelta(t, time.Minute, now[0].QuarantinedFor, float64(2*time.Second))
		time.Sleep(time.Minute + time.Second)
		now = changes(events)
		require.Len(t, now, 1)
		require.NoError(t, now[0].Err)
	})
}

// The holder of a lease there finds its key missing at the next renewal, and asks for a check.
func TestANodeThatHasLostAKeyIsCheckedWithinOneInterval(t *testing.T) {
	for name, test := range map[string]struct {
		lose func(*testing.T, *quorumlocktest.Node)
		want string
	}{
		"flushed": {
			lose: func(_ *testing.T, n *quorumlocktest.Node) { n.FlushAll() },
			want: "quarantine",
		},
		"evicting": {
			lose: func(t *testing.T, n *quorumlocktest.Node) {
				n.SetInfo("maxmemory", "1000000")
				n.SetInfo("maxmemory_policy", "allkeys-lru")
				_, err := n.Do("DEL", "quorumlock:job")
				require.NoError(t, err)
			},
			want: "cannot see evictions (maxmemory-policy allkeys-lru)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m := manager(t, c, quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes())
				l := acquire(t, m, "job", quorumlock.WithTTL(3*time.Second))
				events := m.Subscribe(100)
				time.Sleep(3 * time.Second) // the clocks are compared, and the next regular check is far away
				changes(events)
				test.lose(t, c.Nodes()[1])
				time.Sleep(time.Second + 100*time.Millisecond + 10*time.Millisecond) // the interval, its jitter, and a round trip
				now := changes(events)
				require.NotEmpty(t, now)
				assert.Equal(t, 1, now[0].Node)
				assert.ErrorContains(t, now[0].Err, test.want)
				assert.True(t, l.Valid())
			})
		})
	}
}

func TestChangesOfANodeAreFoundWhileItsConnectionStands(t *testing.T) {
	for name, test := range map[string]struct {
		change       func(*quorumlocktest.Node)
		opts         []quorumlock.Option
		err, warning string
	}{
		"demoted": {
			change: func(n *quorumlocktest.Node) { n.SetRole("slave") },
			err:    "server is a replica",
		},
		"may evict": {
			change: func(n *quorumlocktest.Node) {
				n.SetInfo("maxmemory", "1000000")
				n.SetInfo("maxmemory_policy", "allkeys-lru")
			},
			warning: "may evict locks (maxmemory-policy allkeys-lru): set noeviction",
		},
		"may evict, under the guard": {
			change: func(n *quorumlocktest.Node) {
				n.SetInfo("maxmemory", "1000000")
				n.SetInfo("maxmemory_policy", "volatile-ttl")
			},
			opts: []quorumlock.Option{quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes()},
			err:  "cannot see evictions (maxmemory-policy volatile-ttl)",
		},
		"clock far off": {
			change:  func(n *quorumlocktest.Node) { n.StepClock(-time.Minute) },
			warning: "clock is -1m0s off the other nodes' median",
		},
		"copied once": {
			change: func(n *quorumlocktest.Node) {
				n.SetInfo("master_replid", "0123456789012345678901234567890123456789")
			},
			warning: "were once master and replica",
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				if name == "copied once" {
					c.Nodes()[0].SetInfo("master_replid2", "0123456789012345678901234567890123456789")
				}
				m := manager(t, c, test.opts...)
				events := m.Subscribe(100)
				changes(events)
				test.change(c.Nodes()[2])
				time.Sleep(checkup)
				var found bool
				for _, e := range changes(events) {
					if e.Node != 2 {
						continue
					}
					found = true
					if test.err != "" {
						assert.ErrorContains(t, e.Err, test.err)
					}
					if test.warning != "" {
						require.NoError(t, e.Err)
						assert.ErrorContains(t, e.Warning, test.warning)
						status, err := m.Inspect(background, "x")
						require.NoError(t, err)
						assert.ErrorContains(t, status.Nodes[2].Warning, test.warning)
					}
				}
				assert.True(t, found, "reported")
			})
		})
	}
}

// The guard decides about votes. A holder keeps its lease, whatever happens to the guard, on any number of nodes.
func TestAGuardThatDoesNotWorkCostsVotesButNoLease(t *testing.T) {
	for name, test := range map[string]struct {
		change, fix func(*testing.T, *quorumlocktest.Node)
		want        string
		after       string // the error after the repair; "" if the node votes
	}{
		"a policy that evicts": {
			change: func(_ *testing.T, n *quorumlocktest.Node) {
				n.SetInfo("maxmemory", "1000000")
				n.SetInfo("maxmemory_policy", "allkeys-lru")
			},
			fix:   func(_ *testing.T, n *quorumlocktest.Node) { n.SetInfo("maxmemory_policy", "noeviction") },
			want:  "cannot see evictions (maxmemory-policy allkeys-lru)",
			after: "an eviction",
		},
		"no right to INFO": {
			change: func(_ *testing.T, n *quorumlocktest.Node) {
				n.Fail(func(args []string) bool { return args[0] == "INFO" }, "NOPERM no INFO for you")
			},
			fix:  func(_ *testing.T, n *quorumlocktest.Node) { n.Fail(nil, "") },
			want: "cannot read INFO",
		},
		"another longest lease": {
			change: func(t *testing.T, n *quorumlocktest.Node) { remark(t, n, " 60000", " 61000") },
			fix:    func(t *testing.T, n *quorumlocktest.Node) { remark(t, n, " 61000", " 60000") },
			want:   "use a restart guard of 61000 ms, and this one uses 60000 ms",
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				opts := []quorumlock.Option{quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes()}
				m, err := quorumlock.New(background, c.Options(), append(opts, quorumlock.WithTTL(ttl))...)
				require.NoError(t, err)
				events := m.Subscribe(1000)
				l := acquire(t, m, "job")
				released := acquire(t, m, "released")
				changes(events)
				for _, node := range c.Nodes() {
					test.change(t, node)
				}
				time.Sleep(time.Minute)
				require.NoError(t, l.Err())
				assert.True(t, l.Valid())
				require.NoError(t, l.Verify(background))
				require.NoError(t, released.Release(background))
				synctest.Wait() // every node has run the releases
				assert.Zero(t, holders(t, c, "released"))
				now := changes(events)
				assert.Len(t, now, 3, "reported once for each node")
				for _, e := range now {
					assert.ErrorContains(t, e.Err, test.want)
				}

				began := time.Now()
				_, err = m.TryAcquire(background, "other")
				require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
				assert.ErrorContains(t, err, test.want)
				assert.Zero(t, time.Since(began), "at once")
				assert.Zero(t, holders(t, c, "other"), "the acquisition was not sent")
				status, err := m.Inspect(background, "job")
				require.NoError(t, err)
				assert.Equal(t, 3, status.Votes)
				for _, n := range status.Nodes {
					assert.ErrorContains(t, n.Warning, test.want)
				}
				_, err = quorumlock.New(background, c.Options(), opts...)
				require.ErrorIs(t, err, quorumlock.ErrInvalid)
				assert.ErrorContains(t, err, test.want)

				node := c.Nodes()[0]
				test.fix(t, node)
				time.Sleep(time.Second + timeout)
				now = changes(events)
				require.Len(t, now, 1)
				assert.Equal(t, node.Addr(), now[0].Addr)
				if test.after == "" {
					require.NoError(t, now[0].Err, "it votes again")
				} else {
					require.ErrorContains(t, now[0].Err, test.after)
					assert.InDelta(t, time.Minute, now[0].QuarantinedFor, float64(2*time.Second))
				}
				test.change(t, node)
				time.Sleep(checkup)

				require.NoError(t, m.Close(background))
				assert.Zero(t, holders(t, c, "job"), "Close waits for nodes that do not vote")
			})
		})
	}
}

// remark changes the text of a node's marker.
func remark(t *testing.T, n *quorumlocktest.Node, old, to string) {
	t.Helper()
	key := config.DefaultPrefix + "\xffg"
	marker, err := n.Do("GET", key)
	require.NoError(t, err)
	_, err = n.Do("SET", key, strings.Replace(marker.(string), old, to, 1))
	require.NoError(t, err)
}

// Close asks a busy node again, even if the node's votes are withheld.
func TestCloseWaitsForABusyNodeThatDoesNotVote(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, err := quorumlock.New(background, c.Options(),
			quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes())
		require.NoError(t, err)
		acquire(t, m, "job")
		node := c.Nodes()[0]
		node.SetInfo("maxmemory", "1000000")
		node.SetInfo("maxmemory_policy", "allkeys-lru")
		time.Sleep(checkup)
		// Only the release fails, so the connection is accepted.
		node.Fail(func(args []string) bool { return args[0] == "EVALSHA" && slices.Contains(args, "release") }, "BUSY a script runs")
		time.AfterFunc(220*time.Millisecond, func() { node.Fail(nil, "") })
		require.NoError(t, m.Close(background))
		assert.Zero(t, holders(t, c, "job"))
	})
}

// The answers of a node that does not vote still count, so its server must not be the
// server of a voting node.
func TestANodeThatDoesNotVoteKeepsItsIdentity(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		const data = "0123456789012345678901234567890123456789"
		one, other := c.Nodes()[0], c.Nodes()[2]
		one.SetInfo("master_replid", data)
		m := manager(t, c, quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes())
		events := m.Subscribe(100)
		one.SetInfo("maxmemory", "1000000")
		one.SetInfo("maxmemory_policy", "allkeys-lru")
		var now []quorumlock.NodeChanged
		for range 220 { // the client connects to it after 10 s at the latest, and from then on every second
			now = append(now, changes(events)...) // there may also be an event that the others vote
			if len(now) > 0 && now[len(now)-1].Node == 0 && now[len(now)-1].Err != nil {
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
		require.NotEmpty(t, now)
		require.Equal(t, 0, now[len(now)-1].Node)
		require.ErrorContains(t, now[len(now)-1].Err, "cannot see evictions")
		// Before the client connects to it again, another address leads to the same data.
		other.SetInfo("master_replid", data)
		other.Kill()
		other.Restart()
		time.Sleep(500 * time.Millisecond)
		now = changes(events)
		require.NotEmpty(t, now)
		assert.Equal(t, 2, now[len(now)-1].Node)
		assert.ErrorContains(t, now[len(now)-1].Err, "one is a replica of the other")
	})
}
