package conformance

import (
	"context"
	"fmt"
	"slices"
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
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Owners, as attempts make them.
var (
	alice = strings.Repeat("a", wire.OwnerLen)
	bob   = strings.Repeat("b", wire.OwnerLen)
	carol = strings.Repeat("c", wire.OwnerLen)
	dave  = strings.Repeat("d", wire.OwnerLen)
)

// Server is a server under test.
type Server struct {
	Option rueidis.ClientOption
	// Prefix begins every key that the client under test sends; "p:" if empty.
	Prefix string
	// Group means that the node is a failover group, whose marker names the term as well.
	Group bool
	// Do runs a command past the client under test.
	Do func(args ...string) (any, error)
	// Restart starts the server again, empty, as another process. Nil for a server that another one would replace.
	Restart func()
	// Fill makes the server refuse commands that need memory, and Drain ends that. Nil
	// for a server that cannot: the cases about a full server do not run then.
	Fill, Drain func()
}

// testCase is one claim about a node.
type testCase struct {
	claim string
	test  func(*rig)
}

// rig is one case: a server, the keys of one lock, and the nodes that the case makes.
type rig struct {
	*testing.T
	server Server
	clock  *clock.Clock

	lock, queue                    string
	registers, base, hint, marker  string
	capText, flags, known, channel string // of a call of the script
	bare                           bool   // calls of the script are without the companions of the locks

	began int64      // the server's clock, µs, before the first command of the case
	word  string     // the guard's name for the server, once it was needed
	node  *node.Node // the first that was needed
	wakes chan wake  // what the subscribers of the nodes received
}

func newRig(t *testing.T, server Server, c *clock.Clock) *rig {
	p := server.Prefix
	lock := wire.LockKey(p, "l")
	r := &rig{
		T: t, server: server, clock: c,
		lock: lock, queue: wire.QueueKey(lock),
		registers: wire.RegistersKey(p), base: wire.BaseKey(p), hint: wire.HintKey(p), marker: wire.GuardKey(p),
		capText: strconv.FormatInt(Ahead.Microseconds(), 10), flags: "s", channel: wire.WakeChannel(p, ""),
		wakes: make(chan wake, 4096),
	}
	r.began = r.micros()
	return r
}

// micros is the server's clock, as the value of a register.
func (r *rig) micros() int64 {
	r.Helper()
	parts, ok := r.admin("TIME").([]any)
	require.True(r, ok)
	s, err := strconv.ParseInt(parts[0].(string), 10, 64)
	require.NoError(r, err)
	us, err := strconv.ParseInt(parts[1].(string), 10, 64)
	require.NoError(r, err)
	return (s*1e6 + us) &^ 1
}

func (r *rig) admin(args ...string) any {
	r.Helper()
	v, err := r.server.Do(args...)
	require.NoError(r, err)
	return v
}

// register is where the lock's register stands, 0 if it has none.
func (r *rig) register() int64 {
	r.Helper()
	s, ok := r.admin("ZSCORE", r.registers, r.lock).(string)
	if !ok {
		return 0
	}
	v, err := strconv.ParseInt(s, 10, 64)
	require.NoError(r, err, "a register is written in full")
	return v
}

func (r *rig) setRegister(t int64) {
	r.Helper()
	r.admin("ZADD", r.registers, micros(t), r.lock)
}

// value is the lock's value as it is parsed, and zero without a lock.
func (r *rig) value() wire.Value {
	r.Helper()
	text, ok := r.admin("GET", r.lock).(string)
	if !ok {
		return wire.Value{}
	}
	return wire.ParseValue(text)
}

// holds makes the owner hold the lock, with a register that stands at the value's token.
func (r *rig) holds(owner string) (t int64) {
	r.Helper()
	t = r.micros()
	require.Equal(r, int64(1), r.one(r.acquire(owner, t)))
	return t
}

func (r *rig) pttl(key string) int64 {
	r.Helper()
	return r.admin("PTTL", key).(int64)
}

// left checks a remaining time, in ms, that was most at some instant of the case: on a busy machine a case takes
// seconds. A server cuts instants to milliseconds at several places.
func (r *rig) left(most int64, got any, what ...any) {
	r.Helper()
	assert.LessOrEqual(r, got, most, what...)
	assert.GreaterOrEqual(r, got, most-(r.micros()-r.began)/1000-5, what...)
}

func (r *rig) absent(keys ...string) {
	r.Helper()
	for _, key := range keys {
		assert.EqualValues(r, 0, r.admin("EXISTS", key), "key %q", key)
	}
}

// unchanged checks that a test leaves the whole database as it is. TTLs continue to run.
func (r *rig) unchanged(test func()) {
	r.Helper()
	before := r.dump()
	test()
	assert.Equal(r, before, r.dump())
}

// dump is all keys with their contents, and whether they expire. It leaves out the set of slots, which follows keys
// that end, and may be written at any refusal.
func (r *rig) dump() map[string]string {
	r.Helper()
	all := map[string]string{}
	for _, key := range r.admin("KEYS", "*").([]any) {
		name := key.(string)
		if name == wire.SlotsKey(r.lock) {
			continue
		}
		var content any
		switch kind := r.admin("TYPE", name); kind {
		case "string":
			content = r.admin("GET", name)
		case "zset":
			content = r.admin("ZRANGE", name, "0", "-1", "WITHSCORES")
		case "hash":
			content = r.admin("HGETALL", name)
		default:
			content = kind
		}
		all[name] = fmt.Sprint(content, r.pttl(name) >= 0)
	}
	return all
}

// connect starts a node.
func (r *rig) connect(change ...func(*node.Config)) *node.Node {
	r.Helper()
	cfg := node.Config{Option: r.server.Option, Prefix: r.server.Prefix, Clock: r.clock.Both, Drift: 0.01, Cap: Ahead, Window: time.Hour}
	for _, c := range change {
		c(&cfg)
	}
	up := make(chan node.Health, 64)
	cfg.OnHealth = func(_ int, h node.Health) {
		select {
		case up <- h:
		default:
		}
	}
	n := node.New(cfg)
	var ended sync.WaitGroup
	ended.Go(n.Run)
	ended.Go(n.RunSubscriber)
	ended.Go(n.RunGroup)
	r.Cleanup(func() {
		patience, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		n.Close(patience, nil, nil)
		ended.Wait()
	})
	r.Logf("greeted: %+v", <-up)
	return n
}

// Replies receives the replies to requests. Its capacity bounds how many are not read yet;
// nothing is dropped, and it is never closed.
type Replies chan wire.Reply

// Receive implements node.Receiver.
func (c Replies) Receive(_ int, _ *wire.Request, r *wire.Reply) {
	copied := *r
	copied.Answers, copied.Wants = slices.Clone(r.Answers), slices.Clone(r.Wants)
	c <- copied
}

// Next returns the next reply.
func (c Replies) Next(t testing.TB) wire.Reply {
	t.Helper()
	select {
	case got := <-c:
		return got
	case <-time.After(20 * time.Second):
		require.Fail(t, "no answer")
		return wire.Reply{}
	}
}

// on posts a request to a node and returns the answer.
func (r *rig) on(n *node.Node, req *wire.Request) wire.Reply {
	r.Helper()
	c := make(Replies, 1)
	require.True(r, n.Post(req, c))
	return c.Next(r)
}

// do posts a request to the rig's node.
func (r *rig) do(req *wire.Request) wire.Reply {
	r.Helper()
	if r.node == nil {
		r.node = r.connect()
	}
	return r.on(r.node, req)
}

// soon is an instant of the client's steady clock.
func (r *rig) soon(d time.Duration) clock.Steady { return r.clock.Steady().Add(d) }

// request is an acquisition, after a change.
func (r *rig) request(owner string, t int64, change ...func(*wire.Acquisition)) *wire.Request {
	a := &wire.Acquisition{
		Lock: r.lock, Value: wire.Compose(owner, t, metadata), KeyTTL: keyTTL,
		NotAfter: r.soon(10 * time.Second), Token: micros(t),
	}
	for _, c := range change {
		c(a)
	}
	req := &wire.Request{}
	req.Init(a)
	return req
}

// vote asks a node for the lock.
func (r *rig) vote(n *node.Node, owner string) wire.Reply {
	r.Helper()
	return r.on(n, r.request(owner, r.micros()))
}

func (r *rig) renewal(owner string, t int64) *wire.Request {
	renewals := wire.NewBatch(wire.Extend, 1, r.soon(10*time.Second))
	wire.Entry{Lock: r.lock, Value: wire.Compose(owner, t, metadata)}.Extend(renewals, keyTTL)
	return renewals
}

// healing heals a lock that the node should have kept for this long from now.
func (r *rig) healing(owner string, held time.Duration) *wire.Request {
	heal, heldUntil := wire.NewBatch(wire.Heal, 1, r.soon(10*time.Second)), clock.Steady(0)
	if held > 0 {
		heldUntil = r.soon(held)
	}
	wire.Entry{Lock: r.lock, Value: wire.Compose(owner, 0, metadata)}.Heal(heal, keyTTL, heal.Expires, heldUntil)
	return heal
}

// deleting releases several locks that have the same value.
func (r *rig) deleting(value string, locks ...string) *wire.Request {
	all := wire.NewBatch(wire.Release, len(locks), r.soon(time.Minute))
	for _, lock := range locks {
		wire.Entry{Lock: lock, Value: value}.Delete(all)
	}
	return all
}

func (r *rig) releasing(owner string) *wire.Request {
	return wire.Entry{Lock: r.lock, Value: wire.Compose(owner, 0, metadata)}.Release(nil, wire.TicketUpdate{}, r.soon(10*time.Second))
}
