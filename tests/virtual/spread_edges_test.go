package virtual

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
	"github.com/quorumlock/quorumlock/spread"
)

// asking is a log handler that asks its member for its state at each line.
type asking struct {
	slog.Handler
	t      *testing.T
	member *spread.Member
	mu     sync.Mutex
	lines  map[string]int // guarded by mu
}

func (h *asking) Enabled(context.Context, slog.Level) bool { return true }

// Handle waits some seconds at most for an answer: if the test hung in its bubble, it would not fail.
func (h *asking) Handle(_ context.Context, r slog.Record) error {
	answered := make(chan struct{}) // closed with the answer
	go func() {
		defer close(answered)
		h.member.Status()
	}()
	h.mu.Lock()
	h.lines[r.Message]++
	h.mu.Unlock()
	for range 1 << 24 { // some seconds; an answer takes microseconds
		select {
		case <-answered:
			return nil
		default:
			runtime.Gosched()
		}
	}
	h.t.Errorf("the member does not answer while it logs %q", r.Message)
	return nil
}

// A log handler may show what the member does, or take a lock under which other goroutines ask the member.
func TestALogHandlerMayAskTheMemberThatLogs(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		names := spreadNames(6)
		stranger := managerFor(t, c, "stranger", quorumlock.WithHolder("stranger"), quorumlock.WithTTL(24*time.Hour))
		for _, name := range names[2:] {
			defer release(t, acquire(t, stranger, "orders/"+name))
		}
		handler := &asking{Handler: slog.DiscardHandler, t: t, lines: map[string]int{}}
		handler.member = spread.New(managerFor(t, c, "a"), spread.Config{
			Group: "orders", Names: names, TTL: spreadTTL, Log: slog.New(handler),
			Func: func(ctx context.Context, _ *quorumlock.Lease, name string) error {
				if name == names[0] {
					return errors.New("no connection")
				}
				<-ctx.Done()
				return nil
			},
		})
		ctx, cut := context.WithCancel(background)
		var running sync.WaitGroup
		running.Go(func() { assert.ErrorIs(t, handler.member.Run(ctx), context.Canceled) })
		time.Sleep(10 * spreadTTL)
		c.Partition("a")
		time.Sleep(2 * spreadTTL)
		c.Rejoin("a")
		time.Sleep(2 * spreadTTL)
		cut()
		running.Wait()
		for _, line := range []string{
			"spread: a name begins", "spread: a name ends", "spread: Func returned before its context ended; it is called again",
			"spread: a member hands over no names: the shares stay uneven; does its Func return when its context ends?",
			"spread: a name is lost", "spread: cannot count the members",
		} {
			assert.Positive(t, handler.lines[line], line)
		}
	})
}

// A member marks a name whose function still runs, which takes a node timeout while a node is silent. The name does not wait
// for that: it is released when the function has returned, and the mark ends.
func TestAFunctionThatReturnsEndsTheMarkOfItsName(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		g, names := newSpreadLedger(t), spreadNames(1)
		const slow = 150 * time.Millisecond // the mark is made after 100 ms
		a := g.join(c, "a", names, slow)
		time.Sleep(2 * spreadTTL)
		g.mu.Lock()
		l := g.runs[names[0]]
		g.mu.Unlock()
		require.NotNil(t, l)
		began := time.Now()
		c.Hang(2)
		require.NoError(t, a.SetNames(nil))
		<-l.Done()
		assert.Less(t, time.Since(began), slow+10*time.Millisecond)
		require.ErrorIs(t, l.Err(), quorumlock.ErrReleased)
		next := acquire(t, manager(t, c), "orders/"+names[0])
		c.Resume(2)
		time.Sleep(2 * timeout)
		s, err := a.m.Inspect(background, "orders/"+names[0])
		require.NoError(t, err)
		assert.Equal(t, next.Owner(), s.Holder.Owner)
		assert.Empty(t, s.Holder.Asked, "the mark was for the holder before")
		release(t, next)
	})
}
