//go:build linux

package battery

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Sixteen processes read a name and never pause, so it is never free. A writer gets its turn when the readers that were
// active at its call have left, and all continue.
func TestAWriterGetsItsTurnAmongProcessesThatReadWithoutAPause(t *testing.T) {
	eachNight(t)
	const readers, longest = 16, 100 * time.Millisecond
	forSizes(t, true, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("a writer among %d processes that read without a pause, leases up to %v, N=%d", readers, longest, n))
		w := startWitness(t)
		addrs := redistest.Addrs(redistest.Start(t, n))
		configs := make([]workerConfig, readers+1) // the last one writes
		for i := range configs {
			configs[i] = workerConfig{
				Client: i, Addrs: addrs, Witness: w.addr, Locks: 1, Shared: 1, TTL: 10 * time.Second, Patience: time.Minute,
				Hold: [2]time.Duration{time.Millisecond, longest},
			}
		}
		writer := &configs[readers]
		writer.Shared, writer.Think, writer.Hold = 0, 100*time.Millisecond, [2]time.Duration{}
		workers := startWorkers(t, configs)
		time.Sleep(time.Duration(count(40, 10)) * time.Second)
		stopWorkers(t, workers)
		tally, holds, writes, _ := w.finish(t)

		exclusion(t, r, &tally, holds, writes)
		r.together(holds)
		var waits []time.Duration
		reads, held := make([]int, readers), time.Duration(0)
		for i := range holds {
			if h := &holds[i]; h.Client == readers {
				waits = append(waits, h.Granted.since(h.Began))
			} else {
				reads[h.Client]++
				held = max(held, h.Reported.since(h.Granted))
			}
		}
		r.figure(fmt.Sprintf("%d turns of the writer, after %s; the longest lease of a reader: %v", len(waits), spread(waits), brief(held)),
			fmt.Sprintf("at least %d, each within that lease + %v", count(20, 5), limitOf(time.Second)),
			len(waits) >= count(20, 5) && at(1, waits) <= held+limitOf(time.Second))
		r.figure(fmt.Sprintf("each process reads %d to %d times", slices.Min(reads), slices.Max(reads)), "more often than the writer has a turn, or as often",
			slices.Min(reads) >= len(waits)-1)
	})
}

// crowdConfig configures a process in which several callers ask for a shared lease of the job at once.
type crowdConfig struct {
	Addrs   []string
	Callers int
}

func init() { roles["crowd"] = crowdRole }

// crowdRole first meets contention for a name that another process holds, so that the nodes can wake it. It answers the
// first command with the instants of its grants, after the last of them. It releases them at the next command, and so
// on.
func crowdRole() int {
	var c crowdConfig
	if err := roleConfig(&c); err != nil {
		return roleFailed(err)
	}
	m, err := quorumlock.New(context.Background(), quorumlock.Addrs(c.Addrs...), quorumlock.WithStartupWait(10*time.Second), testkit.Lazily())
	if err != nil {
		return roleFailed(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	_, err = m.Acquire(ctx, "held", quorumlock.Shared())
	cancel()
	if !errors.Is(err, quorumlock.ErrHeld) {
		return roleFailed(fmt.Errorf("not refused: %w", err))
	}
	leases, granted, failures := make([]*quorumlock.Lease, c.Callers), make([]instant, c.Callers), make([]error, c.Callers)
	each := func(do func(i int) error) error {
		var all sync.WaitGroup
		for i := range c.Callers {
			all.Go(func() { failures[i] = do(i) })
		}
		all.Wait()
		return errors.Join(failures...)
	}
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		err := each(func(i int) (err error) {
			leases[i], err = m.Acquire(context.Background(), "job", quorumlock.Shared())
			granted[i] = now()
			return err
		})
		if err := errors.Join(err, answer(granted)); err != nil {
			return roleFailed(err)
		}
		if !commands.Scan() {
			break
		}
		if err := errors.Join(each(func(i int) error { return leases[i].Release(context.Background()) }), answer("released")); err != nil {
			return roleFailed(err)
		}
	}
	if err := m.Close(context.Background()); err != nil {
		return roleFailed(err)
	}
	return 0
}

// Readers in several processes wait behind a writer. Its release wakes them all at once. They poll so seldom that only
// the wake-up lets them in.
func TestReadersBehindAWriterAreLetInTogether(t *testing.T) {
	eachNight(t)
	const processes, callers, trip = 4, 16, 40 * time.Millisecond
	forSizes(t, true, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("%d readers in %d processes behind a writer, round trip %v, N=%d", processes*callers, processes, trip, n))
		servers := redistest.Start(t, n)
		writer := testkit.Connect(t, redistest.Addrs(servers))
		testkit.Acquired(t, writer, "held")
		crowds := make([]*child, processes)
		for i, proxies := range proxyGrid(t, processes, servers) {
			for _, p := range proxies {
				p.Delay(trip / 2)
			}
			crowds[i] = spawn(t, "crowd", crowdConfig{proxyAddrs(proxies), callers})
		}
		rounds := count(50, 4)
		var apart, after []time.Duration
		for range rounds {
			l, err := writer.Acquire(t.Context(), "job")
			require.NoError(t, err)
			for _, c := range crowds {
				require.NoError(t, c.send("take"))
			}
			patiently(t, "all wait", queued(servers, processes*callers))
			time.Sleep(2 * trip) // their answers are back
			released := now()
			require.NoError(t, l.Release(t.Context()))
			var granted []instant
			for _, c := range crowds {
				var of []instant
				require.NoError(t, c.receive(&of))
				granted = append(granted, of...)
			}
			apart = append(apart, slices.Max(granted).since(slices.Min(granted)))
			after = append(after, slices.Max(granted).since(released))
			for _, c := range crowds {
				require.NoError(t, c.send("release"))
			}
			for _, c := range crowds {
				var said string
				require.NoError(t, c.receive(&said))
			}
		}
		for _, c := range crowds {
			require.NoError(t, c.end())
		}
		r.figure(fmt.Sprintf("%d rounds, from the first grant to the last: %s; from the release to the last: %s", rounds, spread(apart), spread(after)),
			fmt.Sprintf("two round trips: %s, four: %s", limit(2*trip), limit(4*trip)), at(1, apart) <= limitOf(2*trip) && at(1, after) <= limitOf(4*trip))
	})
}

// actorCommand is what an actor does with its lease of the job.
type actorCommand string

const (
	actorAcquire   actorCommand = "acquire"
	actorShare     actorCommand = "share"
	actorDowngrade actorCommand = "downgrade"
	actorRelease   actorCommand = "release"
)

// actorAnswer is the result of a command.
type actorAnswer struct {
	Began, Ended instant
	Token        int64
	Error        string
}

// actorConfig configures a process that has one lease of the job at a time.
type actorConfig struct {
	Addrs []string
	TTL   time.Duration
}

func init() { roles["actor"] = actorRole }

func actorRole() int {
	var c actorConfig
	if err := roleConfig(&c); err != nil {
		return roleFailed(err)
	}
	m, err := quorumlock.New(context.Background(), quorumlock.Addrs(c.Addrs...), quorumlock.WithStartupWait(10*time.Second), quorumlock.WithTTL(c.TTL))
	if err != nil {
		return roleFailed(err)
	}
	var held *quorumlock.Lease
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		var command actorCommand
		if err := json.Unmarshal(commands.Bytes(), &command); err != nil {
			return roleFailed(err)
		}
		ctx, l, err := context.Background(), held, error(nil)
		a := actorAnswer{Began: now()}
		switch command {
		case actorAcquire:
			l, err = m.Acquire(ctx, "job")
		case actorShare:
			l, err = m.Acquire(ctx, "job", quorumlock.Shared())
		case actorDowngrade:
			l, err = held.Downgrade(ctx)
		case actorRelease:
			err = held.Release(ctx)
		}
		a.Ended = now()
		if err == nil {
			held, a.Token = l, l.Token()
		} else {
			a.Error = err.Error()
		}
		if err := answer(a); err != nil {
			return roleFailed(err)
		}
	}
	if err := m.Close(context.Background()); err != nil {
		return roleFailed(err)
	}
	return 0
}

// told sends an actor a command and returns the result.
func told(t *testing.T, c *child, command actorCommand) (a actorAnswer) {
	t.Helper()
	require.NoError(t, c.send(command))
	require.NoError(t, c.receive(&a))
	require.Empty(t, a.Error, command)
	return a
}

// queued returns whether this number of waiters for the job is on a majority of the servers. The other servers may have
// missed one until it asks again.
func queued(servers []*redistest.Server, want int64) func() bool {
	return func() bool {
		queues := testkit.Queues(servers)
		missing := slices.DeleteFunc(queues, func(n int64) bool { return n == want })
		return len(missing) <= (len(servers)-1)/2
	}
}

// A writer becomes a reader while a node is frozen. A waiting reader is then granted as well, and the writer behind it
// comes after both.
func TestADowngradeLetsReadersInAndNoWriterWithANodeFrozen(t *testing.T) {
	const ttl = 3 * time.Second
	forSizes(t, true, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("a writer becomes a reader, a node frozen, N=%d", n))
		servers := redistest.Start(t, n)
		config := actorConfig{redistest.Addrs(servers), ttl}
		first, second, third := spawn(t, "actor", config), spawn(t, "actor", config), spawn(t, "actor", config)
		rounds, early, disorders := count(100, 5), 0, 0
		var took, late []time.Duration
		for round := range rounds {
			var b, c actorAnswer
			written := told(t, first, actorAcquire)
			require.NoError(t, second.send(actorShare))
			patiently(t, "a reader waits", queued(servers, 1))
			require.NoError(t, third.send(actorAcquire))
			patiently(t, "a writer waits behind it", queued(servers, 2))
			patiently(t, "all nodes have granted the lease", func() bool {
				owners := map[string]bool{}
				for _, s := range servers {
					value, _ := s.MustDo("GET", lockKey("job")).(string)
					owners[wire.ParseValue(value).Owner] = true
				}
				return len(owners) == 1
			})
			servers[round%n].Stop()
			a := told(t, first, actorDowngrade)
			require.NoError(t, second.receive(&b))
			require.Empty(t, b.Error)
			took, late = append(took, a.Ended.since(a.Began)), append(late, b.Ended.since(a.Ended))
			time.Sleep(20 * time.Millisecond) // time for a writer, which must not come
			readers := []*child{first, second}
			last := told(t, readers[round%2], actorRelease).Began
			last = max(last, told(t, readers[1-round%2], actorRelease).Began)
			require.NoError(t, third.receive(&c))
			require.Empty(t, c.Error)
			if c.Ended < last {
				early++
			}
			if a.Token <= written.Token || b.Token <= written.Token || c.Token <= max(a.Token, b.Token) {
				disorders++
			}
			servers[round%n].Continue()
			told(t, third, actorRelease)
		}
		for _, c := range []*child{first, second, third} {
			assert.NoError(t, c.end())
		}
		r.figure(fmt.Sprintf("%d rounds: the third writes beside a reader in %d, tokens out of order in %d", rounds, early, disorders), "0, 0", early+disorders == 0)
		// A reader that the first node wakes may reach the next one before the downgrade does, and wait for the frozen
		// one. From the node timeout on, the frozen node isn't asked.
		slowest := ttl/10 + 100*time.Millisecond
		r.figure(fmt.Sprintf("the downgrade takes %s; the second reads after its return: %s", spread(took), spread(late)),
			fmt.Sprintf("p50 of both %s, %s", limit(20*time.Millisecond), limit(slowest)),
			max(at(.5, took), at(.5, late)) <= limitOf(20*time.Millisecond) && max(at(1, took), at(1, late)) <= limitOf(slowest))
	})
}
