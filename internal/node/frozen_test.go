package node_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// flood keeps a server busy with operations of one kind.
type flood struct {
	n     *node.Node
	make  func() *wire.Request
	mu    sync.Mutex
	over  bool
	calls sync.WaitGroup
}

func (f *flood) post() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return
	}
	f.calls.Add(1)
	if !f.n.Post(f.make(), f) {
		f.calls.Done()
	}
}

func (f *flood) Receive(int, *wire.Request, *wire.Reply) {
	f.post()
	f.calls.Done()
}

func (f *flood) end() {
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
}

// heals restores locks.
func heals(locks []string, ms string, notAfter time.Duration) *wire.Request {
	all := wire.NewBatch(wire.Heal, len(locks), clock.Steady(notAfter))
	for _, lock := range locks {
		wire.Entry{Lock: lock, Value: wire.Compose(ownerA, 0, metadata)}.Heal(all, ms, clock.Steady(notAfter), 0)
	}
	return all
}

// A server may freeze anywhere, even between a script's read of the clock and its write to a lock. When the server
// continues, the lock's time has expired.
func TestAServerThatWasFrozenInAScriptBringsNoLockBack(t *testing.T) {
	t.Parallel()
	const (
		life   = 200 * time.Millisecond
		frozen = 2 * life
	)
	ms := strconv.FormatInt(life.Milliseconds(), 10)
	locks := make([]string, wire.MaxLocks)
	for i := range locks {
		locks[i] = fmt.Sprint("p:", i)
	}
	var made atomic.Int64
	made.Store(wire.MaxLocks)
	for name, request := range map[string]func(now time.Duration) *wire.Request{
		"extend": func(now time.Duration) *wire.Request { return renewals(locks, ownerA, 7, ms, now+time.Minute) },
		"heal":   func(now time.Duration) *wire.Request { return heals(locks, ms, now+life/4) },
		"heal of missing locks": func(now time.Duration) *wire.Request {
			missing := make([]string, len(locks))
			for i := range missing {
				missing[i] = fmt.Sprint("p:", i, "of", now)
			}
			return heals(missing, ms, now+life/4)
		},
		"wait": func(now time.Duration) *wire.Request { // the lean script would run an acquire
			return acquisition(fmt.Sprint("p:", made.Add(1)), ownerA, now+life/4, func(a *wire.Acquisition) {
				a.Value, a.KeyTTL = wire.Compose(ownerA, 1_000_000, "0 - "+strings.Repeat("x", 1<<14)), ms // large, so that 32 of them take a script a while
				a.Ticket, a.EnqueuedAt = ticketOf("000000000000000150"), "5"
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, 1)[0]
			n, now := greeted(t, server.Addr())
			for range 20 { // the server is not frozen in a script each time
				for _, key := range locks {
					server.MustDo("SET", key, wire.Compose(ownerA, 7, metadata), "PX", ms)
				}
				f := &flood{n: n, make: func() *wire.Request { return request(now()) }}
				for range 32 { // so that the server runs a script most of the time
					f.post()
				}
				time.Sleep(life / 10)
				server.Stop()
				time.Sleep(frozen)
				f.end()
				server.Continue()
				f.calls.Wait()
				for _, key := range server.MustDo("KEYS", "p:*").([]any) {
					assert.Contains(t, []string{wire.RegistersKey("p:"), wire.BaseKey("p:")}, key, "the locks have expired") // the base is there once old registers were dropped
				}
				require.Eventually(t, func() bool { return n.Health().Err == nil }, 20*time.Second, time.Millisecond)
			}
		})
	}
}

// The lean script is too short for a server to be frozen in it by a test.
func TestTheLeanScriptEndsALockAtAnInstant(t *testing.T) {
	assert.Contains(t, wire.Lean, "'PXAT'")
	assert.NotRegexp(t, `'(PX|EX)'`, wire.Lean)
}

// The server is frozen before the script reads the clock, when an expired key may still
// seem to exist. In this test the key exists because the test sets its TTL.
func TestAnExtendThatTookLongerThanALockLivesFindsItMissing(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	proxy := redistest.NewProxy(t, server.Addr())
	n, now := greeted(t, proxy.Addr())
	for ms, want := range map[string]int64{"100": wire.Missing, "30000": wire.Ours} {
		server.MustDo("SET", "p:job", wire.Compose(ownerA, 7, metadata), "PX", "60000")
		proxy.DelayCommand(func(cmd []string) bool { return cmd[0] == "EVALSHA" }, 250*time.Millisecond)
		answer := make(answers, 1)
		require.True(t, n.Post(renewals([]string{"p:job"}, ownerA, 7, ms, now()+time.Minute), answer))
		reply := answer.Next(t)
		require.Equal(t, wire.Done, reply.Status, "%v", reply.Err)
		assert.Equal(t, []int64{want}, reply.Answers)
		assert.Equal(t, want == wire.Missing, server.MustDo("PTTL", "p:job").(int64) > 40_000, "its TTL is unchanged")
	}
}

// A late packet must not take a lock for a client that has gone.
func TestARequestThatArrivesTooLateIsVoid(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	proxy := redistest.NewProxy(t, server.Addr())
	n, now := greeted(t, proxy.Addr())
	proxy.DelayCommand(func(cmd []string) bool { return cmd[0] == "EVALSHA" }, 250*time.Millisecond)
	answer := make(answers, 1)
	require.True(t, n.Post(acquisition("p:job", ownerA, now()+100*time.Millisecond), answer))
	reply := answer.Next(t)
	assert.Equal(t, wire.NotApplied, reply.Status)
	require.ErrorIs(t, reply.Err, wire.ErrLate)
	require.True(t, n.Post(heals([]string{"p:job"}, "1000", now()+100*time.Millisecond), answer))
	assert.Equal(t, []int64{wire.Missing}, answer.Next(t).Answers)
	assert.EqualValues(t, 0, server.MustDo("DBSIZE"))
}

// A request that waits for longer than its caller is not sent.
func TestARequestThatHasExpiredIsNotSent(t *testing.T) {
	tr := newTraffic(t)
	answer := make(answers, 4)
	tr.watch(60 * time.Millisecond)
	busy := make(answers, 1)
	tr.post(wire.NewRead("p:busy", clock.Steady(tr.now()+time.Minute)), busy)
	require.Eventually(t, func() bool { calls, _ := tr.calls(); return len(calls) > 0 }, 20*time.Second, time.Millisecond)
	gone := tr.now() + 20*time.Millisecond
	tr.post(acquisition("p:job", ownerA, gone), answer)
	tr.post(renewals([]string{"p:job"}, ownerA, 7, "1000", gone), answer)
	tr.post(release("p:job", ownerA, gone), answer)
	busy.Next(t)
	for range 3 {
		got := answer.Next(t)
		assert.Equal(t, wire.NotApplied, got.Status)
		assert.ErrorIs(t, got.Err, wire.ErrExpired)
	}
	calls, _ := tr.calls()
	assert.Empty(t, calls)
}
