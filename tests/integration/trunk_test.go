package integration

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/testkit/clustercases"
)

// The buckets of a cluster share the connections to its masters.

// A client has one connection to a master for requests and one for wake-ups (two with RESP2), and one more if the
// master is a seed.
func TestAClientOfAClusterHasFewConnectionsToEachMaster(t *testing.T) {
	c := startCluster(t)
	for protocol, most := range map[string]int{"RESP3": 3, "RESP2": 4} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			if withoutHello && protocol == "RESP3" {
				t.Skip("the servers have no HELLO")
			}
			option := rueidis.ClientOption{InitAddress: c.Addrs()[:5], ClientName: protocol, AlwaysRESP2: protocol == "RESP2"}
			prefix := quorumlock.WithPrefix(protocol + ":")
			open := func() *quorumlock.Manager {
				m, err := quorumlock.NewCluster(background, option, prefix, quorumlock.WithTTL(clusterTTL), quorumlock.WithRestartGuard(clusterGuard), quorumlock.WithFailover(window))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, m.Close(background)) })
				return m
			}
			holder := open()
			var leases []*quorumlock.Lease
			for _, name := range clustercases.BucketNames("job/") {
				l, err := holder.Acquire(background, name)
				require.NoError(t, err)
				leases = append(leases, l)
			}
			option.ClientName = "counted" + protocol
			m := open()
			var pending sync.WaitGroup
			for _, l := range leases {
				pending.Go(func() {
					next, err := m.Acquire(background, l.Name())
					if assert.NoError(t, err) {
						assert.NoError(t, next.Release(background))
					}
				})
			}
			testkit.Eventually(t, "a waiter in each bucket", func() bool {
				waiting := 0
				for _, l := range leases {
					if s, err := holder.Inspect(background, l.Name()); err == nil && s.Waiters == 1 {
						waiting++
					}
				}
				return waiting == len(leases)
			})
			testkit.Eventually(t, "subscribed everywhere", func() bool { // for 16 buckets
				channels := 0
				for _, s := range c.Servers()[:3] {
					listed, _ := s.MustDo("PUBSUB", "SHARDCHANNELS").([]any)
					for _, channel := range listed {
						if strings.Contains(fmt.Sprint(channel), protocol) {
							channels++
						}
					}
				}
				return channels == len(leases)
			})
			counts := func() (all []int) {
				for _, s := range c.Servers() {
					list, _ := s.MustDo("CLIENT", "LIST").(string)
					all = append(all, strings.Count(list, " name="+option.ClientName+" "))
				}
				return all
			}
			testkit.Eventually(t, "the connections that compare servers have ended", func() bool {
				all := counts()
				return max(all[0], all[1], all[2]) == most && all[3] == 1 && all[4] == 1 && all[5] == 0
			})
			began := time.Now()
			for _, l := range leases {
				testkit.Released(t, l)
			}
			pending.Wait()
			assert.Less(t, time.Since(began), 2*time.Second, "the waiters are woken")
		})
	}
}

// An idle client has the buffers of its connections, and the state of 16 buckets. It is not parallel: the heap belongs to
// all tests that run.
func TestAnIdleClientOfAClusterHasASmallHeap(t *testing.T) {
	testkit.OnlyAddrs(t, "it has clusters of its own")
	c := redistest.StartCluster(t, redistest.ClusterOptions{})
	const clients, most = 4, 5 << 20
	before := heap()
	for range clients {
		openCluster(t, rueidis.ClientOption{InitAddress: c.Addrs()[:5], ClientName: "measured"})
	}
	for i, want := range []int{2, 2, 2, 1, 1, 0} { // of each client: for requests, and to each seed
		testkit.Eventually(t, "the connections that compare servers have ended", func() bool {
			list, _ := c.Servers()[i].MustDo("CLIENT", "LIST").(string)
			return strings.Count(list, " name=measured ") == clients*want
		})
	}
	each := (heap() - before) / clients
	t.Logf("%.2f MiB a client", float64(each)/(1<<20))
	assert.LessOrEqual(t, each, int64(most))
	assert.Greater(t, each, int64(most/20), "it measures nothing")
}

// load has callers that take and release names of all buckets, and leases that are held all the time.
type load struct {
	names    []string
	held     []*quorumlock.Lease
	inside   []atomic.Int32
	grants   []atomic.Int64
	overlaps atomic.Int64
	stop     chan struct{}
	callers  sync.WaitGroup
}

func startLoad(t *testing.T, managers ...*quorumlock.Manager) *load {
	l := &load{names: clustercases.BucketNames("job/"), inside: make([]atomic.Int32, 16), grants: make([]atomic.Int64, 16), stop: make(chan struct{})}
	for i, name := range l.names {
		held, err := managers[0].Acquire(background, "{"+name+"}held")
		require.NoError(t, err)
		l.held = append(l.held, held)
		for _, m := range managers {
			l.callers.Go(func() { l.call(m, i) })
		}
	}
	return l
}

func (l *load) call(m *quorumlock.Manager, i int) {
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		lease, err := m.TryAcquire(background, l.names[i])
		if err != nil {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		if l.inside[i].Add(1) > 1 {
			l.overlaps.Add(1)
		}
		l.grants[i].Add(1)
		time.Sleep(time.Millisecond)
		l.inside[i].Add(-1)
		_ = lease.Release(background)
	}
}

// If an answer is lost, what its request has locked is released, and each bucket continues.
func TestASharedConnectionEndsUnderLoad(t *testing.T) {
	for fault, strike := range map[string]func(*redistest.Server){
		"the connections are killed": func(s *redistest.Server) {
			for range 20 {
				s.MustDo("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
				time.Sleep(100 * time.Millisecond)
			}
		},
		"the server stands still": func(s *redistest.Server) {
			s.Stop()
			time.Sleep(1700 * time.Millisecond) // longer than an answer may take, and no failover
			s.Continue()
		},
	} {
		t.Run(fault, func(t *testing.T) {
			c := startCluster(t)
			m, other := openCluster(t, rueidis.ClientOption{InitAddress: c.Addrs()[:5]}), openCluster(t, rueidis.ClientOption{InitAddress: c.Addrs()[:5]})
			testkit.Eventually(t, "the first quarantine ends", func() bool {
				for _, n := range append(m.Nodes(), other.Nodes()...) {
					if !n.Voting {
						return false
					}
				}
				return true
			})
			l := startLoad(t, m, other)
			time.Sleep(500 * time.Millisecond)
			strike(c.Servers()[0])
			before := make([]int64, len(l.grants))
			for i := range l.grants {
				before[i] = l.grants[i].Load()
			}
			testkit.Eventually(t, "each bucket goes on", func() bool {
				for i := range l.grants {
					if l.grants[i].Load() < before[i]+10 {
						return false
					}
				}
				return true
			})
			close(l.stop)
			l.callers.Wait()
			assert.Zero(t, l.overlaps.Load())
			for _, held := range l.held {
				require.NoError(t, held.Err(), "%s is held all the time", held.Name())
				testkit.Released(t, held)
			}
			began := time.Now()
			testkit.Eventually(t, "no lock is left", func() bool {
				for _, s := range c.Servers()[:3] {
					if keys, _ := s.MustDo("KEYS", "{ql??}quorumlock:*job/*").([]any); len(keys) > 0 {
						return false
					}
				}
				return true
			})
			assert.Less(t, time.Since(began), clusterTTL/2, "released, and not left to their TTL")
		})
	}
}
