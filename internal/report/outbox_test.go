package report

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Values of histograms may give way to earlier ones, and are counted. The changes of a gauge
// may not.
func TestAFullOutboxDropsValuesAndNoChange(t *testing.T) {
	o := NewOutbox[int, string]()
	o.Count("leases", 1)
	for i := range outboxSize + 3 {
		o.Put(i)
	}
	o.Count("leases", 1)
	o.Count("leases", 1)
	o.Put(-1)
	o.Count("leases", -1)
	assert.Len(t, o.Pending(), 1, "one signal, however much waits")
	var values, calls int
	sums := map[string]int64{}
	dropped := o.Flush(func(record func()) { calls++; record() },
		func(*int) { values++ }, func(series string, change int64) { sums[series] += change })
	assert.EqualValues(t, 4, dropped)
	assert.Equal(t, outboxSize, values)
	assert.Equal(t, map[string]int64{"leases": 2}, sums)
	assert.Equal(t, outboxSize+1, calls)
	assert.Zero(t, o.Flush(func(func()) { assert.Fail(t, "nothing waits") }, nil, nil))
}
