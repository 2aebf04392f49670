package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A caller finds the lock of its process, which has ended before the caller's queue is attached to it.
func TestALockThatIsOverGetsNoQueue(t *testing.T) {
	h := &hands{}
	r := idle(t, h)
	l, _ := r.open(hour(), nil)
	lose(t, h, l)
	r.mu.Lock()
	q := r.Queues.open(key)
	q.attach(l)
	q.mu.Unlock()
	r.mu.Unlock()
	p, _ := r.enter(hour())
	asks(t, p)
}

// The loss comes when the queue is already the owner of the lock, and has not recorded it yet.
func TestALockThatIsLostWhileItsQueueIsAttachedHoldsUpNoCaller(t *testing.T) {
	h := &hands{}
	r := idle(t, h)
	l, _ := r.open(hour(), nil)
	told := make(chan struct{})
	h.before(func() { // the first instant that a queue needs is its lock's
		h.move(2 * time.Hour)
		go func() {
			defer close(told)
			l.Tick()
		}()
		require.Eventually(t, l.Over, 5*time.Second, time.Millisecond)
		time.Sleep(10 * time.Millisecond) // time to tell a queue that does not have the lock yet
	})
	p := r.Enter(key, Waiting{Caller: &caller{}, Terms: hour()})
	<-told
	asks(t, p)
	assert.Nil(t, p.Obstacle().Lock)
}
