// Package conformance is what every node has to do, real or in-process: the
// same cases run on both, so that what is shown with the fast one holds for
// the true one.
package conformance

import (
	"context"
	"fmt"
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
)

// Server is a server under test.
type Server struct {
	Option rueidis.ClientOption
	// Prefix begins every key that the client under test sends; "p:" if empty.
	Prefix string
	// Do runs a command past the client under test.
	Do func(args ...string) (any, error)
	// Restart starts the server again, empty, as another process.
	Restart func()
}

// Owners, as an attempt makes them.
var (
	alice = strings.Repeat("a", node.OwnerLen)
	bob   = strings.Repeat("b", node.OwnerLen)
	carol = strings.Repeat("c", node.OwnerLen)
)

const (
	px      = "5000"
	fencePX = "60000"
	clamp   = "2000000"
)

// Run runs every case on servers of its own.
func Run(t *testing.T, start func(testing.TB) Server) {
	server := start(t)
	if server.Prefix == "" {
		server.Prefix = "p:"
	}
	lock, fence, queue := node.Keys(server.Prefix, "l")
	for _, c := range []struct {
		claim string
		test  func(*rig)
	}{
		{"a free lock is granted and lives as long as asked", (*rig).grants},
		{"a new counter starts at the seed that all nodes get", (*rig).seeds},
		{"a seed far from the node's clock is pulled towards it", (*rig).clamps},
		{"the counter goes up by one for each grant", (*rig).counts},
		{"a counter ahead of the node's clock lives until the clock has passed it", (*rig).outlives},
		{"asking again with the same owner answers the same", (*rig).repeats},
		{"a taken lock tells its holder and is not touched", (*rig).refuses},
		{"a stranger's lock is taken, whatever is in it", (*rig).strangers},
		{"a request that is too late locks nothing", (*rig).late},
		{"a counter that is no number leaves no lock behind", (*rig).garbage},
		{"a key of another type is a configuration error", (*rig).wrongType},
		{"without fencing nothing but the lock is written", (*rig).unfenced},
		{"extend prolongs what is ours and raises its counter", (*rig).extends},
		{"extend never creates and never touches another's lock", (*rig).extendsOnlyOurs},
		{"extend refuses a life of zero, which would delete", (*rig).extendsZero},
		{"extend answers for each of many locks", (*rig).extendsMany},
		{"a bad key costs the other locks of a batch nothing", (*rig).batchesAroundBadKeys},
		{"heal brings back the lock alone", (*rig).heals},
		{"heal does nothing when late or when another has the lock", (*rig).healsOnlyOurs},
		{"raise lifts the counter while the lock is ours", (*rig).raises},
		{"raise is refused to everybody else and makes no counter", (*rig).raisesOnlyOurs},
		{"release deletes what is ours and leaves the counter at the token", (*rig).releases},
		{"release leaves another's lock alone", (*rig).releasesOnlyOurs},
		{"a failed attempt takes back its own step, and only that", (*rig).undoes},
		{"read tells all and changes nothing", (*rig).reads},
		{"scripts that the server forgot are loaded again", (*rig).reloads},
		{"the restart guard lets a node vote that it knows", (*rig).guardKnows},
		{"the restart guard quarantines a restart, a flush and a first use", (*rig).guardQuarantines},
		{"the restart guard sees a flush under a connection that stands", (*rig).guardSeesFlushes},
		{"a quarantine that one client starts binds the others", (*rig).guardBindsAll},
		{"the restart guard trusts an empty node when told to", (*rig).guardTrusts},
		{"the restart guard trusts nothing that it has seen before", (*rig).guardTrustsOnce},
		{"the restart guard's marker survives garbage in its place", (*rig).guardMends},
		{"a key of another type is refused, not overwritten, under the guard too", (*rig).guardSparesOthers},
		{"counters go on above the end of a quarantine", (*rig).guardFloor},
		{"clients with different longest leases are refused", (*rig).guardDisagrees},
		{"what was released meanwhile is not locked by sending again", (*rig).resendsNothingReleased},
		{"a guard that cannot do its work withholds votes and nothing else", (*rig).guardWithholds},
		{"a release leaves a counter alone that is beyond all numbers", (*rig).releasesBeyondNumbers},
		{"whoever waits is queued once and told how many are before it", (*rig).queues},
		{"the queue has an end", (*rig).queueEnds},
		{"who does not listen is not queued", (*rig).queuesListeners},
		{"who comes too late is not queued", (*rig).queuesNobodyLate},
		{"a release keeps the lock for the first by place, and tells it and the next", (*rig).keeps},
		{"what is kept is refused to everybody else", (*rig).keepsForOne},
		{"what is kept is free when the grace of the ticket is over", (*rig).keepsForAWhile},
		{"whom a lock is kept for acquires it, alone, with the next counter", (*rig).keepsForItsOwner},
		{"whom a lock is kept for gets nothing when it comes too late", (*rig).keepsForNobodyLate},
		{"a lock that is kept is nobody's for extend and raise, and heal takes it", (*rig).keepsFromNoLease},
		{"who does not listen any more is skipped, and what is no ticket", (*rig).skips},
		{"a script skips 64 tickets at the most", (*rig).skipsSoMany},
		{"who goes on waiting keeps its place", (*rig).stays},
		{"who goes on waiting and lets others go first keeps its place too", (*rig).staysBehind},
		{"who leaves is not in the queue any more", (*rig).leavesQueue},
		{"who leaves passes on what is kept for it, and what is free", (*rig).passesOn},
		{"a free lock goes to the first in its queue, whoever asks", (*rig).givesToTheFirst},
		{"a free lock goes to the first in its queue when it asks", (*rig).givesToWhoAsks},
		{"another's lock is given to nobody, whatever is in it", (*rig).givesNothingOfOthers},
		{"a queue of another type is a configuration error and leaves no lock", (*rig).queueOfAnotherType},
		{"without fencing nobody is queued", (*rig).unfencedQueuesNobody},
		{"read tells how many wait", (*rig).readsQueue},
		{"a lock is handed on under the restart guard too", (*rig).guardHandsOn},
	} {
		t.Run(c.claim, func(t *testing.T) {
			_, err := server.Do("FLUSHALL")
			require.NoError(t, err)
			c.test(&rig{T: t, server: server, clock: clock.New(), lock: lock, fence: fence, queue: queue, turns: make(chan turn, 256)})
		})
	}
}

// rig is one case: a node over the server, and two key names.
type rig struct {
	*testing.T
	server      Server
	clock       *clock.Clock
	lock, fence string
	queue       string
	node        *node.Node
	turns       chan turn // what the ears of nodes that listen heard
}

// connect starts a node; the rig's own unless a case makes several.
func (r *rig) connect(change ...func(*node.Config)) *node.Node {
	r.Helper()
	cfg := node.Config{Option: r.server.Option, Prefix: r.server.Prefix, Now: r.clock.Now}
	for _, c := range change {
		c(&cfg)
	}
	up := make(chan node.Health, 64)
	cfg.Changed = func(_ int, h node.Health) {
		select {
		case up <- h:
		default:
		}
	}
	n := node.New(cfg)
	var ended sync.WaitGroup
	ended.Go(n.Run)
	ended.Go(n.Hear)
	r.Cleanup(func() {
		patience, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		n.Close(patience, nil, nil)
		ended.Wait()
	})
	r.Logf("greeted: %+v", <-up)
	return n
}

// reply waits for one answer.
type reply chan node.Reply

func (c reply) Receive(_ int, _ *node.Request, r *node.Reply) {
	copied := *r
	copied.Many = append([]int64(nil), r.Many...)
	c <- copied
}

func (r *rig) on(n *node.Node, kind node.Kind, keys []string, args ...string) node.Reply {
	r.Helper()
	answer := make(reply, 1)
	req := &node.Request{Kind: kind, Keys: keys, Args: args, Expires: r.clock.Now() + 10*time.Second}
	require.True(r, n.Post(req, answer))
	select {
	case got := <-answer:
		return got
	case <-time.After(20 * time.Second):
		require.Fail(r, "no answer")
		return node.Reply{}
	}
}

func (r *rig) do(kind node.Kind, args ...string) node.Reply {
	r.Helper()
	return r.to(kind, r.keys(kind), args...)
}

// keys are what a request for the lock takes.
func (r *rig) keys(kind node.Kind) []string {
	if kind == node.Extend || kind == node.Raise {
		return []string{r.lock, r.fence}
	}
	return []string{r.lock, r.fence, r.queue}
}

func (r *rig) to(kind node.Kind, keys []string, args ...string) node.Reply {
	r.Helper()
	if r.node == nil {
		r.node = r.connect()
	}
	return r.on(r.node, kind, keys, args...)
}

// acquire asks for the lock with a counter seed of now.
func (r *rig) acquire(owner string) node.Reply {
	r.Helper()
	return r.do(node.Acquire, r.acquireArgs(owner, r.micros(), time.Minute)...)
}

func (r *rig) acquireArgs(owner string, seed int64, inTime time.Duration) []string {
	return []string{
		owner, "1700000000000000 - label with spaces", px, fencePX,
		strconv.FormatInt(seed, 10), clamp, r.until(inTime), "", "",
	}
}

// release is that of somebody who has not waited.
func (r *rig) release(owner, token string) node.Reply {
	r.Helper()
	return r.do(node.Release, releaseArgs(owner, token)...)
}

func releaseArgs(owner, token string) []string {
	return []string{owner, token, fencePX, "", "", "0"}
}

// until is an instant of the client's clock as the scripts take it.
func (r *rig) until(d time.Duration) string {
	return strconv.FormatInt((r.clock.Now() + d).Microseconds(), 10)
}

// micros is the server's clock.
func (r *rig) micros() int64 {
	r.Helper()
	parts, ok := r.admin("TIME").([]any)
	require.True(r, ok)
	s, err := strconv.ParseInt(parts[0].(string), 10, 64)
	require.NoError(r, err)
	us, err := strconv.ParseInt(parts[1].(string), 10, 64)
	require.NoError(r, err)
	return s*1e6 + us
}

func (r *rig) admin(args ...string) any {
	r.Helper()
	v, err := r.server.Do(args...)
	require.NoError(r, err)
	return v
}

func (r *rig) counter() int64 {
	r.Helper()
	s, ok := r.admin("GET", r.fence).(string)
	require.True(r, ok, "no counter")
	v, err := strconv.ParseInt(s, 10, 64)
	require.NoError(r, err, "a counter has to be written in full")
	return v
}

func (r *rig) pttl(key string) int64 {
	r.Helper()
	return r.admin("PTTL", key).(int64)
}

func (r *rig) absent(key string) {
	r.Helper()
	assert.Nil(r, r.admin("GET", key), "key %q", key)
}

func (r *rig) grants() {
	got := r.acquire(alice)
	require.Equal(r, node.Granted, got.Status, "%v", got.Err)
	v := node.ParseValue(r.admin("GET", r.lock).(string))
	assert.Equal(r, alice, v.Owner)
	assert.Equal(r, got.N, v.Counter)
	assert.Equal(r, "label with spaces", v.Label)
	assert.InDelta(r, 5000, r.pttl(r.lock), 1000)
	assert.InDelta(r, 60000, r.pttl(r.fence), 1000)
}

func (r *rig) seeds() {
	seed := r.micros() - 1234567 // within the clamp
	got := r.do(node.Acquire, r.acquireArgs(alice, seed, time.Minute)...)
	require.Equal(r, node.Granted, got.Status, "%v", got.Err)
	assert.Equal(r, seed, got.N)
	assert.Equal(r, seed, r.counter())
}

func (r *rig) clamps() {
	got := r.do(node.Acquire, r.acquireArgs(alice, 17, time.Minute)...)
	require.Equal(r, node.Granted, got.Status, "%v", got.Err)
	assert.InDelta(r, r.micros()-2e6, got.N, 1e6)
	assert.Equal(r, node.Done, r.release(alice, "1").Status)
	r.admin("DEL", r.fence)
	got = r.do(node.Acquire, r.acquireArgs(alice, 1<<52, time.Minute)...)
	assert.InDelta(r, r.micros()+2e6, got.N, 1e6)
}

func (r *rig) counts() {
	first := r.acquire(alice).N
	r.release(alice, strconv.FormatInt(first, 10))
	assert.Equal(r, first+1, r.acquire(bob).N)
}

func (r *rig) outlives() {
	const hour = int64(time.Hour / time.Microsecond)
	now := r.micros()
	lives := func(to int64, by string) {
		r.Helper()
		assert.Equal(r, to, r.counter(), by)
		assert.InDelta(r, (to-now)/1000+60000, r.pttl(r.fence), 10000, by)
		r.admin("PEXPIRE", r.fence, "1000")
	}
	r.admin("SET", r.fence, strconv.FormatInt(now+hour-1, 10))
	r.acquire(alice)
	lives(now+hour, "acquire")
	r.do(node.Extend, "2", fencePX, alice, px, "1")
	lives(now+hour, "extend, of a counter that is above the token")
	r.do(node.Extend, "2", fencePX, alice, px, strconv.FormatInt(now+2*hour, 10))
	lives(now+2*hour, "extend")
	r.do(node.Raise, alice, strconv.FormatInt(now+3*hour, 10), fencePX)
	lives(now+3*hour, "raise")
	r.release(alice, strconv.FormatInt(now+4*hour, 10))
	lives(now+4*hour, "release")
	r.acquire(alice)
	r.release(alice, "0")
	lives(now+4*hour, "release of a failed attempt")
}

func (r *rig) repeats() {
	first := r.acquire(alice)
	again := r.acquire(alice)
	assert.Equal(r, node.Granted, again.Status)
	assert.Equal(r, first.N, again.N)
	assert.Equal(r, first.N, r.counter())
}

func (r *rig) refuses() {
	c := r.acquire(alice).N
	before := r.admin("GET", r.lock)
	got := r.acquire(bob)
	assert.Equal(r, node.Taken, got.Status)
	assert.Equal(r, alice, node.ParseValue(got.Value).Owner)
	assert.InDelta(r, 5*time.Second, got.TTL, float64(time.Second))
	assert.Equal(r, before, r.admin("GET", r.lock))
	assert.Equal(r, c, r.counter())
}

func (r *rig) strangers() {
	r.known(time.Hour)
	n := r.connect(guarded(time.Hour))
	for _, value := range []string{"", "x", "\xff\x00\r\n", alice, alice + " ", alice + "0 1 - -", strings.Repeat("v", 100_000)} {
		r.admin("SET", r.lock, value)
		for _, got := range []node.Reply{r.acquire(bob), r.vote(n, bob)} {
			assert.Equal(r, node.Taken, got.Status, "%.40q", value)
			assert.Negative(r, got.TTL)
			assert.LessOrEqual(r, len(got.Value), 512)
			assert.Equal(r, value, r.admin("GET", r.lock))
		}
	}
	r.absent(r.fence)
}

func (r *rig) late() {
	got := r.do(node.Acquire, r.acquireArgs(alice, r.micros(), -time.Second)...)
	assert.Equal(r, node.Unsent, got.Status)
	assert.ErrorIs(r, got.Err, node.ErrLate)
	r.absent(r.lock)
	r.absent(r.fence)
}

func (r *rig) garbage() {
	r.admin("SET", r.fence, "not a number")
	got := r.acquire(alice)
	assert.Equal(r, node.Misconfigured, got.Status)
	r.absent(r.lock)
}

func (r *rig) wrongType() {
	r.admin("HSET", r.lock, "a", "b")
	got := r.acquire(alice)
	assert.Equal(r, node.Misconfigured, got.Status)
	var config *node.ConfigError
	require.ErrorAs(r, got.Err, &config)
	r.absent(r.fence)
}

func (r *rig) unfenced() {
	got := r.to(node.Acquire, []string{r.lock}, r.acquireArgs(alice, r.micros(), time.Minute)...)
	require.Equal(r, node.Granted, got.Status, "%v", got.Err)
	assert.Zero(r, got.N)
	assert.EqualValues(r, 1, r.to(node.Extend, []string{r.lock}, "1", fencePX, alice, px, "0").Many[0])
	assert.EqualValues(r, 1, r.to(node.Release, []string{r.lock}, releaseArgs(alice, "0")...).N)
	assert.EqualValues(r, 0, r.admin("DBSIZE"))
}

func (r *rig) extends() {
	c := r.acquire(alice).N
	r.admin("PEXPIRE", r.lock, "100000")
	r.admin("PEXPIRE", r.fence, "1000")
	got := r.do(node.Extend, "2", fencePX, alice, px, strconv.FormatInt(c+7, 10))
	require.Equal(r, []int64{1}, got.Many, "%v", got.Err)
	assert.InDelta(r, 5000, r.pttl(r.lock), 1000)
	assert.InDelta(r, 60000, r.pttl(r.fence), 1000)
	assert.Equal(r, c+7, r.counter())
	assert.Equal(r, c, node.ParseValue(r.admin("GET", r.lock).(string)).Counter)
	r.do(node.Extend, "2", fencePX, alice, px, strconv.FormatInt(c, 10))
	assert.Equal(r, c+7, r.counter(), "a counter never goes back")
	r.admin("DEL", r.fence)
	r.do(node.Extend, "2", fencePX, alice, px, strconv.FormatInt(c, 10))
	r.absent(r.fence)
}

func (r *rig) extendsOnlyOurs() {
	assert.Equal(r, []int64{0}, r.do(node.Extend, "2", fencePX, alice, px, "9").Many)
	r.absent(r.lock)
	r.absent(r.fence)
	c := r.acquire(bob).N
	r.admin("PEXPIRE", r.lock, "100000")
	assert.Equal(r, []int64{-1}, r.do(node.Extend, "2", fencePX, alice, px, strconv.FormatInt(c+9, 10)).Many)
	assert.Greater(r, r.pttl(r.lock), int64(50000))
	assert.Equal(r, c, r.counter())
}

func (r *rig) extendsZero() {
	r.acquire(alice)
	got := r.do(node.Extend, "2", fencePX, alice, "0", "1")
	assert.Equal(r, node.Misconfigured, got.Status)
	assert.NotNil(r, r.admin("GET", r.lock))
}

func (r *rig) extendsMany() {
	var keys []string
	args := []string{"2", fencePX}
	for i := range node.MaxBatch {
		lock, fence, queue := node.Keys(r.server.Prefix, strconv.Itoa(i))
		keys = append(keys, lock, fence)
		args = append(args, alice, px, "5")
		switch i % 3 {
		case 0:
			got := r.to(node.Acquire, []string{lock, fence, queue}, r.acquireArgs(alice, r.micros(), time.Minute)...)
			require.Equal(r, node.Granted, got.Status)
		case 1:
			r.admin("SET", lock, "another")
		}
	}
	got := r.to(node.Extend, keys, args...)
	require.Len(r, got.Many, node.MaxBatch, "%v", got.Err)
	for i, answer := range got.Many {
		assert.Equal(r, []int64{1, -1, 0}[i%3], answer, "lock %d", i)
	}
}

func (r *rig) batchesAroundBadKeys() {
	a, fa, qa := node.Keys(r.server.Prefix, "a")
	b, fb, qb := node.Keys(r.server.Prefix, "b")
	c, fc, qc := node.Keys(r.server.Prefix, "c")
	keys := []string{a, fa, b, fb, c, fc}
	for i, queue := range []string{qa, qb, qc} {
		got := r.to(node.Acquire, []string{keys[2*i], keys[2*i+1], queue}, r.acquireArgs(alice, r.micros(), time.Minute)...)
		require.Equal(r, node.Granted, got.Status, "lock %d", i)
	}
	r.admin("DEL", b)
	r.admin("HSET", b, "x", "y")
	r.admin("SET", fa, "no number")
	r.admin("DEL", fc)
	r.admin("HSET", fc, "x", "y")
	got := r.to(node.Extend, keys, "2", fencePX, alice, px, "1", alice, px, "1", alice, px, "1")
	assert.Equal(r, []int64{1, -1, 1}, got.Many, "%v", got.Err)
	value := node.Compose(alice, 1, "1700000000000000 - ")
	got = r.to(node.Heal, []string{a, b}, value, px, r.until(time.Minute), value, px, r.until(time.Minute))
	assert.Equal(r, []int64{1, -1}, got.Many, "%v", got.Err)
	assert.EqualValues(r, 1, r.to(node.Release, []string{c, fc, qc}, releaseArgs(alice, "1")...).N)
}

func (r *rig) heals() {
	value := node.Compose(alice, 42, "1700000000000000 - x")
	heal := func() node.Reply {
		return r.to(node.Heal, []string{r.lock}, value, px, r.until(time.Minute))
	}
	assert.Equal(r, []int64{1}, heal().Many)
	assert.Equal(r, value, r.admin("GET", r.lock))
	assert.InDelta(r, 5000, r.pttl(r.lock), 1000)
	r.absent(r.fence)
	r.admin("PEXPIRE", r.lock, "100000")
	assert.Equal(r, []int64{1}, heal().Many)
	assert.InDelta(r, 5000, r.pttl(r.lock), 1000)
}

func (r *rig) healsOnlyOurs() {
	value := node.Compose(alice, 42, "1700000000000000 - x")
	assert.Equal(r, []int64{0}, r.to(node.Heal, []string{r.lock}, value, px, r.until(-time.Second)).Many)
	r.absent(r.lock)
	r.acquire(bob)
	assert.Equal(r, []int64{-1}, r.to(node.Heal, []string{r.lock}, value, px, r.until(time.Minute)).Many)
	assert.Equal(r, bob, node.ParseValue(r.admin("GET", r.lock).(string)).Owner)
}

func (r *rig) raises() {
	c := r.acquire(alice).N
	assert.EqualValues(r, 1, r.do(node.Raise, alice, strconv.FormatInt(c+3, 10), fencePX).N)
	assert.Equal(r, c+3, r.counter())
	assert.EqualValues(r, 1, r.do(node.Raise, alice, strconv.FormatInt(c+3, 10), fencePX).N, "again")
	assert.EqualValues(r, 0, r.do(node.Raise, alice, strconv.FormatInt(c, 10), fencePX).N, "the counter is past it")
	assert.Equal(r, c+3, r.counter(), "a counter never goes back")
}

func (r *rig) raisesOnlyOurs() {
	assert.EqualValues(r, 0, r.do(node.Raise, alice, "9", fencePX).N)
	c := r.acquire(bob).N
	got := r.do(node.Raise, alice, strconv.FormatInt(c+3, 10), fencePX)
	assert.Equal(r, node.Done, got.Status)
	assert.EqualValues(r, 0, got.N)
	assert.Equal(r, c, r.counter())
	r.admin("DEL", r.fence)
	assert.EqualValues(r, 0, r.do(node.Raise, bob, "9", fencePX).N)
	r.absent(r.fence)
}

func (r *rig) releases() {
	c := r.acquire(alice).N
	assert.EqualValues(r, 1, r.release(alice, strconv.FormatInt(c+5, 10)).N)
	r.absent(r.lock)
	assert.Equal(r, c+5, r.counter())
	assert.EqualValues(r, 0, r.release(alice, strconv.FormatInt(c+9, 10)).N)
	assert.Equal(r, c+5, r.counter())
}

func (r *rig) releasesOnlyOurs() {
	c := r.acquire(bob).N
	assert.EqualValues(r, -1, r.release(alice, strconv.FormatInt(c+5, 10)).N)
	assert.EqualValues(r, -1, r.release(alice, "0").N)
	assert.NotNil(r, r.admin("GET", r.lock))
	assert.Equal(r, c, r.counter())
}

func (r *rig) undoes() {
	c := r.acquire(alice).N
	assert.EqualValues(r, 1, r.release(alice, "0").N)
	assert.Equal(r, c-1, r.counter())
	assert.Equal(r, c, r.acquire(alice).N)
	r.admin("SET", r.fence, strconv.FormatInt(c+4, 10))
	r.release(alice, "0")
	assert.Equal(r, c+4, r.counter(), "somebody stepped since")
}

func (r *rig) reads() {
	got := r.do(node.Read)
	assert.Equal(r, node.Done, got.Status, "%v", got.Err)
	assert.Empty(r, got.Value)
	assert.Negative(r, got.TTL)
	assert.Zero(r, got.Fence)
	c := r.acquire(alice).N
	got = r.do(node.Read)
	assert.Equal(r, alice, node.ParseValue(got.Value).Owner)
	assert.InDelta(r, 5*time.Second, got.TTL, float64(time.Second))
	assert.Equal(r, c, got.Fence)
	assert.Equal(r, node.Done, r.to(node.Read, []string{r.lock}).Status)
}

func (r *rig) reloads() {
	require.Equal(r, node.Granted, r.acquire(alice).Status)
	r.admin("SCRIPT", "FLUSH")
	assert.Equal(r, node.Taken, r.acquire(bob).Status)
}

// guarded switches the restart guard on.
func guarded(longest time.Duration) func(*node.Config) {
	return func(c *node.Config) { c.Guard = longest }
}

func (r *rig) guardKnows() {
	r.connect(guarded(100*time.Millisecond)).Close(context.Background(), nil, nil)
	time.Sleep(150 * time.Millisecond)
	n := r.connect(guarded(100 * time.Millisecond))
	require.NoError(r, n.Health().Err)
	assert.Zero(r, n.Health().Quarantined)
}

func (r *rig) guardQuarantines() {
	keys := r.keys(node.Acquire)
	quarantined := func(n *node.Node, why string) {
		r.Helper()
		got := r.on(n, node.Acquire, keys, r.acquireArgs(alice, r.micros(), time.Minute)...)
		assert.Equal(r, node.Unsent, got.Status, why)
		assert.ErrorIs(r, got.Err, node.ErrQuarantined, why)
		r.absent(r.lock)
		assert.Equal(r, node.Done, r.on(n, node.Extend, keys[:2], "2", fencePX, alice, px, "1").Status,
			"everything but votes goes on")
	}
	quarantined(r.connect(guarded(time.Hour)), "first use")
	r.admin("FLUSHALL")
	quarantined(r.connect(guarded(time.Hour)), "flush")
	r.server.Restart()
	quarantined(r.connect(guarded(time.Hour)), "restart")
}

func (r *rig) guardTrusts() {
	trusting := func(c *node.Config) { c.Guard, c.Trust = time.Hour, true }
	assert.Zero(r, r.connect(trusting).Health().Quarantined)
	r.admin("FLUSHALL")
	r.admin("SET", "anything", "x")
	assert.NotZero(r, r.connect(trusting).Health().Quarantined, "not empty, and not known")
}

// known is a marker whose quarantine is over, so that a case need not wait.
func (r *rig) known(longest time.Duration) {
	r.Helper()
	info, ok := r.admin("INFO", "server").(string)
	require.True(r, ok)
	_, after, _ := strings.Cut(info, "run_id:")
	run, _, _ := strings.Cut(after, "\r\n")
	r.admin("SET", node.GuardKey(r.server.Prefix), fmt.Sprintf("%s 1 %d", run, longest.Milliseconds()))
}

func (r *rig) vote(n *node.Node, owner string) node.Reply {
	r.Helper()
	return r.on(n, node.Acquire, r.keys(node.Acquire), r.acquireArgs(owner, r.micros(), time.Minute)...)
}

func (r *rig) guardSeesFlushes() {
	r.known(time.Hour)
	n := r.connect(guarded(time.Hour))
	require.Equal(r, node.Granted, r.vote(n, alice).Status)
	r.admin("FLUSHALL")
	got := r.vote(n, bob)
	assert.Equal(r, node.Unsent, got.Status)
	require.ErrorIs(r, got.Err, node.ErrQuarantined)
	r.absent(r.lock)
	assert.InDelta(r, time.Hour, n.Health().QuarantineLeft(), float64(2*time.Minute))
	require.NoError(r, n.Health().Err, "everything but votes goes on")
}

func (r *rig) guardBindsAll() {
	r.known(time.Hour)
	n := r.connect(guarded(time.Hour))
	require.Equal(r, node.Granted, r.vote(n, alice).Status)
	r.admin("FLUSHALL")
	r.connect(guarded(time.Hour)) // another client, which finds the flush first
	require.ErrorIs(r, r.vote(n, bob).Err, node.ErrQuarantined)
}

func (r *rig) guardTrustsOnce() {
	trusting := func(c *node.Config) { c.Guard, c.Trust = time.Hour, true }
	n := r.connect(trusting)
	require.Equal(r, node.Granted, r.vote(n, alice).Status, "a first deployment")
	r.admin("FLUSHALL")
	require.ErrorIs(r, r.vote(n, bob).Err, node.ErrQuarantined, "and no second one")
}

func (r *rig) guardMends() {
	r.admin("SET", node.GuardKey(r.server.Prefix), "\xff garbage")
	n := r.connect(guarded(time.Second))
	require.ErrorIs(r, r.vote(n, alice).Err, node.ErrQuarantined)
	time.Sleep(1100 * time.Millisecond)
	assert.Equal(r, node.Granted, r.vote(n, alice).Status)
}

func (r *rig) guardSparesOthers() {
	r.known(time.Hour)
	n := r.connect(guarded(time.Hour))
	r.admin("HSET", r.lock, "theirs", "x")
	got := r.vote(n, alice)
	assert.Equal(r, node.Misconfigured, got.Status)
	assert.ErrorContains(r, got.Err, "WRONGTYPE")
	assert.Equal(r, "x", r.admin("HGET", r.lock, "theirs"))
}

func (r *rig) guardFloor() {
	n := r.connect(guarded(200 * time.Millisecond))
	began := r.micros()
	time.Sleep(300 * time.Millisecond)
	got := r.on(n, node.Acquire, r.keys(node.Acquire), r.acquireArgs(alice, began-1_000_000, time.Minute)...)
	require.Equal(r, node.Granted, got.Status, "%v", got.Err)
	assert.Greater(r, got.N, began+100_000)
}

func (r *rig) guardDisagrees() {
	r.connect(guarded(time.Second))
	n := r.connect(guarded(2 * time.Second))
	var config *node.ConfigError
	require.ErrorAs(r, n.Health().Err, &config)
	assert.Contains(r, config.Error(), "1000 ms")
}

func (r *rig) guardWithholds() {
	keys := r.keys(node.Acquire)
	value := node.Compose(alice, 1, "1700000000000000 - ")
	goesOn := func(n *node.Node) {
		r.Helper()
		r.on(n, node.Release, keys, releaseArgs(bob, "0")...)
		assert.Equal(r, []int64{1}, r.on(n, node.Heal, keys[:1], value, px, r.until(time.Minute)).Many)
		assert.Equal(r, []int64{1}, r.on(n, node.Extend, keys[:2], "2", fencePX, alice, px, "1").Many)
		r.admin("SET", r.fence, "1")
		assert.EqualValues(r, 1, r.on(n, node.Raise, keys[:2], alice, "2", fencePX).N)
		assert.Equal(r, alice, node.ParseValue(r.on(n, node.Read, keys).Value).Owner)
		assert.EqualValues(r, 1, r.on(n, node.Release, keys, releaseArgs(alice, "2")...).N)
		r.absent(r.lock)
	}
	withheld := func(n *node.Node) {
		r.Helper()
		got := r.vote(n, bob)
		assert.Equal(r, node.Misconfigured, got.Status)
		require.ErrorContains(r, got.Err, "the restart guard of this node stands at")
		r.absent(r.lock)
		goesOn(n)
		require.Equal(r, got.Err, n.Health().Err)
		assert.True(r, n.Health().Withheld)
	}
	r.known(time.Hour)
	n := r.connect(guarded(time.Hour))
	require.Equal(r, node.Granted, r.vote(n, bob).Status)
	r.known(2 * time.Hour) // somebody deploys another longest lease
	r.on(n, node.Release, keys, releaseArgs(bob, "0")...)
	withheld(n)
	withheld(r.connect(guarded(time.Hour)))
	r.known(time.Hour)
	require.Eventually(r, func() bool { return n.Health().Err == nil }, 10*time.Second, 10*time.Millisecond, "mended")
	assert.False(r, n.Health().Withheld)
	assert.Equal(r, node.Granted, r.vote(n, bob).Status)
}

// inOneBatch posts requests while the node's worker is busy, so that they go out
// together, and returns the answers in the order of the requests. Before, it has
// the server run a command.
func (r *rig) inOneBatch(n *node.Node, before []string, reqs ...*node.Request) []node.Reply {
	r.Helper()
	answers := make([]reply, len(reqs))
	posted := make(chan struct{})
	post := posting(func() {
		defer close(posted)
		_, err := r.server.Do(before...)
		assert.NoError(r, err)
		for i, req := range reqs {
			answers[i] = make(reply, 1)
			req.Expires = r.clock.Now() + 10*time.Second
			assert.True(r, n.Post(req, answers[i]))
		}
	})
	require.True(r, n.Post(&node.Request{Kind: node.Read, Keys: []string{r.lock}, Expires: r.clock.Now() + 10*time.Second}, post))
	<-posted
	got := make([]node.Reply, len(reqs))
	for i := range got {
		select {
		case got[i] = <-answers[i]:
		case <-time.After(20 * time.Second):
			require.Fail(r, "no answer")
		}
	}
	return got
}

// posting is a receiver that does something in the worker's goroutine.
type posting func()

func (p posting) Receive(int, *node.Request, *node.Reply) { p() }

func (r *rig) resendsNothingReleased() {
	keys := r.keys(node.Acquire)
	release := &node.Request{Kind: node.Release, Keys: keys, Args: releaseArgs(alice, "0"), Insist: true}
	acquire := func() *node.Request {
		return &node.Request{Kind: node.Acquire, Keys: keys, Args: r.acquireArgs(alice, r.micros(), time.Minute)}
	}
	r.known(time.Hour)
	n := r.connect(guarded(time.Hour))
	marker := r.admin("GET", node.GuardKey(r.server.Prefix)).(string)
	// Another marker, of a quarantine that is over: the acquire is void, and its
	// release is not.
	another := []string{"SET", node.GuardKey(r.server.Prefix), strings.Replace(marker, " 1 ", " 2 ", 1)}
	got := r.inOneBatch(n, another, acquire(), release)
	assert.Equal(r, node.Unsent, got[0].Status, "%v", got[0].Err)
	require.ErrorIs(r, got[0].Err, node.ErrQuarantined)
	assert.Equal(r, node.Done, got[1].Status)
	r.absent(r.lock)
	require.Equal(r, node.Granted, r.vote(n, alice).Status, "the node votes")

	// Nothing of it has run, and who gave the lock up does not want it.
	heal := &node.Request{
		Kind: node.Heal, Keys: keys[:1],
		Args: []string{node.Compose(alice, 1, "1700000000000000 - "), px, r.until(time.Minute)},
	}
	got = r.inOneBatch(n, []string{"SCRIPT", "FLUSH"}, acquire(), heal, release)
	assert.Equal(r, node.Unsent, got[0].Status)
	assert.Equal(r, node.Unsent, got[1].Status)
	assert.EqualValues(r, 1, got[2].N, "%v", got[2].Err)
	r.absent(r.lock)

	got = r.inOneBatch(n, []string{"SCRIPT", "FLUSH"}, release, acquire())
	assert.Equal(r, node.Granted, got[1].Status, "in front of it a release is none of the acquire's: %v", got[1].Err)
}

func (r *rig) releasesBeyondNumbers() {
	const beyond = 1 << 53
	for _, token := range []string{"0", "7"} {
		r.admin("SET", r.lock, node.Compose(alice, beyond, "1700000000000000 - "))
		r.admin("SET", r.fence, strconv.Itoa(beyond))
		got := r.release(alice, token)
		assert.EqualValues(r, 1, got.N, "%v", got.Err)
		r.absent(r.lock)
		assert.EqualValues(r, beyond, r.counter())
		assert.EqualValues(r, -1, r.pttl(r.fence))
	}
}

// manager is whom the rig's nodes that listen are told of.
const manager = "0123456789abcdef"

// grace is how long a lock is kept for the rig's tickets, ms.
const grace = 999

// ticket is that of the n-th wait, and place where it belongs in the queue.
func ticket(n int) string { return fmt.Sprintf("%s%016x%d", manager, n, grace) }

func place(n int) string { return strconv.Itoa(1_700_000_000_000_000 + n) }

// turn is what a node has told.
type turn struct {
	kept         bool
	ticket, lock string
}

// listen makes the rig's node one that hears of its Manager's turns.
func (r *rig) listen(change ...func(*node.Config)) {
	r.Helper()
	heard := make(chan struct{}, 64)
	r.node = r.connect(append(change, func(c *node.Config) {
		c.Manager = manager
		c.Turn = func(_ int, kept bool, ticket, lock string) { r.turns <- turn{kept, ticket, lock} }
		c.Heard = func(int) { heard <- struct{}{} }
	})...)
	r.node.Listen()
	select {
	case <-heard:
	case <-time.After(20 * time.Second):
		require.Fail(r, "the node is not listened to")
	}
}

// keptFor and nextIs are what the node tells the n-th waiter of the rig's lock.
func (r *rig) keptFor(n int) turn { return turn{true, ticket(n)[:node.TicketLen], r.lock} }
func (r *rig) nextIs(n int) turn  { return turn{false, ticket(n)[:node.TicketLen], r.lock} }

// told checks what was told, in this order, since it was called last.
func (r *rig) told(want ...turn) {
	r.Helper()
	last := turn{true, strings.Repeat("-", node.TicketLen), "and this is all"}
	r.admin("PUBLISH", node.WakeChannel(r.server.Prefix, manager), "k"+last.ticket+last.lock)
	var got []turn
	for {
		select {
		case next := <-r.turns:
			if next == last {
				assert.Equal(r, want, got)
				return
			}
			got = append(got, next)
		case <-time.After(20 * time.Second):
			require.Fail(r, "the node is not listened to any more")
		}
	}
}

// kept checks that the lock is kept for the n-th waiter, and that it was told, and
// nobody else but who is the next. It has it kept for longer than a slow machine
// takes.
func (r *rig) kept(n int, next ...int) {
	r.Helper()
	value, _ := r.admin("GET", r.lock).(string)
	left := r.pttl(r.lock)
	r.admin("PEXPIRE", r.lock, "60000")
	assert.Equal(r, node.Value{Owner: ticket(n)[:node.TicketLen], Kept: true}, node.ParseValue(value), "%q", value)
	assert.Greater(r, left, int64(0))
	assert.LessOrEqual(r, left, int64(grace))
	told := []turn{r.keptFor(n)}
	for _, n := range next {
		told = append(told, r.nextIs(n))
	}
	r.told(told...)
}

// queued checks who is in the queue, in this order.
func (r *rig) queued(waiters ...int) {
	r.Helper()
	want := []any{}
	for _, n := range waiters {
		want = append(want, ticket(n))
	}
	assert.Equal(r, want, r.admin("ZRANGE", r.queue, "0", "-1"))
}

// ask is an attempt of the n-th waiter.
func (r *rig) ask(owner string, n int) node.Reply {
	r.Helper()
	return r.do(node.Acquire, r.waiting(owner, n, time.Minute)...)
}

func (r *rig) waiting(owner string, n int, inTime time.Duration) []string {
	args := r.acquireArgs(owner, r.micros(), inTime)
	return append(args[:len(args)-2], ticket(n), place(n))
}

// leave is the end of the n-th wait, and of the lock if it is the owner's.
func (r *rig) leave(owner string, n int) node.Reply {
	r.Helper()
	return r.do(node.Release, owner, "0", fencePX, ticket(n), "", "0")
}

// yield releases an attempt of the n-th waiter, which goes on waiting.
func (r *rig) yield(owner string, n int, past string) node.Reply {
	r.Helper()
	return r.do(node.Release, owner, "0", fencePX, ticket(n), place(n), past)
}

// hold has alice hold the lock while these wait, in the order of their arrival. It
// returns her counter.
func (r *rig) hold(waiters ...int) int64 {
	r.Helper()
	got := r.acquire(alice)
	require.Equal(r, node.Granted, got.Status, "%v", got.Err)
	for _, n := range waiters {
		require.Equal(r, node.Taken, r.ask(bob, n).Status)
	}
	return got.N
}

// keep is hold, and a release: the lock is kept for the first of the waiters, who
// are in the order of their places.
func (r *rig) keep(waiters ...int) (counter int64) {
	r.Helper()
	counter = r.hold(waiters...)
	got := r.release(alice, strconv.FormatInt(counter, 10))
	require.EqualValues(r, node.HandedOn, got.N, "%v", got.Err)
	r.kept(waiters[0], waiters[1:min(2, len(waiters))]...)
	return counter
}

func (r *rig) queues() {
	r.listen()
	r.hold()
	for _, c := range []struct {
		waiter int
		before int64
	}{{2, 0}, {3, 1}, {2, 0}, {3, 1}, {1, 0}, {3, 2}, {2, 1}} {
		got := r.ask(bob, c.waiter)
		assert.Equal(r, node.Taken, got.Status)
		assert.Equal(r, alice, node.ParseValue(got.Value).Owner)
		assert.InDelta(r, 5*time.Second, got.TTL, float64(time.Second))
		assert.Equal(r, c.before, got.Place, "waiter %d", c.waiter)
	}
	assert.EqualValues(r, -1, r.acquire(bob).Place, "it does not wait")
	r.queued(1, 2, 3)
	r.told()
}

func (r *rig) queueEnds() {
	r.listen()
	c := r.hold(1)
	assert.InDelta(r, 60000, r.pttl(r.queue), 1000, "who is refused")
	r.admin("PEXPIRE", r.queue, "1000")
	r.ask(bob, 2)
	assert.InDelta(r, 60000, r.pttl(r.queue), 1000, "another who is refused")
	r.admin("DEL", r.queue)
	r.yield(alice, 1, "0")
	assert.InDelta(r, 60000, r.pttl(r.queue), 1000, "who goes on waiting")
	r.admin("DEL", r.queue, r.lock)
	r.admin("SET", r.fence, strconv.FormatInt(c, 10))
	r.hold()
	r.yield(alice, 1, "1")
	assert.InDelta(r, 60000, r.pttl(r.queue), 1000, "who goes on waiting and lets others go first")
}

func (r *rig) queuesListeners() {
	r.hold()
	named := func(c *node.Config) {
		c.Manager = manager
		c.Heard = func(int) { assert.Fail(r, "nobody has called Listen") }
	}
	nameless := r.connect()
	nameless.Listen()
	for what, n := range map[string]*node.Node{
		"as it is": r.node, "with a Manager": r.connect(named), "without a Manager": nameless,
	} {
		got := r.on(n, node.Acquire, r.keys(node.Acquire), r.waiting(bob, 1, time.Minute)...)
		assert.Equal(r, node.Taken, got.Status, what)
		assert.EqualValues(r, -1, got.Place, what)
	}
	r.queued()
}

func (r *rig) queuesNobodyLate() {
	r.listen()
	r.hold()
	got := r.do(node.Acquire, r.waiting(bob, 1, -time.Second)...)
	assert.Equal(r, node.Taken, got.Status)
	assert.EqualValues(r, -1, got.Place)
	r.queued()
	r.ask(bob, 2)
	r.admin("DEL", r.lock)
	got = r.do(node.Acquire, r.waiting(bob, 1, -time.Second)...)
	assert.Equal(r, node.Unsent, got.Status)
	require.ErrorIs(r, got.Err, node.ErrLate)
	r.absent(r.lock)
	r.queued(2)
	r.told()
}

func (r *rig) keeps() {
	r.listen()
	c := r.hold(3, 1, 2)
	got := r.release(alice, strconv.FormatInt(c+5, 10))
	assert.EqualValues(r, node.HandedOn, got.N, "%v", got.Err)
	r.kept(1, 2)
	r.queued(2, 3)
	assert.Equal(r, c+5, r.counter())
	assert.EqualValues(r, -1, r.release(alice, strconv.FormatInt(c+9, 10)).N)
	assert.Equal(r, c+5, r.counter())
	r.told()
}

func (r *rig) keepsForOne() {
	r.listen()
	c := r.keep(1, 2)
	before := r.admin("GET", r.lock)
	for waiter, want := range map[int]int64{0: -1, 2: 0, 3: 1} {
		got := r.acquire(bob)
		if waiter > 0 {
			got = r.ask(bob, waiter)
		}
		assert.Equal(r, node.Taken, got.Status, "waiter %d", waiter)
		assert.Equal(r, want, got.Place, "waiter %d", waiter)
		assert.Equal(r, before, got.Value)
		assert.InDelta(r, time.Minute, got.TTL, float64(10*time.Second))
	}
	assert.EqualValues(r, -1, r.release(bob, "0").N)
	assert.EqualValues(r, -1, r.leave(ticket(2)[:node.TicketLen], 2).N)
	assert.Equal(r, before, r.admin("GET", r.lock))
	assert.Equal(r, c, r.counter())
	r.queued(3)
	r.told()
}

func (r *rig) keepsForAWhile() {
	r.listen()
	r.hold()
	args := r.waiting(bob, 1, time.Minute)
	args[7] = ticket(1)[:node.TicketLen] + "30"
	r.do(node.Acquire, args...)
	r.release(alice, "1")
	assert.LessOrEqual(r, r.pttl(r.lock), int64(30))
	r.told(r.keptFor(1))
	require.Eventually(r, func() bool { return r.admin("GET", r.lock) == nil }, 20*time.Second, time.Millisecond)
	assert.Equal(r, node.Granted, r.acquire(carol).Status)
}

func (r *rig) keepsForItsOwner() {
	r.listen()
	c := r.keep(1, 2)
	got := r.ask(bob, 1)
	require.Equal(r, node.Granted, got.Status, "%v", got.Err)
	assert.Equal(r, c+1, got.N)
	assert.Equal(r, c+1, r.counter())
	assert.InDelta(r, 60000, r.pttl(r.fence), 1000)
	v := node.ParseValue(r.admin("GET", r.lock).(string))
	assert.Equal(r, bob, v.Owner)
	assert.Equal(r, c+1, v.Counter)
	assert.InDelta(r, 5000, r.pttl(r.lock), 1000)
	assert.Equal(r, c+1, r.ask(bob, 1).N, "again")
	assert.Equal(r, node.Taken, r.ask(carol, 2).Status)
	assert.Equal(r, node.Taken, r.acquire(carol).Status)
	r.queued(2)
	r.told()
}

func (r *rig) keepsForNobodyLate() {
	r.listen()
	c := r.keep(1)
	before := r.admin("GET", r.lock)
	got := r.do(node.Acquire, r.waiting(bob, 1, -time.Second)...)
	assert.Equal(r, node.Unsent, got.Status)
	require.ErrorIs(r, got.Err, node.ErrLate)
	assert.Equal(r, before, r.admin("GET", r.lock))
	assert.Equal(r, c, r.counter())
}

func (r *rig) keepsFromNoLease() {
	r.listen()
	c := r.keep(1)
	before := r.admin("GET", r.lock)
	token := strconv.FormatInt(c+7, 10)
	for _, owner := range []string{alice, ticket(1)[:node.TicketLen]} {
		assert.Equal(r, []int64{0}, r.do(node.Extend, "2", fencePX, owner, px, token).Many)
	}
	assert.EqualValues(r, 0, r.do(node.Raise, alice, token, fencePX).N)
	assert.Equal(r, before, r.admin("GET", r.lock))
	assert.Greater(r, r.pttl(r.lock), int64(10000))
	assert.Equal(r, c, r.counter())

	value := node.Compose(alice, c, "1700000000000000 - x")
	heal := func(inTime time.Duration) node.Reply {
		return r.to(node.Heal, []string{r.lock}, value, px, r.until(inTime))
	}
	assert.Equal(r, []int64{0}, heal(-time.Second).Many)
	assert.Equal(r, before, r.admin("GET", r.lock))
	assert.Equal(r, []int64{1}, heal(time.Minute).Many)
	assert.Equal(r, value, r.admin("GET", r.lock))
	assert.InDelta(r, 5000, r.pttl(r.lock), 1000)
	got := r.ask(bob, 1)
	assert.Equal(r, node.Taken, got.Status)
	assert.EqualValues(r, 0, got.Place)
}

func (r *rig) skips() {
	id := ticket(9)[:node.TicketLen]
	members := []string{
		"", "x", manager, id, id + "0", id + "1000", id + "-5", id + "1.5", id + "1e1", id + "9 ", id[1:] + "90", id + "\x0090",
		strings.Repeat("f", node.TicketLen) + "90", strings.ToUpper(manager) + id[node.ManagerLen:] + "90", strings.Repeat("v", 100),
	}
	stuff := func() {
		for _, m := range members {
			r.admin("ZADD", r.queue, "5", m)
		}
	}
	r.listen()
	r.hold(1)
	stuff()
	assert.EqualValues(r, node.HandedOn, r.release(alice, "1").N)
	r.kept(1)
	r.queued()
	r.admin("DEL", r.lock)
	stuff()
	assert.Equal(r, node.Granted, r.acquire(bob).Status)
	r.queued()
	r.told()
}

func (r *rig) skipsSoMany() {
	r.listen()
	for i, c := range []struct {
		skipped int
		done    int64
	}{{63, node.HandedOn}, {64, 1}} {
		r.admin("DEL", r.lock, r.queue)
		r.hold(1)
		for n := range c.skipped {
			r.admin("ZADD", r.queue, "5", strconv.Itoa(n))
		}
		assert.Equal(r, c.done, r.release(alice, "1").N, "case %d", i)
		if c.done == 1 {
			r.absent(r.lock)
			r.told()
			r.queued(1)
			assert.Equal(r, node.Taken, r.acquire(alice).Status, "the next script goes on")
		}
		r.kept(1)
		r.queued()
	}
}

func (r *rig) stays() {
	r.listen()
	c := r.hold(2)
	assert.EqualValues(r, 1, r.yield(alice, 1, "0").N, "it is the first itself")
	r.absent(r.lock)
	assert.Equal(r, c-1, r.counter())
	r.queued(1, 2)
	r.told()
	r.admin("DEL", r.queue)

	r.hold(2, 1)
	assert.EqualValues(r, node.HandedOn, r.yield(alice, 3, "0").N)
	assert.Equal(r, c-1, r.counter())
	r.kept(1, 2)
	r.queued(2, 3)
	assert.EqualValues(r, -1, r.yield(alice, 4, "0").N, "it had nothing here")
	r.queued(2, 3, 4)
	r.told()
}

func (r *rig) staysBehind() {
	r.listen()
	r.hold(3, 2, 1)
	assert.EqualValues(r, node.HandedOn, r.yield(alice, 1, "1").N)
	r.kept(2, 3)
	r.queued(1, 3)
	r.admin("DEL", r.queue, r.lock)

	r.hold(1)
	assert.EqualValues(r, 1, r.yield(alice, 1, "1").N, "there is nobody else")
	r.absent(r.lock)
	r.queued(1)
	r.told()
}

func (r *rig) leavesQueue() {
	r.listen()
	r.hold(1, 2, 3)
	before := r.admin("GET", r.lock)
	assert.EqualValues(r, -1, r.leave(ticket(2)[:node.TicketLen], 2).N)
	assert.Equal(r, before, r.admin("GET", r.lock))
	r.queued(1, 3)
	r.told()
	assert.EqualValues(r, node.HandedOn, r.leave(alice, 1).N, "with the lock")
	r.kept(3)
	r.queued()
}

func (r *rig) passesOn() {
	r.listen()
	c := r.keep(1, 2, 3)
	assert.EqualValues(r, node.HandedOn, r.leave(ticket(1)[:node.TicketLen], 1).N)
	r.kept(2, 3)
	r.queued(3)
	r.admin("DEL", r.lock)
	assert.EqualValues(r, 0, r.leave(ticket(2)[:node.TicketLen], 2).N, "it was free")
	r.kept(3)
	r.queued()
	assert.EqualValues(r, 1, r.leave(ticket(3)[:node.TicketLen], 3).N, "there is nobody else")
	r.absent(r.lock)
	assert.EqualValues(r, 0, r.leave(ticket(3)[:node.TicketLen], 3).N)
	assert.Equal(r, c, r.counter())
	r.told()
}

func (r *rig) givesToTheFirst() {
	r.listen()
	r.hold(1, 2)
	r.admin("DEL", r.lock, r.fence)
	got := r.acquire(bob)
	assert.Equal(r, node.Taken, got.Status)
	assert.True(r, node.ParseValue(got.Value).Kept, "%q", got.Value)
	assert.InDelta(r, grace*time.Millisecond, got.TTL, float64(grace*time.Millisecond))
	assert.EqualValues(r, -1, got.Place)
	r.kept(1, 2)
	r.queued(2)
	r.admin("DEL", r.lock)
	got = r.ask(bob, 3)
	assert.Equal(r, node.Taken, got.Status)
	assert.EqualValues(r, 0, got.Place)
	r.kept(2)
	r.queued(3)
	r.absent(r.fence)
}

func (r *rig) givesToWhoAsks() {
	r.listen()
	c := r.hold(1, 2)
	r.admin("DEL", r.lock)
	got := r.ask(bob, 1)
	require.Equal(r, node.Granted, got.Status, "%v", got.Err)
	assert.Equal(r, c+1, got.N)
	r.queued(2)
	r.admin("DEL", r.lock)
	got = r.ask(carol, 1)
	require.Equal(r, node.Granted, got.Status, "it has come before the other: %v", got.Err)
	assert.Equal(r, c+2, got.N)
	r.queued(2)
	r.told()
}

func (r *rig) givesNothingOfOthers() {
	r.known(time.Hour)
	r.listen()
	withGuard := r.connect(guarded(time.Hour))
	r.hold(1, 2)
	for what, command := range map[string][]string{
		"string": {"SET", r.lock, ""}, "hash": {"HSET", r.lock, "a", "b"},
	} {
		r.admin("DEL", r.lock)
		r.admin(command...)
		for _, n := range []*node.Node{r.node, withGuard} {
			r.on(n, node.Acquire, r.keys(node.Acquire), r.waiting(bob, 2, time.Minute)...)
			r.on(n, node.Acquire, r.keys(node.Acquire), r.waiting(bob, 1, time.Minute)...)
			r.vote(n, bob)
			r.on(n, node.Release, r.keys(node.Release), releaseArgs(bob, "0")...)
			assert.Equal(r, what, r.admin("TYPE", r.lock))
			if what == "string" {
				assert.Equal(r, command[2], r.admin("GET", r.lock))
			}
		}
		r.queued(1, 2)
		r.told()
	}
}

func (r *rig) queueOfAnotherType() {
	r.listen()
	r.admin("SET", r.queue, "theirs")
	misconfigured := func(got node.Reply, why string) {
		r.Helper()
		assert.Equal(r, node.Misconfigured, got.Status, why)
		require.ErrorContains(r, got.Err, "WRONGTYPE", why)
	}
	misconfigured(r.acquire(alice), "a free lock")
	misconfigured(r.ask(alice, 1), "a free lock, of who waits")
	r.absent(r.lock)
	r.absent(r.fence)
	r.admin("SET", r.lock, node.Compose(alice, 1, "1700000000000000 - "))
	misconfigured(r.ask(bob, 1), "another's lock, of who waits")
	assert.Equal(r, node.Taken, r.acquire(bob).Status)
	r.release(alice, "0")
	r.absent(r.lock)
	assert.Equal(r, "theirs", r.admin("GET", r.queue))
}

func (r *rig) unfencedQueuesNobody() {
	r.known(time.Hour)
	r.listen()
	n := r.node
	r.listen(guarded(time.Hour))
	keys := r.keys(node.Acquire)[:1]
	for _, n := range []*node.Node{n, r.node} {
		require.Equal(r, node.Granted, r.on(n, node.Acquire, keys, r.waiting(alice, 1, time.Minute)...).Status)
		got := r.on(n, node.Acquire, keys, r.waiting(bob, 2, time.Minute)...)
		assert.Equal(r, node.Taken, got.Status)
		assert.EqualValues(r, -1, got.Place)
		assert.EqualValues(r, 2, r.admin("DBSIZE"), "the lock and the marker")
		assert.EqualValues(r, 1, r.on(n, node.Release, keys, alice, "0", fencePX, ticket(1), place(1), "1").N)
		assert.EqualValues(r, 1, r.admin("DBSIZE"))
	}
}

func (r *rig) readsQueue() {
	r.listen()
	assert.Zero(r, r.do(node.Read).Queue)
	c := r.hold(1, 2, 3)
	got := r.do(node.Read)
	assert.EqualValues(r, 3, got.Queue)
	assert.Equal(r, c, got.Fence)
	assert.Equal(r, alice, node.ParseValue(got.Value).Owner)
	r.release(alice, "0")
	got = r.do(node.Read)
	assert.EqualValues(r, 2, got.Queue)
	assert.True(r, node.ParseValue(got.Value).Kept)
	assert.Zero(r, r.to(node.Read, []string{r.lock}).Queue)
}

func (r *rig) guardHandsOn() {
	r.known(time.Hour)
	r.listen(guarded(time.Hour))
	c := r.keep(1, 2)
	assert.Equal(r, node.Taken, r.ask(carol, 3).Status)
	got := r.ask(bob, 1)
	require.Equal(r, node.Granted, got.Status, "%v", got.Err)
	assert.Equal(r, c+1, got.N)
	r.queued(2, 3)
	r.admin("DEL", r.lock)
	assert.Equal(r, node.Taken, r.acquire(carol).Status)
	r.kept(2, 3)

	r.admin("DEL", node.GuardKey(r.server.Prefix)) // somebody else's data
	got = r.ask(bob, 2)
	assert.Equal(r, node.Unsent, got.Status)
	require.ErrorIs(r, got.Err, node.ErrQuarantined)
	assert.True(r, node.ParseValue(r.admin("GET", r.lock).(string)).Kept)
	r.queued(3)
}
