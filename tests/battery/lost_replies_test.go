package battery

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// A server executes a command and its reply is lost. For each operation, the library must
// neither mistake its own key for another client's nor leave the key behind.
func TestALostReplyIsNeitherARefusalNorALeftover(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		// No key expires during the test, and no renewal interferes.
		const ttl = time.Hour
		servers := guardedServers(t, n, ttl) // clients without a guard do not notice it
		plain := newDroppers(t, servers, count(4, 10), quorumlock.WithTTL(ttl))
		guarded := newDroppers(t, servers, count(2, 10), quorumlock.WithTTL(ttl), quorumlock.WithRestartGuard(ttl))
		for _, scenario := range []struct {
			kind string
			all  []*dropper
			run  func(d *dropper, name string)
		}{
			{"acquire", plain, (*dropper).acquire},
			{"raise", plain, (*dropper).raise},
			{"extend", plain, (*dropper).extend},
			{"heal", plain, (*dropper).heal},
			{"read", plain, (*dropper).read},
			{"release", plain, (*dropper).release},
			{"guarded acquire", guarded, (*dropper).acquire},
			{"guard", guarded, (*dropper).guard},
		} {
			r := newRow(t, fmt.Sprintf("replies dropped, %s, N=%d", scenario.kind, n))
			target := int64(count(1000, 15))
			var tally dropTally
			var wg sync.WaitGroup
			for _, d := range scenario.all {
				wg.Go(func() {
					d.tally = &tally
					for i := 0; tally.drops.Load() < target && !t.Failed(); i++ {
						if !within(20*time.Second, func() bool { return everybodyVotes(d.m, n) }) {
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
			left := 0
			for _, s := range servers {
				left += len(locksOn(s))
			}
			r.figure(fmt.Sprintf("%d dropped in %d cases, %d names asked for again at once: taken by myself %d", tally.drops.Load(),
				tally.calls.Load(), tally.again.Load(), tally.myself.Load()),
				"0", tally.myself.Load() == 0)
			r.figure(fmt.Sprintf("keys gone after a failed acquire (%d) or a release (%d): %s; left for good %d",
				tally.failed.Load(), len(tally.gone)-int(tally.failed.Load()), spread(tally.gone), left),
				limit(100*time.Millisecond)+", 0 left", at(1, tally.gone) <= limitOf(100*time.Millisecond) && left == 0)
			r.figure(fmt.Sprintf("leases lost by a lost reply %d, errors of another class %d", tally.lost.Load(), tally.odd.Load()),
				"0", tally.lost.Load() == 0 && tally.odd.Load() == 0)
			if first := tally.firstOdd.Load(); first != nil {
				t.Logf("the first of another class: %v", first)
			}
		}
	})
}

// The lost reply of the guard may be the one that reports a quarantine. The node must not
// vote before the end of it, and has to vote afterwards.
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
				servers[j].MustDo("DEL", node.GuardKey(quorumlock.DefaultPrefix))
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
		r.figure(fmt.Sprintf("granted in the quarantine that was told in a lost reply %d/%d", early, cases), "0", early == 0)
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

// dropper is one client behind proxies of its own.
type dropper struct {
	t       *testing.T
	servers []*redistest.Server
	proxies []*redistest.Proxy
	m       *quorumlock.Manager
	index   int
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

// reset closes the connections to these nodes, and drops the guard's reply in the next
// greetings.
func (d *dropper) reset(nodes []int) (dropped *atomic.Int64) {
	dropped = d.arm("guard", nodes)
	for _, i := range nodes {
		d.proxies[i].Reset()
	}
	return dropped
}

// some returns at least one and at most that number of nodes, at random.
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
	within(5*time.Second, func() bool { return holding(d.servers, name) == 0 })
	took := time.Since(since)
	d.tally.mu.Lock()
	defer d.tally.mu.Unlock()
	d.tally.gone = append(d.tally.gone, took)
}

// grant returns a lease that all nodes hold, or nil if the test has failed.
func (d *dropper) grant(name string) *quorumlock.Lease {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	l, err := d.m.Acquire(ctx, name)
	if err != nil {
		d.judge(err)
		d.t.Errorf("%s is not granted: %v", name, err)
		return nil
	}
	// By this lease: on a busy machine the key of a failed attempt may still be there,
	// and a node may have missed its vote.
	everywhere := func() bool {
		return !slices.ContainsFunc(d.servers, func(s *redistest.Server) bool {
			value, err := s.Do("GET", lockKey(name))
			text, ok := value.(string)
			return err != nil || !ok || !strings.HasPrefix(text, l.Owner()+" ")
		})
	}
	// The lease also has to know it: the nodes that forget next must be a minority of its
	// votes.
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

// end releases a lease, which must not have been lost meanwhile.
func (d *dropper) end(l *quorumlock.Lease) {
	d.judge(l.Err())
	d.judge(l.Release(context.Background()))
	d.gone(l.Name())
}

// attempt asks for a name, once or until it is granted.
func (d *dropper) attempt(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ask := d.m.TryAcquire
	if rand.IntN(2) == 0 {
		ask = d.m.Acquire
	}
	l, err := ask(ctx, name)
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
	l, err := d.m.TryAcquire(context.Background(), name)
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
		s.MustDo("ZADD", node.RegistersKey(quorumlock.DefaultPrefix), strconv.FormatInt(ahead+1000*int64(i), 10), lockKey(name))
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

// heal has a minority forget the key, and drops the replies of the requests that restore
// it.
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

// guard asks while the nodes are being greeted. Afterwards each of them has to vote.
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

// Every packet is late by up to two TTLs, by a delay that differs from node to node and
// changes all the time. Requests arrive when their callers no longer wait.
func TestALatePacketLocksNothingAndBringsNothingBack(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("packets late by 0 to 2 TTL, N=%d", n))
		const ttl = time.Second
		const timeout = ttl / 10 // the default
		servers := redistest.Start(t, n)
		logs := make([]*keyLog, n)
		for i, s := range servers {
			logs[i] = watchKeys(t, s)
		}
		until := time.Now().Add(time.Duration(count(100, 3)) * time.Second)

		var mu sync.Mutex
		ends := map[string]time.Time{} // of leases, by owner
		granted, failed, myself := 0, 0, 0
		// If the machine was too busy for any grant, the test has shown nothing yet.
		goOn := func() bool {
			mu.Lock()
			defer mu.Unlock()
			over := time.Since(until)
			return over < 0 || granted == 0 && over < time.Minute
		}
		var delayers, callers sync.WaitGroup
		for manager := range 4 {
			proxies, addrs := testkit.Proxied(t, servers)
			m := testkit.Connect(t, addrs, quorumlock.WithTTL(ttl))
			for _, p := range proxies {
				delayers.Go(func() {
					for goOn() {
						p.Delay(lateness(ttl))
						time.Sleep(time.Duration(50+rand.IntN(400)) * time.Millisecond)
					}
					p.Delay(0)
				})
			}
			for caller := range 12 {
				callers.Go(func() {
					for i := 0; goOn(); i++ {
						name := fmt.Sprintf("late-%d-%d-%d", manager, caller, i)
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.Int64N(int64(ttl))))
						ask := m.TryAcquire
						if i%2 == 0 {
							ask = m.Acquire
						}
						l, err := ask(ctx, name)
						cancel()
						mu.Lock()
						if err == nil {
							granted++
						} else {
							failed++
						}
						if errors.Is(err, quorumlock.ErrHeld) {
							myself++
							t.Log(err)
						}
						mu.Unlock()
						if err != nil {
							continue
						}
						select {
						case <-l.Done():
						case <-time.After(time.Duration(rand.Int64N(int64(ttl * 3 / 2)))):
						}
						end := time.Now()
						ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rand.Int64N(int64(ttl))))
						err = l.Release(ctx)
						cancel()
						var lost *quorumlock.LostError
						if errors.As(err, &lost) {
							end = lost.At
						}
						mu.Lock()
						ends[l.Owner()] = end
						mu.Unlock()
					}
				})
			}
		}
		callers.Wait()
		delayers.Wait()
		// Packets in flight arrive within 2 TTLs, and their keys expire a TTL after that.
		time.Sleep(3 * ttl)
		left := 0
		within(limitOf(100*time.Millisecond), func() bool {
			left = 0
			for _, s := range servers {
				left += len(locksOn(s))
			}
			return left == 0
		})

		made, late, frozen, back, soon, beyond := 0, 0, 0, 0, 0, 0
		var orphaned, healed, overtaken []time.Duration
		undone := 0
		for i, log := range logs {
			for _, life := range log.stop() {
				made++
				// The precision of PX, and of the wall clock in "since".
				notAfter := life.since.Add(timeout + 5*time.Millisecond)
				end, wasGranted := ends[life.owner]
				switch {
				case !wasGranted && life.from.After(notAfter):
					late++
					if !life.looked.After(notAfter) {
						frozen++ // the server stood still in the middle of the script
					}
					t.Logf("node %d: %s made %v after not-after, by %s, which looked at the clock %v before", i, life.name, life.from.Sub(notAfter), life.by,
						life.from.Sub(life.looked))
				case !wasGranted || !life.from.After(end) || !life.from.After(notAfter):
				case strings.HasPrefix(life.by, "heal ") && !life.from.After(end.Add(timeout+5*time.Millisecond)):
					soon++ // by a heal that was sent before the end and is not void yet
					healed = append(healed, life.to.Sub(end))
				default: // later events do not matter: until then no other client could have the lock
					back++
					t.Logf("node %d: %s came back %v after its end, by %s, and stayed until %v (deleted: %v)%s", i, life.name,
						life.from.Sub(end), life.by, life.to.Sub(end), life.deleted, log.releasesOf(life))
				}
				if released, behind := log.behind(life); behind {
					overtaken = append(overtaken, life.to.Sub(released))
					if life.deleted {
						undone++
					}
				}
				if !wasGranted {
					orphaned = append(orphaned, life.to.Sub(life.since))
					if life.to.After(notAfter.Add(ttl)) {
						beyond++
					}
				}
			}
		}
		r.figure(fmt.Sprintf("%d grants, %d failed attempts, %d keys made: taken by myself %d", granted, failed, made, myself), "0", myself == 0)
		r.figure(fmt.Sprintf("keys made after the attempt's not-after %d (%d of them by a server that stood still after its look at the clock); "+
			"there later than not-after + TTL %d (of failed attempts: %s after it began)",
			late, frozen, beyond, spread(orphaned)), "0, 0", late == 0 && beyond == 0)
		r.figure(fmt.Sprintf("locks that came back after release or loss %d (by a heal before its not-after: %d, gone after the end: %s); left at the end %d",
			back, soon, spread(healed), left),
			"0, within node timeout + TTL, 0", back == 0 && left == 0 && at(1, healed) <= timeout+ttl+5*time.Millisecond)
		r.figure(fmt.Sprintf("keys made behind a release of their own %d (%d of them released once more); gone after that: %s",
			len(overtaken), undone, spread(overtaken)), "within node timeout + TTL", at(1, overtaken) <= timeout+ttl+5*time.Millisecond)
		require.Positive(t, granted, "without grants there is nothing that could come back")
		require.NotEmpty(t, orphaned, "no packet of a failed attempt was late enough to lock")
	})
}

// lateness is usually small, so that some leases are granted, and sometimes longer than a
// lease lives.
func lateness(ttl time.Duration) time.Duration {
	switch x := rand.IntN(10); {
	case x < 5:
		return time.Duration(rand.Int64N(int64(ttl / 50)))
	case x < 8:
		return time.Duration(rand.Int64N(int64(ttl / 2)))
	default:
		return time.Duration(rand.Int64N(int64(2 * ttl)))
	}
}

// keyLog records a server's changes of lock keys, from its own MONITOR. That has the
// server's time of each command in a script, which polling could not show.
type keyLog struct {
	conn net.Conn
	done chan struct{}
	err  error

	calls    []operation // of the running script
	from     string      // the connection over which the script came
	looked   time.Time   // when it read the time
	present  map[string]*keyLife
	past     []keyLife
	releases map[string][]keyRelease
}

// keyRelease is one release that a server has run.
type keyRelease struct {
	at    time.Time
	owner string
	by    string
}

// keyLife is one presence of a key: from the SET to the DEL or the expiry.
type keyLife struct {
	name, owner string
	since       time.Time // of the attempt, in the value
	from, to    time.Time
	looked      time.Time // when the script read the time: equal to from, unless the server stood still in between
	by          string    // operation and connection that made it
	deleted     bool
}

func watchKeys(t *testing.T, s *redistest.Server) *keyLog {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte("MONITOR\r\n"))
	require.NoError(t, err)
	lines := bufio.NewReader(conn)
	ok, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "+OK\r\n", ok)
	log := &keyLog{
		conn: conn, done: make(chan struct{}), present: map[string]*keyLife{}, releases: map[string][]keyRelease{},
	}
	go func() {
		defer close(log.done)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				return
			}
			if log.err == nil {
				log.err = log.read(line)
			}
		}
	}()
	t.Cleanup(func() { require.NoError(t, log.err) })
	return log
}

// stop ends the log and returns the life of every key. Keys that still exist count as if
// they expired.
func (log *keyLog) stop() []keyLife {
	_ = log.conn.Close()
	<-log.done
	for _, life := range log.present {
		log.past = append(log.past, *life)
	}
	slices.SortFunc(log.past, func(a, b keyLife) int { return a.from.Compare(b.from) })
	return log.past
}

// releasesOf lists the node's releases of a key, for a failure message.
func (log *keyLog) releasesOf(life keyLife) (text string) {
	for _, r := range log.releases[life.name] {
		text += fmt.Sprintf("; %s ran %v before", r.by, life.from.Sub(r.at))
	}
	return text
}

// behind returns when the node ran the first release of the key's owner, if that was
// before the key was made.
func (log *keyLog) behind(life keyLife) (at time.Time, behind bool) {
	for _, r := range log.releases[life.name] {
		if r.owner == life.owner && r.at.Before(life.from) {
			return r.at, true
		}
	}
	return at, false
}

// read parses lines such as:
//
//	+1700000000.123456 [0 127.0.0.1:54321] "EVALSHA" "(digest)" "5" "quorumlock:\xffr" …
//	+1700000000.123456 [0 lua] "SET" "quorumlock:job" "(value)" "NX" "PXAT" "1700000001123"
func (log *keyLog) read(line string) error {
	stamp, rest, _ := strings.Cut(strings.TrimPrefix(line, "+"), " ")
	from, rest, _ := strings.Cut(strings.TrimPrefix(rest, "[0 "), "] ")
	var words []string
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return fmt.Errorf("%w: %s", err, line)
		}
		word, err := strconv.Unquote(quoted)
		if err != nil {
			return fmt.Errorf("%w: %s", err, line)
		}
		words, rest = append(words, word), rest[len(quoted):]
	}
	seconds, micros, _ := strings.Cut(stamp, ".")
	s, err1 := strconv.ParseInt(seconds, 10, 64)
	us, err2 := strconv.ParseInt(micros, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	now := time.Unix(s, us*1000)
	switch {
	case from == "lua" && words[0] == "TIME":
		log.looked = now
	case from == "lua" && len(words) > 1 && !strings.Contains(words[1], "\xff"): // the tag of companion keys
		return log.apply(now, words)
	case words[0] == "EVALSHA":
		calls, known := operations(words)
		if !known {
			return fmt.Errorf("no call of ours: %q", words)
		}
		log.calls, log.from = calls, from
		for _, op := range calls {
			if op.kind() == "release" {
				log.releases[op.key] = append(log.releases[op.key], keyRelease{now, strings.TrimSpace(op.args[0]), op.name + " over " + from})
			}
		}
	}
	return nil
}

// maker returns the operation that makes a key, and the connection over which it came.
func (log *keyLog) maker(key, owner string) string {
	for _, op := range log.calls {
		if op.key == key && (op.kind() == "acquire" || op.name == "heal") && strings.HasPrefix(op.args[0], owner) {
			return op.name + " over " + log.from
		}
	}
	return "nothing of ours over " + log.from
}

func (log *keyLog) apply(now time.Time, words []string) error {
	key := words[1]
	life := log.present[key]
	if life != nil && life.to.Before(now) {
		log.past = append(log.past, *life)
		delete(log.present, key)
		life = nil
	}
	switch words[0] {
	case "SET":
		v := node.ParseValue(words[2])
		if slices.Contains(words, "KEEPTTL") || life != nil && slices.Contains(words, "NX") {
			return nil // another token, or no value
		}
		at := slices.Index(words, "PXAT")
		if v.Since.IsZero() || at < 0 || at+1 == len(words) {
			return fmt.Errorf("no lock of ours: %q", words)
		}
		life = &keyLife{name: key, owner: v.Owner, since: v.Since, from: now, looked: log.looked, to: unixMilli(words[at+1]), by: log.maker(key, v.Owner)}
		log.present[key] = life
	case "PEXPIREAT":
		if life != nil {
			life.to = unixMilli(words[2])
		}
	case "DEL":
		if life != nil {
			life.to, life.deleted = now, true
			log.past = append(log.past, *life)
			delete(log.present, key)
		}
	}
	return nil
}

func unixMilli(text string) time.Time {
	ms, _ := strconv.ParseInt(text, 10, 64)
	return time.UnixMilli(ms)
}
