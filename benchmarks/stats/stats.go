// Package stats has the few statistics that the benchmarks need.
package stats

import (
	"math"
	"slices"
)

// A Summary is the result of several rounds of one measurement.
type Summary struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Rounds []float64 `json:"rounds"` // in the order in which they were run
}

// Summarise returns the summary of rounds; of none, all its numbers are NaN.
func Summarise(rounds []float64) Summary {
	if len(rounds) == 0 {
		return Summary{Median: math.NaN(), Min: math.NaN(), Max: math.NaN()}
	}
	sorted := slices.Sorted(slices.Values(rounds))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return Summary{Median: median, Min: sorted[0], Max: sorted[len(sorted)-1], Rounds: slices.Clone(rounds)}
}

// Percentile returns the smallest of samples that at least p percent of them do
// not exceed, and NaN of none. It sorts samples.
func Percentile(samples []float64, p float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	slices.Sort(samples)
	rank := int(math.Ceil(p / 100 * float64(len(samples))))
	return samples[min(max(rank, 1), len(samples))-1]
}

// SharesRatio returns how many times the smallest count goes into the largest. A count of 0 is taken for 1, so that the
// ratio stays a number. It is NaN without counts.
func SharesRatio(counts []int64) float64 {
	if len(counts) == 0 {
		return math.NaN()
	}
	return float64(slices.Max(counts)) / float64(max(slices.Min(counts), 1))
}
