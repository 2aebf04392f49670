//go:build linux

package battery

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// writerConfig configures a process that waits to write the name job.
type writerConfig struct{ Addrs []string }

func init() { roles["writer"] = writerRole }

func writerRole() int {
	var c writerConfig
	if err := roleConfig(&c); err != nil {
		return roleFailed(err)
	}
	m, err := quorumlock.New(context.Background(), quorumlock.Addrs(c.Addrs...))
	if err != nil {
		return roleFailed(err)
	}
	l, err := m.Acquire(context.Background(), "job")
	if err != nil {
		return roleFailed(err)
	}
	if err := answer(l.Token()); err != nil {
		return roleFailed(err)
	}
	if err := m.Close(context.Background()); err != nil {
		return roleFailed(err)
	}
	return 0
}

// A process is stopped while it waits to write, and its connections stay up. Later readers wait for seconds, and not
// for as long as it is stopped. When it continues it gets its turn.
func TestAWriterThatIsStoppedBarsReadersForSeconds(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("a writer is stopped while it waits behind a reader, N=%d", n))
		addrs := redistest.Addrs(redistest.Start(t, n))
		m, other := testkit.Connect(t, addrs), testkit.Connect(t, addrs)
		first, err := m.Acquire(t.Context(), "job", quorumlock.Shared())
		require.NoError(t, err)
		writer := spawn(t, "writer", writerConfig{addrs})
		testkit.Eventually(t, "the writer waits", func() bool {
			s, err := other.Inspect(t.Context(), "job")
			return err == nil && s.Waiters == 1
		})
		time.Sleep(time.Second)
		_, err = other.TryAcquire(t.Context(), "job", quorumlock.Shared())
		require.ErrorIs(t, err, quorumlock.ErrHeld, "it bars readers while it lives")
		_, err = writer.pause()
		require.NoError(t, err)
		began := time.Now()
		reader, err := other.Acquire(t.Context(), "job", quorumlock.Shared(), quorumlock.WithWait(25*time.Second))
		barred := time.Since(began)
		r.figure(fmt.Sprintf("a reader waited for %.1f s", barred.Seconds()), "2 to 15 s", err == nil && barred > 2*time.Second && barred < 15*time.Second)
		require.NoError(t, err)
		require.NoError(t, reader.Release(t.Context()))
		_, err = writer.resume()
		require.NoError(t, err)
		require.NoError(t, first.Release(t.Context()))
		var token int64
		require.NoError(t, writer.receive(&token))
		assert.Greater(t, token, reader.Token(), "it gets its turn")
		require.NoError(t, writer.end())
	})
}
