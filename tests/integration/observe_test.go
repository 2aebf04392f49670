package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// Servers stop and continue, are killed and come back empty. An observer learns of it each time, and never of a smaller
// token.
func TestObserveOnServersThatStopAndRestart(t *testing.T) {
	t.Parallel()
	holder, servers := testkit.Manager(t, 3, quorumlock.WithTTL(3*time.Second), quorumlock.WithHolder("holder"))
	observer := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithObserveEvery(50*time.Millisecond))
	holdings, err := observer.Observe(t.Context(), "job")
	require.NoError(t, err)
	var newest int64
	until := func(what string, is func(quorumlock.Status) bool) {
		t.Helper()
		for deadline := time.After(20 * time.Second); ; {
			select {
			case h := <-holdings:
				if h.Held {
					assert.GreaterOrEqual(t, h.Token, newest)
					newest = h.Token
				}
				if is(h) {
					return
				}
			case <-deadline:
				require.Fail(t, "not delivered: "+what)
			}
		}
	}
	held := func(h quorumlock.Status) bool { return h.Held && h.Holder.Label == "holder" }
	nobody := func(h quorumlock.Status) bool { return h.Known && !h.Held }
	unknown := func(h quorumlock.Status) bool { return !h.Known && h.Err != nil }

	until("nobody holds it", nobody)
	l, err := holder.Acquire(t.Context(), "job")
	require.NoError(t, err)
	until("the holder", held)
	assert.Equal(t, l.Token(), newest)
	for _, s := range servers[:2] {
		s.Stop()
	}
	until("no majority answers", unknown)
	for _, s := range servers[:2] {
		s.Continue()
	}
	until("a majority answers again", func(h quorumlock.Status) bool { return h.Known })
	_ = l.Release(t.Context()) // it may have been lost by now
	until("nobody holds it any more", nobody)

	l, err = holder.Acquire(t.Context(), "job")
	require.NoError(t, err)
	until("the holder again", held)
	for _, s := range servers[:2] {
		s.Kill()
	}
	until("a majority is down", unknown)
	<-l.Context().Done() // a valid lease would restore its keys
	for _, s := range servers[:2] {
		s.Restart()
	}
	until("two servers came back empty", nobody)
	_ = l.Release(t.Context())
}
