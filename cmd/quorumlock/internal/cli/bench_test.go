//go:build unix

package cli

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

// A new node with the guard is in quarantine for longer than bench measures.
func TestBenchWithoutAGrantExitsWithTheReason(t *testing.T) {
	t.Parallel()
	addrs := redistest.Addrs(redistest.Start(t, 1))
	o := invoke(t, addrs, "bench", "--json", "--duration", "300ms", "--restart-guard", "1m")
	assert.Equal(t, exitNoQuorum, o.code, o.stderr)
	assert.Contains(t, o.stderr, "in quarantine: the node is new")
	assert.Contains(t, o.stderr, "nothing was granted in 300ms: give a longer --duration")
	r := decoded[benchResult](t, o.stdout)
	assert.Zero(t, r.Pairs)
	assert.Zero(t, r.Failures, "calls that the end of the time cut off are none")
}

func TestBenchOfNodesThatAnswerLateFailsWithTheReason(t *testing.T) {
	t.Parallel()
	proxy := redistest.NewProxy(t, redistest.Start(t, 1)[0].Addr())
	m := open(t, []string{proxy.Addr()})
	proxy.SwallowReplies()
	o := benchOptions{duration: 300 * time.Millisecond, callers: 2, names: 2}
	r := measure(t.Context(), m, o)
	assert.Zero(t, r.Failures)
	err := r.failed(o)
	assert.Equal(t, exitNoQuorum, exitCode(err))
	assert.ErrorContains(t, err, "nothing was granted in 300ms: give a longer --duration")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	assert.NoError(t, measure(ctx, m, o).failed(o), "a signal came")
}

func TestBenchShowsNoCPUOfAMasterThatWasReplaced(t *testing.T) {
	t.Parallel()
	servers := []server{{addr: "a:1"}, {group: "sentinel:locks", addr: "b:1"}}
	r := benchResult{Pairs: 10}
	r.addCPU(servers, []server{servers[0], {group: "sentinel:locks", addr: "c:1"}},
		[]time.Duration{time.Second, time.Second}, []time.Duration{2 * time.Second, 2 * time.Second})
	assert.Equal(t, []float64{1e5, -1}, r.CPUus)
}
