// Package otel has the OpenTelemetry parts below the root: the instruments of a Manager, which are a user's code, the
// measurements for them, and the text of a span in a lock's value.
package otel

import (
	"context"
	"errors"
	"net"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/report"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Scope names the library in telemetry: its module path, with the module's version.
const Scope = "github.com/quorumlock/quorumlock"

// Version returns the version of this module in the running program, "" if the build does
// not record it.
var Version = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	if info.Main.Path == Scope {
		return info.Main.Version
	}
	for _, dep := range info.Deps {
		if dep.Path == Scope {
			return dep.Version
		}
	}
	return ""
})

// Attributes of metrics. The exported ones are attributes of spans as well.
const (
	AttrName    = attribute.Key("quorumlock.name")
	AttrOutcome = attribute.Key("quorumlock.outcome")
	AttrReason  = attribute.Key("quorumlock.reason")
	AttrError   = attribute.Key("error.type")
	attrOp      = attribute.Key("quorumlock.operation")
	attrMode    = attribute.Key("quorumlock.mode")
	attrPath    = attribute.Key("quorumlock.path")
	attrAddress = attribute.Key("server.address")
	attrPort    = attribute.Key("server.port")
)

// Failure returns the error.type of an outcome, "" if it is not a failure.
func Failure(outcome string) string {
	switch outcome {
	case "ok", "held", "cancelled", "released", "closed":
		return ""
	default:
		return outcome
	}
}

// Instruments are the metrics of a Manager. With a nil pointer every method does nothing.
// Only the reporter's goroutine uses the instruments themselves, because they are a user's
// code; what is measured waits for it in the outbox.
type Instruments struct {
	nameOf func(name string) string
	outbox *report.Outbox[measurement, sum]

	acquire, wait, hold, validity, operation metric.Float64Histogram
	leases, atRisk, waiters                  metric.Int64UpDownCounter
	lost, handovers                          metric.Int64Counter
	voting                                   metric.Registration // of the gauge's callback

	// operations are the attributes of quorumlock.node.operation.duration, made once.
	operations [][wire.Kinds][wire.Statuses]metric.MeasurementOption
}

// Boundaries of the histograms, in seconds.
var (
	waitBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600}
	holdBuckets = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 900, 3600, 14400, 43200, 86400}
	leftBuckets = []float64{.025, .05, .1, .25, .5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 20, 30, 60, 300, 3600}
	nodeBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}
)

// New makes the instruments of a Manager over these nodes. nameOf is WithNameAttribute's, nil without it.
func New(mp metric.MeterProvider, nameOf func(string) string, nodes []*node.Node) (*Instruments, error) {
	meter := mp.Meter(Scope, metric.WithInstrumentationVersion(Version()))
	i := &Instruments{nameOf: nameOf, outbox: report.NewOutbox[measurement, sum]()}
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
		metric.WithDescription("1 if the node can grant locks, 0 if not."))
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
			if h := nodes[n].Health(); h.Votes() {
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
	n, e := strconv.Atoi(port)
	if err != nil || e != nil { // "slot:{tag}", for example
		return []attribute.KeyValue{attrAddress.String(addr)}
	}
	return []attribute.KeyValue{attrAddress.String(host), attrPort.Int(n)}
}

// operationAttributes returns the attributes of the answer of one node. A refusal, because another owner has the lock,
// is an answer and not an error; a missing answer is an error.
func operationAttributes(address []attribute.KeyValue, kind wire.Kind, status wire.Status) metric.MeasurementOption {
	attrs := append([]attribute.KeyValue{attrOp.String(kind.String()), AttrOutcome.String(status.String())}, address...)
	switch status {
	case wire.Done, wire.Granted, wire.Taken:
	default:
		attrs = append(attrs, AttrError.String(status.String()))
	}
	return metric.WithAttributeSet(attribute.NewSet(attrs...))
}

// Close implements report.Meters: it ends the callback.
func (i *Instruments) Close() {
	if i != nil {
		_ = i.voting.Unregister()
	}
}

// Label returns the label of a name. It calls the user's function, so it must not be called under a
// mutex. Each acquisition calls it once.
func (i *Instruments) Label(name string, mode Mode) Label {
	if i == nil || i.nameOf == nil {
		return Label{Mode: mode}
	}
	return Label{Name: i.nameOf(name), Mode: mode}
}

// Labels returns the labels of exclusive leases with these names.
func (i *Instruments) Labels(names []string) []Label {
	all := make([]Label, len(names))
	for k, name := range names {
		all[k] = i.Label(name, Exclusive)
	}
	return all
}

// with returns the attributes of a measurement of a lease.
func with(label Label, attrs ...attribute.KeyValue) metric.MeasurementOption {
	if label.Name != "" {
		attrs = append(attrs, AttrName.String(label.Name))
	}
	return metric.WithAttributes(append(attrs, label.Mode.Attributes()...)...)
}

// ending returns the attributes of how a call ended.
func ending(outcome string) []attribute.KeyValue {
	attrs := []attribute.KeyValue{AttrOutcome.String(outcome)}
	if kind := Failure(outcome); kind != "" {
		attrs = append(attrs, AttrError.String(kind))
	}
	return attrs
}

// record passes a measurement to its instrument. Only the reporter calls it.
func (i *Instruments) record(one *measurement) {
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
		i.hold.Record(ctx, took, with(one.label, AttrOutcome.String(one.outcome)))
	case renewalValidity:
		i.validity.Record(ctx, took, with(one.label))
	case operationDuration:
		i.operation.Record(ctx, took, i.operations[one.node][one.kind][one.status])
	}
}

// add passes the change of a counter to its instrument. Only the reporter calls it.
func (i *Instruments) add(one sum, change int64) {
	ctx := context.Background()
	switch one.of {
	case leasesActive:
		i.leases.Add(ctx, change, with(one.label))
	case leasesAtRisk:
		i.atRisk.Add(ctx, change, with(one.label))
	case waitersActive:
		i.waiters.Add(ctx, change, with(one.label))
	case leasesLost:
		i.lost.Add(ctx, change, with(one.label, AttrReason.String(one.attr)))
	case handovers:
		i.handovers.Add(ctx, change, with(one.label, attrPath.String(one.attr)))
	}
}

// Pending implements report.Meters; nil without metrics.
func (i *Instruments) Pending() <-chan struct{} {
	if i == nil {
		return nil
	}
	return i.outbox.Pending()
}

// Flush implements report.Meters. Only the reporter calls it.
func (i *Instruments) Flush(call func(func())) (dropped int64) {
	if i == nil {
		return 0
	}
	return i.outbox.Flush(call, i.record, i.add)
}

// histogram names a histogram.
type histogram uint8

const (
	acquireDuration histogram = iota
	waitDuration
	holdDuration
	renewalValidity
	operationDuration
)

// A measurement is one value for a histogram.
type measurement struct {
	of      histogram
	node    uint8 // operationDuration: the node, the kind of request and the status of the answer
	kind    wire.Kind
	status  wire.Status
	value   time.Duration
	label   Label
	outcome string          // of a call or a hold
	ctx     context.Context // of the call, for exemplars; nil for none
}

// counter names a counter that goes up, or up and down.
type counter uint8

const (
	leasesActive counter = iota
	leasesAtRisk
	waitersActive
	leasesLost
	handovers
)

// A sum is one series of a counter.
type sum struct {
	of    counter
	label Label  // of the name, "" for none
	attr  string // leasesLost: the reason; handovers: the path
}

// put leaves a measurement for the reporter.
func (i *Instruments) put(one measurement) {
	if i != nil {
		i.outbox.Put(one)
	}
}

// count leaves the change of a counter for the reporter.
func (i *Instruments) count(one sum, change int64) {
	if i != nil {
		i.outbox.Count(one, change)
	}
}

// Acquired measures a call that has ended.
func (i *Instruments) Acquired(ctx context.Context, label Label, took, waited time.Duration, outcome string) {
	i.put(measurement{of: acquireDuration, value: took, label: label, outcome: outcome, ctx: ctx})
	if waited > 0 {
		i.put(measurement{of: waitDuration, value: waited, label: label, outcome: outcome, ctx: ctx})
	}
}

// Waiter counts a call that waits, or has waited.
func (i *Instruments) Waiter(label Label, change int64) {
	i.count(sum{of: waitersActive, label: label}, change)
}

// The ways in which a lease goes to a waiter.
const (
	PathProcess = "process" // passed on inside it
	PathNodes   = "nodes"   // granted by the nodes
)

// Opened counts a lease that was granted.
func (i *Instruments) Opened(label Label) {
	i.count(sum{of: leasesActive, label: label}, 1)
}

// HandedOver counts a lease that went to a waiter.
func (i *Instruments) HandedOver(label Label, path string) {
	i.count(sum{of: handovers, label: label, attr: path}, 1)
}

// Held measures a lease that has ended. lostBy is the reason of a loss, "" after a release.
func (i *Instruments) Held(label Label, took time.Duration, lostBy string) {
	i.count(sum{of: leasesActive, label: label}, -1)
	end := "released"
	if lostBy != "" {
		end = "lost"
		i.count(sum{of: leasesLost, label: label, attr: lostBy}, 1)
	}
	i.put(measurement{of: holdDuration, value: took, label: label, outcome: end})
}

// Renewed measures a renewal.
func (i *Instruments) Renewed(label Label, validity time.Duration) {
	i.put(measurement{of: renewalValidity, value: validity, label: label})
}

// Risk counts a lease that is at risk, or no longer.
func (i *Instruments) Risk(label Label, risky bool) {
	change := int64(-1)
	if risky {
		change = 1
	}
	i.count(sum{of: leasesAtRisk, label: label}, change)
}

// Node measures how long node n took to answer a request; 0 if it was not sent.
func (i *Instruments) Node(n int, kind wire.Kind, reply *wire.Reply, now func() clock.Validity) {
	if i == nil { // it reads no clock
		return
	}
	var took time.Duration
	if reply.Sent > 0 {
		took = max(now().Sub(reply.Sent), 0)
	}
	i.put(measurement{of: operationDuration, node: uint8(n), kind: kind, status: reply.Status, value: took})
}
