package quorumlock

import (
	"context"
	"errors"
	"net"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// WithMeterProvider makes metrics with this provider. Default none; nil is ignored. New makes
// the instruments; a goroutine of the Manager's uses them, so they may be some milliseconds
// behind. If they are slow, values of histograms are dropped, and the log counts them; changes
// of the other metrics are not. A panic of theirs is logged.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return managerOption(func(c *settings) {
		if mp != nil {
			c.telemetry.meters = mp
		}
	})
}

// WithNameAttribute puts names on metrics: f returns the attribute quorumlock.name for
// the metrics of a lease. f should collapse variable parts ("invoice/4711" to
// "invoice/*"), because each text makes time series of its own. "" leaves the attribute
// out. Each acquisition calls f once, concurrently with others, before it asks for anything: a f
// that hangs or panics stops that call and no other.
// Default none; spans always show the whole name.
func WithNameAttribute(f func(name string) string) Option {
	return managerOption(func(c *settings) { c.telemetry.nameOf = f })
}

// providers are the providers of the options; nil for none.
type providers struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
	nameOf  func(name string) string
}

// instruments are the metrics of a Manager. With a nil pointer every method does nothing.
// Only the reporter's goroutine uses the instruments themselves, because they are a user's
// code; what is measured waits for it in the outbox.
type instruments struct {
	nameOf func(name string) string
	outbox

	acquire, wait, hold, validity, operation metric.Float64Histogram
	leases, atRisk, waiters                  metric.Int64UpDownCounter
	lost, handovers                          metric.Int64Counter
	voting                                   metric.Registration // of the gauge's callback

	// operations are the attributes of quorumlock.node.operation.duration, made once.
	operations [][wire.Kinds][wire.Statuses]metric.MeasurementOption
}

// Boundaries of the histograms, in seconds.
var (
	waitBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	holdBuckets = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 43200, 86400}
	leftBuckets = []float64{.025, .05, .1, .25, .5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 30, 60, 300, 3600}
	nodeBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}
)

func newInstruments(mp metric.MeterProvider, nameOf func(string) string, nodes []*node.Node) (*instruments, error) {
	meter := mp.Meter(scope, metric.WithInstrumentationVersion(version()))
	i := &instruments{nameOf: nameOf, outbox: newOutbox()}
	var errs []error
	histogram := func(name string, buckets []float64, description string) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(buckets...))
		errs = append(errs, err)
		return h
	}
	gauge := func(name, unit, description string) metric.Int64UpDownCounter {
		c, err := meter.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		errs = append(errs, err)
		return c
	}
	i.acquire = histogram("quorumlock.acquire.duration", waitBuckets, "Time from the call to the lease or the error.")
	i.wait = histogram("quorumlock.wait.duration", waitBuckets, "Time from the first refusal to the lease or the error, of calls that waited.")
	i.hold = histogram("quorumlock.hold.duration", holdBuckets, "Time from the grant of a lease to its end.")
	i.validity = histogram("quorumlock.renewal.validity", leftBuckets, "Time that a lease had left when a majority confirmed its renewal.")
	i.operation = histogram("quorumlock.node.operation.duration", nodeBuckets, "Time from the request to one node to its answer.")
	i.leases = gauge("quorumlock.lease.active", "{lease}", "Leases that this process holds.")
	i.atRisk = gauge("quorumlock.lease.at_risk", "{lease}", "Leases that would not survive the failure of one more node.")
	i.waiters = gauge("quorumlock.waiter.active", "{waiter}", "Calls of this process that wait for a lease.")
	i.lost = counter("quorumlock.lease.lost", "{lease}", "Leases that ended before they were released.")
	i.handovers = counter("quorumlock.handover", "{handover}", "Leases that went to a waiter, inside the process or through the nodes.")
	voting, err := meter.Int64ObservableGauge("quorumlock.node.voting", metric.WithUnit("{node}"),
		metric.WithDescription("1 if the node's votes count, 0 if not."))
	errs = append(errs, err)
	addresses := make([]metric.MeasurementOption, len(nodes))
	i.operations = make([][wire.Kinds][wire.Statuses]metric.MeasurementOption, len(nodes))
	for n := range nodes {
		address := addressOf(nodes[n].Addr())
		addresses[n] = metric.WithAttributes(address...)
		for kind := range wire.Kinds {
			for status := range wire.Statuses {
				i.operations[n][kind][status] = operationAttributes(address, wire.Kind(kind), wire.Status(status))
			}
		}
	}
	i.voting, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for n := range nodes {
			votes := int64(0)
			if h := nodes[n].Health(); h.Err == nil && h.QuarantineLeft() == 0 {
				votes = 1
			}
			o.ObserveInt64(voting, votes, addresses[n])
		}
		return nil
	}, voting)
	return i, errors.Join(append(errs, err)...)
}

// addressOf returns the attributes that name a node.
func addressOf(addr string) []attribute.KeyValue {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return []attribute.KeyValue{attrAddress.String(addr)}
	}
	attrs := []attribute.KeyValue{attrAddress.String(host)}
	if n, err := strconv.Atoi(port); err == nil {
		attrs = append(attrs, attrPort.Int(n))
	}
	return attrs
}

// operationAttributes returns the attributes of the answer of one node. A refusal,
// because another owner has the lock, is an answer and no error; a missing answer is an
// error.
func operationAttributes(address []attribute.KeyValue, kind wire.Kind, status wire.Status) metric.MeasurementOption {
	attrs := append([]attribute.KeyValue{attrOp.String(kind.String()), attrOutcome.String(status.String())}, address...)
	switch status {
	case wire.Done, wire.Granted, wire.Taken:
	default:
		attrs = append(attrs, attrError.String(status.String()))
	}
	return metric.WithAttributeSet(attribute.NewSet(attrs...))
}

// Close implements report.Meters: it ends the callback.
func (i *instruments) Close() {
	if i != nil {
		_ = i.voting.Unregister()
	}
}

// label returns the attribute of a name on metrics, "" for none. It calls the user's
// function, so it must not be called under a mutex. Each acquisition calls it once.
func (i *instruments) label(name string) string {
	if i == nil || i.nameOf == nil {
		return ""
	}
	return i.nameOf(name)
}

// with returns the attributes of a measurement of a lease.
func with(label string, attrs ...attribute.KeyValue) metric.MeasurementOption {
	if label != "" {
		attrs = append(attrs, attrName.String(label))
	}
	return metric.WithAttributes(attrs...)
}

// ending returns the attributes of how a call ended.
func ending(outcome string) []attribute.KeyValue {
	attrs := []attribute.KeyValue{attrOutcome.String(outcome)}
	if kind := failureOf(outcome); kind != "" {
		attrs = append(attrs, attrError.String(kind))
	}
	return attrs
}

// record passes a measurement to its instrument. Only the reporter calls it.
func (i *instruments) record(one *measurement) {
	ctx, took := one.ctx, one.value.Seconds()
	if ctx == nil {
		ctx = context.Background()
	}
	switch one.of {
	case acquireDuration:
		i.acquire.Record(ctx, took, with(one.label, ending(one.outcome)...))
	case waitDuration:
		i.wait.Record(ctx, took, with(one.label, ending(one.outcome)...))
	case holdDuration:
		i.hold.Record(ctx, took, with(one.label, attrOutcome.String(one.outcome)))
	case renewalValidity:
		i.validity.Record(ctx, took, with(one.label))
	case operationDuration:
		i.operation.Record(ctx, took, i.operations[one.node][one.kind][one.status])
	}
}

// add passes the change of a counter to its instrument. Only the reporter calls it.
func (i *instruments) add(one sum, change int64) {
	ctx := context.Background()
	switch one.of {
	case leasesActive:
		i.leases.Add(ctx, change, with(one.label))
	case leasesAtRisk:
		i.atRisk.Add(ctx, change, with(one.label))
	case waitersActive:
		i.waiters.Add(ctx, change, with(one.label))
	case leasesLost:
		i.lost.Add(ctx, change, with(one.label, attrReason.String(one.attr)))
	case handovers:
		i.handovers.Add(ctx, change, with(one.label, attrPath.String(one.attr)))
	}
}
