package main

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// instruments has the metrics with their units, and the first and last boundaries of the
// histograms.
var instruments = []struct {
	name, unit  string
	first, last float64
}{
	{"quorumlock.acquire.duration", "s", .0005, 3600},
	{"quorumlock.wait.duration", "s", .0005, 3600},
	{"quorumlock.hold.duration", "s", .001, 86400},
	{"quorumlock.renewal.validity", "s", .025, 3600},
	{"quorumlock.node.operation.duration", "s", .0001, 1},
	{"quorumlock.lease.active", "{lease}", 0, 0},
	{"quorumlock.lease.at_risk", "{lease}", 0, 0},
	{"quorumlock.lease.lost", "{lease}", 0, 0},
	{"quorumlock.waiter.active", "{waiter}", 0, 0},
	{"quorumlock.handover", "{handover}", 0, 0},
	{"quorumlock.node.voting", "{node}", 0, 0},
}

// exercise makes each metric measure something.
func exercise(t *testing.T, cluster *quorumlocktest.Cluster, m *quorumlock.Manager) {
	t.Helper()
	l, err := m.Acquire(t.Context(), "orders/1")
	require.NoError(t, err)
	_, err = m.TryAcquire(t.Context(), "orders/1")
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	var waiters sync.WaitGroup
	waiters.Go(func() {
		assert.NoError(t, m.Do(context.Background(), "orders/1", func(context.Context, *quorumlock.Lease) error { return nil }))
	})
	cluster.Nodes()[2].Kill()
	time.Sleep(20 * time.Second) // renewals without margin
	require.NoError(t, l.Release(t.Context()))
	waiters.Wait()
	l, err = m.Acquire(t.Context(), "reports/1", quorumlock.WithMaxHold(time.Second))
	require.NoError(t, err)
	<-l.Done()
	cluster.Nodes()[1].Kill()
	_, err = m.TryAcquire(t.Context(), "orders/2")
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	cluster.Nodes()[1].Restart()
	cluster.Nodes()[2].Restart()
	time.Sleep(time.Minute)
	settle()
}

func TestEachMetricHasItsNameUnitAndBoundaries(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		reader := sdkmetric.NewManualReader()
		m := manager(t, cluster, quorumlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
		exercise(t, cluster, m)
		found := collect(t, reader)
		for _, want := range instruments {
			got, ok := found[want.name]
			if !assert.True(t, ok, want.name) {
				continue
			}
			delete(found, want.name)
			assert.Equal(t, want.unit, got.Unit, want.name)
			assert.NotEmpty(t, got.Description, want.name)
			histogram, ok := got.Data.(metricdata.Histogram[float64])
			assert.Equal(t, want.last > 0, ok, want.name)
			for _, point := range histogram.DataPoints {
				assert.InDelta(t, want.first, point.Bounds[0], 0, want.name)
				assert.InDelta(t, want.last, point.Bounds[len(point.Bounds)-1], 0, want.name)
			}
			for _, attrs := range sets(got) {
				assert.False(t, attrs.HasValue("quorumlock.name"), "%s %v: no name unless WithNameAttribute", want.name, attrs.Encoded(attribute.DefaultEncoder()))
			}
		}
		assert.Empty(t, found, "metrics that the table does not have")
	})
}

func TestErrorTypeIsOnFailuresOnly(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		reader := sdkmetric.NewManualReader()
		m := manager(t, cluster, quorumlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
		exercise(t, cluster, m)
		fine := map[string]bool{"ok": true, "held": true, "cancelled": true, "released": true, "done": true, "granted": true, "taken": true}
		failed := 0
		for name, metric := range collect(t, reader) {
			for _, attrs := range sets(metric) {
				outcome, ok := attrs.Value("quorumlock.outcome")
				if !ok || name == "quorumlock.hold.duration" { // a lost hold is counted by its reason
					assert.False(t, attrs.HasValue("error.type"), name)
					continue
				}
				assert.Equal(t, !fine[outcome.AsString()], attrs.HasValue("error.type"), "%s: %s", name, outcome.AsString())
				if attrs.HasValue("error.type") {
					failed++
				}
			}
		}
		assert.GreaterOrEqual(t, failed, 2, "an acquisition and an operation of a node")
	})
}

// In real time, because in a bubble no time passes between the refusal and the return.
func TestOnlyACallThatWaitsIsCountedAsAWait(t *testing.T) {
	cluster, reader := quorumlocktest.Start(t, 3), sdkmetric.NewManualReader()
	holder := manager(t, cluster)
	m := manager(t, cluster, quorumlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	l, err := holder.Acquire(t.Context(), "job")
	require.NoError(t, err)
	_, err = m.TryAcquire(t.Context(), "job")
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	assert.Eventually(t, func() bool { _, ok := collect(t, reader)["quorumlock.acquire.duration"]; return ok }, 10*time.Second, time.Millisecond)
	_, counted := collect(t, reader)["quorumlock.wait.duration"]
	assert.False(t, counted, "a call that asks once is no wait")
	_, err = m.Acquire(t.Context(), "job", quorumlock.WithWait(100*time.Millisecond))
	require.ErrorIs(t, err, quorumlock.ErrHeld)
	var waits metricdata.Histogram[float64]
	require.Eventually(t, func() (ok bool) {
		waits, ok = collect(t, reader)["quorumlock.wait.duration"].Data.(metricdata.Histogram[float64])
		return ok
	}, 10*time.Second, time.Millisecond)
	require.Len(t, waits.DataPoints, 1)
	assert.Equal(t, uint64(1), waits.DataPoints[0].Count)
	assert.Greater(t, waits.DataPoints[0].Sum, 0.01)
	require.NoError(t, l.Release(t.Context()))
}

func TestNamesOnMetricsAreThoseOfTheOption(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		reader := sdkmetric.NewManualReader()
		m := manager(t, cluster, quorumlock.WithNameAttribute(kindOf),
			quorumlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
		for _, name := range []string{"orders/1", "orders/2", "single"} {
			_, err := m.Acquire(t.Context(), name)
			require.NoError(t, err)
		}
		settle()
		active, ok := collect(t, reader)["quorumlock.lease.active"].Data.(metricdata.Sum[int64])
		require.True(t, ok)
		shown := map[string]int64{}
		for _, point := range active.DataPoints {
			name, _ := point.Attributes.Value("quorumlock.name")
			shown[name.AsString()] = point.Value
		}
		assert.Equal(t, map[string]int64{"orders/*": 2, "": 1}, shown)
	})
}

func TestGaugesReturnToZeroAfterClose(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		reader := sdkmetric.NewManualReader()
		m := manager(t, cluster, quorumlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
		cluster.Nodes()[0].Kill()
		for _, name := range []string{"a", "b"} {
			_, err := m.Acquire(t.Context(), name)
			require.NoError(t, err)
		}
		var waiters sync.WaitGroup
		for range 3 {
			waiters.Go(func() {
				_, err := m.Acquire(context.Background(), "a")
				assert.ErrorIs(t, err, quorumlock.ErrClosed)
			})
		}
		time.Sleep(10 * time.Second)
		value := func(name string) (sum int64) {
			data, ok := collect(t, reader)[name].Data.(metricdata.Sum[int64])
			require.True(t, ok, name)
			for _, point := range data.DataPoints {
				sum += point.Value
			}
			return sum
		}
		assert.Equal(t, int64(2), value("quorumlock.lease.active"))
		assert.Equal(t, int64(2), value("quorumlock.lease.at_risk"), "a node is down: no margin")
		assert.Equal(t, int64(3), value("quorumlock.waiter.active"))
		require.NoError(t, m.Close(context.Background()))
		waiters.Wait()
		for _, name := range []string{"quorumlock.lease.active", "quorumlock.lease.at_risk", "quorumlock.waiter.active"} {
			assert.Zero(t, value(name), name)
		}
		assert.NotContains(t, collect(t, reader), "quorumlock.node.voting", "a closed Manager does not report its nodes")
	})
}

func TestACallThatPanicsEndsItsSpanAndItsWait(t *testing.T) {
	cluster, reader, p := quorumlocktest.Start(t, 3), sdkmetric.NewManualReader(), newTraced(t, "billing")
	lease, err := manager(t, cluster).Acquire(t.Context(), "job")
	require.NoError(t, err)
	m := manager(t, cluster, quorumlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))),
		quorumlock.WithTracerProvider(p), quorumlock.WithRetryBackoff(func() backoff.BackOff { panic("a bug") }))
	assert.Panics(t, func() { _, _ = m.Acquire(t.Context(), "job") })
	require.Eventually(t, func() bool {
		waiting, ok := collect(t, reader)["quorumlock.waiter.active"].Data.(metricdata.Sum[int64])
		return ok && waiting.DataPoints[0].Value == 0
	}, 10*time.Second, time.Millisecond)
	assert.Equal(t, "other", attributes(p.only(t, "quorumlock.acquire"))["error.type"].AsString())
	require.NoError(t, lease.Release(t.Context()))
}

func TestANodeThatDiesStopsVotingUntilItIsBack(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		reader := sdkmetric.NewManualReader()
		manager(t, cluster, quorumlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
		voting := func() map[string]int64 {
			data, ok := collect(t, reader)["quorumlock.node.voting"].Data.(metricdata.Gauge[int64])
			require.True(t, ok)
			all := map[string]int64{}
			for _, point := range data.DataPoints {
				host, _ := point.Attributes.Value("server.address")
				port, _ := point.Attributes.Value("server.port")
				assert.Equal(t, int64(6379), port.AsInt64())
				all[host.AsString()] = point.Value
			}
			return all
		}
		assert.Equal(t, map[string]int64{"node-0": 1, "node-1": 1, "node-2": 1}, voting())
		cluster.Nodes()[1].Kill()
		time.Sleep(time.Minute)
		assert.Equal(t, map[string]int64{"node-0": 1, "node-1": 0, "node-2": 1}, voting())
		cluster.Nodes()[1].Restart()
		time.Sleep(time.Minute)
		assert.Equal(t, map[string]int64{"node-0": 1, "node-1": 1, "node-2": 1}, voting())
	})
}

func TestExemplarsLeadFromASlowWaitToItsTrace(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		reader, p := sdkmetric.NewManualReader(), newTraced(t, "billing")
		lease, err := manager(t, cluster).Acquire(t.Context(), "job")
		require.NoError(t, err)
		m := manager(t, cluster, quorumlock.WithTracerProvider(p), quorumlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
		time.AfterFunc(time.Second, func() { assert.NoError(t, lease.Release(context.Background())) })
		require.NoError(t, m.Do(t.Context(), "job", func(context.Context, *quorumlock.Lease) error { return nil }))
		settle()
		want := p.only(t, "quorumlock.acquire").SpanContext
		for _, name := range []string{"quorumlock.acquire.duration", "quorumlock.wait.duration"} {
			histogram, ok := collect(t, reader)[name].Data.(metricdata.Histogram[float64])
			require.True(t, ok)
			require.Len(t, histogram.DataPoints, 1)
			require.Len(t, histogram.DataPoints[0].Exemplars, 1, name)
			id, span := want.TraceID(), want.SpanID()
			assert.Equal(t, id[:], histogram.DataPoints[0].Exemplars[0].TraceID, name)
			assert.Equal(t, span[:], histogram.DataPoints[0].Exemplars[0].SpanID, name)
		}
	})
}

// sets returns the attributes of each data point.
func sets(m metricdata.Metrics) (all []attribute.Set) {
	switch data := m.Data.(type) {
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			all = append(all, p.Attributes)
		}
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			all = append(all, p.Attributes)
		}
	case metricdata.Gauge[int64]:
		for _, p := range data.DataPoints {
			all = append(all, p.Attributes)
		}
	}
	return all
}

// The calls of a process that has met contention have tickets, also where the lock is free.
func TestOnlyALeaseThatACallHasWaitedForIsAHandOver(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		reader := sdkmetric.NewManualReader()
		holder, m := manager(t, cluster), manager(t, cluster, quorumlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
		l, err := holder.Acquire(t.Context(), "job")
		require.NoError(t, err)
		var waiter sync.WaitGroup
		waiter.Go(func() {
			assert.NoError(t, m.Do(context.Background(), "job", func(context.Context, *quorumlock.Lease) error { return nil }))
		})
		time.Sleep(time.Second)
		require.NoError(t, l.Release(t.Context()))
		waiter.Wait()
		for _, name := range []string{"free/1", "free/2"} {
			l, err := m.Acquire(t.Context(), name)
			require.NoError(t, err)
			require.NoError(t, l.Release(t.Context()))
		}
		settle()
		var handovers int64
		for _, point := range collect(t, reader)["quorumlock.handover"].Data.(metricdata.Sum[int64]).DataPoints {
			handovers += point.Value
		}
		assert.EqualValues(t, 1, handovers)
	})
}
