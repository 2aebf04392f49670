package quorumlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// visit is what a caller observes of its lease.
type visit struct {
	caller int
	lease  *quorumlock.Lease
}

// callers starts n callers for the job, one behind the other. Each runs visit under its
// lease and releases it. The returned function waits until all have finished.
func callers(
	t *testing.T, m *quorumlock.Manager, n int, visit func(ctx context.Context, i int, l *quorumlock.Lease),
	opts ...quorumlock.AcquireOption,
) (come func()) {
	t.Helper()
	var done sync.WaitGroup
	already := quorumlock.LocalCallers(m, "job")
	for i := range n {
		done.Go(func() {
			ctx := context.WithValue(background, callerKey{}, i)
			l, err := m.Acquire(ctx, "job", opts...)
			if !assert.NoError(t, err) {
				return
			}
			visit(ctx, i, l)
			if err := l.Release(background); !errors.Is(err, quorumlock.ErrLost) {
				assert.NoError(t, err)
			}
		})
		testkit.Eventually(t, "it queues", func() bool { return quorumlock.LocalCallers(m, "job") == already+i+1 })
	}
	return done.Wait
}

type callerKey struct{}

func TestALeaseIsPassedOnInTheOrderOfTheCalls(t *testing.T) {
	const many = 20
	for _, fenced := range []bool{true, false} {
		t.Run(fmt.Sprintf("fenced=%v", fenced), func(t *testing.T) {
			var opts []quorumlock.Option
			if !fenced {
				opts = append(opts, quorumlock.WithoutFencing())
			}
			m, servers := testkit.Queueing(t, 3, opts...)
			events := m.Subscribe(10 * many)
			first := testkit.Acquired(t, m, "job")
			var visits []visit // guarded by the lease
			owners := map[string]bool{}
			come := callers(t, m, many, func(ctx context.Context, i int, l *quorumlock.Lease) {
				visits = append(visits, visit{i, l})
				owners[l.Owner()] = true
				assert.True(t, l.Valid())
				assert.Equal(t, i, l.Context().Value(callerKey{}), "the context of its own call")
				assert.NoError(t, l.Context().Err())
				testkit.Confirmed(t, l.Verify)
				testkit.Renewed(t, l)
				s := testkit.Inspected(t, m)
				assert.Equal(t, l.Owner(), s.Holder.Owner)
				assert.GreaterOrEqual(t, s.Fence, l.Token())
				assert.ErrorIs(t, first.Release(background), quorumlock.ErrReleased)
				assert.True(t, l.Valid(), "the lease of another caller is another lease")
			})
			require.NoError(t, first.Release(background))
			come()
			require.Len(t, visits, many)
			last := first.Token()
			for i, v := range visits {
				assert.Equal(t, i, v.caller, "in the order of the calls")
				if fenced {
					assert.Greater(t, v.lease.Token(), last)
				}
				last = v.lease.Token()
				assert.ErrorIs(t, v.lease.Err(), quorumlock.ErrReleased)
				assert.ErrorIs(t, context.Cause(v.lease.Context()), quorumlock.ErrReleased)
			}
			assert.Less(t, len(owners), many/2, "the hold was passed on, most times")
			reported := eventsOf(events)
			require.Len(t, reported, 2*(many+1))
			for i := 0; i < len(reported) && fenced; i += 2 {
				lease := first
				if i > 0 {
					lease = visits[i/2-1].lease
				}
				got, isAcquired := reported[i].(quorumlock.Acquired)
				require.True(t, isAcquired, "%T", reported[i])
				assert.Equal(t, lease.Token(), got.Token)
				assert.Equal(t, quorumlock.Released{Name: "job", Token: lease.Token()}, reported[i+1])
			}
			testkit.Eventually(t, "released", func() bool { return testkit.Locks(t, servers, "job") == 0 })
			testkit.Eventually(t, "no queue is kept", func() bool { return quorumlock.LocalQueues(m) == 0 })
		})
	}
}

// eventsOf returns the events of the leases for the job, without renewals: lease by lease, because a lease may begin
// before the end of the last one is known.
func eventsOf(s *quorumlock.Subscription) (all []quorumlock.Event) {
	var tokens []int64
	add := func(e quorumlock.Event, of string, token int64) {
		if of == "job" {
			i, _ := slices.BinarySearch(tokens, token+1) // behind the earlier events of the same lease
			tokens, all = slices.Insert(tokens, i, token), slices.Insert(all, i, e)
		}
	}
	for {
		select {
		case e, open := <-s.C():
			if !open {
				return all
			}
			switch e := e.(type) {
			case quorumlock.Acquired:
				add(e, e.Name, e.Token)
			case quorumlock.Released:
				add(e, e.Name, e.Token)
			case quorumlock.Lost:
				add(e, e.Name, e.Token)
			}
		default:
			return all
		}
	}
}

func TestALossEndsTheCurrentLeaseAloneAndTheCallersGoOn(t *testing.T) {
	m, servers := testkit.Queueing(t, 3)
	events := m.Subscribe(100)
	first := testkit.Acquired(t, m, "job")
	var leases []*quorumlock.Lease
	var lost error
	come := callers(t, m, 3, func(_ context.Context, i int, l *quorumlock.Lease) {
		leases = append(leases, l)
		if i == 1 {
			testkit.Remove(servers, testkit.Prefix+"job")
			testkit.Eventually(t, "lost", func() bool { return errors.Is(l.Verify(background), quorumlock.ErrLost) })
			lost = l.Err()
		}
	})
	require.NoError(t, first.Release(background))
	come()
	require.Len(t, leases, 3)
	require.ErrorIs(t, lost, quorumlock.ErrLost)
	assert.ErrorIs(t, leases[0].Err(), quorumlock.ErrReleased)
	assert.ErrorIs(t, leases[1].Err(), quorumlock.ErrLost)
	assert.ErrorIs(t, leases[2].Err(), quorumlock.ErrReleased, "the next caller got a lease of its own")
	assert.NotEqual(t, leases[1].Owner(), leases[2].Owner())
	assert.Greater(t, leases[2].Token(), leases[1].Token())
	var kinds []string
	for _, e := range eventsOf(events) {
		kinds = append(kinds, strings.TrimPrefix(fmt.Sprintf("%T", e), "quorumlock."))
	}
	assert.Equal(t, strings.Fields("Acquired Released Acquired Released Acquired Lost Acquired Released"), kinds)
}

// The hold is lost while it carries no lease and its check runs. The check of the next
// hold must not wait for that one.
func TestALossDuringACheckCostsTheNextHoldNothing(t *testing.T) {
	servers := testkit.Start(t, 3)
	proxies, addrs := testkit.Proxied(t, servers)
	m := testkit.Connect(t, addrs, quorumlock.WithTTL(3*time.Second), quorumlock.WithNodeTimeout(1500*time.Millisecond))
	testkit.Subscribe(t, m, servers)
	events := m.Subscribe(100)
	first := testkit.Acquired(t, m, "job")
	testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	var leases []*quorumlock.Lease
	var owners []string
	come := callers(t, m, 3, func(_ context.Context, _ int, l *quorumlock.Lease) {
		leases, owners = append(leases, l), append(owners, l.Owner())
		time.Sleep(20 * time.Millisecond) // long enough for a check at its end
	})
	proxies[0].Swallow()
	testkit.Remove(servers[2:], testkit.Prefix+"job") // no majority for the check, and the check does not end quickly
	time.Sleep(2 * quorum.CheckAfter)                 // earlier, the lease would be passed on without a check
	require.NoError(t, first.Release(background))
	time.Sleep(50 * time.Millisecond)
	testkit.Remove(servers[1:2], testkit.Prefix+"job") // the next renewal finds the hold lost
	came := make(chan struct{})
	go func() { defer close(came); come() }()
	select {
	case <-came:
	case <-time.After(20 * time.Second):
		require.Fail(t, "the queue is stuck")
	}
	proxies[0].Heal()
	require.Len(t, leases, 3)
	assert.NotEqual(t, first.Owner(), owners[0])
	for _, e := range eventsOf(events) {
		_, isLost := e.(quorumlock.Lost)
		assert.False(t, isLost, "no caller had the lost lease")
	}
}

func TestCallersUnderOtherTermsGetAHoldOfTheirOwn(t *testing.T) {
	m, _ := testkit.Queueing(t, 3)
	first := testkit.Acquired(t, m, "job", quorumlock.WithHolder("first"))
	terms := [][]quorumlock.AcquireOption{
		{quorumlock.WithHolder("first")}, {quorumlock.WithHolder("second")}, {quorumlock.WithHolder("second"), quorumlock.WithTTL(time.Minute)},
	}
	var done sync.WaitGroup
	owners := make([]string, len(terms))
	for i, opts := range terms {
		done.Go(func() {
			l := testkit.Acquired(t, m, "job", opts...)
			owners[i] = l.Owner()
			s := testkit.Inspected(t, m)
			assert.Equal(t, owners[i], s.Holder.Owner)
			assert.Equal(t, []string{"first", "second", "second"}[i], s.Holder.Label)
			testkit.Released(t, l)
		})
		testkit.Eventually(t, "it queues", func() bool { return quorumlock.LocalCallers(m, "job") == i+1 })
	}
	require.NoError(t, first.Release(background))
	done.Wait()
	assert.NotEqual(t, owners[0], owners[1])
	assert.NotEqual(t, owners[1], owners[2])
}

// The rest of a hold that is not renewed is shorter than the TTL that its next caller
// asked for.
func TestALeaseWithoutRenewalStartsWithItsWholeTTL(t *testing.T) {
	m, _ := testkit.Queueing(t, 3, quorumlock.WithTTL(3*time.Second))
	first := testkit.Acquired(t, m, "job", quorumlock.WithoutRenewal())
	var left time.Duration
	come := callers(t, m, 1, func(_ context.Context, _ int, l *quorumlock.Lease) { left = l.Remaining() }, quorumlock.WithoutRenewal())
	time.Sleep(1500 * time.Millisecond)
	require.NoError(t, first.Release(background))
	come()
	assert.Greater(t, left, 2*time.Second)
}

// turns has n callers of each of these Managers take the job again and again, for a time. It returns how often each
// caller had it, Manager by Manager. The tokens must rise across all of them.
func turns(t *testing.T, d time.Duration, each int, managers ...*quorumlock.Manager) (shares []int) {
	t.Helper()
	shares = make([]int, each*len(managers)) // guarded by the lease, as is last
	var last int64
	var inside, overlaps atomic.Int32
	var done sync.WaitGroup
	end := time.Now().Add(d)
	for i := range shares {
		m := managers[i/each]
		done.Go(func() {
			for time.Now().Before(end) {
				l, err := m.Acquire(background, "job")
				if !assert.NoError(t, err) {
					return
				}
				if inside.Add(1) > 1 {
					overlaps.Add(1)
				}
				assert.Greater(t, l.Token(), last)
				last = l.Token()
				shares[i]++
				inside.Add(-1)
				assert.NoError(t, l.Release(background))
			}
		})
	}
	done.Wait()
	assert.Zero(t, overlaps.Load())
	return shares
}

// A round trip longer than CheckAfter must not send every caller to the nodes.
func TestALeaseOfDistantNodesIsPassedOn(t *testing.T) {
	servers := testkit.Start(t, 3)
	proxies, addrs := testkit.Proxied(t, servers)
	m := testkit.Connect(t, addrs)
	testkit.Subscribe(t, m, servers)
	for _, p := range proxies {
		p.Delay(2 * quorum.CheckAfter) // each way
	}
	for range 100 {
		began := time.Now()
		first := testkit.Acquired(t, m, "job")
		var owners []string
		come := callers(t, m, 3, func(_ context.Context, _ int, l *quorumlock.Lease) { owners = append(owners, l.Owner()) })
		time.Sleep(4 * quorum.CheckAfter)
		require.NoError(t, first.Release(background))
		come()
		if time.Since(began) < quorum.PassFor { // a hold that is older is not passed on at all
			assert.Equal(t, slices.Repeat([]string{first.Owner()}, 3), owners)
			return
		}
	}
	require.Fail(t, "the machine is too busy")
}

// The next caller of the process is in the queues of the nodes without having sent an
// attempt that they refuse.
func TestTheReleaseOfALeaseCarriesTheTicketOfTheNextCaller(t *testing.T) {
	servers := testkit.Start(t, 3)
	proxies, addrs := testkit.Proxied(t, servers)
	m := testkit.Connect(t, addrs, testkit.Lazily())
	testkit.Subscribe(t, m, servers)
	other := testkit.Crowd(t, servers, 1)[0]
	for range 100 {
		if releaseCarries(t, m, other, servers, proxies) {
			return
		}
	}
	require.Fail(t, "the machine is too busy")
}

// releaseCarries checks that the release carries the ticket to each node. It returns false if the machine was too busy
// for that: a hold that is older than PassFor is released without asking who waits elsewhere, and a lease may be
// granted without one of the nodes.
func releaseCarries(t *testing.T, m, other *quorumlock.Manager, servers []*redistest.Server, proxies []*redistest.Proxy) bool {
	began := time.Now()
	l := testkit.Acquired(t, m, "job")
	var elsewhere sync.WaitGroup
	elsewhere.Go(func() {
		l := testkit.Acquired(t, other, "job")
		testkit.Queued(t, servers, 1)
		testkit.Released(t, l)
	})
	testkit.Queued(t, servers, 1)
	come := callers(t, m, 1, func(context.Context, int, *quorumlock.Lease) {})
	time.Sleep(10 * quorum.CheckAfter) // longer than CheckAfter: the hold must go to the other process now
	owners := map[string]bool{}
	for _, s := range servers {
		value, _ := s.MustDo("GET", testkit.Prefix+"job").(string)
		owners[strings.Split(value, " ")[0]] = true
	}
	var carried atomic.Int32
	for _, p := range proxies {
		p.DelayCommand(func(cmd []string) bool {
			// The attempt itself may be in the same batch, behind the release. One that fails keeps its ticket as well.
			release, attempt := slices.Index(cmd, "leave"), slices.Index(cmd, "wait")
			if release >= 0 && owners[strings.TrimSpace(cmd[release+1])] && cmd[release+3] != "" && (attempt < 0 || release < attempt) {
				carried.Add(1)
			}
			return false
		}, 0)
	}
	require.NoError(t, l.Release(background))
	inTime := len(owners) == 1 && time.Since(began) < quorum.PassFor
	elsewhere.Wait()
	if inTime {
		testkit.Eventually(t, "each node has it", func() bool { return carried.Load() == 3 })
	}
	come()
	testkit.Queued(t, servers, 0)
	return inTime
}

// A node that has not granted a lease still has the ticket of its caller, even when the
// release carries the ticket of the next one.
func TestTheTicketOfALeaseLeavesWhenItsReleaseCarriesAnother(t *testing.T) {
	servers := testkit.Start(t, 3)
	m := testkit.Connect(t, redistest.Addrs(servers), testkit.Lazily())
	testkit.Subscribe(t, m, servers)
	others := testkit.Crowd(t, servers, 2)
	servers[2].MustDo("SET", testkit.Prefix+"job", "somebody else", "PX", "60000")
	before := testkit.Acquired(t, others[0], "job")
	granted, over := make(chan struct{}), make(chan struct{})
	come := callers(t, m, 2, func(_ context.Context, i int, _ *quorumlock.Lease) {
		if i == 0 {
			close(granted)
			<-over
		}
	})
	waiting := func(n int64) func() bool {
		return func() bool { return testkit.Queues(servers)[0] == n }
	}
	testkit.Eventually(t, "the first caller waits at the nodes", waiting(1))
	ticket := servers[0].MustDo("ZRANGE", testkit.QueueKey("job"), "0", "0").([]any)[0].(string)
	var elsewhere sync.WaitGroup
	elsewhere.Go(func() {
		l := testkit.Acquired(t, others[1], "job")
		testkit.Eventually(t, "the ticket of the previous lease has left the queue of the third node", func() bool {
			rank, _ := servers[2].Do("ZRANK", testkit.QueueKey("job"), ticket)
			return rank == nil
		})
		testkit.Released(t, l)
	})
	testkit.Eventually(t, "another process waits behind it", waiting(2))
	testkit.Released(t, before)
	<-granted
	time.Sleep(10 * quorum.CheckAfter) // longer than CheckAfter: the hold must go to the other process now
	close(over)
	elsewhere.Wait()
	come()
}

// Callers that return at once get equal shares.
func TestCallersOfAProcessGetEqualShares(t *testing.T) {
	m, _ := testkit.Queueing(t, 3)
	shares := turns(t, time.Second, 16, m)
	least, most := slices.Min(shares), slices.Max(shares)
	t.Logf("%d to %d turns each", least, most)
	assert.GreaterOrEqual(t, least, 10)
	assert.LessOrEqual(t, float64(most), 1.2*float64(least)+1)
}

// Two processes, each with callers that never stop asking: neither keeps the lock for
// itself.
func TestWaitersOfAnotherProcessAreNotStarved(t *testing.T) {
	const each = 8
	first, servers := testkit.Queueing(t, 3)
	second := testkit.Connect(t, redistest.Addrs(servers))
	testkit.Subscribe(t, second, servers)
	shares := turns(t, 3*time.Second, each, first, second)
	sum := func(of []int) (n int) {
		for _, share := range of {
			n += share
		}
		return n
	}
	here, there := sum(shares[:each]), sum(shares[each:])
	t.Logf("shares %d and %d", here, there)
	assert.GreaterOrEqual(t, min(here, there), 20)
	assert.LessOrEqual(t, float64(max(here, there)), 1.5*float64(min(here, there)))
	testkit.Eventually(t, "no keys are left", func() bool { return testkit.Locks(t, servers, "job") == 0 })
	testkit.Queued(t, servers, 0)
}

// Callers give up at every moment, even when they are just getting the lease.
func TestCallersThatGiveUpLeaveNothingBehind(t *testing.T) {
	first, servers := testkit.Queueing(t, 3)
	second := testkit.Connect(t, redistest.Addrs(servers))
	testkit.Subscribe(t, second, servers)
	var inside, overlaps atomic.Int32
	var got, gaveUp atomic.Int64
	var done sync.WaitGroup
	end := time.Now().Add(3 * time.Second)
	for i := range 24 {
		m := []*quorumlock.Manager{first, second}[i%2]
		done.Go(func() {
			for time.Now().Before(end) {
				ctx, cancel := context.WithTimeout(background, rand.N(10*time.Millisecond))
				l, err := m.Acquire(ctx, "job")
				if err != nil {
					assert.True(t, errors.Is(err, context.DeadlineExceeded), "%v", err)
					gaveUp.Add(1)
					cancel()
					continue
				}
				if inside.Add(1) > 1 {
					overlaps.Add(1)
				}
				got.Add(1)
				if rand.N(4) == 0 {
					time.Sleep(rand.N(3 * time.Millisecond))
				}
				inside.Add(-1)
				assert.NoError(t, l.Release(background))
				cancel()
			}
		})
	}
	done.Wait()
	t.Logf("%d leases, %d calls given up", got.Load(), gaveUp.Load())
	assert.Zero(t, overlaps.Load())
	assert.Positive(t, got.Load())
	assert.Positive(t, gaveUp.Load())
	for _, m := range []*quorumlock.Manager{first, second} {
		assert.Zero(t, quorumlock.LocalCallers(m, "job"))
		testkit.Eventually(t, "no queue is kept", func() bool { return quorumlock.LocalQueues(m) == 0 })
	}
	testkit.Queued(t, servers, 0)
	testkit.Eventually(t, "no lock is kept", func() bool { return testkit.Locks(t, servers, "job") == 0 })
	testkit.Released(t, testkit.Acquired(t, first, "job"))
	testkit.Released(t, testkit.Acquired(t, second, "job"))
}

func TestACallerThatGivesUpBehindAnotherReportsTheObstacle(t *testing.T) {
	m, servers := testkit.Queueing(t, 3)
	_ = testkit.Acquired(t, m, "job", quorumlock.WithHolder("me"))
	wait := func(m *quorumlock.Manager) error {
		cause := errors.New("lunch")
		ctx, cancel := context.WithTimeoutCause(background, 200*time.Millisecond, cause)
		defer cancel()
		_, err := m.Acquire(ctx, "job")
		assert.ErrorIs(t, err, cause)
		return err
	}
	check := func(err error) {
		t.Helper()
		var held *quorumlock.HeldError
		require.ErrorAs(t, err, &held)
		assert.Equal(t, "job", held.Name)
		assert.Equal(t, "me", held.Holder.Label)
		assert.InDelta(t, config.DefaultTTL, held.RetryAfter, float64(5*time.Second))
	}
	check(wait(m))

	// In another process, behind a caller that the nodes have refused.
	other := testkit.Connect(t, redistest.Addrs(servers))
	testkit.Subscribe(t, other, servers)
	ctx, cancel := context.WithCancel(background)
	gone := make(chan error)
	go func() { _, err := other.Acquire(ctx, "job"); gone <- err }()
	testkit.Queued(t, servers, 1)
	check(wait(other))
	_, err := other.TryAcquire(background, "job")
	check(err)
	cancel()
	check(<-gone)
}

func TestTryAcquireDoesNotOvertakeCallersOfItsProcess(t *testing.T) {
	const many = 30
	m, _ := testkit.Queueing(t, 3)
	l := testkit.Acquired(t, m, "job", quorumlock.WithoutRenewal())
	var came atomic.Int32
	// Without renewal, so that each caller asks the nodes when the previous one has
	// released.
	come := callers(t, m, many, func(context.Context, int, *quorumlock.Lease) {
		came.Add(1)
		time.Sleep(time.Millisecond)
	}, quorumlock.WithoutRenewal())
	require.NoError(t, l.Release(background))
	var trying sync.WaitGroup
	for range 4 {
		trying.Go(func() {
			for came.Load() < many {
				l, err := m.TryAcquire(background, "job")
				if err != nil {
					assert.ErrorIs(t, err, quorumlock.ErrHeld)
					continue
				}
				assert.EqualValues(t, many, came.Load(), "only behind the callers that waited")
				assert.NoError(t, l.Release(background))
			}
		})
	}
	trying.Wait()
	come()
	testkit.Eventually(t, "free again", func() bool {
		l, err := m.TryAcquire(background, "job")
		return err == nil && l.Release(background) == nil
	})
}

// The backoff is the user's function. A panic in it ends the call, and leaves neither
// keys nor a stuck queue.
func TestACallerWhoseBackoffPanicsDelaysNoOther(t *testing.T) {
	servers := testkit.Start(t, 3)
	holder := testkit.Connect(t, redistest.Addrs(servers))
	var armed atomic.Bool
	m := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithRetryBackoff(func() backoff.BackOff {
		if armed.Swap(false) {
			panic("the user's")
		}
		return backoff.NewConstantBackOff(20 * time.Millisecond)
	}), quorumlock.WithTTL(time.Hour))
	testkit.Subscribe(t, m, servers)
	l := testkit.Acquired(t, holder, "job")
	testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	testkit.Remove(servers[:1], testkit.Prefix+"job") // this node grants, and the lock must be released again
	armed.Store(true)
	panicked := make(chan any)
	go func() {
		defer func() { panicked <- recover() }()
		_, _ = m.Acquire(background, "job")
	}()
	assert.Equal(t, "the user's", <-panicked)
	testkit.Eventually(t, "its lock is released", func() bool {
		value, _ := servers[0].MustDo("GET", testkit.Prefix+"job").(string)
		return value == "" || strings.HasPrefix(value, l.Owner())
	})
	got := make(chan error)
	go func() {
		l, err := m.Acquire(background, "job")
		if err == nil {
			err = l.Release(background)
		}
		got <- err
	}()
	testkit.Queued(t, servers, 1)
	require.NoError(t, l.Release(background))
	select {
	case err := <-got:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		require.Fail(t, "the queue is stuck")
	}
}

// Close ends callers that wait, callers that hold, and callers that are just getting a
// lease.
func TestCloseAmidPassesEndsEveryCall(t *testing.T) {
	servers := testkit.Start(t, 3)
	for round := range 10 {
		m, err := testkit.New(t, redistest.Addrs(servers))
		require.NoError(t, err)
		testkit.Subscribe(t, m, servers)
		events := m.Subscribe(100_000)
		var inside, overlaps atomic.Int32
		var done sync.WaitGroup
		for range 16 {
			done.Go(func() {
				for {
					l, err := m.Acquire(background, "job")
					if err != nil {
						assert.ErrorIs(t, err, quorumlock.ErrClosed)
						return
					}
					if inside.Add(1) > 1 {
						overlaps.Add(1)
					}
					if rand.N(4) == 0 {
						time.Sleep(rand.N(5 * time.Millisecond))
					}
					inside.Add(-1)
					if err := l.Release(background); err != nil {
						assert.True(t, errors.Is(err, quorumlock.ErrReleased) || errors.Is(err, quorumlock.ErrClosed), "%v", err)
					}
				}
			})
		}
		time.Sleep(time.Duration(20+5*round) * time.Millisecond)
		require.NoError(t, m.Close(background))
		done.Wait()
		assert.Zero(t, testkit.Locks(t, servers, "job"))
		assert.Equal(t, []int64{0, 0, 0}, testkit.Queues(servers))
		assert.Zero(t, overlaps.Load())
		reported := eventsOf(events)
		for lease := range slices.Chunk(reported, 2) {
			require.Len(t, lease, 2)
			begun, _ := lease[0].(quorumlock.Acquired)
			require.Equal(t, quorumlock.Released{Name: "job", Token: begun.Token}, lease[1], "each lease ends once, and is not lost")
		}
		assert.NotEmpty(t, reported)
	}
}
