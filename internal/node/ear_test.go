package node_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// listener is a node, what it heard, and how its health changed.
type listener struct {
	*node.Node
	t       *testing.T
	now     func() time.Duration
	heard   chan struct{}
	turns   chan string
	changed chan node.Health
	ended   sync.WaitGroup
}

const earManager = "00112233445566aa"

func listen(t *testing.T, option rueidis.ClientOption) *listener {
	t.Helper()
	l := &listener{
		t: t, now: clock.New().Now,
		heard: make(chan struct{}, 64), turns: make(chan string, 64), changed: make(chan node.Health, 64),
	}
	l.Node = node.New(node.Config{
		Option: option, Prefix: "p:", Now: l.now, Manager: earManager,
		Turn: func(_ int, kept bool, ticket, lock string) {
			l.turns <- map[bool]string{true: "kept ", false: "next "}[kept] + ticket + " " + lock
		},
		Heard:   func(int) { l.heard <- struct{}{} },
		Changed: func(_ int, h node.Health) { l.changed <- h },
	})
	l.ended.Go(l.Run)
	l.ended.Go(l.Hear)
	t.Cleanup(func() { l.Close(context.Background(), nil, nil); l.ended.Wait() })
	require.NoError(t, (<-l.changed).Err)
	return l
}

// within receives, and sooner than the worker greets again without a reason.
func within[T any](t *testing.T, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(8 * time.Second):
		require.Fail(t, what)
	}
	return v
}

// waits reports whether somebody who waits for a taken lock is queued.
func (l *listener) waits() bool {
	l.t.Helper()
	answer := make(answers, 1)
	lock, fence, queue := node.Keys("p:", "job")
	ticket := earManager + "000000000000000150"
	require.True(l.t, l.Post(&node.Request{
		Kind: node.Acquire, Keys: []string{lock, fence, queue}, Expires: l.now() + 10*time.Second,
		Args: []string{
			strings.Repeat("b", node.OwnerLen), "0 - x", "10000", "10000", "1", "1000000",
			strconv.FormatInt((l.now() + time.Minute).Microseconds(), 10), ticket, "1700000000000000",
		},
	}, answer))
	got := <-answer
	require.Equal(l.t, node.Taken, got.Status, "%v", got.Err)
	return got.Place >= 0
}

// eachProtocol runs a test with RESP3, or what the server has, and with RESP2.
func eachProtocol(t *testing.T, test func(t *testing.T, option rueidis.ClientOption)) {
	for name, resp2 := range map[string]bool{"by default": false, "RESP2": true} {
		t.Run(name, func(t *testing.T) { test(t, rueidis.ClientOption{AlwaysRESP2: resp2}) })
	}
}

// A node is heard of again, and the worker's connection has no part in it.
func TestTheEarComesBack(t *testing.T) {
	eachProtocol(t, func(t *testing.T, option rueidis.ClientOption) {
		server := redistest.Start(t, 1)[0]
		server.MustDo("SET", "p:job", "somebody")
		option.InitAddress = []string{server.Addr()}
		l := listen(t, option)
		assert.False(t, l.waits(), "nobody has called Listen")
		l.Listen()
		l.Listen() // is safe to call again
		within(t, "it listens", l.heard)
		require.True(t, l.waits())
		for range 3 {
			assert.EqualValues(t, 1, server.MustDo("CLIENT", "KILL", "TYPE", "pubsub"), "one connection listens")
			within(t, "it listens again", l.heard)
			require.True(t, l.waits())
			ticket := earManager + "0000000000000001"
			assert.EqualValues(t, 1, server.MustDo("PUBLISH", node.WakeChannel("p:", earManager), "k"+ticket+"p:job"))
			assert.Equal(t, "kept "+ticket+" p:job", within(t, "it hears", l.turns))
		}
		assert.Empty(t, l.changed, "nothing has happened to the node")
		assert.Empty(t, l.heard, "told once for each connection")
		server.Restart()
		within(t, "it listens to the next process", l.heard)
	})
}

// Anybody may publish on a channel.
func TestTheEarHearsTurnsAndNothingElse(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	l := listen(t, rueidis.ClientOption{InitAddress: []string{server.Addr()}})
	l.Listen()
	within(t, "it listens", l.heard)
	ticket := earManager + "0000000000000001"
	for _, text := range []string{"", "k", "k" + ticket, "n" + ticket, "nk" + ticket + "x", "k" + ticket + "\x00\xff"} {
		server.MustDo("PUBLISH", node.WakeChannel("p:", earManager), text)
	}
	assert.Equal(t, "next k"+ticket[:31]+" "+ticket[31:]+"x", within(t, "it hears", l.turns), "what it cannot know to be wrong")
	assert.Equal(t, "kept "+ticket+" \x00\xff", within(t, "it hears", l.turns))
	assert.Empty(t, l.turns)
}

// It costs no vote: waiters ask instead, and nobody queues who would not hear.
func TestAnEarThatMayNotListenIsAWarning(t *testing.T) {
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
				l.Listen()
				h := within(t, "it is told", l.changed)
				require.NoError(t, h.Err)
				var config *node.ConfigError
				require.ErrorAs(t, h.Warning, &config)
				assert.Contains(t, config.Problem, "nobody is woken by this node")
				assert.Contains(t, config.Problem, "NOPERM")
				assert.Contains(t, config.Fix, "docs/operations.md")
				assert.Equal(t, h, l.Health())
				assert.False(t, l.waits())

				server.MustDo("ACL", "SETUSER", "u", change[1])
				within(t, "it listens", l.heard)
				assert.NoError(t, within(t, "it is told", l.changed).Warning)
				assert.True(t, l.waits())

				server.MustDo("ACL", "SETUSER", "u", change[0])
				server.MustDo("CLIENT", "KILL", "TYPE", "pubsub") // of its own accord for the channel only
				assert.Error(t, within(t, "it is told again", l.changed).Warning)
				assert.False(t, l.waits())
			})
		})
	}
}

// What the worker has to say of the node stays said.
func TestAnEarThatMayNotListenIsOneOfTwoWarnings(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	server.MustDo("ACL", "SETUSER", "u", "on", ">word", "~*", "+@all", "-subscribe")
	doubt := errors.New("a doubt")
	changed := make(chan node.Health, 64)
	n := node.New(node.Config{
		Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}, Username: "u", Password: "word"},
		Prefix: "p:", Now: clock.New().Now, Manager: earManager,
		Admit:   func(int, node.Identity) (warning, err error) { return doubt, nil },
		Changed: func(_ int, h node.Health) { changed <- h },
	})
	var ended sync.WaitGroup
	ended.Go(n.Run)
	ended.Go(n.Hear)
	defer ended.Wait()
	defer n.Close(context.Background(), nil, nil)
	require.Equal(t, doubt, within(t, "it is greeted", changed).Warning)
	n.Listen()
	both := within(t, "it is told", changed).Warning
	assert.ErrorIs(t, both, doubt)
	var config *node.ConfigError
	assert.ErrorAs(t, both, &config)
}

// Left alone, a connection waits for a server that hangs for a second and more.
func TestCloseDoesNotWaitForAnEarWhoseServerHangs(t *testing.T) {
	eachProtocol(t, func(t *testing.T, option rueidis.ClientOption) {
		for name, late := range map[string]bool{"that listens": false, "that is about to": true} {
			t.Run(name, func(t *testing.T) {
				server := redistest.Start(t, 1)[0]
				option.InitAddress = []string{server.Addr()}
				l := listen(t, option)
				if !late {
					l.Listen()
					within(t, "it listens", l.heard)
				}
				server.Stop()
				defer server.Continue()
				if late {
					l.Listen()
					time.Sleep(50 * time.Millisecond) // it greets somebody who does not answer
				}
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				defer cancel()
				began := time.Now()
				l.Close(ctx, nil, nil)
				l.ended.Wait()
				assert.Less(t, time.Since(began), 450*time.Millisecond)
			})
		}
	})
}
