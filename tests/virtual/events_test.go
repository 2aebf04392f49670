package virtual

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// read returns the names of the events that are waiting in a subscription.
func read(s *quorumlock.Subscription) (events []string) {
	for {
		synctest.Wait() // losses that waited for room have moved up
		select {
		case e, open := <-s.C():
			switch e := e.(type) {
			case quorumlock.Lost:
				events = append(events, "lost "+e.Name)
			case quorumlock.Released:
				events = append(events, "released "+e.Name)
			case quorumlock.Acquired:
				events = append(events, "acquired "+e.Name)
			case quorumlock.Renewed:
				events = append(events, "renewed "+e.Name)
			}
			if !open {
				return events
			}
		default:
			return events
		}
	}
}

func count(events []string, prefix string) (n int) {
	for _, e := range events {
		if strings.HasPrefix(e, prefix) {
			n++
		}
	}
	return n
}

func TestALossDoesNotGiveWayToRenewals(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		events := m.Subscribe(8)
		acquire(t, m, "busy")
		lost, released := acquire(t, m, "lost"), acquire(t, m, "released")
		c.ForceLost(t, lost)
		require.NoError(t, released.Release(background))
		time.Sleep(time.Minute)
		got := read(events)
		assert.Equal(t, 1, count(got, "lost lost"), "%v", got)
		assert.Equal(t, 1, count(got, "released released"), "%v", got)
		assert.Equal(t, 6, count(got, "renewed busy"), "the latest: %v", got)
		assert.Positive(t, events.Dropped())
	})
}

func TestNoLossIsDroppedWhateverTheBuffer(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		all, losses := m.Subscribe(2), m.Subscribe(0, quorumlock.Lost{})
		const leases = 100
		for i := range leases {
			acquire(t, m, fmt.Sprint("job-", i))
		}
		c.Cut()
		time.Sleep(2 * ttl)
		c.Heal()
		time.Sleep(2 * ttl)
		busy := acquire(t, m, "busy")
		time.Sleep(time.Minute)
		require.NoError(t, busy.Release(background))
		got := read(all)
		assert.Equal(t, leases, count(got, "lost "))
		assert.Positive(t, all.Dropped())
		got = read(losses)
		assert.Len(t, got, leases)
		assert.Equal(t, leases, count(got, "lost "))
		assert.Zero(t, losses.Dropped(), "what it does not select is not dropped")
		acquire(t, m, "again")
		assert.Contains(t, read(all), "acquired again", "afterwards events come as before")
	})
}

func TestTheEndsOfLeasesThatAreNotReadGiveWayToOneAnother(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		events := m.Subscribe(3)
		busy := acquire(t, m, "busy")
		c.ForceLost(t, acquire(t, m, "lost"))
		for i := range 10 {
			require.NoError(t, acquire(t, m, fmt.Sprint("short-", i)).Release(background))
		}
		for range 10 {
			require.NoError(t, busy.Renew(background))
		}
		got := read(events)
		assert.Len(t, got, 3)
		assert.Contains(t, got, "lost lost")
		assert.Contains(t, got, "released short-9", "the newest end")
	})
}

func TestCloseKeepsWhatTheBufferHoldsAndJoinsTheRest(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, err := quorumlock.New(background, c.Options(), quorumlock.WithTTL(ttl))
		require.NoError(t, err)
		events, ended := m.Subscribe(4), m.Subscribe(4)
		for i := range 10 {
			acquire(t, m, fmt.Sprint("job-", i))
		}
		c.Cut()
		time.Sleep(2 * ttl)
		c.Heal()
		ended.Close()
		ended.Close()
		assert.Equal(t, 4, count(read(ended), "lost "))
		require.NoError(t, m.Close(background))
		assert.Equal(t, 4, count(read(events), "lost "))
		assert.GreaterOrEqual(t, events.Dropped(), uint64(6))
	})
}

func TestASubscriptionDeliversTheKindsThatItAsksFor(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		ends := m.Subscribe(100, quorumlock.Released{}, quorumlock.Lost{})
		begins := m.Subscribe(100, quorumlock.Acquired{})
		nothing := m.Subscribe(100, nil, &quorumlock.Lost{}, (*quorumlock.Released)(nil), struct{ quorumlock.Event }{})
		l := acquire(t, m, "job")
		time.Sleep(time.Minute)
		require.NoError(t, l.Release(background))
		c.ForceLost(t, acquire(t, m, "other"))
		assert.Equal(t, []string{"released job", "lost other"}, read(ends))
		assert.Equal(t, []string{"acquired job", "acquired other"}, read(begins))
		assert.Empty(t, read(nothing))
	})
}

func TestEachLossIsLoggedOnceWithItsNameItsReasonAndItsHolder(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		var log testkit.Buffer
		m := manager(t, c, quorumlock.WithHolder("web-1"), quorumlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, acquire(t, m, "released").Release(background))
		expired := acquire(t, m, "expired", quorumlock.WithMaxHold(time.Minute))
		<-expired.Done()
		terms := 0
		ctx, cancel := context.WithCancel(background)
		err := m.Lead(ctx, "led", func(ctx context.Context, l *quorumlock.Lease) error {
			if terms++; terms == 3 {
				cancel()
				return nil
			}
			c.ForceLost(t, l)
			<-ctx.Done()
			if terms == 1 {
				return context.Cause(ctx)
			}
			return fmt.Errorf("row 17 not written")
		})
		require.ErrorIs(t, err, context.Canceled)
		acquire(t, m, "closed")
		require.NoError(t, m.Close(background))
		text := log.String()
		assert.Equal(t, 3, strings.Count(text, "lease was lost"), text)
		assert.Regexp(t, `level=WARN msg="quorumlock: a lease was lost: its context has ended, and others may get the lock" name=expired token=\d+ reason="held for the maximum time of WithMaxHold" holder=web-1 owner=[0-9a-f]{32} nodes=""`, text)
		assert.Regexp(t, `msg="quorumlock: a lease was lost: its context has ended, and others may get the lock" name=led token=\d+ reason="taken by another client: too few nodes still hold this lease" holder=web-1 owner=\w+ nodes="node `, text)
		assert.Equal(t, 1, strings.Count(text, "row 17 not written"), text)
		assert.NotContains(t, text, "name=released")
		assert.NotContains(t, text, "name=closed")
	})
}
