package node_test

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"strings"
	"sync"
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

// stray is a node whose connection breaks while a request that makes a lock is
// late on its way: it reaches the server behind a release that went over the next
// connection, and before its not-after.
type stray struct {
	*node.Node
	server   *redistest.Server
	now      func() time.Duration
	expires  time.Duration // of the request, and its not-after
	releases atomic.Int64  // that went out
}

const strayOwner = "0123456789abcdef0123456789abcdef"

func newStray(t *testing.T, kind node.Kind) *stray {
	t.Helper()
	s := &stray{server: redistest.Start(t, 1)[0], now: clock.New().Now}
	proxy := redistest.NewProxy(t, s.server.Addr())
	var mu sync.Mutex
	var newest net.Conn
	s.Node = node.New(node.Config{
		Prefix: "p:", Now: s.now,
		Option: rueidis.ClientOption{
			InitAddress: []string{proxy.Addr()},
			DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
				conn, err := d.DialContext(ctx, "tcp", addr)
				mu.Lock()
				newest = conn
				mu.Unlock()
				return conn, err
			},
		},
	})
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run() }()
	t.Cleanup(func() { s.Close(context.Background(), nil, nil); <-ended })
	require.Eventually(t, func() bool { return s.Health().Err == nil }, 20*time.Second, 5*time.Millisecond)

	s.expires = s.now() + 3*time.Second
	notAfter := strconv.FormatInt(s.expires.Microseconds(), 10)
	req := &node.Request{
		Kind: kind, Keys: []string{"p:job", "p:job:fence", "p:job:queue"}, Expires: s.expires,
		Args: []string{strayOwner, "0 - x", "60000", "60000", "1", "1000000", notAfter, "", ""},
	}
	if kind == node.Heal {
		req.Keys, req.Args = []string{"p:other", "p:job"}, nil
		for range req.Keys {
			req.Args = append(req.Args, strayOwner+" 1 0 - x", "60000", notAfter)
		}
	}
	under := make(chan struct{}, 1)
	proxy.DelayCommand(func(cmd []string) bool {
		if cmd[0] != "EVALSHA" {
			return false
		}
		switch len(cmd) {
		case 3 + 3 + 7:
			s.releases.Add(1)
		case 3 + 3 + 13, 3 + 2 + 7: // acquire, heal
			under <- struct{}{}
			return true
		}
		return false
	}, 500*time.Millisecond)
	answer := make(answers, 1)
	require.True(t, s.Post(req, answer))
	<-under
	mu.Lock()
	_ = newest.Close()
	mu.Unlock()
	require.Equal(t, node.Unknown, (<-answer).Status)
	s.releases.Store(0)
	return s
}

func (s *stray) release(owner string) *node.Request {
	return &node.Request{
		Kind: node.Release, Keys: []string{"p:job", "p:job:fence", "p:job:queue"}, Args: []string{owner, "0", "1000", "", "", "0"},
		Expires: s.now() + time.Minute, Insist: true,
	}
}

func (s *stray) locked() bool { return s.server.MustDo("EXISTS", "p:job") == int64(1) }

func TestALockThatIsMadeBehindItsReleaseIsReleasedAgain(t *testing.T) {
	for _, kind := range []node.Kind{node.Acquire, node.Heal} {
		t.Run(kind.String(), func(t *testing.T) {
			s := newStray(t, kind)
			answer := make(answers, 3)
			require.True(t, s.Post(s.release(strings.Repeat("b", node.OwnerLen)), answer))
			require.True(t, s.Post(s.release(strayOwner), answer))
			for range 2 {
				got := <-answer
				assert.Equal(t, node.Done, got.Status)
				assert.Zero(t, got.N, "nothing was there")
			}
			require.Less(t, s.now(), s.expires, "answered at once")
			require.Eventually(t, func() bool { return s.locked() }, 20*time.Second, time.Millisecond, "the late request locks")
			require.Eventually(t, func() bool { return !s.locked() }, 20*time.Second, 5*time.Millisecond)
			assert.Greater(t, s.now(), s.expires, "not while it may still be made")
			assert.EqualValues(t, 3, s.releases.Load(), "what is not in doubt goes out once")
			assert.Empty(t, answer, "one answer for each")
		})
	}
}

func TestCloseWaitsForTheReleaseOfALockThatMayStillBeMade(t *testing.T) {
	s := newStray(t, node.Acquire)
	var answers tally
	assert.True(t, s.Close(context.Background(), []*node.Request{s.release(strayOwner)}, &answers))
	assert.Greater(t, s.now(), s.expires)
	assert.False(t, s.locked())
	assert.EqualValues(t, 1, answers.other.Load(), "nothing was there")
	assert.EqualValues(t, 2, s.releases.Load())
}

func TestAReleaseBehindWhatIsVoidGoesOutOnce(t *testing.T) {
	s := newStray(t, node.Acquire)
	time.Sleep(s.expires - s.now() + 100*time.Millisecond)
	answer := make(answers, 2)
	require.True(t, s.Post(s.release(strayOwner), answer))
	assert.EqualValues(t, 1, (<-answer).N, "the late request had locked")
	var last tally
	assert.True(t, s.Close(context.Background(), nil, &last))
	assert.EqualValues(t, 1, s.releases.Load())
}

// The releases have been answered: that is what Close promises, and what its
// context bounds. The rest is for as long as there is time.
func TestCloseIsInTimeWhenOnlyASecondReleaseIsMissing(t *testing.T) {
	s := newStray(t, node.Acquire)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	var answers tally
	assert.True(t, s.Close(ctx, []*node.Request{s.release(strayOwner)}, &answers))
	assert.Less(t, s.now(), s.expires)
	assert.EqualValues(t, 1, s.releases.Load())
}
