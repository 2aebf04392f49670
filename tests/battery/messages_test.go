package battery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// An attacker with the right to publish sends a Manager as many messages as possible: of all sizes and kinds, for
// tickets that were issued and for others, for locks that exist and for others.
func TestPublishedMessagesCostNoLeaseAndLittleMemory(t *testing.T) {
	eachNight(t)
	const ttl = 5 * time.Second
	r := newRow(t, fmt.Sprintf("hostile messages to one Manager, TTL %v, N=3", ttl))
	m, servers := testkit.Queueing(t, 3, quorumlock.WithTTL(ttl))
	held, err := m.Acquire(t.Context(), "held")
	require.NoError(t, err)
	other, err := testkit.Connect(t, redistest.Addrs(servers)).Acquire(t.Context(), "others")
	require.NoError(t, err)
	waiting, stop := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() { _, err := m.Acquire(waiting, "others"); gaveUp <- err }()
	patiently(t, "it waits", func() bool { return servers[0].MustDo("ZCARD", testkit.QueueKey("others")) == int64(1) })
	for _, channel := range testkit.WakeChannels(servers[0]) { // the channel of m, which has a ticket
		id := strings.TrimPrefix(channel, wire.WakeChannel(testkit.Prefix, ""))
		if ticket := servers[0].MustDo("ZRANGE", testkit.QueueKey("others"), "0", "0").([]any)[0].(string); strings.HasPrefix(ticket, id) {
			h := hostile{channel: channel, id: id, ticket: ticket[:32]}
			h.flood(t, r, servers, "all kinds and sizes", count(1_000_000, 30_000), h.any)
			h.flood(t, r, servers, "names of 60 kB for tickets never issued", count(50_000, 20_000), h.long)
		}
	}
	r.figure(fmt.Sprintf("the lease held meanwhile: %v; the other's: %v", text(held.Err()), text(other.Err())), "kept", held.Err() == nil && other.Err() == nil)
	stop()
	require.ErrorIs(t, <-gaveUp, context.Canceled)
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, other.Release(t.Context()))
}

// hostile makes messages to one Manager.
type hostile struct{ channel, id, ticket string }

// flood publishes messages on every server, and measures the heap before and after.
func (h hostile) flood(t *testing.T, r *row, servers []*redistest.Server, what string, messages int, message func(*rand.Rand) string) {
	t.Helper()
	random := rand.New(rand.NewPCG(26, 9))
	pool := make([]string, 1000) // making each message anew would take longer than the Manager needs
	for i := range pool {
		pool[i] = message(random)
	}
	before := heap()
	var highest atomic.Uint64
	sampling, stop := context.WithCancel(t.Context())
	var sampler, publishers sync.WaitGroup
	sampler.Go(func() {
		for sampling.Err() == nil {
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			highest.Store(max(highest.Load(), stats.HeapAlloc))
			time.Sleep(50 * time.Millisecond)
		}
	})
	var received atomic.Int64
	began := time.Now()
	for _, s := range servers {
		publishers.Go(func() { received.Add(h.publish(t, s, pool, messages/len(servers))) })
	}
	publishers.Wait()
	lasted := time.Since(began)
	after := heap()
	runtime.KeepAlive(pool)
	stop()
	sampler.Wait()
	r.figure(fmt.Sprintf("%s: %d received in %v", what, received.Load(), brief(lasted)), "at least 90 %", received.Load() >= int64(messages)*9/10)
	grown := int64(after) - int64(before)
	r.figure(fmt.Sprintf("%s: heap after a collection %+.1f MiB (at most %.0f MiB before one)", what, float64(grown)/(1<<20), float64(highest.Load())/(1<<20)),
		"at most +16 MiB", grown <= 16<<20)
}

// heap returns the size of the heap after a collection.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// publish sends messages to one server, 32 in a pipeline, and returns how many were received.
func (h hostile) publish(t *testing.T, s *redistest.Server, messages []string, count int) (received int64) {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, ForceSingleClient: true, DisableCache: true})
	if err != nil {
		t.Error(err)
		return 0
	}
	defer c.Close()
	for sent := 0; sent < count; {
		var batch rueidis.Commands
		for ; len(batch) < 32 && sent < count; sent++ {
			batch = append(batch, c.B().Publish().Channel(h.channel).Message(messages[sent%len(messages)]).Build())
		}
		for _, reply := range c.DoMulti(context.Background(), batch...) {
			n, err := reply.AsInt64()
			if err != nil {
				t.Error(err)
				return received
			}
			received += n
		}
	}
	return received
}

// letters is the end of long names.
var letters = strings.Repeat("n", 8<<20)

// newName returns a new name.
func newName(random *rand.Rand, length int) string {
	name := fmt.Sprintf("%019d", random.Int())
	return name[:min(length, len(name))] + letters[:max(length-len(name), 0)]
}

// long returns a message that differs from a useful one only by its ticket number, and by its name.
func (h hostile) long(random *rand.Rand) string {
	return fmt.Sprintf("r%s%016x%s", h.id, random.Int(), config.DefaultPrefix+newName(random, 60_000))
}

// any returns any message.
func (h hostile) any(random *rand.Rand) string {
	kind := string("rnak\x00"[random.IntN(5)])
	if random.IntN(2) == 0 {
		kind = "r"
	}
	ticket := []string{
		h.ticket,                  // of a waiting caller
		h.id + "0000000000000001", // of a caller that has gone
		fmt.Sprintf("%s%016x", h.id, random.Int()), // never issued
		fmt.Sprintf("%016x%016x", random.Int(), random.Int()),
	}[random.IntN(4)]
	length := []int{0, 8, 100, 512, 513}[random.IntN(5)]
	switch n := random.IntN(100_000); {
	case n < 50:
		length = len(letters)
	case n < 300:
		length = 1 << 20
	case n < 10_000:
		length = 60_000
	}
	name := newName(random, length)
	if random.IntN(4) == 0 {
		name = []string{"held", "others", "", "\xffr", "\xffb"}[random.IntN(5)]
	}
	return kind + ticket + config.DefaultPrefix + name
}
