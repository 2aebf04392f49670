package virtual

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// stuck is a log handler that does not return, like one that writes to a pipe without a
// reader.
type stuck struct {
	slog.Handler
	until chan struct{}
}

func (s stuck) Handle(context.Context, slog.Record) error { <-s.until; return nil }

func (s stuck) WithAttrs([]slog.Attr) slog.Handler { return s }

func TestALogHandlerThatHangsHoldsUpNothing(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		handler := stuck{slog.Default().Handler(), make(chan struct{})}
		m := manager(t, c, quorumlock.WithLogger(slog.New(handler)))
		l := acquire(t, m, "job")
		time.Sleep(time.Minute)
		require.True(t, l.Valid(), "renewed")
		for range 200 { // two reports each: more than the log's queue holds
			c.Nodes()[0].Kill()
			time.Sleep(time.Millisecond)
			c.Nodes()[0].Restart()
			time.Sleep(20 * time.Millisecond)
		}
		left := l.Remaining()
		began := time.Now()
		for _, node := range c.Nodes() {
			node.Cut()
		}
		lost := <-l.Lost()
		assert.Equal(t, quorumlock.LostExpired, lost.Reason)
		assert.LessOrEqual(t, time.Since(began), left+interval)

		ctx, cancel := context.WithTimeout(background, 10*time.Second)
		defer cancel()
		require.ErrorIs(t, m.Close(ctx), context.DeadlineExceeded, "Close returns an error and does not hang")
		close(handler.until)
		for _, node := range c.Nodes() {
			node.Heal()
		}
	})
}

// logOf returns a Manager, and a function that returns its log of warnings.
func logOf(t *testing.T, c *quorumlocktest.Cluster) (*quorumlock.Manager, func() string) {
	t.Helper()
	var log testkit.Buffer
	m := manager(t, c, quorumlock.WithLogger(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))))
	return m, func() string {
		synctest.Wait()
		return log.String()
	}
}

func TestALeaseThatIsNeverCheckedIsWarnedAboutOnce(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, log := logOf(t, c)
		watched := acquire(t, m, "watched")
		assert.True(t, watched.Valid())
		time.Sleep(10 * time.Minute)
		assert.Empty(t, log(), "the program asks for its validity")
		acquire(t, m, "forgotten")
		acquire(t, m, "also forgotten")
		time.Sleep(50 * time.Second)
		assert.Empty(t, log())
		time.Sleep(10 * time.Minute)
		assert.Regexp(t, `(?s)^[^\n]*never checked it[^\n]*no longer used[^\n]*\n$`, log(), "once")
	})
}

func TestLeasesOfOneCallThatAreNeverCheckedAreWarnedAbout(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, log := logOf(t, c)
		_, err := m.AcquireAll(background, []string{"a", "b"})
		require.NoError(t, err)
		time.Sleep(10 * time.Minute)
		assert.Regexp(t, `never checked it`, log())
	})
}

func TestACallerThatMayWaitForItselfIsWarnedAboutOnce(t *testing.T) {
	for name, queued := range map[string]bool{"the first refusal of the Manager": false, "in the queue of the process": true} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				m, log := logOf(t, c)
				if queued {
					patientOnce(t, m, manager(t, c))
				}
				l := acquire(t, m, "job")
				assert.True(t, l.Valid())
				_, err := m.Acquire(background, "job", quorumlock.WithWait(ttl/2))
				var held *quorumlock.HeldError
				require.ErrorAs(t, err, &held)
				assert.True(t, held.Self)
				assert.Contains(t, err.Error(), "(this Manager)")
				assert.Empty(t, log(), "the lease may be another caller's, and end soon")
				for range 2 {
					_, err = m.Acquire(background, "job", quorumlock.WithWait(3*ttl))
					require.ErrorAs(t, err, &held)
				}
				assert.Regexp(t, `(?s)^[^\n]*not reentrant[^\n]*job[^\n]*\n$`, log(), "once")
			})
		})
	}
}

// patientOnce has a Manager meet contention.
func patientOnce(t *testing.T, m, other *quorumlock.Manager) {
	t.Helper()
	l := acquire(t, other, "contended")
	_, err := m.Acquire(background, "contended", quorumlock.WithWait(100*time.Millisecond))
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	require.NoError(t, l.Release(background))
}
