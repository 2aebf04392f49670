package virtual

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/election"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// A call whose options contradict each other fails at once, and asks no node.
func TestKindsThatDoNotGoTogetherAreRefusedAtOnce(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		handle, err := acquire(t, m, "handed over").Detach(background, time.Minute)
		require.NoError(t, err)
		synctest.Wait()
		var asked atomic.Bool
		c.Nodes()[0].Fail(func([]string) bool { asked.Store(true); return false }, "")
		shared, permits := quorumlock.Shared(), quorumlock.Permits(2)
		work := func(context.Context, *quorumlock.Lease) error { return nil }
		acquired := func(opts ...quorumlock.AcquireOption) error {
			_, err := m.Acquire(background, "job", opts...)
			return err
		}
		all := func(kind quorumlock.Kind) error {
			_, err := m.AcquireAll(background, []string{"a", "b"}, kind)
			return err
		}
		resumed := func(kind quorumlock.Kind) error {
			_, err := m.Resume(background, handle, kind)
			return err
		}
		_, tried := m.TryAcquire(background, "job", shared, quorumlock.WithWait(time.Second))
		_, inspected := m.Inspect(background, "job", shared, permits)
		_, observed := m.Observe(background, "job", permits, shared)
		for _, bad := range []struct {
			err  error
			want string
		}{
			{acquired(shared, permits), "Shared with Permits: a lease is either a shared one or a permit; leave one of the two out"},
			{m.Do(background, "job", work, permits, shared), "Shared with Permits: "},
			{inspected, "Shared with Permits: "},
			{observed, "Shared with Permits: "},
			{acquired(quorumlock.Permits(0)), "Permits 0: must be 1 to 1024; use several names for more permits"},
			{acquired(permits, quorumlock.Permits(1025)), "Permits 1025: must be 1 to 1024"},
			{m.Lead(background, "job", work, shared), "Shared: has no use in Lead, because all readers would lead; leave it out, or give Permits for several leaders"},
			{all(shared), "Shared: has no use in AcquireAll, which takes exclusive leases only; "},
			{all(permits), "Permits: has no use in AcquireAll, "},
			{resumed(shared), "Shared: has no use in Resume, "},
			{resumed(permits), "Permits: has no use in Resume, "},
			{tried, "WithWait 1s: has no use in TryAcquire"},
		} {
			require.ErrorIs(t, bad.err, quorumlock.ErrInvalid, bad.want)
			assert.ErrorContains(t, bad.err, "quorumlock: "+bad.want)
		}
		synctest.Wait()
		assert.False(t, asked.Load())
		require.NoError(t, acquired(quorumlock.Permits(7), permits, quorumlock.Kind{}), "the last limit counts, as the last value of any option")
		require.NoError(t, acquired(quorumlock.Kind{}), "the zero Kind is an exclusive lease")
		_, err = m.TryAcquire(background, "job", shared)
		require.ErrorIs(t, err, quorumlock.ErrHeld)
	})
}

// slotsOf returns the labels of the holders of slots, "-" for a free slot and "?" for an unknown one.
func slotsOf(h quorumlock.Status) (labels []string) {
	for _, s := range h.Slots {
		switch {
		case !s.Known:
			labels = append(labels, "?")
		case !s.Held:
			labels = append(labels, "-")
		default:
			labels = append(labels, s.Holder.Label)
		}
	}
	return labels
}

// Of five candidates three lead, in a slot each. When one stops, another gets its slot.
func TestLeadWithPermitsElectsThatMany(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		var mu sync.Mutex
		leading := map[int]string{} // the candidate in each slot
		leads := func() map[int]string {
			mu.Lock()
			defer mu.Unlock()
			return maps.Clone(leading)
		}
		stops := map[string]context.CancelFunc{}
		observer := manager(t, c)
		holdings, err := observer.Observe(t.Context(), "job", quorumlock.Permits(3))
		require.NoError(t, err)
		for i := range 5 {
			name := fmt.Sprint("candidate-", i)
			m := manager(t, c, quorumlock.WithHolder(name))
			ctx, stop := context.WithCancel(t.Context())
			stops[name] = stop
			defer stop()
			go func() {
				_ = m.Lead(ctx, "job", func(ctx context.Context, l *quorumlock.Lease) error {
					mu.Lock()
					assert.NotContains(t, leading, l.Slot())
					leading[l.Slot()] = name
					mu.Unlock()
					<-ctx.Done()
					mu.Lock()
					defer mu.Unlock()
					delete(leading, l.Slot())
					return nil
				}, quorumlock.Permits(3))
			}()
		}
		time.Sleep(5 * time.Second)
		shown := func() []string {
			h := <-holdings // of the poll that has seen the third leader, perhaps before the others have queued
			assert.Equal(t, []any{"job", true, true}, []any{h.Name, h.Known, h.Held})
			return slotsOf(h)
		}
		now := leads()
		require.Len(t, now, 3)
		assert.Equal(t, []string{now[0], now[1], now[2]}, shown())
		s, err := observer.Inspect(background, "job", quorumlock.Permits(4))
		require.NoError(t, err)
		require.Len(t, s.Slots, 4)
		assert.Equal(t, []any{"job", true, 2, 3}, []any{s.Name, s.Held, s.Waiters, len(s.Nodes)})
		for i, slot := range s.Slots {
			assert.Equal(t, now[i], slot.Holder.Label)
			assert.Equal(t, i < 3, slot.Held)
		}

		before := now[1]
		stops[before]()
		time.Sleep(5 * time.Second)
		now = leads()
		require.Len(t, now, 3)
		assert.NotEqual(t, before, now[1])
		h := <-holdings
		assert.Equal(t, []string{now[0], now[1], now[2]}, slotsOf(h))
		for _, stop := range stops {
			stop()
		}
		time.Sleep(5 * time.Second)
		h = <-holdings
		assert.Equal(t, []any{true, false}, []any{h.Known, h.Held})
		assert.Equal(t, []string{"-", "-", "-"}, slotsOf(h))
		assert.Empty(t, leads())
	})
}

// An observer of permits learns of each slot, and also that too few nodes answer.
func TestObserveWithPermitsShowsEachSlot(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, o := manager(t, c, quorumlock.WithHolder("a")), managerFor(t, c, "observer")
		ctx, cancel := context.WithCancel(background)
		holdings, err := o.Observe(ctx, "job", quorumlock.Permits(2))
		require.NoError(t, err)
		h := next(t, holdings, 2*time.Second)
		assert.Equal(t, []any{true, false, []string{"-", "-"}}, []any{h.Known, h.Held, slotsOf(h)})
		quiet(t, holdings, 5*time.Second)
		l := permit(t, m, 1)
		h = next(t, holdings, 2*time.Second)
		assert.Equal(t, []any{true, true, []string{"a", "-"}}, []any{h.Known, h.Held, slotsOf(h)})
		assert.Zero(t, h.Holder, "the slots have the holders")
		assert.GreaterOrEqual(t, h.Slots[0].Token, l.Token())
		c.Partition("observer")
		time.Sleep(5 * time.Second)
		h = next(t, holdings, time.Second)
		require.ErrorIs(t, h.Err, quorumlock.ErrNoQuorum)
		assert.Equal(t, []any{false, false, []string{"?", "?"}}, []any{h.Known, h.Held, slotsOf(h)})
		c.Rejoin("observer")
		time.Sleep(5 * time.Second)
		assert.Equal(t, []string{"a", "-"}, slotsOf(next(t, holdings, time.Second)))
		cancel()
		_, open := <-holdings
		assert.False(t, open)
		ended, err := o.Observe(ctx, "job", quorumlock.Permits(2))
		require.NoError(t, err)
		_, open = <-ended
		assert.False(t, open)
		last, err := o.Observe(background, "job", quorumlock.Permits(2))
		require.NoError(t, err)
		require.NoError(t, o.Close(background))
		for h := range last {
			assert.Len(t, h.Slots, 2)
		}
		_, err = o.Observe(background, "job", quorumlock.Permits(2))
		assert.ErrorIs(t, err, quorumlock.ErrClosed)
	})
}

// Candidates of an election with permits lead together, and each of them knows all leaders.
func TestAnElectionOfTwoKnowsBothLeaders(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		ctx, cancel := context.WithCancel(background)
		var all []*election.Elector
		ended := make(chan error, 3)
		for i := range 3 {
			e := election.New(manager(t, c, quorumlock.WithHolder(fmt.Sprint(i))), election.Config{
				Name: "job", Acquire: []quorumlock.AcquireOption{quorumlock.Permits(2)},
				Lead: func(ctx context.Context, _ *quorumlock.Lease) error { <-ctx.Done(); return nil },
			})
			go func() { ended <- e.Run(ctx) }()
			all = append(all, e)
		}
		time.Sleep(5 * time.Second)
		leaders := map[string]bool{}
		for i, e := range all {
			if e.IsLeader() {
				leaders[fmt.Sprint(i)] = true
			}
		}
		assert.Len(t, leaders, 2)
		for _, e := range all {
			shown := slotsOf(e.Leader())
			require.Len(t, shown, 2)
			assert.Equal(t, leaders, map[string]bool{shown[0]: true, shown[1]: true})
		}
		cancel()
		for range all {
			require.ErrorIs(t, <-ended, context.Canceled)
		}
	})
}
