package virtual

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// One address that leads to several servers.

// balanced returns the options of all nodes but the last one. pick decides for each connection to the first node
// whether it leads to the last one instead.
func balanced(c *quorumlocktest.Cluster, pick func() bool) []rueidis.ClientOption {
	options := c.Options()
	first, last := options[0].DialCtxFn, options[len(options)-1].DialCtxFn
	options[0].DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
		if pick() {
			return last(ctx, addr, d, secure)
		}
		return first(ctx, addr, d, secure)
	}
	return options[:len(options)-1]
}

// noticed reports whether a client has found that the first address leads to several servers.
func noticed(m *quorumlock.Manager) bool {
	err := m.Nodes()[0].Err
	return err != nil && strings.Contains(err.Error(), "this address leads to several servers")
}

// A balancer that chooses at random may send the first connections of a client to one server. Once a comparison shows
// two servers, no vote of the address counts.
func TestABalancerThatChoosesAtRandomIsNoticed(t *testing.T) {
	const long = 60 * time.Second
	rounds := testkit.Count(12, 4)
	clients, atOnce, unnoticed := 0, 0, 0
	for _, nodes := range []int{1, 3} {
		for _, guard := range [][]quorumlock.Option{nil, {quorumlock.WithRestartGuard(15 * time.Second), quorumlock.WithTrustEmptyNodes()}} {
			for seed := range uint64(rounds) {
				rng := rand.New(rand.NewPCG(seed, uint64(nodes)))
				run(t, nodes+1, func(t *testing.T, c *quorumlocktest.Cluster) {
					behind := []*quorumlocktest.Node{c.Nodes()[0], c.Nodes()[nodes]}
					m, err := quorumlock.New(background, balanced(c, func() bool { return rng.IntN(2) == 0 }), guard...)
					clients++
					if err != nil {
						require.ErrorContains(t, err, "this address leads to several servers")
						atOnce++
						return
					}
					defer func() { require.NoError(t, m.Close(background)) }()
					if noticed(m) {
						atOnce++
					}
					for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Second) {
						before := noticed(m)
						l, err := m.TryAcquire(background, "job")
						synctest.Wait()
						votes := 0
						for _, node := range behind {
							if do(t, node, "EXISTS", config.DefaultPrefix+"job") == int64(1) {
								votes++
							}
						}
						switch {
						case before && nodes == 1:
							require.Error(t, err)
							fallthrough
						case before:
							require.Zero(t, votes, "a vote of an address that leads to several servers")
						}
						if err == nil {
							require.NoError(t, l.Release(background))
						}
					}
					if !noticed(m) {
						unnoticed++
					}
				})
			}
		}
	}
	t.Logf("%d clients: %d noticed two servers before their first vote, %d not within %v", clients, atOnce, unnoticed, long)
	assert.Greater(t, atOnce, clients/6, "one of two, if the two servers get as many connections")
	assert.LessOrEqual(t, unnoticed, clients/10, "one of 128")
}

// A new connection delays the renewals behind it by a dial and two round trips only if it has reached another process
// than the last one: otherwise the two are compared.
func TestANewConnectionToTheSameProcessIsComparedWithTheLast(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		options := c.Options()
		dial := options[0].DialCtxFn
		var first atomic.Pointer[net.Conn]
		var dials atomic.Int64
		options[0].DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
			conn, err := dial(ctx, addr, d, secure)
			if err == nil {
				dials.Add(1)
				first.CompareAndSwap(nil, &conn)
			}
			return conn, err
		}
		m, err := quorumlock.New(background, options)
		require.NoError(t, err)
		defer func() { require.NoError(t, m.Close(background)) }()
		grant := func() {
			require.NoError(t, acquire(t, m, "job").Release(background))
			synctest.Wait()
		}
		grant()
		require.EqualValues(t, 2, dials.Load(), "the first one is compared with a second one")
		require.NoError(t, (*first.Load()).Close())
		grant()
		require.EqualValues(t, 3, dials.Load())
		time.Sleep(20 * time.Second)
		synctest.Wait()
		before := dials.Load()
		require.Greater(t, before, int64(3), "each check compares it with another one")
		c.Kill()
		c.Restart()
		grant()
		require.Equal(t, before+2, dials.Load(), "another process")
	})
}

// Wake-ups have a separate connection. If it has reached another server, the client notices that when it subscribes.
func TestTheConnectionOfTheWakeUpsIsCompared(t *testing.T) {
	run(t, 2, func(t *testing.T, c *quorumlocktest.Cluster) {
		other := false
		m, err := quorumlock.New(background, balanced(c, func() bool { return other }))
		require.NoError(t, err)
		defer func() { require.NoError(t, m.Close(background)) }()
		l := acquire(t, m, "job")
		other = true
		ctx, cancel := context.WithTimeout(background, 2*time.Second)
		defer cancel()
		_, err = m.Acquire(ctx, "job")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.True(t, noticed(m), "it has subscribed: %v", m.Nodes()[0].Err)
		_ = l.Release(background)
	})
}

// The address leads to another server from now on, while the previous one still runs: established connections stay with
// the old one. A client follows within two checks, so under the guard no other client is granted its lock.
func TestAnAddressThatMovesToAnotherServerIsFollowed(t *testing.T) {
	run(t, 2, func(t *testing.T, c *quorumlocktest.Cluster) {
		moved := false
		options := balanced(c, func() bool { return moved })
		opts := []quorumlock.Option{quorumlock.WithTTL(ttl), quorumlock.WithRestartGuard(30 * time.Second)}
		start := func() *quorumlock.Manager {
			m, err := quorumlock.New(background, options, opts...)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Close(background)) })
			return m
		}
		m := start()
		l := acquire(t, m, "job")
		moved = true
		other := start()
		for begun := time.Now(); ; time.Sleep(100 * time.Millisecond) {
			next, err := other.TryAcquire(background, "job")
			if err == nil {
				require.False(t, l.Valid(), "two leases are valid %v after the move", time.Since(begun))
				require.NoError(t, next.Release(background))
				break
			}
			require.True(t, errors.Is(err, quorumlock.ErrNoQuorum) || errors.Is(err, quorumlock.ErrHeld), fmt.Sprint(err))
			if time.Since(begun) > 2*time.Minute {
				require.True(t, l.Valid())
				require.NoError(t, l.Release(background), "the lease has moved along")
				break
			}
		}
		require.NoError(t, m.Ready(), "the new server votes")
	})
}

// info returns a field of INFO.
func info(t *testing.T, n *quorumlocktest.Node, key string) string {
	t.Helper()
	_, rest, _ := strings.Cut(do(t, n, "INFO").(string), "\n"+key+":")
	value, _, _ := strings.Cut(rest, "\r")
	return value
}

// group is a master and its replica behind one address.
type group struct {
	master atomic.Pointer[quorumlocktest.Node] // connections read it
	data   string                              // master_replid
	terms  int
}

// promote makes a replica the master. The old master reports the same data and role as a Redis server would.
func (g *group) promote(next *quorumlocktest.Node) {
	old, data := g.master.Load(), fmt.Sprintf("%040d", g.terms+1)
	next.SetInfo("master_replid2", g.data)
	g.data, g.terms = data, g.terms+1
	g.master.Store(next)
	for _, n := range []*quorumlocktest.Node{next, old} {
		n.SetInfo("master_replid", data)
	}
	next.SetRole("master")
	next.Fail(nil, "")
	old.SetRole("slave")
	old.Fail(func(cmd []string) bool { return cmd[0] == "EVALSHA" }, "READONLY You can't write against a read only replica.")
}

// A failover to a replica and back leads the address to the first process again, as a balancer would. The data tells
// the two cases apart.
func TestAFailbackBehindOneAddressIsNoBalancer(t *testing.T) {
	const period = 10 * time.Second // of the comparisons
	for phase := time.Duration(0); phase < period; phase += period / 20 {
		run(t, 2, func(t *testing.T, c *quorumlocktest.Cluster) {
			g := &group{}
			g.master.Store(c.Nodes()[0])
			c.Nodes()[1].SetRole("slave")
			g.data = info(t, c.Nodes()[0], "master_replid")
			m, err := quorumlock.New(background, balanced(c, func() bool { return g.master.Load() == c.Nodes()[1] }))
			require.NoError(t, err)
			defer func() { require.NoError(t, m.Close(background)) }()
			time.Sleep(phase)
			for i := range 6 { // there and back
				g.promote(c.Nodes()[1-i%2])
				began := time.Now()
				for {
					l, err := m.TryAcquire(background, "job")
					require.False(t, noticed(m), "failover %d, phase %v", i, phase)
					if err == nil {
						require.NoError(t, l.Release(background))
						break
					}
					time.Sleep(50 * time.Millisecond)
				}
				require.LessOrEqual(t, time.Since(began), time.Second, "failover %d, phase %v", i, phase)
				time.Sleep(11*time.Second + phase)
				require.False(t, noticed(m), "failover %d, phase %v", i, phase)
			}
		})
	}
}

// Two masters are behind one address. One was a replica of the other until it was promoted in a failover that the old
// master has survived.
func TestAMasterAndItsFormerReplicaBehindABalancerAreNoticed(t *testing.T) {
	for first := range 2 {
		run(t, 2, func(t *testing.T, c *quorumlocktest.Cluster) {
			c.Nodes()[1].SetInfo("master_replid2", info(t, c.Nodes()[0], "master_replid"))
			turn := first
			_, err := quorumlock.New(background, balanced(c, func() bool { turn++; return turn%2 == 0 }))
			require.ErrorContains(t, err, "this address leads to several servers")
		})
	}
}
