package node_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// listener is a node that records its wake-ups and the changes of its health.
type listener struct {
	*node.Node
	t          *testing.T
	now        func() time.Duration
	subscribed chan struct{}
	wakes      chan string
	health     chan node.Health
}

func listen(t *testing.T, option rueidis.ClientOption) *listener {
	t.Helper()
	l := &listener{t: t, subscribed: make(chan struct{}, 64), wakes: make(chan string, 64), health: make(chan node.Health, 64)}
	l.Node, l.now = run(t, node.Config{
		Option: option, Manager: subscriberManager, Cap: time.Second,
		OnWake: func(_ int, kind wire.WakeKind, ticket, lock string) {
			l.wakes <- string(rune(kind)) + " " + ticket + " " + lock
		},
		OnSubscribed: func(int) { l.subscribed <- struct{}{} },
		OnHealth:     func(_ int, h node.Health) { l.health <- h },
	})
	require.NoError(t, (<-l.health).Err)
	return l
}

// within receives a value before the worker's next regular greeting is due.
func within[T any](t *testing.T, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(8 * time.Second):
		require.Fail(t, what)
	}
	return v
}

// queues reports whether a waiter for a taken lock is queued.
func (l *listener) queues() bool {
	l.t.Helper()
	answer := make(answers, 1)
	require.True(l.t, l.Post(acquisition("p:job", ownerB, l.now()+10*time.Second, func(a *wire.Acquisition) {
		a.Ticket, a.EnqueuedAt = ticketOf("000000000000000150"), "1700000000000000"
	}), answer))
	got := answer.Next(l.t)
	require.Equal(l.t, wire.Taken, got.Status, "%v", got.Err)
	return got.Position >= 0
}

// eachProtocol runs a test with the server's default protocol, RESP3 if it can, and with
// RESP2.
func eachProtocol(t *testing.T, test func(t *testing.T, option rueidis.ClientOption)) {
	for name, resp2 := range map[string]bool{"by default": false, "RESP2": true} {
		t.Run(name, func(t *testing.T) { test(t, rueidis.ClientOption{AlwaysRESP2: resp2}) })
	}
}

// A node sends wake-ups again after every break, and the break does not touch the
// worker's connection.
func TestTheSubscriberComesBack(t *testing.T) {
	eachProtocol(t, func(t *testing.T, option rueidis.ClientOption) {
		server := redistest.Start(t, 1)[0]
		server.MustDo("SET", "p:job", "somebody")
		option.InitAddress = []string{server.Addr()}
		l := listen(t, option)
		assert.False(t, l.queues(), "Subscribe was not called")
		l.Subscribe()
		l.Subscribe() // is safe to call again
		within(t, "it subscribes", l.subscribed)
		require.True(t, l.queues())
		for range 3 {
			assert.EqualValues(t, 1, server.MustDo("CLIENT", "KILL", "TYPE", "pubsub"), "one connection is subscribed")
			within(t, "it subscribes again", l.subscribed)
			require.True(t, l.queues())
			ticket := ticketOf("0000000000000001")
			assert.EqualValues(t, 1, server.MustDo("PUBLISH", wire.WakeChannel("p:", subscriberManager), "r"+ticket+"p:job"))
			assert.Equal(t, "r "+ticket+" p:job", within(t, "it is woken", l.wakes))
		}
		assert.Empty(t, l.health, "the node's health has not changed")
		assert.Empty(t, l.subscribed, "once for each connection")
		server.Restart()
		within(t, "it subscribes to the next process", l.subscribed)
	})
}

// A node whose user may not subscribe still votes: waiters poll instead, and no waiter
// queues on a node that does not wake it.
func TestASubscriberThatMayNotSubscribeIsAWarning(t *testing.T) {
	for right, change := range map[string][2]string{
		"the command": {"-subscribe", "+subscribe"}, "the channel": {"resetchannels", "&p:*"},
	} {
		t.Run(right, func(t *testing.T) {
			eachProtocol(t, func(t *testing.T, option rueidis.ClientOption) {
				server := redistest.Start(t, 1)[0]
				server.MustDo("SET", "p:job", "somebody")
				server.MustDo("ACL", "SETUSER", "u", "on", ">word", "~*", "&p:*", "+@all", change[0])
				option.InitAddress, option.Username, option.Password = []string{server.Addr()}, "u", "word"
				l := listen(t, option)
				require.NoError(t, l.Health().Warning)
				l.Subscribe()
				h := within(t, "a warning", l.health)
				require.NoError(t, h.Err)
				var config *wire.ConfigError
				require.ErrorAs(t, h.Warning, &config)
				assert.Contains(t, config.Problem, "this node sends no wake-ups")
				assert.Contains(t, config.Problem, "NOPERM")
				assert.Contains(t, config.Fix, "docs/reference.md#access-rights")
				assert.Equal(t, h, l.Health())
				assert.False(t, l.queues())

				server.MustDo("ACL", "SETUSER", "u", change[1])
				within(t, "it subscribes", l.subscribed)
				assert.NoError(t, within(t, "the warning is gone", l.health).Warning)
				assert.True(t, l.queues())

				server.MustDo("ACL", "SETUSER", "u", change[0])
				server.MustDo("CLIENT", "KILL", "TYPE", "pubsub") // the server breaks the connection by itself only for the channel
				assert.Error(t, within(t, "a warning again", l.health).Warning)
				assert.False(t, l.queues())
			})
		})
	}
}

// The worker's warning stays next to the subscriber's.
func TestASubscriberThatMayNotSubscribeIsOneOfTwoWarnings(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	server.MustDo("ACL", "SETUSER", "u", "on", ">word", "~*", "+@all", "-subscribe")
	warning := errors.New("a warning")
	changed := make(chan node.Health, 64)
	n, _ := run(t, node.Config{
		Option:   rueidis.ClientOption{InitAddress: []string{server.Addr()}, Username: "u", Password: "word"},
		Manager:  subscriberManager,
		Admit:    func(int, node.Identity) (_, err error) { return warning, nil },
		OnHealth: func(_ int, h node.Health) { changed <- h },
	})
	require.Equal(t, warning, within(t, "it is greeted", changed).Warning)
	n.Subscribe()
	both := within(t, "the second warning", changed).Warning
	assert.ErrorIs(t, both, warning)
	assert.NotContains(t, both.Error(), "\n", "log pipelines split there")
	var config *wire.ConfigError
	assert.ErrorAs(t, both, &config)
}

// Unless Close ends it, a connection waits for more than a second for a server that hangs.
func TestCloseDoesNotWaitForASubscriberWhoseServerHangs(t *testing.T) {
	eachProtocol(t, func(t *testing.T, option rueidis.ClientOption) {
		for name, late := range map[string]bool{"that is subscribed": false, "that is about to": true} {
			t.Run(name, func(t *testing.T) {
				server := redistest.Start(t, 1)[0]
				option.InitAddress = []string{server.Addr()}
				n := node.New(node.Config{
					Option: option, Prefix: "p:", Clock: steadyClock(), Manager: subscriberManager,
					OnSubscribed: func(int) {}, OnWake: func(int, wire.WakeKind, string, string) {},
				})
				ended := make(chan struct{}, 2)
				for _, f := range []func(){n.Run, n.RunSubscriber} {
					go func() { f(); ended <- struct{}{} }()
				}
				require.Eventually(t, func() bool { return n.Health().Err == nil }, 20*time.Second, time.Millisecond)
				listening := func() bool { return len(server.MustDo("PUBSUB", "CHANNELS").([]any)) > 0 }
				if !late {
					n.Subscribe()
					require.Eventually(t, listening, 20*time.Second, time.Millisecond)
				}
				server.Stop()
				defer server.Continue()
				if late {
					n.Subscribe()
					time.Sleep(50 * time.Millisecond) // it greets a server that does not answer
				}
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				defer cancel()
				began := time.Now()
				n.Close(ctx, nil, nil)
				<-ended
				<-ended
				assert.Less(t, time.Since(began), 450*time.Millisecond)
			})
		}
	})
}
