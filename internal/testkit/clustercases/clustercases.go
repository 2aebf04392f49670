// Package clustercases holds the cases that every Redis Cluster passes, the one of the test kit and a real one.
package clustercases

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/master"
)

// Cluster is a Redis Cluster under test, real or in-process: three masters with a third of the slots each, and a
// replica for each.
type Cluster struct {
	Option  rueidis.ClientOption                // with five seeds
	Masters []func(args ...string) (any, error) // each runs a command on one of the three
	OwnerOf func(name string) (master int)      // of the bucket of a name
	Move    func(name string, to int)           // moves its slot
	Replace func(name string)                   // makes the replica of its owner the master
}

const (
	clusterTTL    = 8 * time.Second // longer than a failover takes
	clusterWindow = 2 * time.Second
)

func (c Cluster) open(t *testing.T) *quorumlock.Manager {
	t.Helper()
	m, err := quorumlock.NewCluster(context.Background(), c.Option, quorumlock.WithTTL(clusterTTL), quorumlock.WithRestartGuard(clusterTTL+clusterWindow), quorumlock.WithFailover(clusterWindow))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close(context.Background())) })
	require.Len(t, m.Nodes(), master.Buckets)
	return m
}

// voting waits until all buckets grant leases.
func voting(t *testing.T, m *quorumlock.Manager) {
	t.Helper()
	eventually(t, "all buckets vote", func() bool {
		for _, n := range m.Nodes() {
			if !n.Voting {
				return false
			}
		}
		return true
	})
	require.NoError(t, m.Ready())
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, time.Minute, 5*time.Millisecond, what)
}

// released releases a lease. A slow server may confirm it later.
func released(t *testing.T, l *quorumlock.Lease) {
	t.Helper()
	if err := l.Release(context.Background()); !errors.Is(err, quorumlock.ErrNoQuorum) {
		require.NoError(t, err)
	}
}

// waited waits until a caller waits for a name.
func waited(t *testing.T, m *quorumlock.Manager, name string) {
	t.Helper()
	eventually(t, "a caller waits for "+name, func() bool {
		s, err := m.Inspect(context.Background(), name)
		return err == nil && s.Waiters == 1
	})
}

// Use uses a cluster like a list of nodes.
func Use(t *testing.T, c Cluster) {
	m, other := c.open(t), c.open(t)
	voting(t, m)
	voting(t, other)

	leases := c.spread(t, m, other)
	c.queue(t, m, other, leases[:40])
	for _, l := range leases[40:] {
		released(t, l)
	}
	useKinds(t, m, other)
	layers(t, m, other)
}

// spread acquires leases in all buckets.
func (c Cluster) spread(t *testing.T, m, other *quorumlock.Manager) []*quorumlock.Lease {
	ctx := context.Background()
	const names = 160
	leases := make([]*quorumlock.Lease, names)
	for i := range leases {
		var err error
		leases[i], err = m.Acquire(ctx, fmt.Sprint("job/", i))
		require.NoError(t, err)
		_, err = other.TryAcquire(ctx, leases[i].Name())
		require.ErrorIs(t, err, quorumlock.ErrHeld)
	}
	keys := 0
	for i, found := range c.lists(t, "KEYS", "{ql??}quorumlock:job/*") {
		assert.Greater(t, len(found), names/6, "master %d has its share", i)
		keys += len(found)
	}
	assert.Equal(t, names, keys)
	assert.Len(t, m.Leases(), names)
	found := map[string]bool{}
	for s, err := range other.List(ctx, "job/") {
		require.NoError(t, err)
		assert.True(t, s.Held)
		found[s.Name] = true
	}
	assert.Len(t, found, names)
	return leases
}

// lists returns the answers of the masters to a command that answers with a list.
func (c Cluster) lists(t *testing.T, command ...string) (all [][]any) {
	t.Helper()
	for _, do := range c.Masters {
		v, err := do(command...)
		require.NoError(t, err)
		list, _ := v.([]any)
		all = append(all, list)
	}
	return all
}

// queue makes callers wait for leases, and releases the leases.
func (c Cluster) queue(t *testing.T, m, other *quorumlock.Manager, leases []*quorumlock.Lease) {
	ctx := context.Background()
	var pending sync.WaitGroup
	for _, l := range leases {
		pending.Go(func() {
			next, err := other.Acquire(ctx, l.Name())
			if assert.NoError(t, err) {
				assert.Greater(t, next.Token(), l.Token())
				assert.NoError(t, next.Release(ctx))
			}
		})
	}
	buckets := map[int]bool{}
	for _, l := range leases {
		waited(t, m, l.Name())
		buckets[master.Bucket(l.Name())] = true
	}
	channels := 0
	for _, list := range c.lists(t, "PUBSUB", "SHARDCHANNELS") {
		channels += len(list)
	}
	assert.Equal(t, len(buckets), channels, "one for each bucket that has waiters")
	for _, l := range leases {
		released(t, l)
	}
	pending.Wait()
}

// useKinds uses several names, a handle and permits.
func useKinds(t *testing.T, m, other *quorumlock.Manager) {
	ctx := context.Background()
	_, err := m.AcquireAll(ctx, []string{"a", "b"})
	require.ErrorIs(t, err, quorumlock.ErrInvalid)
	require.ErrorContains(t, err, `names "a", "b": are in different buckets of the cluster, 15 and 3; give them one {tag}`)
	several, err := m.AcquireAll(ctx, []string{"{x}a", "{x}b"})
	require.NoError(t, err)
	require.NoError(t, several.Release(ctx))

	l, err := m.Acquire(ctx, "detached")
	require.NoError(t, err)
	handle, err := l.Detach(ctx, clusterTTL)
	require.NoError(t, err)
	l, err = other.Resume(ctx, handle)
	require.NoError(t, err)
	released(t, l)
	var permits []*quorumlock.Lease
	for range 3 {
		l, err := m.Acquire(ctx, "slots", quorumlock.Permits(3))
		require.NoError(t, err)
		permits = append(permits, l)
	}
	_, err = other.TryAcquire(ctx, "slots", quorumlock.Permits(3))
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	for _, l := range permits {
		released(t, l)
	}
}

// Change gives the bucket of a name to another master: by a move of its slot, and by a failover. The lease and its
// queue continue, the bucket grants nothing for the time of the guard, and buckets of other masters are not affected.
func Change(t *testing.T, c Cluster) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	m, other, ticks := c.open(t), c.open(t), clock.New()
	voting(t, m)
	for what, change := range map[string]func(name string, elsewhere int){"a move": c.Move, "a failover": func(name string, _ int) { c.Replace(name) }} {
		const name = "job"
		before := c.OwnerOf(name)
		elsewhere, far := (before+1)%3, ""
		for i := 0; far == ""; i++ { // a name of a master that takes no part
			if owner := c.OwnerOf(strconv.Itoa(i)); owner != before && owner != elsewhere {
				far = strconv.Itoa(i)
			}
		}
		l, err := m.Acquire(ctx, name)
		require.NoError(t, err, what)
		waiting := make(chan *quorumlock.Lease, 1)
		go func() {
			next, err := other.Acquire(ctx, name)
			assert.NoError(t, err, what)
			waiting <- next
		}()
		waited(t, m, name)
		change(name, elsewhere)
		changed := ticks.Steady()
		require.NotEqual(t, before, c.OwnerOf(name), what)
		bucket := master.Bucket(name)
		eventually(t, what+": the client follows", func() bool { return m.Nodes()[bucket].QuarantinedFor > 0 })
		untouched, err := m.Acquire(ctx, far)
		require.NoError(t, err, what)
		released(t, untouched)
		require.NoError(t, l.Renew(ctx), what)
		require.NoError(t, l.Err(), what)
		released(t, l)
		next := <-waiting
		require.NotNil(t, next, what)
		assert.Greater(t, next.Token(), l.Token(), what)
		assert.Greater(t, ticks.Steady().Sub(changed), clusterTTL, what)
		released(t, next)
		voting(t, m)
		voting(t, other)
	}
}
