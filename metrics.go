package quorumlock

import (
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorumlock/quorumlock/internal/node"
)

// WithMeterProvider makes metrics with this provider. Default none; nil is ignored.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return managerOption(func(c *config) {
		if mp != nil {
			c.telemetry.meters = mp
		}
	})
}

// WithNameAttribute puts names on metrics: f returns the attribute quorumlock.name for
// the metrics of a lease. f should collapse variable parts ("invoice/4711" to
// "invoice/*"), because each text makes time series of its own. "" leaves the attribute
// out. Each acquisition calls f once, concurrently with others, and f must not block.
// Default none; spans always show the whole name.
func WithNameAttribute(f func(name string) string) Option {
	return managerOption(func(c *config) { c.telemetry.nameOf = f })
}

// providers are the providers of the options; nil for none.
type providers struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
	nameOf  func(name string) string
}

// instruments are the metrics of a Manager. With a nil pointer every method does nothing.
type instruments struct {
	nameOf func(name string) string

	acquire, wait, hold, validity, operation metric.Float64Histogram
	leases, atRisk, waiters                  metric.Int64UpDownCounter
	lost, handovers                          metric.Int64Counter
	voting                                   metric.Registration // of the gauge's callback

	// operations are the attributes of quorumlock.node.operation.duration, made once.
	operations [][node.Kinds][node.Statuses]metric.MeasurementOption
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
	i := &instruments{nameOf: nameOf}
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
	i.operations = make([][node.Kinds][node.Statuses]metric.MeasurementOption, len(nodes))
	for n := range nodes {
		address := addressOf(nodes[n].Addr())
		addresses[n] = metric.WithAttributes(address...)
		for kind := range node.Kinds {
			for status := range node.Statuses {
				i.operations[n][kind][status] = operationAttributes(address, node.Kind(kind), node.Status(status))
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
func operationAttributes(address []attribute.KeyValue, kind node.Kind, status node.Status) metric.MeasurementOption {
	attrs := append([]attribute.KeyValue{attrOp.String(kind.String()), attrOutcome.String(status.String())}, address...)
	switch status {
	case node.Done, node.Granted, node.Taken:
	default:
		attrs = append(attrs, attrError.String(status.String()))
	}
	return metric.WithAttributeSet(attribute.NewSet(attrs...))
}

// close ends the callback.
func (i *instruments) close() {
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
func ending(err error) []attribute.KeyValue {
	attrs := []attribute.KeyValue{attrOutcome.String(outcome(err))}
	if kind := errorType(err); kind != "" {
		attrs = append(attrs, attrError.String(kind))
	}
	return attrs
}

func (i *instruments) acquired(ctx context.Context, label string, took, waited time.Duration, err error) {
	if i == nil {
		return
	}
	attrs := with(label, ending(err)...)
	i.acquire.Record(ctx, took.Seconds(), attrs)
	if waited > 0 {
		i.wait.Record(ctx, waited.Seconds(), attrs)
	}
}

func (i *instruments) waiter(ctx context.Context, label string, change int64) {
	if i != nil {
		i.waiters.Add(ctx, change, with(label))
	}
}

// The ways in which a lease goes to a waiter.
const (
	pathProcess = "process" // passed on inside it
	pathNodes   = "nodes"   // from a queue on the nodes
)

// opened counts a lease that was granted. path says how it came to a waiter; "" if nobody
// waited.
func (i *instruments) opened(label, path string) {
	if i == nil {
		return
	}
	i.leases.Add(context.Background(), 1, with(label))
	if path != "" {
		i.handovers.Add(context.Background(), 1, with(label, attrPath.String(path)))
	}
}

func (i *instruments) held(label string, took time.Duration, lost *LostError) {
	if i == nil {
		return
	}
	ctx := context.Background()
	i.leases.Add(ctx, -1, with(label))
	outcome := attrOutcome.String("released")
	if lost != nil {
		outcome = attrOutcome.String("lost")
		i.lost.Add(ctx, 1, with(label, attrReason.String(lost.Reason.slug())))
	}
	i.hold.Record(ctx, took.Seconds(), with(label, outcome))
}

func (i *instruments) renewed(label string, validity time.Duration) {
	if i != nil {
		i.validity.Record(context.Background(), validity.Seconds(), with(label))
	}
}

func (i *instruments) risk(label string, change int64) {
	if i != nil {
		i.atRisk.Add(context.Background(), change, with(label))
	}
}

// node records how long node n took to answer a request; 0 if it was not sent.
func (i *instruments) node(n int, kind node.Kind, reply *node.Reply, now func() time.Duration) {
	if i == nil {
		return
	}
	var took time.Duration
	if reply.Sent > 0 {
		took = max(now()-reply.Sent, 0)
	}
	i.operation.Record(context.Background(), took.Seconds(), i.operations[n][kind][reply.Status])
}
