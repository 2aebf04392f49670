package battery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A server executes a command and its reply is lost. For each operation, the library must
// neither mistake its own key for another client's nor leave the key behind.
func TestALostReplyIsNeitherARefusalNorALeftover(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		// No key expires during the test, and no renewal interferes.
		const ttl = time.Hour
		unguardedServers, servers := redistest.Start(t, n), guardedServers(t, n, ttl)
		plain := newDroppers(t, unguardedServers, count(4, 10), quorumlock.WithTTL(ttl))
		guarded := newDroppers(t, servers, count(2, 10), quorumlock.WithTTL(ttl), quorumlock.WithRestartGuard(ttl))
		dropReplies(t, n, slices.Concat(unguardedServers, servers), []droppedKind{
			{"acquire", plain, (*dropper).acquire},
			{"raise", plain, (*dropper).raise},
			{"extend", plain, (*dropper).extend},
			{"heal", plain, (*dropper).heal},
			{"read", plain, (*dropper).read},
			{"release", plain, (*dropper).release},
			{"guarded acquire", guarded, (*dropper).acquire},
			{"guard", guarded, (*dropper).guard},
		})
	})
}

// The same for the operations of readers.
func TestALostReplyToAReaderIsNeitherARefusalNorALeftover(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		const ttl = time.Hour
		servers := redistest.Start(t, n)
		readers := newDroppers(t, servers, count(4, 10), quorumlock.WithTTL(ttl))
		for _, d := range readers {
			d.shared = true
		}
		dropReplies(t, n, servers, []droppedKind{
			{"shared acquire", readers, (*dropper).acquire},
			{"shared raise", readers, (*dropper).raise},
			{"shared extend", readers, (*dropper).extend},
			{"shared heal", readers, (*dropper).heal},
			{"shared read", readers, (*dropper).read},
			{"shared release", readers, (*dropper).release},
		})
	})
}

// droppedKind is a kind of operation whose replies are lost, and the clients' actions during the loss.
type droppedKind struct {
	kind string
	all  []*dropper
	run  func(d *dropper, name string)
}

func dropReplies(t *testing.T, n int, servers []*redistest.Server, scenarios []droppedKind) {
	t.Helper()
	const bar = 100 * time.Millisecond
	for _, scenario := range scenarios {
		r := newRow(t, fmt.Sprintf("replies dropped, %s, N=%d", scenario.kind, n))
		target := int64(count(1000, 15))
		var tally dropTally
		var stuck atomic.Bool
		var wg sync.WaitGroup
		for _, d := range scenario.all {
			wg.Go(func() {
				d.tally = &tally
				for i := 0; tally.drops.Load() < target && !stuck.Load(); i++ {
					if !within(20*time.Second, func() bool { return everybodyVotes(d.m, n) }) {
						stuck.Store(true)
						t.Errorf("the nodes do not come back after replies of %s were lost", scenario.kind)
						return
					}
					d.disarm()
					scenario.run(d, fmt.Sprintf("%s-%d-%d", scenario.kind, d.index, i))
					tally.calls.Add(1)
				}
			})
		}
		wg.Wait()
		// A key may come after its attempt has ended, if its request waits behind other processes. A read that a node
		// answers proves that the node has answered every release before it.
		for _, d := range scenario.all {
			if !within(20*time.Second, func() bool { return everybodyVotes(d.m, n) }) {
				t.Errorf("the nodes do not come back after replies of %s were lost", scenario.kind)
			}
		}
		left := 0
		for i, s := range servers {
			for _, key := range locksOn(s) {
				left++
				t.Logf("left on node %d: %q, PTTL %v", i, key, s.MustDo("PTTL", key))
			}
		}
		r.figure(fmt.Sprintf("%d dropped in %d cases, %d names asked for again at once: taken by myself %d", tally.drops.Load(),
			tally.calls.Load(), tally.again.Load(), tally.myself.Load()),
			"0", tally.myself.Load() == 0)
		r.figure(fmt.Sprintf("keys gone after a failed acquire (%d) or a release (%d): %s; left for good %d",
			tally.failed.Load(), len(tally.gone)-int(tally.failed.Load()), spread(tally.gone), left),
			limit(bar)+", 0 left", at(1, tally.gone) <= limitOf(bar) && left == 0)
		r.figure(fmt.Sprintf("leases lost by a lost reply %d, errors of another class %d", tally.lost.Load(), tally.odd.Load()),
			"0", tally.lost.Load() == 0 && tally.odd.Load() == 0)
		if first := tally.firstOdd.Load(); first != nil {
			t.Logf("the first of another class: %v", first)
		}
	}
}

// The lost reply of the guard may be the one that reports a quarantine. The node must not vote before the quarantine
// ends, and must vote afterwards.
func TestALostReplyOfTheGuardHidesNoQuarantine(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("replies dropped, guard of a node that forgot, N=%d", n))
		const guard = 500 * time.Millisecond
		servers := guardedServers(t, n, guard)
		d := newDroppers(t, servers, 1, quorumlock.WithTTL(guard), quorumlock.WithRestartGuard(guard))[0]
		d.tally = &dropTally{}
		early, cases := 0, count(100, 3)
		var took []time.Duration
		for i := range cases {
			patiently(t, "all nodes vote", func() bool { return everybodyVotes(d.m, n) })
			d.disarm()
			// The nodes that did not forget are one too few for a majority.
			nodes := rand.Perm(n)[:quorum.Size(n)]
			since := time.Now()
			for _, j := range nodes {
				servers[j].MustDo("DEL", wire.GuardKey(config.DefaultPrefix))
			}
			dropped := d.reset(nodes)
			name := fmt.Sprintf("forgot-%d", i)
			patiently(t, "the nodes vote again", func() bool {
				l, err := d.m.TryAcquire(t.Context(), name)
				d.judge(err)
				if err != nil {
					return false
				}
				_ = l.Release(t.Context()) // it may have been lost on a slow machine
				return true
			})
			took = append(took, time.Since(since))
			if took[i] < guard {
				early++
			}
			patiently(t, "each has lost a reply", func() bool { return dropped.Load() == int64(len(nodes)) })
		}
		patiently(t, "all nodes vote", func() bool { return everybodyVotes(d.m, n) })
		r.figure(fmt.Sprintf("granted in the quarantine that was reported in a lost reply %d/%d", early, cases), "0", early == 0)
		r.figure(fmt.Sprintf("granted after %s (the quarantine is %v)", spread(took), guard), limit(guard+time.Second),
			at(1, took) <= limitOf(guard+time.Second))
		r.figure(fmt.Sprintf("taken by myself %d, errors of another class %d", d.tally.myself.Load(), d.tally.odd.Load()), "0",
			d.tally.myself.Load() == 0 && d.tally.odd.Load() == 0)
	})
}

// dropTally has the results of the workers of a row.
type dropTally struct {
	drops, calls, failed, again, myself, lost, odd atomic.Int64
	firstOdd                                       atomic.Value

	mu   sync.Mutex
	gone []time.Duration // how long the keys of a failed acquire or a release stayed
}

// dropper is one client behind its own proxies.
type dropper struct {
	t       *testing.T
	servers []*redistest.Server
	direct  []rueidis.Client // of the servers: dialling for each look took as much time as the library did
	proxies []*redistest.Proxy
	m       *quorumlock.Manager
	index   int
	shared  bool // it acquires shared leases
	tally   *dropTally
	era     atomic.Int64 // faults of an earlier era are void
}

// newDroppers returns clients with these options.
func newDroppers(t *testing.T, servers []*redistest.Server, clients int, opts ...quorumlock.Option) []*dropper {
	t.Helper()
	all := make([]*dropper, clients)
	for i := range all {
		d := &dropper{t: t, servers: servers, index: i}
		var addrs []string
		d.proxies, addrs = testkit.Proxied(t, servers)
		d.m = testkit.Connect(t, addrs, opts...)
		for _, s := range servers {
			direct, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr()}, ForceSingleClient: true, DisableCache: true, DisableRetry: true, RingScaleEachConn: 2})
			require.NoError(t, err)
			t.Cleanup(direct.Close)
			d.direct = append(d.direct, direct)
		}
		all[i] = d
	}
	return all
}

// disarm voids the unused faults.
func (d *dropper) disarm() { d.era.Add(1) }

// arm drops the next reply to an operation on each of these nodes, and counts the dropped
// replies.
func (d *dropper) arm(kind string, nodes []int) *atomic.Int64 {
	era, tally, dropped := d.era.Load(), d.tally, new(atomic.Int64)
	for _, i := range nodes {
		d.proxies[i].DropReply(func(cmd []string) bool {
			if d.era.Load() != era || !asks(cmd, kind) {
				return false
			}
			tally.drops.Add(1)
			dropped.Add(1)
			return true
		})
	}
	return dropped
}

// reset closes the connections to these nodes, and drops the guard's reply at the next connection.
func (d *dropper) reset(nodes []int) (dropped *atomic.Int64) {
	dropped = d.arm("guard", nodes)
	for _, i := range nodes {
		d.proxies[i].Reset()
	}
	return dropped
}

// some returns at least one and at most this number of nodes, at random.
func (d *dropper) some(most int) []int {
	return rand.Perm(len(d.servers))[:1+rand.IntN(most)]
}

// judge checks an error that a lost reply may have caused: only ErrNoQuorum is right.
func (d *dropper) judge(err error) {
	switch {
	case err == nil:
	case errors.Is(err, quorumlock.ErrHeld): // no other client uses the names
		d.tally.myself.Add(1)
	case errors.Is(err, quorumlock.ErrLost):
		d.tally.lost.Add(1)
		d.t.Log(err)
	case !errors.Is(err, quorumlock.ErrNoQuorum):
		d.tally.odd.Add(1)
		d.tally.firstOdd.CompareAndSwap(nil, err.Error())
	}
}

// gone waits until no node has the key.
func (d *dropper) gone(name string) {
	since := time.Now()
	within(5*time.Second, func() bool { return d.missing(name) })
	took := time.Since(since)
	d.tally.mu.Lock()
	defer d.tally.mu.Unlock()
	d.tally.gone = append(d.tally.gone, took)
}

// missing reports whether no server has the lock.
func (d *dropper) missing(name string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for _, s := range d.direct {
		if n, err := s.Do(ctx, s.B().Exists().Key(lockKey(name)).Build()).AsInt64(); err != nil || n != 0 {
			return false
		}
	}
	return true
}

// ask asks for a name, once or until it is granted.
func (d *dropper) ask(ctx context.Context, name string, once bool) (*quorumlock.Lease, error) {
	var kind quorumlock.Kind
	if d.shared {
		kind = quorumlock.Shared()
	}
	if once {
		return d.m.TryAcquire(ctx, name, kind)
	}
	return d.m.Acquire(ctx, name, kind)
}

// has reports whether a server holds the lease.
func (d *dropper) has(s *redistest.Server, l *quorumlock.Lease) bool {
	value, err := s.Do("GET", lockKey(l.Name()))
	text, _ := value.(string)
	if err != nil || !d.shared {
		return err == nil && strings.HasPrefix(text, l.Owner()+" ")
	}
	value, err = s.Do("ZRANGE", wire.ReadersKey(lockKey(l.Name())), "0", "-1")
	readers, _ := value.([]any)
	return err == nil && wire.ParseValue(text).Shared && slices.ContainsFunc(readers, func(reader any) bool {
		return strings.HasPrefix(reader.(string), l.Owner()+" ")
	})
}

// grant returns a lease that all nodes hold, or nil if the test has failed.
func (d *dropper) grant(name string) *quorumlock.Lease {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := d.ask(ctx, name, false)
	if err != nil {
		d.judge(err)
		d.t.Errorf("%s is not granted: %v", name, err)
		return nil
	}
	// All nodes must hold this lease: on a busy machine the key of a failed attempt may still be there, and a node may
	// have missed its vote.
	everywhere := func() bool {
		return !slices.ContainsFunc(d.servers, func(s *redistest.Server) bool { return !d.has(s, l) })
	}
	// The lease must also know that: the nodes that forget next must be a minority of its votes.
	known := func() bool {
		d.judge(l.Renew(ctx))
		select {
		case renewed := <-l.Renewed():
			return renewed.Margin == quorum.Size(len(d.servers))-1
		default:
			return false
		}
	}
	if !within(20*time.Second, func() bool { return known() && everywhere() }) {
		d.t.Errorf("%s is not held everywhere", name)
		_ = l.Release(context.Background())
		return nil
	}
	return l
}

// end releases a lease, which must not have been lost before.
func (d *dropper) end(l *quorumlock.Lease) {
	d.judge(l.Err())
	d.judge(l.Release(context.Background()))
	d.gone(l.Name())
}

// attempt asks for a name, once or until it is granted.
func (d *dropper) attempt(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := d.ask(ctx, name, rand.IntN(2) == 1)
	d.judge(err)
	if err != nil {
		d.tally.failed.Add(1)
		d.again(name)
		d.gone(name)
		return
	}
	d.end(l)
}

// again asks once for a name that was just released, in half of the cases. A remaining
// key must not block us.
func (d *dropper) again(name string) {
	if rand.IntN(2) == 0 {
		return
	}
	d.tally.again.Add(1)
	l, err := d.ask(context.Background(), name, true)
	d.judge(err)
	if err == nil {
		d.judge(l.Release(context.Background()))
	}
}

func (d *dropper) acquire(name string) {
	d.arm("acquire", d.some(len(d.servers)))
	d.attempt(name)
}

// raise makes registers that are ahead, all at different values.
func (d *dropper) raise(name string) {
	ahead := time.Now().Add(time.Minute).UnixMicro()
	for i, s := range d.servers {
		s.MustDo("ZADD", wire.RegistersKey(config.DefaultPrefix), strconv.FormatInt(ahead+1000*int64(i), 10), lockKey(name))
	}
	d.arm("raise", d.some(len(d.servers)))
	d.attempt(name)
}

func (d *dropper) extend(name string) {
	l := d.grant(name)
	if l == nil {
		return
	}
	d.arm("extend", d.some(len(d.servers)))
	d.judge(l.Renew(context.Background()))
	if !within(5*time.Second, func() bool { return l.Verify(context.Background()) == nil }) {
		d.judge(l.Err())
		d.t.Errorf("%s is not confirmed any more", name)
	}
	d.end(l)
}

// heal has a minority forget the key, and drops the replies of the requests that restore it.
func (d *dropper) heal(name string) {
	l := d.grant(name)
	if l == nil {
		return
	}
	forgetful := d.some(len(d.servers) - quorum.Size(len(d.servers)))
	for _, i := range forgetful {
		d.servers[i].MustDo("DEL", lockKey(name))
	}
	d.arm("heal", forgetful)
	d.judge(l.Renew(context.Background()))
	if !within(5*time.Second, func() bool { return holding(d.servers, name) == len(d.servers) }) {
		d.t.Errorf("%s is not healed", name)
	}
	d.judge(l.Renew(context.Background()))
	d.end(l)
}

func (d *dropper) read(name string) {
	l := d.grant(name)
	if l == nil {
		return
	}
	d.arm("read", d.some(len(d.servers)))
	if rand.IntN(2) == 0 {
		d.judge(l.Verify(context.Background()))
	} else {
		s, err := d.m.Inspect(context.Background(), name)
		d.judge(err)
		if err == nil && s.Holder.Owner != l.Owner() {
			d.tally.myself.Add(1)
		}
	}
	d.end(l)
}

func (d *dropper) release(name string) {
	l := d.grant(name)
	if l == nil {
		return
	}
	d.arm("release", d.some(len(d.servers)))
	d.judge(l.Release(context.Background()))
	d.again(name)
	d.gone(name)
	d.attempt(name)
}

// guard asks while the nodes reconnect. Afterwards each of them must vote.
func (d *dropper) guard(name string) {
	nodes := d.some(len(d.servers))
	dropped := d.reset(nodes)
	d.attempt(name)
	if !within(20*time.Second, func() bool {
		return dropped.Load() == int64(len(nodes)) && everybodyVotes(d.m, len(d.servers))
	}) {
		d.t.Errorf("%d of %d replies were dropped, and the nodes do not vote again", dropped.Load(), len(nodes))
		return
	}
	if l := d.grant(name); l != nil {
		d.end(l)
	}
}
