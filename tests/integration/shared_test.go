package integration

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// beforePolls is much longer than a wake-up takes on a loaded machine, and half of the shortest pause between two polls
// of a waiter with testkit.Lazily. A waiter also polls when the lease that it waits for would end, so leases live
// longer than that.
const (
	beforePolls = 10 * time.Second
	beyondPolls = time.Minute
)

// resource is the view of a resource: its users, and their tokens.
type resource struct {
	t       *testing.T
	readers atomic.Int32
	writers atomic.Int32
	turns   [3]atomic.Int32 // of readers, of writers, and of readers alongside others

	mu   sync.Mutex
	last int64 // of the last writer
}

func (r *resource) read(l *quorumlock.Lease) {
	if r.readers.Add(1) > 1 {
		r.turns[2].Add(1)
	}
	assert.Zero(r.t, r.writers.Load(), "a writer beside a reader")
	r.mu.Lock()
	assert.Greater(r.t, l.Token(), r.last, "a reader's token is above that of the writer before it")
	r.mu.Unlock()
	assert.EqualValues(r.t, 1, l.Token()%2)
	time.Sleep(time.Millisecond)
	assert.Zero(r.t, r.writers.Load(), "a writer beside a reader")
	r.readers.Add(-1)
	r.turns[0].Add(1)
}

func (r *resource) write(l *quorumlock.Lease) {
	assert.EqualValues(r.t, 1, r.writers.Add(1), "two writers")
	assert.Zero(r.t, r.readers.Load(), "a reader beside a writer")
	r.mu.Lock()
	assert.Greater(r.t, l.Token(), r.last)
	r.last = l.Token()
	r.mu.Unlock()
	time.Sleep(time.Millisecond)
	assert.Zero(r.t, r.readers.Load(), "a reader beside a writer")
	r.writers.Add(-1)
	r.turns[1].Add(1)
}

// Two writers and six readers run in a process each, while a server is killed and comes back.
func TestReadersShareANameThatWritersHaveAlone(t *testing.T) {
	t.Parallel()
	servers := testkit.Start(t, 3)
	addrs := redistest.Addrs(servers)
	of := &resource{t: t}
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for p := range 8 {
		m := testkit.Connect(t, addrs, quorumlock.WithTTL(3*time.Second))
		kind, use := quorumlock.Shared(), of.read
		if p < 2 {
			kind, use = quorumlock.Kind{}, of.write
		}
		clients.Go(func() {
			for ctx.Err() == nil {
				err := m.Do(ctx, "job", func(_ context.Context, l *quorumlock.Lease) error { use(l); return nil }, kind)
				if err != nil && ctx.Err() == nil {
					assert.ErrorIs(t, err, quorumlock.ErrLost)
				}
				time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
			}
		})
	}
	workThroughARestart(t, servers[0], 20, of.turns[:])
	cancel()
	clients.Wait()
	clean(t, servers)
}

// A writer gets its turn among readers that never pause, and all of them continue. Without a place before later readers
// it would wait forever.
func TestAWriterGetsItsTurnAmongReadersThatNeverPause(t *testing.T) {
	t.Parallel()
	servers := testkit.Start(t, 3)
	addrs := redistest.Addrs(servers)
	var reads [16]atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var clients sync.WaitGroup
	for p := range reads {
		m := testkit.Connect(t, addrs)
		clients.Go(func() {
			for ctx.Err() == nil {
				err := m.Do(ctx, "job", func(ctx context.Context, _ *quorumlock.Lease) error {
					reads[p].Add(1)
					select {
					case <-time.After(20 * time.Millisecond):
					case <-ctx.Done():
					}
					return nil
				}, quorumlock.Shared())
				if ctx.Err() == nil {
					assert.NoError(t, err)
				}
			}
		})
	}
	writer := testkit.Connect(t, addrs)
	for range 10 {
		before := make([]int32, len(reads))
		for p := range reads {
			before[p] = reads[p].Load()
		}
		testkit.Eventually(t, "all read again", func() bool {
			for p := range reads {
				if reads[p].Load() == before[p] {
					return false
				}
			}
			return true
		})
		turn, stop := context.WithTimeout(t.Context(), beforePolls)
		l, err := writer.Acquire(turn, "job")
		stop()
		require.NoError(t, err, "the writer has its turn")
		require.NoError(t, l.Release(t.Context()))
	}
	cancel()
	clients.Wait()
	clean(t, servers)
}

// Readers behind a writer are let in together, by wake-ups alone.
func TestReadersBehindAWriterAreLetInTogether(t *testing.T) {
	t.Parallel()
	m, servers := testkit.Queueing(t, 3, testkit.Lazily())
	other := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTTL(beyondPolls))
	l, err := other.Acquire(t.Context(), "job")
	require.NoError(t, err)
	const readers = 32
	var reading, clients sync.WaitGroup
	reading.Add(readers)
	leave := make(chan struct{})
	for range readers {
		clients.Go(func() {
			reader, err := m.Acquire(t.Context(), "job", quorumlock.Shared())
			reading.Done()
			if assert.NoError(t, err) {
				<-leave
				assert.NoError(t, reader.Release(t.Context()))
			}
		})
	}
	testkit.Queued(t, servers, readers)
	began := time.Now()
	require.NoError(t, l.Release(t.Context()))
	reading.Wait()
	t.Log("the last of them after ", time.Since(began))
	assert.Less(t, time.Since(began), beforePolls)
	close(leave)
	clients.Wait()
}

// No other client writes between the end of an exclusive lease and the shared one that replaces it.
func TestDowngradeLetsNoWriterIn(t *testing.T) {
	t.Parallel()
	m, servers := testkit.Manager(t, 3)
	other := testkit.Connect(t, redistest.Addrs(servers))
	for range 20 {
		writer, err := m.Acquire(t.Context(), "job")
		require.NoError(t, err)
		waiting := make(chan *quorumlock.Lease, 1)
		go func() {
			l, err := other.Acquire(t.Context(), "job")
			assert.NoError(t, err)
			waiting <- l
		}()
		testkit.Eventually(t, "queued", func() bool {
			s, err := other.Inspect(t.Context(), "job")
			return err == nil && s.Waiters == 1
		})
		reader, err := writer.Downgrade(t.Context())
		require.NoError(t, err)
		assert.ErrorIs(t, writer.Err(), quorumlock.ErrReleased)
		assert.True(t, reader.Shared())
		assert.Greater(t, reader.Token(), writer.Token())
		require.NoError(t, reader.Verify(t.Context()))
		require.NoError(t, reader.Renew(t.Context()))
		select {
		case <-waiting:
			require.Fail(t, "a writer beside a reader")
		case <-time.After(20 * time.Millisecond):
		}
		require.NoError(t, reader.Release(t.Context()))
		next := <-waiting
		assert.Greater(t, next.Token(), reader.Token())
		require.NoError(t, next.Release(t.Context()))
	}
}

func TestARefusalByReadersSaysHowManyThereAre(t *testing.T) {
	t.Parallel()
	writer, servers := testkit.Manager(t, 3)
	refusal := func() string {
		_, err := writer.TryAcquire(t.Context(), "job")
		var held *quorumlock.HeldError
		require.ErrorAs(t, err, &held)
		held.RetryAfter = 0
		return held.Error()
	}
	for i, want := range []string{`reader "a"`, `reader "b" and 1 other`, `reader "c" and 2 others`} {
		ttl := time.Duration(i+1) * time.Minute // the nodes name the reader that lasts longest
		reader := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTTL(ttl), quorumlock.WithHolder(want[8:9]))
		_, err := reader.Acquire(t.Context(), "job", quorumlock.Shared())
		require.NoError(t, err)
		testkit.Eventually(t, want, func() bool { return refusal() == `quorumlock: "job" is held by `+want }) // the last node has it, too
	}
	_, err := writer.Revoke(t.Context(), "job", "")
	require.NoError(t, err)
	assert.Equal(t, `quorumlock: "job" is held by readers whose leases were revoked`, refusal())
}

// A node that has lost a writer's lock wakes the waiting readers. They find the writer on the other nodes and stay in
// the queue. The writer still gets its node back.
func TestReadersThatWaitDoNotKeepANodeFromAWriter(t *testing.T) {
	t.Parallel()
	servers := testkit.Start(t, 3)
	ttl := quorumlock.WithTTL(3 * time.Second)
	writer, reader := testkit.Connect(t, redistest.Addrs(servers), ttl), testkit.Connect(t, redistest.Addrs(servers), ttl)
	servers[0].MustDo("SET", testkit.Prefix+"job", "somebody else")
	l, err := writer.Acquire(t.Context(), "job")
	require.NoError(t, err)
	granted := make(chan error, 1)
	go func() {
		waiting, err := reader.Acquire(t.Context(), "job", quorumlock.Shared())
		if err == nil {
			err = waiting.Release(t.Context())
		}
		granted <- err
	}()
	testkit.Queued(t, servers, 1)
	servers[0].MustDo("DEL", testkit.Prefix+"job")
	testkit.Eventually(t, "the node has the lock again", func() bool {
		value, _ := servers[0].MustDo("GET", testkit.Prefix+"job").(string)
		return strings.HasPrefix(value, l.Owner())
	})
	time.Sleep(100 * time.Millisecond)
	before := testkit.ScriptCalls(t, servers[0])
	time.Sleep(time.Second)
	assert.Less(t, testkit.ScriptCalls(t, servers[0])-before, 50, "nobody asks without a pause")
	require.NoError(t, l.Release(t.Context()))
	require.NoError(t, <-granted)
}

// A writer's failed attempt raises the register of a node that did not show the readers. Later readers may then have a
// larger token, and earlier ones stay valid.
func TestAFailedAttemptToWriteGivesLaterReadersALargerToken(t *testing.T) {
	t.Parallel()
	servers := testkit.Start(t, 3)
	m, writer := testkit.Connect(t, redistest.Addrs(servers)), testkit.Connect(t, redistest.Addrs(servers))
	proxies, addrs := testkit.Proxied(t, servers)
	far := testkit.Connect(t, addrs)
	before, err := writer.Acquire(t.Context(), "job")
	require.NoError(t, err)
	require.NoError(t, before.Release(t.Context()))
	servers[2].MustDo("SET", testkit.Prefix+"job", "somebody else")
	first, err := m.Acquire(t.Context(), "job", quorumlock.Shared())
	require.NoError(t, err)
	servers[2].MustDo("DEL", testkit.Prefix+"job")
	testkit.Eventually(t, "an attempt has reached the node, and is released", func() bool {
		_, err := writer.TryAcquire(t.Context(), "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		s, err := writer.Inspect(t.Context(), "job")
		require.NoError(t, err)
		node := s.Nodes[2]
		return node.Fence > first.Token() && node.Holder == (quorumlock.Holder{})
	})
	testkit.Eventually(t, "all nodes vote", func() bool { return far.Nodes()[1].Voting && far.Nodes()[2].Voting })
	proxies[0].Delay(100 * time.Millisecond) // the other two are the first majority
	second, err := far.Acquire(t.Context(), "job", quorumlock.Shared())
	require.NoError(t, err)
	assert.Greater(t, first.Token(), before.Token())
	assert.Greater(t, second.Token(), first.Token())
	require.NoError(t, first.Verify(t.Context()))
	require.NoError(t, second.Verify(t.Context()))
	require.NoError(t, first.Release(t.Context()))
	require.NoError(t, second.Release(t.Context()))
	after, err := writer.Acquire(t.Context(), "job")
	require.NoError(t, err)
	assert.Greater(t, after.Token(), second.Token())
	require.NoError(t, after.Release(t.Context()))
}
