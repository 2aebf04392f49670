package node_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/internal/wire/conformance"
)

// Owner values, as attempts use them.
var (
	ownerA = strings.Repeat("a", wire.OwnerLen)
	ownerB = strings.Repeat("b", wire.OwnerLen)
)

const subscriberManager = "00112233445566aa"

// ticketOf returns a ticket of subscriberManager.
func ticketOf(wait string) string { return subscriberManager + wait }

// answers receives replies.
type answers = conformance.Replies

// run starts a node, and closes it at the end of the test. It returns when the node was
// greeted or refused, with the node and its steady clock.
func run(t testing.TB, cfg node.Config) (*node.Node, func() time.Duration) {
	t.Helper()
	steady := clock.New()
	if cfg.Clock == nil {
		cfg.Clock = steady.Both
	}
	if cfg.Prefix == "" {
		cfg.Prefix = "p:"
	}
	cfg.Drift = 0.01
	if cfg.OnWake == nil {
		cfg.OnWake = func(int, wire.WakeKind, string, string) {}
	}
	if cfg.OnSubscribed == nil {
		cfg.OnSubscribed = func(int) {}
	}
	greeted := make(chan struct{})
	var once sync.Once
	onHealth := cfg.OnHealth
	cfg.OnHealth = func(i int, h node.Health) {
		if onHealth != nil {
			onHealth(i, h)
		}
		once.Do(func() { close(greeted) })
	}
	n := node.New(cfg)
	var ended sync.WaitGroup
	ended.Go(n.Run)
	ended.Go(n.RunSubscriber)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		n.Close(ctx, nil, nil)
		ended.Wait()
	})
	select {
	case <-greeted:
	case <-time.After(20 * time.Second):
		require.Fail(t, "the node is neither greeted nor refused")
	}
	return n, func() time.Duration { _, now := cfg.Clock(); return time.Duration(now) }
}

// greeted is run for a node that can be greeted.
func greeted(t testing.TB, addr string) (*node.Node, func() time.Duration) {
	t.Helper()
	n, now := run(t, node.Config{Option: rueidis.ClientOption{InitAddress: []string{addr}}, Cap: 2 * time.Second})
	require.Eventually(t, func() bool { return n.Health().Err == nil }, 20*time.Second, 5*time.Millisecond)
	return n, now
}

const metadata = "0 - -"

// acquisition returns a request for a lock until that instant, with changes.
func acquisition(lock, owner string, until time.Duration, change ...func(*wire.Acquisition)) *wire.Request {
	const token = 1_000_000
	a := &wire.Acquisition{
		Lock: lock, Value: wire.Compose(owner, token, metadata), KeyTTL: "10000", NotAfter: clock.Steady(until), Token: strconv.Itoa(token),
	}
	for _, c := range change {
		c(a)
	}
	req := &wire.Request{}
	req.Init(a)
	return req
}

// release returns a request that releases a lock.
func release(lock, owner string, until time.Duration) *wire.Request {
	return wire.Entry{Lock: lock, Value: wire.Compose(owner, 0, metadata)}.Release(nil, wire.TicketUpdate{}, clock.Steady(until))
}

// renewals returns a request that extends locks by ms.
func renewals(locks []string, owner string, token int64, ms string, until time.Duration) *wire.Request {
	r := wire.NewBatch(wire.Extend, len(locks), clock.Steady(until))
	for _, lock := range locks {
		wire.Entry{Lock: lock, Value: wire.Compose(owner, token, metadata)}.Extend(r, ms)
	}
	return r
}

// releases returns a request that releases several locks of ownerA.
func releases(until time.Duration, locks ...string) *wire.Request {
	r := wire.NewBatch(wire.Release, len(locks), clock.Steady(until))
	for _, lock := range locks {
		wire.Entry{Lock: lock, Value: wire.Compose(ownerA, 0, metadata)}.Delete(r)
	}
	return r
}

// tally counts answers by their result.
type tally struct {
	mu           sync.Mutex
	done, others int
	statuses     map[wire.Status]int
}

func (c *tally) Receive(_ int, _ *wire.Request, r *wire.Reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Status == wire.Done && r.N == wire.Ours {
		c.done++
	} else {
		c.others++
	}
	if c.statuses == nil {
		c.statuses = map[wire.Status]int{}
	}
	c.statuses[r.Status]++
}

// counts returns how many releases have deleted a lock, and how many answers had other
// results.
func (c *tally) counts() (done, others int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done, c.others
}

func steadyClock() func() (validity clock.Validity, steady clock.Steady) { return clock.New().Both }
