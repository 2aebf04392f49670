package virtual

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// list returns the names that are held, sorted, and the error of the list.
func list(ctx context.Context, m *quorumlock.Manager, prefix string) (held []string, err error) {
	for s, problem := range m.List(ctx, prefix) {
		if err = problem; err == nil && s.Held {
			held = append(held, s.Name)
		}
	}
	slices.Sort(held)
	return held, err
}

func TestListYieldsTheNamesOfAPrefixThatAreHeldOnce(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, other := manager(t, c), manager(t, c, quorumlock.WithPrefix("other:"))
		held, err := list(background, a, "")
		require.NoError(t, err)
		assert.Empty(t, held)

		var jobs []string
		for i := range 700 { // more than a page, and more than one request to the nodes covers
			name := fmt.Sprintf("jobs/%03d", i)
			jobs = append(jobs, name)
			acquire(t, a, name)
		}
		acquire(t, a, "report")
		acquire(t, other, "jobs/other")
		for _, n := range c.Nodes() {
			do(t, n, "SET", config.DefaultPrefix+"jobs/\xfe", "another program's")
		}
		for prefix, want := range map[string][]string{
			"": append(slices.Clone(jobs), "report"), "jobs/": jobs, "jobs/12": jobs[120:130], "report": {"report"}, "r*": nil, "nothing": nil,
		} {
			held, err := list(background, a, prefix)
			require.NoError(t, err)
			assert.Equal(t, want, held, prefix)
		}
	})
}

func TestListTellsWhoHoldsWhoWaitsAndWhatIsLeftBehind(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		a, b := manager(t, c, quorumlock.WithHolder("a")), manager(t, c, quorumlock.WithHolder("b"))
		acquire(t, a, "job")
		var waiting sync.WaitGroup
		waiting.Go(func() {
			l, err := b.Acquire(background, "job")
			if assert.NoError(t, err) {
				assert.NoError(t, l.Release(background))
			}
		})
		time.Sleep(time.Second)
		do(t, c.Nodes()[1], "SET", config.DefaultPrefix+"left", strings.Repeat("a", 32)+" 7 1700000000000000 - crashed", "PX", "9000")
		all := map[string]quorumlock.Status{}
		for s, err := range b.List(background, "") {
			require.NoError(t, err)
			all[s.Name] = s
		}
		require.Len(t, all, 2)
		job, left := all["job"], all["left"]
		inspected, err := b.Inspect(background, "job")
		require.NoError(t, err)
		assert.Equal(t, []any{inspected.Holder, inspected.Votes, inspected.Waiters, inspected.Fence}, []any{job.Holder, job.Votes, job.Waiters, job.Fence})
		assert.Equal(t, []any{true, "a", 3, 1}, []any{job.Held, job.Holder.Label, job.Votes, job.Waiters})
		assert.Equal(t, []any{false, "crashed", 1}, []any{left.Held, left.Holder.Label, left.Votes})
		require.NoError(t, a.Close(background))
		waiting.Wait()
	})
}

// A majority has a key of each held lock, so scanning a majority is both enough and necessary.
func TestListNeedsAMajorityOfTheNodes(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		acquire(t, m, "job")
		acquire(t, m, "job 2")
		c.Kill(0)
		time.Sleep(time.Second)
		held, err := list(background, m, "job")
		require.NoError(t, err)
		assert.Equal(t, []string{"job", "job 2"}, held)
		c.Kill(2)
		time.Sleep(time.Second)
		_, err = list(background, m, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		_, err = list(background, m, "nothing")
		var few *quorumlock.QuorumError
		require.ErrorAs(t, err, &few)
		assert.Equal(t, "list", few.Op)
		assert.Equal(t, 2, few.Need)
	})
}

func TestListLeavesOutWhatEndsBeforeItIsRead(t *testing.T) {
	run(t, 1, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		c.Nodes()[0].Delay(10 * time.Millisecond)
		do(t, c.Nodes()[0], "SET", config.DefaultPrefix+"brief", "somebody", "PX", "15")
		for s, err := range m.List(background, "") {
			assert.Fail(t, "it is gone", "%+v %v", s, err)
		}
	})
}

func TestListEndsWithItsContextItsManagerAndItsCaller(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for i := range 10 {
			acquire(t, m, fmt.Sprint("job ", i))
		}
		for _, err := range m.List(background, "") {
			require.NoError(t, err)
			break
		}
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(background)
		cancel(cause)
		_, err := list(ctx, m, "")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, cause)

		for _, bad := range []string{"\xff", string(make([]byte, 2000))} {
			_, err = list(background, m, bad)
			require.ErrorIs(t, err, quorumlock.ErrInvalid, "%q", bad)
		}
		_, err = list(nil, m, "") //nolint:staticcheck // it is what is tested
		require.ErrorIs(t, err, quorumlock.ErrInvalid)

		c.Hang()
		began := time.Now()
		_, err = list(background, m, "")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.Equal(t, 3*timeout, time.Since(began), "one node after the other")
		c.Resume()
		require.NoError(t, m.Close(background))
		_, err = list(background, m, "")
		require.ErrorIs(t, err, quorumlock.ErrClosed)
	})
}

// A node that hangs while the names are read costs one node timeout, and not one for each name.
func TestANodeThatHangsDuringAListCostsOneTimeout(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		for i := range 50 {
			acquire(t, m, fmt.Sprint("job ", i))
		}
		began := time.Now()
		c.Hang(2)
		held, err := list(background, m, "job")
		require.NoError(t, err)
		assert.Len(t, held, 50)
		assert.LessOrEqual(t, time.Since(began), timeout+100*time.Millisecond)
	})
}
