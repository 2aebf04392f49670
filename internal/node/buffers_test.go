package node

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

const burstSize = 3 * wire.MaxLocks

// burster is a node that gets many requests at once. It counts what stays in memory
// afterwards.
type burster struct {
	*Node
	server   *redistest.Server
	requests []weak.Pointer[wire.Request]
	keys     []weak.Pointer[byte]
	answered sync.WaitGroup
}

func newBurster(t *testing.T) *burster {
	t.Helper()
	server := redistest.Start(t, 1)[0]
	b := &burster{server: server, Node: New(Config{
		Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}}, Prefix: "p:", Clock: clock.New().Both,
	})}
	go b.Run()
	require.Eventually(t, func() bool { return b.Health().Err == nil }, 20*time.Second, time.Millisecond)
	return b
}

func (b *burster) Receive(int, *wire.Request, *wire.Reply) { b.answered.Done() }

// burst posts many requests at once, waits for their answers, and then posts a single
// one.
func (b *burster) burst() {
	b.post(burstSize)
	b.post(1)
}

func (b *burster) post(requests int) {
	_, now := b.cfg.Clock()
	b.answered.Add(requests)
	b.lanes.mu.Lock() // they become one batch
	for i := range requests {
		key := fmt.Sprintf("p:%s-%d", strings.Repeat("k", 64), i)
		value := wire.Compose(strings.Repeat("0", wire.OwnerLen), 0, "0 - -")
		req := wire.Entry{Lock: key, Value: value}.Release(nil, wire.TicketUpdate{}, now.Add(time.Minute))
		lane := &b.lanes.urgent
		if i%2 == 1 {
			req = &wire.Request{}
			req.Init(&wire.Acquisition{Lock: key, Value: value, KeyTTL: "1000", Token: "0", NotAfter: now.Add(time.Minute)})
			lane = &b.lanes.acquire
		}
		req.Insists = false // without a connection, it would wait for the next one
		b.requests = append(b.requests, weak.Make(req))
		b.keys = append(b.keys, weak.Make(unsafe.StringData(key)))
		*lane = append(*lane, entry{req: req, to: b})
	}
	b.lanes.mu.Unlock()
	b.lanes.wake()
	b.answered.Wait()
}

// left returns how many requests, and how many keys of requests, are still in memory.
func (b *burster) left() (requests, keys int) {
	for range 3 { // pools keep objects for two collections
		runtime.GC()
	}
	for i := range b.requests {
		if b.requests[i].Value() != nil {
			requests++
		}
		if b.keys[i].Value() != nil {
			keys++
		}
	}
	return requests, keys
}

// A request leads to its attempt, and the attempt to the caller's context with all its
// values. A smaller batch after a larger one must not keep either of them in the node's
// buffers.
func TestAnsweredRequestsDoNotStayInMemory(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, b *burster){
		"sent": func(*testing.T, *burster) {},
		"not sent without a connection": func(t *testing.T, b *burster) {
			b.server.Kill()
			require.Eventually(t, func() bool { return b.Health().Err != nil }, 20*time.Second, time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBurster(t)
			defer b.Close(context.Background(), nil, nil)
			prepare(t, b)
			b.burst()
			assert.EventuallyWithT(t, func(t *assert.CollectT) {
				requests, keys := b.left()
				assert.LessOrEqual(t, requests, 1, "the last one may be on a stack")
				assert.LessOrEqual(t, keys, 1)
			}, 10*time.Second, 50*time.Millisecond)
		})
	}
}

// Otherwise the largest burst so far would stay in memory.
func TestBuffersDoNotStayAsLargeAsTheLargestBurst(t *testing.T) {
	b := newBurster(t)
	b.burst()
	time.Sleep(2 * publishEvery)
	before, _ := b.Reading()
	b.Check()
	require.Eventually(t, func() bool { now, _ := b.Reading(); return now.At > before.At }, 20*time.Second, time.Millisecond)
	time.Sleep(50 * time.Millisecond) // until the greeting ends
	b.Close(context.Background(), nil, nil)
	<-b.done // from here on the test owns the worker's fields
	left := map[string]int{
		"urgent": cap(b.lanes.urgent), "acquire": cap(b.lanes.acquire), "batch": cap(b.courier.batch), "again": cap(b.courier.resend),
	}
	for i := range b.courier.transfers {
		f := &b.courier.transfers[i]
		left[fmt.Sprintf("transfer %d", i)] = max(cap(f.batch), cap(f.calls), cap(f.commands))
	}
	for name, c := range left {
		assert.Less(t, c, burstSize/8, name)
	}
}

// The node forgets the owners of locks that can no longer be made without another broken
// connection. It keeps the others.
func TestOrphansThatAreVoidAreForgotten(t *testing.T) {
	n := New(Config{Option: rueidis.ClientOption{InitAddress: []string{"127.0.0.1:1"}}})
	now := n.mono()
	acquire := func(owner string) *wire.Request {
		req := &wire.Request{}
		req.Init(&wire.Acquisition{Value: wire.Compose(owner, 0, "0 - -")})
		return req
	}
	void, valid := strings.Repeat("0", wire.OwnerLen), strings.Repeat("1", wire.OwnerLen)
	n.courier.retries.orphans.add(acquire(void), orphan{void: now})
	n.courier.retries.orphans.add(acquire(valid), orphan{void: now.Add(time.Hour)})
	n.courier.trim()
	assert.Equal(t, orphans{valid: {void: now.Add(time.Hour)}}, n.courier.retries.orphans)
}
