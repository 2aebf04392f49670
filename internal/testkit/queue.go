package testkit

import (
	"context"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Queueing returns a Manager that queues its callers: it has met contention.
func Queueing(t *testing.T, n int, opts ...quorumlock.Option) (*quorumlock.Manager, []*redistest.Server) {
	t.Helper()
	m, servers := Manager(t, n, opts...)
	Subscribe(t, m, servers)
	return m, servers
}

// QueueKey is the key of the waiters for a name.
func QueueKey(name string) string { return wire.QueueKey(Prefix + name) }

// Lazily returns an option with which waiters poll so seldom that only a wake-up lets
// them finish in time.
func Lazily() quorumlock.Option {
	return quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(30 * time.Second) })
}

// Subscribe makes a Manager meet contention once, and returns when all nodes can wake it.
func Subscribe(t *testing.T, m *quorumlock.Manager, servers []*redistest.Server) {
	t.Helper()
	for _, s := range servers {
		s.MustDo("SET", Prefix+"contended", "somebody else", "PX", "60000")
	}
	before := Subscribers(servers)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := m.Acquire(ctx, "contended")
		assert.ErrorIs(t, err, context.Canceled)
	}()
	Eventually(t, "it is subscribed", func() bool {
		for i, n := range Subscribers(servers) {
			if n <= before[i] {
				return false
			}
		}
		return true
	})
	cancel()
	<-done
}

// Subscribers returns how many Managers are subscribed on each server.
func Subscribers(servers []*redistest.Server) (n []int) {
	for _, s := range servers {
		n = append(n, len(WakeChannels(s)))
	}
	return n
}

// WakeChannels returns the channels on which the server can wake Managers.
func WakeChannels(s *redistest.Server) (channels []string) {
	list := "CHANNELS"
	if constructor == bySlot {
		list = "SHARDCHANNELS"
	}
	found, _ := s.MustDo("PUBSUB", list, wire.WakeChannel(Prefix, "*")).([]any)
	for _, channel := range found {
		channels = append(channels, channel.(string))
	}
	return channels
}

// Publish publishes a message on a channel of WakeChannels, and returns how many clients got it.
func Publish(s *redistest.Server, channel, message string) int64 {
	publish := "PUBLISH"
	if constructor == bySlot {
		publish = "SPUBLISH"
	}
	got, _ := s.MustDo(publish, channel, message).(int64)
	return got
}

// Queues returns the number of waiters for the job on each server.
func Queues(servers []*redistest.Server) (n []int64) {
	for _, s := range servers {
		waiting, _ := s.MustDo("ZCARD", QueueKey("job")).(int64)
		n = append(n, waiting)
	}
	return n
}

// Queued waits until every server has that number of waiters for the job. A waiter that a majority has refused
// withdraws its request to a server that has not got it yet (ADR 19), and queues there only at its next poll. So a
// majority is enough after 3,000 looks, one each ms.
func Queued(t *testing.T, servers []*redistest.Server, want int) {
	t.Helper()
	looks := 0
	if assert.Eventually(t, func() bool {
		missing := 0
		looks++
		for _, n := range Queues(servers) {
			if n != int64(want) {
				missing++
			}
		}
		return missing == 0 || want > 0 && missing <= (len(servers)-1)/2 && looks > 3000
	}, 20*time.Second, time.Millisecond) {
		return
	}
	t.Fatalf("the queues have %v waiters, want %d in each", Queues(servers), want)
}

// Crowd returns Managers that are subscribed on the servers. They poll seldom, unless the
// options say otherwise.
func Crowd(t *testing.T, servers []*redistest.Server, n int, opts ...quorumlock.Option) (all []*quorumlock.Manager) {
	t.Helper()
	for range n {
		m := Connect(t, redistest.Addrs(servers), append([]quorumlock.Option{Lazily()}, opts...)...)
		Subscribe(t, m, servers)
		all = append(all, m)
	}
	return all
}
