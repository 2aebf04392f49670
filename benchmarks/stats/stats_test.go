package stats_test

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/benchmarks/stats"
)

func TestTheMedianIsTheMiddleOneOrBetweenTheTwoInTheMiddle(t *testing.T) {
	odd := stats.Summarise([]float64{9, 1, 5})
	assert.InDelta(t, 5, odd.Median, 0)
	even := stats.Summarise([]float64{4, 1, 9, 2})
	assert.InDelta(t, 3, even.Median, 0)
	assert.InDelta(t, 1, even.Min, 0)
	assert.InDelta(t, 9, even.Max, 0)
	assert.InDelta(t, 7, stats.Summarise([]float64{7}).Median, 0)
}

func TestASummaryKeepsTheRoundsInTheirOrder(t *testing.T) {
	rounds := []float64{3, 1, 2}
	s := stats.Summarise(rounds)
	assert.Equal(t, []float64{3, 1, 2}, s.Rounds)
	assert.Equal(t, []float64{3, 1, 2}, rounds, "the argument is not sorted")
	text, err := json.Marshal(s)
	require.NoError(t, err)
	assert.JSONEq(t, `{"median":2,"min":1,"max":3,"rounds":[3,1,2]}`, string(text))
}

func TestWithoutRoundsNothingIsKnown(t *testing.T) {
	s := stats.Summarise(nil)
	assert.True(t, math.IsNaN(s.Median) && math.IsNaN(s.Min) && math.IsNaN(s.Max))
	assert.True(t, math.IsNaN(stats.Percentile(nil, 50)))
	assert.True(t, math.IsNaN(stats.SharesRatio(nil)))
}

func TestAPercentileIsASampleThatSoManyDoNotExceed(t *testing.T) {
	samples := make([]float64, 200)
	for i := range samples {
		samples[i] = float64(200 - i) // 200 … 1
	}
	for p, want := range map[float64]float64{0: 1, 50: 100, 99: 198, 99.9: 200, 100: 200} {
		assert.InDelta(t, want, stats.Percentile(samples, p), 0, "p%v", p)
	}
	assert.InDelta(t, 4, stats.Percentile([]float64{4}, 99), 0)
}

func TestACallerWithNothingCountsAsOneInTheRatioOfShares(t *testing.T) {
	assert.InDelta(t, 1.5, stats.SharesRatio([]int64{20, 30, 25}), 0)
	assert.InDelta(t, 30, stats.SharesRatio([]int64{0, 30}), 0)
	assert.InDelta(t, 0, stats.SharesRatio([]int64{0, 0}), 0)
}
