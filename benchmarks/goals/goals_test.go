//go:build unix

package goals_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/benchmarks/goals"
	"github.com/quorumlock/quorumlock/benchmarks/report"
	"github.com/quorumlock/quorumlock/benchmarks/stats"
	"github.com/quorumlock/quorumlock/benchmarks/workload"
)

func TestAGoalIsMissedByMoreThanAThirdBeyondAThird(t *testing.T) {
	most := goals.Goal{Bound: 6}
	for figure, want := range map[float64]goals.Verdict{
		0: goals.Reached, 6: goals.Reached, 6.01: goals.Nearly, 7.99: goals.Nearly, 8.01: goals.Missed,
		math.NaN(): goals.Unknown, math.Inf(1): goals.Missed,
	} {
		assert.Equal(t, want, most.Judge(figure), "%v, at most 6", figure)
	}
	least := goals.Goal{Bound: 6, AtLeast: true}
	for figure, want := range map[float64]goals.Verdict{
		7: goals.Reached, 6: goals.Reached, 5.99: goals.Nearly, 4.01: goals.Nearly, 3.99: goals.Missed, 0: goals.Missed,
	} {
		assert.Equal(t, want, least.Judge(figure), "%v, at least 6", figure)
	}
	none := goals.Goal{}
	assert.Equal(t, goals.Reached, none.Judge(0))
	assert.Equal(t, goals.Missed, none.Judge(1), "a third of nothing is nothing")
	assert.True(t, goals.Missed.Fails() && goals.Unknown.Fails())
	assert.False(t, goals.Reached.Fails() || goals.Nearly.Fails())
}

func TestAGoalThatIsKnownToBeMissedFailsWhenItGetsWorse(t *testing.T) {
	known := goals.Goal{Bound: 6, Stands: 9}
	for figure, want := range map[float64]goals.Verdict{6: goals.Reached, 7: goals.Nearly, 9: goals.Known, 11.99: goals.Known, 12.01: goals.Missed} {
		assert.Equal(t, want, known.Judge(figure), "%v, at most 6, stands at 9", figure)
	}
	known = goals.Goal{Bound: 6, Stands: 3, AtLeast: true}
	for figure, want := range map[float64]goals.Verdict{6: goals.Reached, 5: goals.Nearly, 3: goals.Known, 2.01: goals.Known, 1.99: goals.Missed} {
		assert.Equal(t, want, known.Judge(figure), "%v, at least 6, stands at 3", figure)
	}
	assert.False(t, goals.Known.Fails())
}

// gateOptions returns the options of the gate's measurements.
func gateOptions() workload.Options {
	o := workload.DefaultOptions()
	o.Leases = []int{goals.ClosedLeases, goals.WatchedLeases}
	return o
}

func TestEveryFigureThatAGoalIsAboutIsMeasured(t *testing.T) {
	needs := goals.Needs(goals.All())
	require.NotEmpty(t, needs)
	for need := range needs {
		c, err := workload.Find(gateOptions(), need.Workload, need.Case)
		require.NoError(t, err)
		assert.Contains(t, c.Contestants, need.Contestant, "%v", need)
	}
}

// measured returns results in which every figure of every need is the same.
func measured(figure float64) *report.Results {
	results := &report.Results{}
	for _, w := range workload.All(gateOptions()) {
		s := report.Section{Workload: w.Name}
		for _, c := range w.Cases {
			for _, contestant := range c.Contestants {
				row := report.Row{Case: c.Name, Contestant: contestant, Values: make(map[string]stats.Summary)}
				for _, column := range w.Columns { // only what tables show
					row.Values[column.Key] = stats.Summarise([]float64{figure})
				}
				s.Rows = append(s.Rows, row)
			}
		}
		results.Sections = append(results.Sections, s)
	}
	return results
}

func TestTheGatePrintsALineForEachGoalAndCountsThoseThatFail(t *testing.T) {
	all := goals.All()
	var out strings.Builder
	failures, err := goals.Check(&out, all, measured(1))
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, len(all)+1)
	missed := 0
	for _, line := range lines {
		assert.NotContains(t, line, "NOT MEASURED", "a goal is about a figure that no column has")
		if strings.Contains(line, "MISSED") {
			missed++
		}
	}
	assert.Equal(t, missed, failures)
	assert.Positive(t, failures, "no ratio is above 1 where all are equal")

	failures, err = goals.Check(&out, all, &report.Results{})
	require.NoError(t, err)
	assert.Equal(t, len(all), failures, "what was not measured fails")
}

func TestARatioIsThatOfTheRightTwo(t *testing.T) {
	all := goals.All()
	i := slices.IndexFunc(all, func(g goals.Goal) bool { return strings.HasPrefix(g.What, "512 callers, N=3, quorumlock against") })
	require.GreaterOrEqual(t, i, 0)
	results := measured(100)
	results.Find("throughput", workload.ThroughputCase(512, 3), "quorumlock").Values["ops"] = stats.Summarise([]float64{400})
	var out strings.Builder
	failures, err := goals.Check(&out, all[i:i+1], results)
	require.NoError(t, err)
	assert.Zero(t, failures)
	assert.Regexp(t, `≥ 3\.80 × +4\.00 × +reached`, out.String())
}

func TestTheBestPeerIsTheFastestThatWasMeasured(t *testing.T) {
	all := goals.All()
	i := slices.IndexFunc(all, func(g goals.Goal) bool { return strings.HasPrefix(g.What, "one caller, N=1, p50, quorumlock against") })
	require.GreaterOrEqual(t, i, 0)
	results := measured(100)
	results.Find("latency", "N=1", "redislock").Values["p50"] = stats.Summarise([]float64{50})
	delete(results.Find("latency", "N=1", "rueidislock").Values, "p50")
	results.Find("latency", "N=1", "raw sockets").Values["p50"] = stats.Summarise([]float64{10}) // the limit isn't a peer
	var out strings.Builder
	_, err := goals.Check(&out, all[i:i+1], results)
	require.NoError(t, err)
	assert.Regexp(t, `≤ 1\.10 × +2\.00 ×`, out.String())
}
