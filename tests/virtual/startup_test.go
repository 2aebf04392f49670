package virtual

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// begin calls quorumlock.New over a cluster whose nodes may be down, and returns how long it took.
func begin(ctx context.Context, t *testing.T, c *quorumlocktest.Cluster, opts ...quorumlock.Option) (took time.Duration, err error) {
	t.Helper()
	began := time.Now()
	m, err := quorumlock.New(ctx, c.Options(), append(opts, quorumlock.WithLogger(slog.New(slog.DiscardHandler)))...)
	took = time.Since(began)
	if m != nil {
		require.NoError(t, m.Close(background))
	}
	return took, err
}

func TestAProgramMayStartBeforeItsRedisDoes(t *testing.T) {
	for name, fault := range map[string]struct{ begin, end func(*quorumlocktest.Node) }{
		"not started": {(*quorumlocktest.Node).Kill, (*quorumlocktest.Node).Restart},
		"silent":      {(*quorumlocktest.Node).Hang, (*quorumlocktest.Node).Resume},
		"unreachable": {(*quorumlocktest.Node).Cut, (*quorumlocktest.Node).Heal},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				for _, n := range c.Nodes() {
					fault.begin(n)
				}
				for i := range 2 { // a majority: the third stays down
					time.AfterFunc(time.Duration(1+i)*20*time.Second, func() { fault.end(c.Nodes()[i]) })
				}
				took, err := begin(background, t, c, quorumlock.WithStartupWait(time.Minute))
				require.NoError(t, err)
				assert.InDelta(t, 40, took.Seconds(), 2)
			})
		})
	}
}

func TestNewGivesUpAtTheEndOfItsStartupWaitAndSaysWhy(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		c.Nodes()[0].Kill()
		c.Nodes()[1].Hang()
		took, err := begin(background, t, c, quorumlock.WithStartupWait(30*time.Second))
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.Equal(t, 30*time.Second, took)
		assert.Contains(t, err.Error(), "quorumlock: connect: reached 1 node, need 2 of 3: node 0 (node-0:6379): ")
		assert.Contains(t, err.Error(), "node 1 (node-1:6379): no answer within 500ms; waited 30s")

		took, err = begin(background, t, c)
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.LessOrEqual(t, took, 2*time.Second, "without the option New does not wait")
	})
}

func TestWhatCanNeverWorkIsRefusedWithoutWaitingForTheOtherNodes(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		c.Kill(0)
		for _, wrong := range c.Nodes()[1:] {
			wrong.SetRole("slave")
		}
		took, err := begin(background, t, c, quorumlock.WithStartupWait(time.Hour))
		require.ErrorIs(t, err, quorumlock.ErrInvalid, "no majority without them")
		assert.LessOrEqual(t, took, 2*time.Second)

		c.Nodes()[1].SetRole("master")
		c.Nodes()[2].SetInfo("redis_mode", "cluster")
		took, err = begin(background, t, c, quorumlock.WithStartupWait(time.Hour))
		require.ErrorIs(t, err, quorumlock.ErrInvalid, "the list is wrong")
		assert.LessOrEqual(t, took, 2*time.Second)

		c.Nodes()[1].Kill()
		c.Nodes()[2].SetInfo("redis_mode", "standalone")
		time.AfterFunc(30*time.Second, func() { c.Restart(0, 1) })
		took, err = begin(background, t, c, quorumlock.WithStartupWait(time.Hour))
		require.NoError(t, err, "the nodes that are down are a majority without the replica")
		assert.InDelta(t, 30, took.Seconds(), 2)
	})
}

func TestTheEndOfItsContextEndsNewAndNamesTheNodes(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		c.Hang(0, 1)
		for _, opts := range [][]quorumlock.Option{nil, {quorumlock.WithStartupWait(time.Hour)}} {
			ctx, cancel := context.WithTimeout(background, 50*time.Millisecond)
			_, err := begin(ctx, t, c, opts...)
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
			assert.Equal(t, `quorumlock: connect: reached 1 node, need 2 of 3: node 0 (node-0:6379): no answer within 50ms; `+
				`node 1 (node-1:6379): no answer within 50ms; stopped waiting: context deadline exceeded`, err.Error())
		}
	})
}

func TestReadyIsNilWhileAMajorityVotes(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		require.NoError(t, m.Ready())
		l := acquire(t, m, "job")
		c.Hang(0)
		time.Sleep(2 * time.Second)
		require.NoError(t, m.Ready(), "one of three")
		c.Kill(1)
		time.Sleep(2 * time.Second)
		err := m.Ready()
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.Regexp(t, `^quorumlock: ready: locks can be granted on 1 node, need 2 of 3: node 0 \(node-0:6379\): no answer within 500ms; `+
			`node 1 \(node-1:6379\): .*refused$`, err.Error())
		assert.True(t, l.Valid(), "a lease that is held goes on for its TTL")
		c.Resume(0)
		time.Sleep(2 * time.Second)
		require.NoError(t, m.Ready())
		require.NoError(t, m.Close(background))
		require.ErrorIs(t, m.Ready(), quorumlock.ErrClosed)
	})
}

func TestReadyCountsNoNodeInQuarantine(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithRestartGuard(time.Minute))
		var short *quorumlock.QuorumError
		require.ErrorAs(t, m.Ready(), &short)
		assert.Equal(t, 0, short.Got)
		assert.Len(t, short.Nodes, 3)
		assert.InDelta(t, 60, short.RetryAfter.Seconds(), 2)
		c.Kill(0)
		c.Kill(1)
		time.Sleep(2 * time.Second)
		require.ErrorAs(t, m.Ready(), &short)
		assert.Zero(t, short.RetryAfter, "two are down as well, and come back with another quarantine")
		c.Nodes()[0].Restart()
		c.Nodes()[1].Restart()
		time.Sleep(2 * time.Second)
		require.ErrorAs(t, m.Ready(), &short)
		time.Sleep(short.RetryAfter + time.Second)
		require.NoError(t, m.Ready())
	})
}

func TestTheStateOfANodeIsJSONWithItsErrorsAsText(t *testing.T) {
	text, err := json.Marshal(quorumlock.NodeStatus{
		Addr: "a:1", Version: "7.2.4", QuarantinedFor: 1500 * time.Millisecond, Err: errors.New("in quarantine"), Warning: errors.New("evicts"),
		RoundTrip: 312 * time.Microsecond, ClockOffset: -2 * time.Millisecond, TTL: -1,
	})
	require.NoError(t, err)
	assert.Equal(t, `{"addr":"a:1","version":"7.2.4","voting":false,"quarantined_ms":1500,"error":"in quarantine","warning":"evicts",`+
		`"round_trip_ms":0.312,"clock_offset_ms":-2}`, string(text))

	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c, quorumlock.WithHolder("me"))
		l := acquire(t, m, "job")
		c.Kill(0)
		time.Sleep(time.Second)
		s, err := m.Inspect(background, "job")
		require.NoError(t, err)
		text, err := json.Marshal(s.Nodes)
		require.NoError(t, err)
		var nodes []map[string]any
		require.NoError(t, json.Unmarshal(text, &nodes))
		assert.NotEmpty(t, nodes[0]["error"])
		assert.NotContains(t, nodes[0], "holder")
		assert.Equal(t, "", nodes[1]["error"])
		assert.Equal(t, true, nodes[1]["voting"])
		assert.Equal(t, "me", nodes[1]["holder"].(map[string]any)["label"])
		assert.InDelta(t, ttl.Milliseconds(), nodes[1]["ttl_ms"], 2000)
		assert.EqualValues(t, l.Token(), nodes[1]["fence"])
	})
}

// The error of a node names the node, and the time that it had. The texts of Go's own bounds would make a caller look
// for a context of its own.
func TestNodesThatDoNotAnswerAreNamedWithTheTimeTheyHad(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		events := m.Subscribe(1000)
		l := acquire(t, m, "job")
		c.Hang(0, 1)
		said := func(err error, text string) {
			t.Helper()
			require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
			assert.Regexp(t, text, err.Error())
		}
		silent := `node 0 \(node-0:6379\): no answer within 500ms; node 1 \(node-1:6379\): no answer within 500ms$`
		ctx, cancel := context.WithTimeout(background, time.Millisecond)
		defer cancel()
		err := l.Renew(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, `quorumlock: renew "job": stopped waiting for the nodes; the renewal continues: context deadline exceeded`, err.Error())
		said(l.Renew(background), `^quorumlock: renew "job": confirmed by 1 node, need 2 of 3: `+silent)
		said(l.Verify(background), `^quorumlock: verify "job": confirmed by 1 node, need 2 of 3: `+silent)
		time.Sleep(2 * time.Second)
		_, err = m.Inspect(background, "job")
		said(err, `^quorumlock: inspect "job": reached 1 node, need 2 of 3: `+silent)
		time.Sleep(2 * time.Second)
		_, err = m.TryAcquire(background, "job")
		said(err, `^quorumlock: acquire "job": granted by 0 nodes, need 2 of 3: `+silent[:len(silent)-1]+
			`; node 2 \(node-2:6379\): (answer not awaited: the other nodes had already decided|key belongs to another owner)$`)
		for _, n := range m.Nodes()[:2] {
			assert.EqualError(t, n.Err, "no answer within 500ms")
		}
		lost := <-l.Lost()
		assert.NotContains(t, (&quorumlock.LostError{Lost: lost}).Error(), "deadline exceeded")
		events.Close()
		for e := range events.C() {
			switch e := e.(type) {
			case quorumlock.AtRisk:
				for _, n := range e.Nodes {
					assert.NotContains(t, n.Error(), "deadline exceeded")
				}
			case quorumlock.NodeChanged:
				if e.Err != nil {
					assert.NotContains(t, e.Err.Error(), "deadline exceeded")
				}
			}
		}
		c.Resume()
	})
}

func TestANodeWhoseAnswerIsNotAwaitedIsNotMissingInTheError(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		c.Kill(0, 1)
		c.Nodes()[2].Delay(50 * time.Millisecond)
		time.Sleep(2 * time.Second)
		_, err := m.TryAcquire(background, "job")
		var short *quorumlock.QuorumError
		require.ErrorAs(t, err, &short)
		assert.Len(t, short.Nodes, 3)
		assert.Regexp(t, `^quorumlock: acquire "job": granted by 0 nodes, need 2 of 3: node 0 .*refused; node 1 .*refused; `+
			`node 2 \(node-2:6379\): answer not awaited: the other nodes had already decided$`, err.Error())
	})
}
