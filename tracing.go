package quorumlock

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorumlock/quorumlock/internal/node"
)

// scope names the library in telemetry.
const scope = "github.com/quorumlock/quorumlock"

// Attributes of spans and metrics. Names of leases are on spans only: they
// would make one time series each.
const (
	attrName     = attribute.Key("quorumlock.name")
	attrToken    = attribute.Key("quorumlock.token")
	attrOutcome  = attribute.Key("quorumlock.outcome")
	attrAttempts = attribute.Key("quorumlock.attempts")
	attrWait     = attribute.Key("quorumlock.wait_ms")
	attrNodes    = attribute.Key("quorumlock.nodes")
	attrQuorum   = attribute.Key("quorumlock.quorum")
	attrHolder   = attribute.Key("quorumlock.holder")
	attrGot      = attribute.Key("quorumlock.got")
	attrReason   = attribute.Key("quorumlock.reason")
	attrOp       = attribute.Key("quorumlock.operation")
	attrError    = attribute.Key("error.type")
)

// WithTracerProvider makes spans. Default none; nil is ignored.
func WithTracerProvider(tp trace.TracerProvider) Option {
	return managerOption(func(c *config) {
		if tp != nil {
			c.telemetry.tracers = tp
		}
	})
}

// WithMeterProvider makes metrics. Default none; nil is ignored.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return managerOption(func(c *config) {
		if mp != nil {
			c.telemetry.meters = mp
		}
	})
}

// providers are what the options gave; nil for none.
type providers struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
}

// telemetry makes the spans and metrics of a Manager. Without a provider it
// makes nothing and costs a comparison.
type telemetry struct {
	tracer trace.Tracer // nil without a provider
	meters *instruments // nil without a provider
}

// instruments are the metrics, in seconds where they are durations.
type instruments struct {
	acquire, wait, hold, left metric.Float64Histogram
	leases                    metric.Int64UpDownCounter
	renewals, losses, nodeOps metric.Int64Counter
}

func newTelemetry(p providers) (*telemetry, error) {
	t := &telemetry{}
	if p.tracers != nil {
		t.tracer = p.tracers.Tracer(scope)
	}
	if p.meters == nil {
		return t, nil
	}
	meter := p.meters.Meter(scope)
	var errs [8]error
	seconds := metric.WithUnit("s")
	i := &instruments{}
	i.acquire, errs[0] = meter.Float64Histogram("quorumlock.acquire.duration", seconds,
		metric.WithDescription("From the call to the lease or the error, by outcome."))
	i.wait, errs[1] = meter.Float64Histogram("quorumlock.acquire.wait", seconds,
		metric.WithDescription("From the first refusal to the lease or the error."))
	i.hold, errs[2] = meter.Float64Histogram("quorumlock.hold.duration", seconds,
		metric.WithDescription("From the grant of a lease to its end."))
	i.left, errs[3] = meter.Float64Histogram("quorumlock.renewal.validity", seconds,
		metric.WithDescription("Validity at the moment of a renewal."))
	i.leases, errs[4] = meter.Int64UpDownCounter("quorumlock.leases",
		metric.WithDescription("Leases held now."))
	i.renewals, errs[5] = meter.Int64Counter("quorumlock.renewals",
		metric.WithDescription("Renewals, and warnings of a lease at risk, by outcome."))
	i.losses, errs[6] = meter.Int64Counter("quorumlock.losses",
		metric.WithDescription("Leases lost, by reason."))
	i.nodeOps, errs[7] = meter.Int64Counter("quorumlock.node.operations",
		metric.WithDescription("Operations on single nodes, by operation and outcome."))
	t.meters = i
	return t, errors.Join(errs[:]...)
}

// acquireSpan is the telemetry of one call of Acquire.
type acquireSpan struct {
	t        *telemetry
	ctx      context.Context
	span     trace.Span // nil without a provider
	began    time.Time
	waiting  time.Time // since the first refusal; zero before
	attempts int
}

func (t *telemetry) startAcquire(ctx context.Context, name string, quorum, nodes int) acquireSpan {
	s := acquireSpan{t: t, ctx: ctx}
	if t.tracer == nil && t.meters == nil {
		return s
	}
	s.began = time.Now()
	if t.tracer != nil {
		s.ctx, s.span = t.tracer.Start(ctx, "quorumlock.acquire", trace.WithSpanKind(trace.SpanKindClient),
			trace.WithTimestamp(s.began),
			trace.WithAttributes(attrName.String(name), attrNodes.Int(nodes), attrQuorum.Int(quorum)))
	}
	return s
}

// traceParent returns the W3C name of the span, or of the caller's span when
// there is no provider here: it goes into the lock's value, for those who
// wait behind it. Empty without any.
func (s *acquireSpan) traceParent() string {
	sc := trace.SpanContextFromContext(s.ctx)
	if !sc.IsValid() {
		return ""
	}
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + sc.TraceFlags().String()
}

// refused notes a round that came to nothing.
func (s *acquireSpan) refused(err error) {
	s.attempts++
	if s.began.IsZero() {
		return
	}
	if s.waiting.IsZero() {
		s.waiting = time.Now()
	}
	if s.span == nil || !s.span.IsRecording() {
		return
	}
	attrs := []attribute.KeyValue{attrOutcome.String(outcome(err))}
	var held *HeldError
	var short *QuorumError
	switch {
	case errors.As(err, &held):
		attrs = append(attrs, attrHolder.String(held.Holder.Label))
	case errors.As(err, &short):
		attrs = append(attrs, attrGot.Int(short.Got))
	}
	s.span.AddEvent("refused", trace.WithAttributes(attrs...))
}

// end ends the span and makes the lease remember it.
func (s *acquireSpan) end(l *Lease, err error) {
	if s.began.IsZero() {
		return
	}
	now := time.Now()
	var waited time.Duration
	if !s.waiting.IsZero() {
		waited = now.Sub(s.waiting)
	}
	if m := s.t.meters; m != nil {
		m.acquire.Record(s.ctx, now.Sub(s.began).Seconds(), metric.WithAttributes(attrOutcome.String(outcome(err))))
		if waited > 0 {
			m.wait.Record(s.ctx, waited.Seconds())
		}
	}
	if s.span == nil {
		return
	}
	if err == nil {
		s.attempts++ // the one that was granted
		s.span.SetAttributes(attrToken.Int64(l.token))
	}
	s.span.SetAttributes(attrOutcome.String(outcome(err)), attrAttempts.Int(s.attempts),
		attrWait.Int64(waited.Milliseconds()))
	setStatus(s.span, err)
	s.span.End(trace.WithTimestamp(now))
}

// ref returns the span for the hold span to link to, nil without a provider.
func (s *acquireSpan) ref() *spanRef {
	if s.span == nil {
		return nil
	}
	return &spanRef{s.span.SpanContext()}
}

// spanRef is a span to link to.
type spanRef struct{ context trace.SpanContext }

// releaseSpan is the telemetry of one call of Release.
type releaseSpan struct{ span trace.Span }

func (t *telemetry) startRelease(ctx context.Context, l *Lease) (context.Context, releaseSpan) {
	if t.tracer == nil {
		return ctx, releaseSpan{}
	}
	opts := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attrName.String(l.Name()), attrToken.Int64(l.token)),
	}
	ctx, span := t.tracer.Start(ctx, "quorumlock.release", append(opts, l.acquired.link()...)...)
	return ctx, releaseSpan{span}
}

func (s releaseSpan) end(err error) {
	if s.span == nil {
		return
	}
	s.span.SetAttributes(attrOutcome.String(outcome(err)))
	setStatus(s.span, err)
	s.span.End()
}

func (r *spanRef) link() []trace.SpanStartOption {
	if r == nil {
		return nil
	}
	return []trace.SpanStartOption{trace.WithLinks(trace.Link{SpanContext: r.context})}
}

// opened counts a lease that was granted.
func (t *telemetry) opened() {
	if t.meters != nil {
		t.meters.leases.Add(context.Background(), 1)
	}
}

// held makes the hold span of a lease that has ended: a root span with the
// true times, linked to the acquire span, because no span stays open for the
// hours that a lease may last.
func (t *telemetry) held(l *Lease, now time.Duration) {
	if t.tracer == nil && t.meters == nil {
		return
	}
	err := l.Err()
	var lost *LostError
	errors.As(err, &lost)
	if m := t.meters; m != nil {
		ctx := context.Background()
		m.leases.Add(ctx, -1)
		m.hold.Record(ctx, (now - l.granted).Seconds())
		if lost != nil {
			m.losses.Add(ctx, 1, metric.WithAttributes(attrReason.String(lost.Reason.slug())))
		}
	}
	if t.tracer == nil {
		return
	}
	began, ended := l.hold.m.clock.Time(l.granted), l.hold.m.clock.Time(now)
	l.hold.m.reporter.add(func() {
		opts := []trace.SpanStartOption{
			trace.WithNewRoot(), trace.WithTimestamp(began),
			trace.WithAttributes(attrName.String(l.Name()), attrToken.Int64(l.token)),
		}
		_, span := t.tracer.Start(context.Background(), "quorumlock.hold", append(opts, l.acquired.link()...)...)
		if lost != nil {
			span.SetAttributes(attrReason.String(lost.Reason.slug()))
			setStatus(span, err)
		}
		span.SetAttributes(attrOutcome.String(outcome(err)))
		span.End(trace.WithTimestamp(ended))
	})
}

// renewed counts a renewal and how much validity it found left.
func (t *telemetry) renewed(validity time.Duration) {
	if t.meters != nil {
		ctx := context.Background()
		t.meters.renewals.Add(ctx, 1, metric.WithAttributes(attrOutcome.String("renewed")))
		t.meters.left.Record(ctx, validity.Seconds())
	}
}

// atRisk counts a warning.
func (t *telemetry) atRisk() {
	if t.meters != nil {
		t.meters.renewals.Add(context.Background(), 1, metric.WithAttributes(attrOutcome.String("at_risk")))
	}
}

// node counts an answer of a node.
func (t *telemetry) node(op node.Kind, status node.Status) {
	if t.meters != nil {
		t.meters.nodeOps.Add(context.Background(), 1,
			metric.WithAttributes(attrOp.String(op.String()), attrOutcome.String(status.String())))
	}
}

// setStatus marks a span as failed. The error is not recorded as an event:
// status and error.type are what OpenTelemetry asks for.
func setStatus(span trace.Span, err error) {
	if err == nil || !span.IsRecording() {
		return
	}
	span.SetStatus(codes.Error, err.Error())
	span.SetAttributes(attrError.String(outcome(err)))
}

// outcome names an error in telemetry.
func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "cancelled"
	case errors.Is(err, ErrHeld):
		return "held"
	case errors.Is(err, ErrNoQuorum):
		return "no_quorum"
	case errors.Is(err, ErrLost):
		return "lost"
	case errors.Is(err, ErrReleased):
		return "released"
	case errors.Is(err, ErrClosed):
		return "closed"
	default:
		return "other"
	}
}
