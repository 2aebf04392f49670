package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// The node's clock separates the time that an answer lay here unread from the time that the node took.
func TestLateIsWhatLayUnreadHere(t *testing.T) {
	const epoch = 30 * 365 * 24 * time.Hour
	m, now := newMeter(0.01), clock.Steady(time.Hour)
	ask := func(node, here time.Duration) time.Duration {
		sent := now
		ran := sent.Add(node)
		now = ran.Add(here)
		m.observe((epoch + time.Duration(ran)).Microseconds(), sent, now, func(clock.Step) {})
		now = now.Add(time.Second)
		return m.recent(now)
	}
	assert.Zero(t, ask(time.Millisecond, time.Millisecond))
	assert.Less(t, ask(700*time.Millisecond, time.Millisecond), 5*time.Millisecond, "the node was slow")
	assert.InDelta(t, 700*time.Millisecond, ask(time.Millisecond, 700*time.Millisecond), float64(5*time.Millisecond))
	now = now.Add(4 * time.Second)
	assert.Greater(t, ask(time.Millisecond, time.Millisecond), 600*time.Millisecond, "it is remembered for 5 s at least")
	now = now.Add(10 * time.Second)
	assert.Less(t, ask(time.Millisecond, time.Millisecond), 5*time.Millisecond, "and for 10 s at most")
}

// No two of sixteen nodes are greeted at the same time, no two of five within a second, and each node every ten
// seconds. The buckets of a cluster are lists of one node.
func TestNodesAreGreetedApart(t *testing.T) {
	var seen []clock.Steady
	for i := range 16 {
		l := link{cfg: &Config{First: i - i/5, Index: i / 5}, now: clock.Steady(time.Hour + 7*time.Millisecond)}
		first := l.nextCheck()
		assert.LessOrEqual(t, first.Sub(l.now), checkEvery)
		assert.Greater(t, first, l.now)
		l.now = first.Add(300 * time.Millisecond) // the greeting takes its time
		assert.Equal(t, first.Add(checkEvery), l.nextCheck())
		l.now, l.alongAt, l.checkAt = first.Add(-checkAhead), first.Add(-checkAhead), first // the check went along with a renewal
		assert.Equal(t, first.Add(checkEvery), l.nextCheck())
		l.now-- // it was another connection
		assert.Equal(t, first, l.nextCheck())
		for j, other := range seen {
			least := checkEvery / 16
			if i < 5 && j < 5 {
				least = time.Second
			}
			assert.GreaterOrEqual(t, max(first.Sub(other), other.Sub(first)), least, "%d and %d", i, j)
		}
		seen = append(seen, first)
	}
}

// The answer to a PING would be read late, and a renewal would wait for it.
func TestAProcessThatReadsLateTestsIdleConnectionsLater(t *testing.T) {
	l := link{now: clock.Steady(time.Hour)}
	l.meter.lateSince = l.now
	assert.Equal(t, l.now.Add(keepAlive), l.testAt(0))
	assert.Equal(t, l.now, l.renewed)
	assert.Equal(t, l.now.Add(keepAlive), l.testAt(renewalTests), "a look at the socket")
	assert.Equal(t, l.now.Add(keepAlive+renewalTests), l.renewed, "the PING: the next renewal tests as well")
	l.testAt(renewalTests + 1)
	assert.Equal(t, l.now.Add(keepAlive+time.Second), l.renewed, "the renewal is far away")
	l.meter.worst = 300 * time.Millisecond
	assert.Equal(t, l.now.Add(keepAlive+600*time.Millisecond), l.testAt(0))
	l.meter.worst = time.Hour
	assert.Equal(t, l.now.Add(keepAlive+2*greetMax), l.testAt(0))
}
