package quorumlock

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
)

// Values of histograms may give way to earlier ones, and are counted. The changes of a gauge
// may not.
func TestAFullOutboxDropsValuesAndNoChange(t *testing.T) {
	i, err := newInstruments(metricnoop.NewMeterProvider(), nil, nil)
	assert.NoError(t, err)
	i.opened("", "")
	for range outboxSize + 3 {
		i.renewed("", 1)
	}
	i.opened("", "")
	i.opened("", "")
	i.held("", 1, nil)
	assert.Equal(t, map[sum]int64{{of: leasesActive}: 2}, i.sums)
	calls := 0
	assert.EqualValues(t, 4, i.Flush(func(record func()) { calls++; record() }), "three renewals and a hold")
	assert.Equal(t, outboxSize+1, calls)
	assert.Zero(t, i.Flush(func(func()) { assert.Fail(t, "nothing waits") }))
}
