//go:build unix

package workload

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/benchmarks/report"
)

func TestEveryCaseCanBeFoundAndItsContestantsCanTakePart(t *testing.T) {
	o := DefaultOptions()
	names := make(map[string]bool)
	for _, w := range append(All(o), Cluster(o)) {
		assert.NotEmpty(t, w.Title)
		assert.NotEmpty(t, w.About)
		for _, key := range append(w.Lines, w.Chart) {
			known := key == "" || slices.ContainsFunc(w.Columns, func(c report.Column) bool { return c.Key == key })
			assert.True(t, known, "%s: chart of %q", w.Name, key)
		}
		for _, c := range w.Cases {
			assert.False(t, names[w.Name+c.Name], "%s/%s twice", w.Name, c.Name)
			names[w.Name+c.Name] = true
			found, err := Find(o, w.Name, c.Name)
			require.NoError(t, err)
			assert.Equal(t, c.Nodes, found.Nodes)
			for _, name := range c.Contestants {
				contestant, ok := contest.Named(name)
				require.True(t, ok, "%q", name)
				assert.True(t, contestant.MaxNodes == 0 || c.Nodes <= contestant.MaxNodes, "%s/%s: %s", w.Name, c.Name, name)
			}
		}
	}
	_, err := Find(o, "latency", "N=2")
	assert.Error(t, err)
}

func TestCountersOfTheServersAreRead(t *testing.T) {
	const text = "# Commandstats\r\ncmdstat_evalsha_ro:calls=7,usec=1\r\ncmdstat_evalsha:calls=1234,usec=99,usec_per_call=1.00\r\n"
	value, err := field(text, "cmdstat_evalsha")
	require.NoError(t, err)
	calls, err := callsOf(value)
	require.NoError(t, err)
	assert.InDelta(t, 1234, calls, 0)
	_, err = field(text, "cmdstat_eval")
	assert.ErrorIs(t, err, errNoField, "the beginning of another name is not the name")
	for _, bad := range []string{"", "usec=1", "calls=x"} {
		_, err := callsOf(bad)
		assert.Error(t, err, "%q", bad)
	}
}

func TestADifferenceOfCountersIsWhatWasUsedInBetween(t *testing.T) {
	at := time.Unix(1, 0)
	before := usage{at: at, client: 1, servers: 2, allocs: 3, bytes: 4, scripts: 5}
	after := usage{at: at.Add(time.Second), client: 11, servers: 22, allocs: 33, bytes: 44, scripts: 55}
	assert.Equal(t, usage{elapsed: time.Second, client: 10, servers: 20, allocs: 30, bytes: 40, scripts: 50}, after.since(before))
}

func TestTurnsBeforeTheMeasurementAreNotCounted(t *testing.T) {
	b := &Bench{Options: Options{Duration: 50 * time.Millisecond}, Context: t.Context()}
	var measured atomic.Bool
	c := b.startCrowd(2, func(ctx context.Context, caller int) error {
		if caller == 1 && measured.Load() {
			<-ctx.Done() // the second caller gets nothing any more
			return ctx.Err()
		}
		time.Sleep(time.Millisecond)
		return nil
	})
	defer c.end()
	time.AfterFunc(b.warmUp()/2, func() { measured.Store(true) })
	s, err := b.measureCrowd(c, b.Duration)
	require.NoError(t, err)
	assert.Positive(t, s.counts[0])
	assert.Zero(t, s.counts[1])
	assert.InDelta(t, float64(s.counts[0]), s.turns, 0)
	assert.Positive(t, c.counts()[1], "it took turns before")
}

func TestACrowdThatOnlyFailsSaysWhy(t *testing.T) {
	b := &Bench{Options: Options{Duration: 10 * time.Millisecond}, Context: t.Context()}
	refused := errors.New("refused")
	c := b.startCrowd(1, func(context.Context, int) error { return refused })
	defer c.end()
	_, err := b.measureCrowd(c, b.Duration)
	require.ErrorIs(t, err, errIdle)
	assert.ErrorIs(t, err, refused)
}

func TestAMeasurementThatIsGivenUpEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := &Bench{Options: Options{Duration: time.Hour}, Context: ctx}
	c := b.startCrowd(1, func(ctx context.Context, _ int) error { <-ctx.Done(); return ctx.Err() })
	defer c.end()
	cancel()
	_, err := b.measureCrowd(c, b.Duration)
	assert.ErrorIs(t, err, context.Canceled)
}

func TestAStrangerIsWaitedForUntilItHasHadTheLockOrTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := &Bench{Context: ctx}
		began := time.Now()
		took, err := b.meet(func() bool { return time.Since(began) >= 3*time.Second })
		require.NoError(t, err)
		assert.Equal(t, 3*time.Second, took)
		took, err = b.meet(func() bool { return false })
		require.NoError(t, err, "its share is then measured as 0")
		assert.Equal(t, 10*time.Second, took)
		cancel()
		_, err = b.meet(func() bool { return false })
		assert.ErrorIs(t, err, context.Canceled)
	})
}
