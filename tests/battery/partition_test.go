package battery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// The holder of 50 leases at a time is cut off from every node at a random moment, while a connected competitor wants
// each of them.
func TestAPartitionedHolderIsNotifiedBeforeItsSuccessorIsGranted(t *testing.T) {
	forSizes(t, false, func(t *testing.T, n int) { partitions(t, n, false, false) })
}

// The same where the holder reads, and the competitor wants to write.
func TestAPartitionedReaderIsNotifiedBeforeAWriterIsGranted(t *testing.T) {
	forSizes(t, false, func(t *testing.T, n int) { partitions(t, n, false, true) })
}

// The same while twice as many goroutines spin as there are cores, in the process of holder and competitor: timers fire
// late, and replies wait.
func TestAPartitionedHolderIsNotifiedInTimeOnABusyMachine(t *testing.T) {
	forSizes(t, false, func(t *testing.T, n int) { partitions(t, n, true, false) })
}

const partitionTTL = time.Second

// partition records the events of one lease.
type partition struct {
	lease    *quorumlock.Lease
	lost     quorumlock.Lost
	stop     time.Time     // S: when Valid turns false, by Remaining after the cut, or earlier
	reported time.Time     // when the value of Lost was received
	deadline time.Time     // when the servers let the keys of a majority expire
	granted  time.Time     // when the competitor's Acquire returned
	first    bool          // the end had been reported when it returned
	token    int64         // the competitor's
	handOver time.Duration // from the cut to the competitor's grant
}

func partitions(t *testing.T, n int, busy, shared bool) {
	name := fmt.Sprintf("partition of the holder, N=%d", n)
	if shared {
		name = fmt.Sprintf("partition of a reader, N=%d", n)
	}
	if busy {
		name += ", cores spinning, node timeout 400ms"
	}
	r := newRow(t, name)
	servers := redistest.Start(t, n)
	proxies, addrs := testkit.Proxied(t, servers)
	opts := []quorumlock.Option{quorumlock.WithTTL(partitionTTL)}
	if busy { // each of the many hops between goroutines may cost a time slice of 10 ms
		opts = append(opts, quorumlock.WithNodeTimeout(400*time.Millisecond))
	}
	holder := testkit.Connect(t, addrs, opts...)
	competitor := testkit.Connect(t, redistest.Addrs(servers), opts...)
	acquire := holder.Acquire
	if shared {
		acquire = testkit.With(holder.Acquire, quorumlock.Shared())
	}

	total := count(1000, 20)
	var all []*partition
	before := 0 // lost before the cut, because the machine was too busy to renew: not counted
	for round := 0; len(all) < total; round++ {
		require.Less(t, round, 10*total, "hardly a lease lives until the cut")
		for _, p := range cutOff(t, fmt.Sprintf("job-%d", round), min(50, total-len(all)), busy, servers, proxies, holder, acquire, competitor) {
			if p == nil {
				before++
			} else {
				all = append(all, p)
			}
		}
	}

	first, inTime, greater, exact, unread := 0, 0, 0, 0, 0
	var late, found, left, handOvers []time.Duration
	for _, p := range all {
		if p.first && p.reported.Before(p.granted) {
			first++
		}
		if p.reported.Before(p.deadline) {
			inTime++
		}
		if p.token > p.lease.Token() {
			greater++
		}
		if p.stop.IsZero() { // it ended before S was read, which proves nothing
			unread++
		} else {
			if !p.reported.After(p.stop) {
				exact++
			}
			late = append(late, p.reported.Sub(p.stop))
			found = append(found, p.lost.At.Sub(p.stop))
		}
		left = append(left, p.deadline.Sub(p.reported))
		handOvers = append(handOvers, p.handOver)
	}
	of := func(x int) string { return fmt.Sprintf("%d/%d", x, total) }
	r.figure("lost reported before the successor was granted "+of(first), of(total), first == total)
	r.figure(fmt.Sprintf("lost reported before the keys of a quorum expired %s (the closest: %v before)", of(inTime), brief(slices.Min(left))),
		of(total), inTime == total || busy && !full)
	r.figure("the successor's token is greater "+of(greater), of(total), greater == total)
	r.figure(fmt.Sprintf("found after S: %s; reported after S: %s", spread(found), spread(late)),
		atLeastInFull(fmt.Sprintf("max below the safety margin of %v", quorum.SafetyMargin(partitionTTL))), !full || at(1, late) < quorum.SafetyMargin(partitionTTL))
	r.figure("lost reported at or before S "+of(exact), atLeastInFull(of(total)), !full || exact == total)
	if unread > 0 {
		t.Logf("%d leases were over before their S was read: they count as not reported at S", unread)
	}
	handOver := at(.5, handOvers)
	r.figure(fmt.Sprintf("median hand-over %v after the cut", brief(handOver)), atLeastInFull("at most TTL + 100ms"),
		!full || handOver <= partitionTTL+100*time.Millisecond)
	bar := "reported"
	if !busy {
		bar = atLeastInFull("0")
	}
	r.figure(fmt.Sprintf("%d more leases were lost before the cut and are not counted", before), bar, before == 0 || busy || !full)
}

// readStops records S of the valid leases. For a lease that is no longer valid but whose end isn't reported yet, it
// records that S has passed.
func readStops(parts []*partition) {
	for _, p := range parts {
		over, now := ended(p.lease), time.Now()
		left := p.lease.Remaining()
		if left > 0 || !over && p.stop.IsZero() {
			p.stop = now.Add(left)
		}
	}
}

// cutOff makes one cut, with a number of leases. It returns nil for a lease that was lost
// before the cut.
func cutOff(
	t *testing.T, round string, leases int, busy bool, servers []*redistest.Server, proxies []*redistest.Proxy,
	holder *quorumlock.Manager, acquire func(context.Context, string, ...quorumlock.AcquireOption) (*quorumlock.Lease, error),
	competitor *quorumlock.Manager,
) []*partition {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	parts := make([]*partition, leases)
	names := make([]string, leases)
	for i := range parts {
		names[i] = fmt.Sprintf("%s-%d", round, i)
		l, err := acquire(ctx, names[i])
		require.NoError(t, err)
		parts[i] = &partition{lease: l}
		time.Sleep(time.Duration(rand.Int64N(int64(8 * time.Millisecond)))) // each lease in another phase of its renewals
	}
	relax := func() {}
	if busy {
		relax = sync.OnceFunc(spin())
	}
	defer relax()
	var watchers, successors sync.WaitGroup
	ready := make(chan struct{}) // closed after the cut
	var cut time.Time
	for i, p := range parts {
		lost := p.lease.Lost()
		watchers.Go(func() {
			p.lost = <-lost
			p.reported = time.Now()
		})
		successors.Go(func() {
			next, err := competitor.Acquire(ctx, names[i])
			p.first = ended(p.lease)
			p.granted = time.Now()
			if !assert.NoError(t, err) {
				return
			}
			<-ready
			p.token, p.handOver = next.Token(), p.granted.Sub(cut)
			assert.False(t, p.lease.Valid(), "valid beside its successor")
			_ = next.Release(ctx) // a busy machine may lose it before
		})
	}
	time.Sleep(time.Duration(rand.Int64N(int64(partitionTTL))))
	live := make([]bool, leases)
	for i, p := range parts {
		live[i] = !ended(p.lease)
	}
	for _, p := range proxies {
		p.Swallow()
	}
	cut = time.Now()
	close(ready)
	readStops(parts)
	expiries := expiries(t, servers, names)
	// All answers from before the cut have been handled by now, so S can no longer move. For ended leases, S stays as
	// recorded, or was earlier.
	readStops(parts)
	watchers.Wait()
	successors.Wait()
	relax()
	for i, p := range parts {
		p.deadline = expiries[i]
		var lost *quorumlock.LostError
		require.ErrorAs(t, p.lease.Err(), &lost)
		assert.Equal(t, p.lost, lost.Lost)
		if !live[i] {
			parts[i] = nil
		}
	}
	for _, p := range proxies {
		p.Heal()
	}
	patiently(t, "the holder finds its nodes again", func() bool {
		l, err := holder.TryAcquire(ctx, "probe")
		return err == nil && l.Release(ctx) == nil
	})
	return parts
}

// expiries returns for each name when, by the servers' reports, fewer than a majority of them will have its key, or its
// reader.
func expiries(t *testing.T, servers []*redistest.Server, names []string) []time.Time {
	t.Helper()
	const script = `local r, t = {}, redis.call('TIME')
		for i, k in ipairs(KEYS) do
			r[i] = redis.call('PTTL', k)
			if redis.call('GETRANGE', k, 0, 1) == 's ' then
				r[i] = redis.call('ZRANGE', k .. '\255s', -1, -1, 'WITHSCORES')[2] - t[1] * 1000 - math.floor(t[2] / 1000)
			end
		end
		return r`
	args := []string{"EVAL", script, fmt.Sprint(len(names))}
	for _, name := range names {
		args = append(args, lockKey(name))
	}
	ends := make([][]time.Time, len(names))
	for _, s := range servers {
		reply := s.MustDo(args...).([]any)
		now := time.Now() // later than the server's clock: the true end is earlier by up to a round trip
		for i := range names {
			ends[i] = append(ends[i], now.Add(time.Duration(reply[i].(int64))*time.Millisecond))
		}
	}
	deadlines := make([]time.Time, len(names))
	for i := range names {
		slices.SortFunc(ends[i], func(a, b time.Time) int { return b.Compare(a) })
		deadlines[i] = ends[i][quorum.Size(len(servers))-1]
	}
	return deadlines
}
