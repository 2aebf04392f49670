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
)

const burst = batchMax * 3 / 4

// keeper is a node that many requests come to at once, and what is left of them.
type keeper struct {
	*Node
	server   *redistest.Server
	requests []weak.Pointer[Request]
	keys     []weak.Pointer[byte]
	answered sync.WaitGroup
}

func newKeeper(t *testing.T) *keeper {
	t.Helper()
	server := redistest.Start(t, 1)[0]
	k := &keeper{server: server, Node: New(Config{
		Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}}, Prefix: "p:", Now: clock.New().Now,
	})}
	go k.Run()
	require.Eventually(t, func() bool { return k.Health().Err == nil }, 20*time.Second, time.Millisecond)
	return k
}

func (k *keeper) Receive(int, *Request, *Reply) { k.answered.Done() }

// burst posts many requests at once, waits for their answers, and then lets a
// single one follow them.
func (k *keeper) burst() {
	k.post(burst)
	k.post(1)
}

func (k *keeper) post(requests int) {
	k.answered.Add(requests)
	k.mu.Lock() // they become one batch
	for i := range requests {
		key := fmt.Sprintf("p:%s-%d", strings.Repeat("k", 64), i)
		req := &Request{
			Kind: Release, Keys: []string{key}, Args: []string{strings.Repeat("o", OwnerLen), "0", "1000", "", "", "0"},
			Expires: k.cfg.Now() + time.Minute,
		}
		k.requests = append(k.requests, weak.Make(req))
		k.keys = append(k.keys, weak.Make(unsafe.StringData(key)))
		k.queue = append(k.queue, entry{req: req, to: k})
	}
	k.mu.Unlock()
	k.wake()
	k.answered.Wait()
}

// kept returns how many requests, and how many keys of requests, are still in
// memory.
func (k *keeper) kept() (requests, keys int) {
	for range 3 { // pools keep for two
		runtime.GC()
	}
	for i := range k.requests {
		if k.requests[i].Value() != nil {
			requests++
		}
		if k.keys[i].Value() != nil {
			keys++
		}
	}
	return requests, keys
}

// A request leads to its attempt, and that to the caller's context with all its
// values: neither may live on in the node's buffers because a larger batch went
// before.
func TestNothingIsKeptOfRequestsThatWereAnswered(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, k *keeper){
		"sent": func(*testing.T, *keeper) {},
		"not sent without a connection": func(t *testing.T, k *keeper) {
			k.server.Kill()
			require.Eventually(t, func() bool { return k.Health().Err != nil }, 20*time.Second, time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKeeper(t)
			defer k.Close(context.Background(), nil, nil)
			prepare(t, k)
			k.burst()
			assert.EventuallyWithT(t, func(t *assert.CollectT) {
				requests, keys := k.kept()
				assert.LessOrEqual(t, requests, 1, "the last one may be on somebody's stack")
				assert.LessOrEqual(t, keys, 1)
			}, 10*time.Second, 50*time.Millisecond)
		})
	}
}

// Otherwise the largest burst there ever was stays in memory.
func TestBuffersDoNotStayAsLargeAsTheLargestBurst(t *testing.T) {
	k := newKeeper(t)
	k.burst()
	before := k.Measured()
	k.Check()
	require.Eventually(t, func() bool { return k.Measured() > before }, 20*time.Second, time.Millisecond)
	k.Close(context.Background(), nil, nil) // what is the worker's is the test's from here
	for name, c := range map[string]int{
		"queue": cap(k.queue), "batch": cap(k.batch), "commands": cap(k.commands), "integers": cap(k.many),
	} {
		assert.Less(t, c, burst/4, name)
	}
}

// Owners of locks that cannot be made any more are forgotten without another
// broken connection, the others are not.
func TestWhatIsVoidDoesNotStayAdrift(t *testing.T) {
	n := New(Config{Option: rueidis.ClientOption{InitAddress: []string{"127.0.0.1:1"}}})
	now := time.Now()
	n.adrift.add(&Request{Kind: Acquire, Args: []string{"void"}}, now)
	n.adrift.add(&Request{Kind: Acquire, Args: []string{"not void"}}, now.Add(time.Hour))
	n.trim()
	assert.Equal(t, adrift{"not void": now.Add(time.Hour)}, n.adrift)
}
