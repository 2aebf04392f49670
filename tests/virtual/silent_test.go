package virtual

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// outages make the last node silent, and end that.
var outages = map[string]struct{ begin, end func(*quorumlocktest.Node) }{
	"hung":   {(*quorumlocktest.Node).Hang, (*quorumlocktest.Node).Resume},
	"killed": {(*quorumlocktest.Node).Kill, (*quorumlocktest.Node).Restart},
	"cut":    {(*quorumlocktest.Node).Cut, (*quorumlocktest.Node).Heal},
}

// A node that does not answer costs its timeout once. Later calls do not wait for it, while batches and attempts to
// connect to it continue and fail. When it answers, it takes part again.
func TestASilentNodeCostsItsTimeoutOnce(t *testing.T) {
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m := manager(t, c)
				inspect := func() (quorumlock.Status, time.Duration) {
					began := time.Now()
					s, err := m.Inspect(background, "job")
					require.NoError(t, err)
					return s, time.Since(began)
				}
				outage.begin(c.Nodes()[2])
				_, took := inspect()
				assert.LessOrEqual(t, took, timeout)
				time.Sleep(timeout - took)
				for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(7 * time.Millisecond) {
					s, took := inspect()
					require.Zero(t, took)
					require.ErrorContains(t, s.Nodes[2].Err, "no answer for ")
				}
				outage.end(c.Nodes()[2])
				time.Sleep(time.Second)
				s, _ := inspect()
				assert.NoError(t, s.Nodes[2].Err)
				acquire(t, m, "job")
				assert.Equal(t, 3, holders(t, c, "job"))
			})
		})
	}
}

// One node grants an attempt, one refuses it and one does not answer. The outcome is clear once the third node is known
// to be silent. Any lock of the attempt is released.
func TestAContendedCallDoesNotWaitForASilentNode(t *testing.T) {
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m := manager(t, c)
				outage.begin(c.Nodes()[2])
				time.Sleep(2 * time.Second)
				scatter(t, c.Nodes()[1], smallest, "20")
				began := time.Now()
				_, err := m.TryAcquire(background, "job")
				require.ErrorIs(t, err, quorumlock.ErrHeld)
				assert.Zero(t, time.Since(began))
				l, err := m.Acquire(background, "job")
				require.NoError(t, err)
				assert.Less(t, time.Since(began), 100*time.Millisecond, "the key in the way ends after 20 ms")
				require.NoError(t, l.Release(background))
				outage.end(c.Nodes()[2])
				time.Sleep(2 * time.Second)
				assert.Zero(t, holders(t, c, "job"))
			})
		})
	}
}

// If most nodes seem silent, the cause may be this process or its network. Then all nodes are asked, because their
// answers may come at any moment.
func TestAMajorityThatIsSilentIsAsked(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		c.Hang(1, 2)
		began := time.Now()
		_, err := m.Inspect(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.Equal(t, timeout, time.Since(began))
		time.AfterFunc(timeout/2, func() { c.Resume(1, 2) })
		_, err = m.Inspect(background, "job")
		require.NoError(t, err)
		assert.Equal(t, timeout*3/2, time.Since(began))
	})
}

// Every host asks once, at one instant. One of them gets the lock, whatever the distances and whether the silence of a
// node is known yet.
func TestOneOfThoseWhoAskTogetherGetsTheLock(t *testing.T) {
	for name, outage := range outages {
		for _, known := range []time.Duration{0, 2 * time.Second} {
			t.Run(fmt.Sprint(name, " for ", known), func(t *testing.T) {
				run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
					var hosts []*quorumlock.Manager
					for i := range c.Nodes() {
						c.Nodes()[i].Delay(time.Duration(i) * 3 * time.Millisecond)
					}
					for i := range 4 {
						hosts = append(hosts, managerFor(t, c, fmt.Sprint("host-", i)))
					}
					for round := range 25 {
						outage.begin(c.Nodes()[2])
						time.Sleep(known)
						assert.Equal(t, 1, together(t, hosts, fmt.Sprint("job-", round)))
						outage.end(c.Nodes()[2])
						time.Sleep(2 * time.Second)
						synctest.Wait()
					}
				})
			})
		}
	}
}

// together has all hosts ask for a name, and returns how many got it.
func together(t *testing.T, hosts []*quorumlock.Manager, name string) (granted int) {
	t.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, m := range hosts {
		all.Go(func() {
			l, err := m.TryAcquire(background, name, quorumlock.WithMinHold(time.Second))
			if err != nil {
				assert.ErrorIs(t, err, quorumlock.ErrHeld)
				return
			}
			mu.Lock()
			granted++
			mu.Unlock()
			assert.NoError(t, l.Release(context.WithoutCancel(background)))
		})
	}
	all.Wait()
	return granted
}
