package virtual

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// A client that is far from the nodes holds the lock for two round trips or more at each turn. If near clients that are
// always ready took turns with it, they would get almost nothing. So each process has a share of the time, whatever its
// distance.

const near = 3 // processes

// join makes the Manager of another process.
type join func(*testing.T, *quorumlocktest.Cluster) *quorumlock.Manager

// among returns how often the near processes together, and the other process, get the lock in d. Each holds it for a
// while.
func among(t *testing.T, d, hold time.Duration, nearOnes bool, other join) (nearGrants, otherGrants int) {
	t.Helper()
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		w := newCrowd(t, c)
		w.hold, w.slow = hold, true
		if nearOnes {
			for range near {
				w.join(manager(t, c), 1)
			}
		}
		if other != nil {
			w.join(other(t, c), 1)
		}
		w.run(d)
		for i, caller := range w.callers {
			if nearOnes && i < near {
				nearGrants += caller.grants
			} else {
				otherGrants += caller.grants
			}
		}
	})
	return nearGrants, otherGrants
}

// shares checks that the near processes get at least a part of what they get alone. The other one must get at least a
// part of its share of the time, and hardly more than its share.
func shares(t *testing.T, d, hold time.Duration, leastPart, leastShare float64, other join) {
	t.Helper()
	alone, _ := among(t, d, hold, true, nil)
	_, otherAlone := among(t, d, hold, false, other)
	together, otherAmong := among(t, d, hold, true, other)
	part, share := float64(together)/float64(alone), float64(otherAmong)*(near+1)/float64(otherAlone)
	t.Logf("near ones %d alone, %d beside it: %.2f; the other one %d alone, %d among them: %.2f of its share", alone, together, part, otherAlone, otherAmong, share)
	assert.GreaterOrEqual(t, part, leastPart, "what the near ones get of what they get alone")
	assert.GreaterOrEqual(t, share, leastShare, "what the other one gets of its share of the time")
	assert.LessOrEqual(t, share, 1.2, "the same")
}

func TestAFarClientHasItsShareOfTheTimeAndTheNearOnesHaveTheirs(t *testing.T) {
	trips := []time.Duration{250, 50, 400}
	for _, trip := range trips[:testkit.Count(len(trips), 1)] {
		trip *= time.Millisecond
		t.Run(fmt.Sprint(trip), func(t *testing.T) {
			shares(t, 40*trip, 25*time.Millisecond, .6, .5, func(t *testing.T, c *quorumlocktest.Cluster) *quorumlock.Manager {
				c.Distance("far", trip/2)
				return managerFor(t, c, "far")
			})
		})
	}
}

// A connection carries one batch at a time, so a request may be answered after two round trips.
// (With a node timeout of 500 ms such an attempt failed, and the far client got nothing.)
func TestARequestOfAFarClientMayWaitForTheOneBeforeIt(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		c.Distance("far", 200*time.Millisecond)
		m := managerFor(t, c, "far")
		l, err := m.TryAcquire(background, "first")
		require.NoError(t, err)
		go func() { _ = l.Release(background) }()
		time.Sleep(time.Millisecond)
		began := time.Now()
		second, err := m.TryAcquire(background, "second")
		require.NoError(t, err)
		assert.Greater(t, time.Since(began), 700*time.Millisecond, "it has waited for the release")
		require.NoError(t, second.Release(background))
	})
}

// Its CPU is throttled, as in a container: it runs for 20 ms of each 100 ms. It comes too late for a reservation of 20
// ms, and learns how long it needs. (Without that, the others got 0.36 of what they get alone. The battery has the
// figures of real processes.)
func TestAThrottledClientHasItsShareOfTheTimeAndTheOthersHaveTheirs(t *testing.T) {
	testkit.OnlyNightly(t, "it computes for long, and the battery has such a client on servers")
	shares(t, 16*time.Second, 10*time.Millisecond, .6, .5, func(t *testing.T, c *quorumlocktest.Cluster) *quorumlock.Manager {
		options := c.OptionsFor("throttled")
		for i := range options {
			options[i].DialCtxFn = throttled(options[i].DialCtxFn, 100*time.Millisecond)
		}
		m, err := quorumlock.New(background, options, quorumlock.WithTTL(ttl))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close(background)) })
		return m
	})
}

// throttledConn reads only while its process runs.
type throttledConn struct {
	net.Conn
	period time.Duration
}

func (c throttledConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if in := time.Duration(time.Now().UnixNano()) % c.period; in >= 20*time.Millisecond {
		time.Sleep(c.period - in)
	}
	return n, err
}

type dial = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error)

func throttled(inner dial, period time.Duration) dial {
	return func(ctx context.Context, addr string, d *net.Dialer, secure *tls.Config) (net.Conn, error) {
		conn, err := inner(ctx, addr, d, secure)
		if err != nil {
			return nil, err
		}
		return throttledConn{conn, period}, nil
	}
}
