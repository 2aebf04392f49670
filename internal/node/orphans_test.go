package node_test

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// orphan is a node whose connection breaks while a request that makes a lock is late. The
// request reaches the server behind a release that went over the next connection, and
// before its "not after".
type orphan struct {
	*node.Node
	server   *redistest.Server
	now      func() time.Duration
	expires  time.Duration // of the request: its "not after"
	releases atomic.Int64  // sent by the node
	wakes    atomic.Int64  // published to us by the node
}

// orphanKinds are the requests that make the lock p:job for ownerA.
var orphanKinds = map[string]func(notAfter time.Duration) *wire.Request{
	"acquire": func(notAfter time.Duration) *wire.Request {
		return acquisition("p:job", ownerA, notAfter, func(a *wire.Acquisition) { a.KeyTTL = "60000" })
	},
	"acquire with a ticket": func(notAfter time.Duration) *wire.Request {
		return acquisition("p:job", ownerA, notAfter, func(a *wire.Acquisition) {
			a.KeyTTL, a.Ticket, a.EnqueuedAt = "60000", ticketOf("000000000000000150"), "5"
		})
	},
	"heal": func(notAfter time.Duration) *wire.Request {
		return heals([]string{"p:other", "p:job"}, "60000", notAfter)
	},
}

func newOrphan(t *testing.T, request func(notAfter time.Duration) *wire.Request) *orphan {
	t.Helper()
	o := &orphan{server: redistest.Start(t, 1)[0]}
	proxy := redistest.NewProxy(t, o.server.Addr())
	var mu sync.Mutex
	var first net.Conn
	subscribed := make(chan struct{}, 4)
	o.Node, o.now = run(t, node.Config{
		Manager: subscriberManager, OnSubscribed: func(int) { subscribed <- struct{}{} },
		OnWake: func(int, wire.WakeKind, string, string) { o.wakes.Add(1) },
		Option: rueidis.ClientOption{
			InitAddress: []string{proxy.Addr()},
			DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				conn, err := d.DialContext(ctx, "tcp", addr)
				mu.Lock()
				if first == nil {
					first = conn
				}
				mu.Unlock()
				return conn, err
			},
		},
	})
	require.Eventually(t, func() bool { return o.Health().Err == nil }, 20*time.Second, 5*time.Millisecond)
	mu.Lock()
	worker := first
	mu.Unlock()
	o.Subscribe() // its tickets may queue
	<-subscribed

	o.expires = o.now() + 3*time.Second
	under := make(chan struct{}, 1)
	proxy.DelayCommand(func(cmd []string) bool {
		for _, word := range cmd {
			switch word {
			case "release", "leave":
				o.releases.Add(1)
			case "acquire", "wait", "heal":
				select {
				case under <- struct{}{}:
				default:
				}
				return true
			}
		}
		return false
	}, 500*time.Millisecond)
	proxy.Delay(time.Millisecond) // so each operation takes one script: see leanBelow
	o.Post(wire.NewRead("p:job", clock.Steady(o.expires)), make(answers, 1))
	answer := make(answers, 1)
	require.True(t, o.Post(request(o.expires), answer))
	<-under
	_ = worker.Close()
	require.Equal(t, wire.Unknown, answer.Next(t).Status)
	o.releases.Store(0)
	return o
}

func (o *orphan) release(owner string) *wire.Request {
	return release("p:job", owner, o.now()+time.Minute)
}

// locked reports whether the late request has made a lock. A reservation does not count.
func (o *orphan) locked() bool { return o.server.MustDo("GETRANGE", "p:job", "0", "31") == ownerA }

func TestALockThatIsMadeBehindItsReleaseIsReleasedAgain(t *testing.T) {
	for name, request := range orphanKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOrphan(t, request)
			answer := make(answers, 3)
			require.True(t, o.Post(o.release(ownerB), answer))
			require.True(t, o.Post(o.release(ownerA), answer))
			for range 2 {
				got := answer.Next(t)
				assert.Equal(t, wire.Done, got.Status)
				assert.EqualValues(t, wire.Missing, got.N)
			}
			require.Less(t, o.now(), o.expires, "answered at once")
			require.Eventually(t, o.locked, 20*time.Second, time.Millisecond, "the late request locks")
			require.Eventually(t, func() bool { return !o.locked() }, 20*time.Second, 5*time.Millisecond)
			assert.Greater(t, o.now(), o.expires, "no retry while the lock may still be made")
			assert.EqualValues(t, 3, o.releases.Load(), "the release of a known lock goes out once")
			assert.Empty(t, answer, "one answer for each")
		})
	}
}

// One request may release many locks, with tickets or without. Its retry leaves the tickets alone, because the wait may
// have ended by then.
func TestEveryKindOfReleaseIsRetried(t *testing.T) {
	for name, make1 := range map[string]func(until time.Duration) *wire.Request{
		"many": func(until time.Duration) *wire.Request {
			all := wire.NewBatch(wire.Release, 2, clock.Steady(until))
			wire.Entry{Lock: "p:a", Value: wire.Compose(ownerB, 0, metadata)}.Delete(all)
			wire.Entry{Lock: "p:job", Value: wire.Compose(ownerA, 0, metadata)}.Delete(all)
			return all
		},
		"with a ticket": func(until time.Duration) *wire.Request {
			return wire.Entry{Lock: "p:job", Value: wire.Compose(ownerA, 0, metadata)}.Release(nil, wire.TicketUpdate{Ticket: ticketOf("000000000000000150"), EnqueuedAt: "5"}, clock.Steady(until))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOrphan(t, orphanKinds["acquire"])
			answer := make(answers, 2)
			require.True(t, o.Post(make1(o.now()+time.Minute), answer))
			assert.Equal(t, wire.Done, answer.Next(t).Status)
			o.server.MustDo("DEL", wire.HintKey("p:")) // with it, the late request would be declined, and lock nothing
			require.Eventually(t, o.locked, 20*time.Second, time.Millisecond, "the late request locks")
			o.server.MustDo("DEL", wire.QueueKey("p:job"))
			woken := o.wakes.Load() // by the first release
			require.Eventually(t, func() bool { return !o.locked() }, 20*time.Second, 5*time.Millisecond)
			assert.EqualValues(t, 0, o.server.MustDo("EXISTS", wire.QueueKey("p:job")))
			assert.Equal(t, woken, o.wakes.Load(), "no reservation for a ticket that may be gone")
			assert.Empty(t, answer, "one answer")
		})
	}
}

func TestCloseWaitsForTheReleaseOfALockThatMayStillBeMade(t *testing.T) {
	t.Parallel()
	o := newOrphan(t, orphanKinds["acquire"])
	var answers tally
	assert.True(t, o.Close(context.Background(), []*wire.Request{o.release(ownerA)}, &answers))
	assert.Greater(t, o.now(), o.expires)
	assert.False(t, o.locked())
	_, others := answers.counts()
	assert.Equal(t, 1, others, "there was no lock yet")
	assert.EqualValues(t, 2, o.releases.Load())
}

func TestAReleaseBehindAVoidRequestGoesOutOnce(t *testing.T) {
	t.Parallel()
	o := newOrphan(t, orphanKinds["acquire"])
	time.Sleep(o.expires - o.now() + 100*time.Millisecond)
	answer := make(answers, 2)
	require.True(t, o.Post(o.release(ownerA), answer))
	assert.EqualValues(t, wire.Ours, answer.Next(t).N, "the late request had locked")
	assert.True(t, o.Close(context.Background(), nil, nil))
	assert.EqualValues(t, 1, o.releases.Load())
}

// Close promises that all releases are answered, within the bound of its context. The retries use the time that is
// left.
func TestCloseIsInTimeWhenOnlyASecondReleaseIsMissing(t *testing.T) {
	t.Parallel()
	o := newOrphan(t, orphanKinds["acquire"])
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	var answers tally
	assert.True(t, o.Close(ctx, []*wire.Request{o.release(ownerA)}, &answers))
	assert.Less(t, o.now(), o.expires)
	assert.EqualValues(t, 1, o.releases.Load())
}

// A lock that may still be made is released again, whichever kind of request makes it.
func TestARaiseOrAnExtendLeavesNoOrphan(t *testing.T) {
	for name, request := range map[string]func(until time.Duration) *wire.Request{
		"raise": func(until time.Duration) *wire.Request {
			return wire.Entry{Lock: "p:job", Value: wire.Compose(ownerA, 0, metadata)}.Raise(9, clock.Steady(until))
		},
		"extend": func(until time.Duration) *wire.Request { return renewals([]string{"p:job"}, ownerA, 7, "1000", until) },
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t, 1)[0]
			proxy := redistest.NewProxy(t, server.Addr())
			n, now := greeted(t, proxy.Addr())
			var releases atomic.Int64
			proxy.DropReply(func(cmd []string) bool { return slices.Contains(cmd, name) })
			answer := make(answers, 2)
			require.True(t, n.Post(request(now()+5*time.Second), answer))
			require.Equal(t, wire.Unknown, answer.Next(t).Status)
			proxy.DelayCommand(func(cmd []string) bool {
				if slices.Contains(cmd, "release") {
					releases.Add(1)
				}
				return false
			}, 0)
			server.MustDo("SET", "p:job", wire.Compose(ownerA, 7, metadata)) // the lean script would decline to release nothing
			require.True(t, n.Post(release("p:job", ownerA, now()+time.Minute), answer))
			assert.Equal(t, wire.Done, answer.Next(t).Status)
			assert.True(t, n.Close(context.Background(), nil, nil))
			assert.EqualValues(t, 1, releases.Load())
		})
	}
}
