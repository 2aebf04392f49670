package node_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// flood keeps a server busy with scripts of one kind.
type flood struct {
	n     *node.Node
	make  func() *node.Request
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

func (f *flood) Receive(int, *node.Request, *node.Reply) {
	f.post()
	f.calls.Done()
}

func (f *flood) end() {
	f.mu.Lock()
	f.over = true
	f.mu.Unlock()
}

// A server may be frozen anywhere, also between a script's look at the clock and
// what it does to a lock. When it runs on, the lock's time is over.
func TestAServerThatWasFrozenInAScriptBringsNoLockBack(t *testing.T) {
	const (
		px     = 200 * time.Millisecond
		frozen = 2 * px
		many   = node.MaxBatch
	)
	owner, millis := strings.Repeat("a", node.OwnerLen), strconv.FormatInt(px.Milliseconds(), 10)
	locks := make([]string, many)
	for i := range locks {
		locks[i] = fmt.Sprint("p:", i)
	}
	perLock := func(head []string, args ...string) []string {
		for range locks {
			head = append(head, args...)
		}
		return head
	}
	for name, script := range map[string]func(now time.Duration) *node.Request{
		"extend": func(now time.Duration) *node.Request {
			return &node.Request{
				Kind: node.Extend, Keys: locks, Expires: now + time.Minute,
				Args: perLock([]string{"1", "1000"}, owner, millis, "0"),
			}
		},
		"heal": func(now time.Duration) *node.Request {
			expires := now + px/4
			return &node.Request{
				Kind: node.Heal, Keys: locks, Expires: expires,
				Args: perLock(nil, owner+" 0 0 - -", millis, strconv.FormatInt(expires.Microseconds(), 10)),
			}
		},
		"acquire": func(now time.Duration) *node.Request {
			expires := now + px/4
			long := "0 - " + strings.Repeat("x", 1<<18) // so that it takes a while to make the lock
			return &node.Request{
				Kind: node.Acquire, Keys: []string{fmt.Sprint("p:", now)}, Expires: expires,
				Args: []string{owner, long, millis, "60000", "1", "1000000", strconv.FormatInt(expires.Microseconds(), 10), "", ""},
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t, 1)[0]
			n, now := greeted(t, server.Addr())
			defer n.Close(context.Background(), nil, nil)
			for range 8 {
				for _, key := range locks {
					server.MustDo("SET", key, owner+" 0 0 - -", "PX", millis)
				}
				f := &flood{n: n, make: func() *node.Request { return script(now()) }}
				for range 4 {
					f.post()
				}
				time.Sleep(px / 10)
				server.Stop()
				time.Sleep(frozen)
				f.end()
				server.Continue()
				f.calls.Wait()
				assert.Empty(t, server.MustDo("KEYS", "p:*"))
				require.Eventually(t, func() bool { return n.Health().Err == nil }, 20*time.Second, time.Millisecond)
			}
		})
	}
}

// The same, frozen before the script's look at the clock, when a key may seem to
// be there that has expired: here it really is there, by other hands.
func TestAnExtendThatTookLongerThanALockLivesFindsItGone(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	proxy := redistest.NewProxy(t, server.Addr())
	n, now := greeted(t, proxy.Addr())
	defer n.Close(context.Background(), nil, nil)
	owner := strings.Repeat("a", node.OwnerLen)
	for px, want := range map[string]int64{"100": 0, "30000": 1} {
		server.MustDo("SET", "p:job", owner+" 0 0 - -", "PX", "60000")
		proxy.DelayCommand(func(cmd []string) bool { return cmd[0] == "EVALSHA" }, 250*time.Millisecond)
		answer := make(answers, 1)
		require.True(t, n.Post(&node.Request{
			Kind: node.Extend, Keys: []string{"p:job"}, Expires: now() + time.Minute,
			Args: []string{"1", "1000", owner, px, "0"},
		}, answer))
		reply := <-answer
		require.Equal(t, node.Done, reply.Status, "%v", reply.Err)
		assert.Equal(t, []int64{want}, reply.Many)
		assert.Equal(t, want == 0, server.MustDo("PTTL", "p:job").(int64) > 40_000, "as long as before")
	}
}
