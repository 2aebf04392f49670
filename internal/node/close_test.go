package node_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// tally counts the answers by what they say.
type tally struct{ done, other atomic.Int64 }

func (c *tally) Receive(_ int, _ *node.Request, r *node.Reply) {
	if r.Status == node.Done && r.N == 1 {
		c.done.Add(1)
	} else {
		c.other.Add(1)
	}
}

// greeted returns a node that the caller closes, and its clock.
func greeted(t *testing.T, addr string) (*node.Node, func() time.Duration) {
	t.Helper()
	now := clock.New().Now
	n := node.New(node.Config{
		Option: rueidis.ClientOption{InitAddress: []string{addr}}, Prefix: "p:", Now: now,
	})
	go n.Run()
	require.Eventually(t, func() bool { return n.Health().Err == nil }, 20*time.Second, 5*time.Millisecond)
	return n, now
}

// A Manager has as many leases as it has; the queue is for what it asks in its
// life, and not for what it has to say at its end.
func TestCloseSendsMoreThanAQueueHolds(t *testing.T) {
	const locks = 20_000
	server := redistest.Start(t, 1)[0]
	n, now := greeted(t, server.Addr())
	owner := strings.Repeat("a", node.OwnerLen)
	server.MustDo("EVAL", "for i = 1, ARGV[1] do redis.call('SET', 'p:' .. (i - 1), ARGV[2] .. ' 0 - -') end", "0", fmt.Sprint(locks), owner)
	var last []*node.Request
	for i := range locks {
		last = append(last, &node.Request{
			Kind: node.Release, Keys: []string{fmt.Sprint("p:", i)}, Args: []string{owner, "0", "1000", "", "", "0"},
			Expires: now() + time.Minute, Insist: true,
		})
	}
	var answers tally
	assert.True(t, n.Close(context.Background(), last, &answers), "in time")
	assert.EqualValues(t, locks, answers.done.Load())
	assert.Zero(t, answers.other.Load())
	assert.EqualValues(t, 0, server.MustDo("DBSIZE"))
}

func TestACloseThatIsCutShortSaysSoAndAnswersEverything(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	n, now := greeted(t, server.Addr())
	server.Stop()
	defer server.Continue()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	var answers tally
	req := &node.Request{Kind: node.Release, Keys: []string{"p:x"}, Args: []string{"o", "0", "1000", "", "", "0"}, Expires: now() + time.Minute, Insist: true}
	assert.False(t, n.Close(ctx, []*node.Request{req, req, req}, &answers))
	assert.EqualValues(t, 3, answers.other.Load())
	assert.False(t, n.Post(req, &answers), "closed")
}
