package quorumlock

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/otel"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/report"
)

// Attributes of spans, in addition to the attributes of metrics.
const (
	attrNames             = attribute.Key("quorumlock.names")
	attrToken             = attribute.Key("quorumlock.token")
	attrOwner             = attribute.Key("quorumlock.owner")
	attrAttempts          = attribute.Key("quorumlock.attempts")
	attrWait              = attribute.Key("quorumlock.wait.duration") // seconds
	attrNodes, attrQuorum = attribute.Key("quorumlock.nodes"), attribute.Key("quorumlock.quorum")
	attrHolder            = attribute.Key("quorumlock.holder")
	attrReached           = attribute.Key("quorumlock.reached")
)

// WithTracerProvider makes spans with this provider. Without it, a call makes spans with the
// provider of the span in its context, and none where there is no such span. Nil is ignored.
//
// The spans are quorumlock.acquire, quorumlock.acquire_all, quorumlock.release and quorumlock.hold.
// An acquire span lasts from the call to the lease or the error, and links to the holders that the
// call waited behind. The hold span is made when a lease has ended, with its times and a link to
// its acquire span.
//
// A processor's OnStart and OnEnd run in the calls themselves, except for quorumlock.hold. A
// processor that hangs stops its call. One that panics does so too, and the lease of that call is
// released.
func WithTracerProvider(tp trace.TracerProvider) Option {
	return managerOption(func(c *settings) {
		if tp != nil {
			c.telemetry.tracers = tp
		}
	})
}

// telemetry makes the spans and metrics of a Manager. A call without a provider, neither
// the Manager's nor one in its context, makes no span and costs one read of its context.
type telemetry struct {
	tracer trace.Tracer      // of the option; nil without the option
	meters *otel.Instruments // nil without a provider

	nodes    int // that a lease is on
	clock    *clock.Clock
	reporter *report.Reporter
}

func newTelemetry(c *settings, nodes []*node.Node, each int, by *clock.Clock, reporter *report.Reporter) (*telemetry, error) {
	t := &telemetry{nodes: each, clock: by, reporter: reporter}
	if c.telemetry.tracers != nil {
		t.tracer = newTracer(c.telemetry.tracers)
	}
	if c.telemetry.meters == nil {
		return t, nil
	}
	var err error
	t.meters, err = otel.New(c.telemetry.meters, c.telemetry.nameOf, nodes)
	return t, err
}

func newTracer(tp trace.TracerProvider) trace.Tracer {
	return tp.Tracer(otel.Scope, trace.WithInstrumentationVersion(otel.Version()))
}

// tracerFor returns the tracer for a call, nil for none.
func (t *telemetry) tracerFor(ctx context.Context) trace.Tracer {
	if t.tracer != nil {
		return t.tracer
	}
	if span := trace.SpanFromContext(ctx); span.SpanContext().IsValid() {
		return newTracer(span.TracerProvider())
	}
	return nil
}

// acquireSpan is the telemetry of one call that acquires. With a nil pointer every method does nothing. Only the
// goroutine of the call may use it. The code of the span may be a user's, so it runs only at the start and at the end,
// when the call keeps neither a mutex, nor a turn in a queue, nor Close from others. In between, the call notes its
// events.
type acquireSpan struct {
	t            *telemetry
	ctx          context.Context
	span         trace.Span // nil without a tracer, and for a part of several
	own          *spanRef   // of span; nil without a tracer
	records      bool       // the span is sampled
	label        otel.Label // on metrics
	began, ended time.Time
	once         bool      // it does not wait
	waiting      time.Time // since the first refusal; zero before
	waited       time.Duration
	attempts     int
	holder       string            // the owner that the call waits behind
	linked       trace.SpanContext // the target of the last link
	notes        otel.Notes
}

func (t *telemetry) startAcquire(ctx context.Context, name string, mode otel.Mode, wait bool) *acquireSpan {
	label := t.meters.Label(name, mode) // before the span starts: a user's function may panic
	s := t.start(ctx, "quorumlock.acquire", mode, otel.AttrName.String(name))
	if s != nil {
		s.label, s.once = label, !wait
	}
	return s
}

// labels returns the labels of names that a call asks for together.
func (t *telemetry) labels(names []string) []otel.Label { return t.meters.Labels(names) }

// start starts a span, nil without a provider.
func (t *telemetry) start(ctx context.Context, span string, mode otel.Mode, names attribute.KeyValue) *acquireSpan {
	tracer := t.tracerFor(ctx)
	if tracer == nil && t.meters == nil {
		return nil
	}
	s := &acquireSpan{t: t, ctx: ctx, began: time.Now()}
	if tracer != nil {
		s.ctx, s.span = tracer.Start(ctx, span, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(s.began),
			trace.WithAttributes(append(mode.Attributes(), names, attrNodes.Int(t.nodes), attrQuorum.Int(quorum.Size(t.nodes)))...))
		s.own, s.records = &spanRef{context: s.span.SpanContext(), tracer: tracer}, s.span.IsRecording()
	}
	return s
}

// nameOnMetrics returns the label of the call's name on metrics, "" for none.
func (s *acquireSpan) nameOnMetrics() string {
	if s == nil {
		return ""
	}
	return s.label.Name
}

// traceParent returns the name of the span in the lock's value, for the callers that wait behind it.
func (s *acquireSpan) traceParent() string { return s.ref().traceParent() }

// traceParent returns the W3C name of the span, empty without one.
func (r *spanRef) traceParent() string {
	if r == nil {
		return ""
	}
	return otel.TraceParent(r.context)
}

// waits records that the call cannot have the lease at once. cause is the reason; nil
// if it is unknown. A call that asks once does not count as a wait: many such calls would
// hide the real waits in the percentiles.
func (s *acquireSpan) waits(obstacle error) {
	if s == nil {
		return
	}
	if !s.once && s.waiting.IsZero() {
		s.waiting = time.Now()
		s.t.meters.Waiter(s.label, 1)
	}
	var held *HeldError
	var short *QuorumError
	switch {
	case !s.records:
	case errors.As(obstacle, &held):
		s.behind(&held.Holder)
	case errors.As(obstacle, &short):
		if s.holder != "no quorum" { // not twice in a row
			s.holder = "no quorum"
			s.event("no quorum", attrReached.Int(short.Got))
		}
	}
}

// behind links the span to the holder that the call waits behind, if the holder has changed.
func (s *acquireSpan) behind(h *Holder) {
	if h.Owner == "" || h.Owner == s.holder {
		return
	}
	s.holder = h.Owner
	s.event("held", attrHolder.String(h.Label))
	if sc, ok := otel.ParseTraceParent(h.TraceParent); ok {
		s.link(sc, attrHolder.String(h.Label))
	}
}

// resumes links the span to the one in which a detached lease was acquired.
func (s *acquireSpan) resumes(traceParent string) {
	if sc, ok := otel.ParseTraceParent(traceParent); ok && s != nil {
		s.link(sc)
	}
}

// follows links the span to the previous lease of this process, which ended before the call's turn.
func (s *acquireSpan) follows(previous *spanRef) {
	if s != nil && previous != nil {
		s.link(previous.context)
	}
}

// link links the span to a holder's span, but not twice in a row: the holder at the
// call's arrival is often also the one right before it.
func (s *acquireSpan) link(to trace.SpanContext, attrs ...attribute.KeyValue) {
	if to.TraceID() == s.linked.TraceID() && to.SpanID() == s.linked.SpanID() {
		return
	}
	s.linked = to
	if s.records {
		s.notes.Link(to, attrs...)
	}
}

// refused counts a failed attempt.
func (s *acquireSpan) refused(err error) {
	if s == nil {
		return
	}
	s.attempts++
	s.waits(err)
}

// granted counts a lease that the nodes have granted to a call which has waited.
func (s *acquireSpan) granted() {
	if s != nil && !s.waiting.IsZero() {
		s.t.meters.HandedOver(s.label, otel.PathNodes)
	}
}

// woken records that a node has reserved the lock for the call since its last attempt.
func (s *acquireSpan) woken() {
	if s != nil {
		s.event("woken")
	}
}

// event notes an event for the end of the span.
func (s *acquireSpan) event(name string, attrs ...attribute.KeyValue) {
	if s.records {
		s.notes.Event(name, attrs...)
	}
}

// child starts the span of a name that a call for several waits for.
func (s *acquireSpan) child(part *acquireSpan, name string, once bool) *acquireSpan {
	if s == nil {
		return nil
	}
	c := s.t.start(s.ctx, "quorumlock.acquire", otel.Exclusive, otel.AttrName.String(name))
	if c != nil { // a tracer may make spans that are not valid, and then has no provider to ask
		c.label, c.once = part.label, once
	}
	return c
}

// parts returns the telemetry of names that a call asks for together: they have no spans of their own.
func (s *acquireSpan) parts(labels []otel.Label) []*acquireSpan {
	all := make([]*acquireSpan, len(labels))
	for i, label := range labels {
		if s != nil {
			all[i] = &acquireSpan{t: s.t, ctx: s.ctx, own: s.own, label: label, once: true, began: s.began}
		}
	}
	return all
}

// context returns the context for the call's work; ctx without telemetry.
func (s *acquireSpan) context(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	return s.ctx
}

// measure measures the call, which has ended. Close waits for it, so that the last values
// reach the instruments.
func (s *acquireSpan) measure(err error) {
	if s == nil {
		return
	}
	s.ended = time.Now()
	if !s.waiting.IsZero() {
		s.waited = s.ended.Sub(s.waiting)
		s.t.meters.Waiter(s.label, -1)
	}
	s.t.meters.Acquired(s.ctx, s.label, s.ended.Sub(s.began), s.waited, outcome(err))
}

// through ends the span of a call for several names.
func (s *acquireSpan) through(err error) {
	if s != nil && s.span != nil {
		s.span.SetAttributes(otel.AttrOutcome.String(outcome(err)))
		setStatus(s.span, err)
		s.span.End()
	}
}

// end ends the span. token and owner belong to the lease, if there is one.
func (s *acquireSpan) end(token int64, owner string, err error) {
	if s == nil || s.span == nil {
		return
	}
	s.notes.AddTo(s.span)
	if err == nil {
		s.attempts++ // the one that was granted
		s.span.SetAttributes(attrToken.Int64(token), attrOwner.String(owner))
	}
	s.span.SetAttributes(otel.AttrOutcome.String(outcome(err)), attrAttempts.Int(s.attempts), attrWait.Float64(s.waited.Seconds()))
	setStatus(s.span, err)
	s.span.End(trace.WithTimestamp(s.ended))
}

// ref returns the span as the target of links, nil without a span.
func (s *acquireSpan) ref() *spanRef {
	if s == nil {
		return nil
	}
	return s.own
}

// spanRef is a span to link to, and the tracer that made it.
type spanRef struct {
	context trace.SpanContext
	tracer  trace.Tracer
}

func (r *spanRef) link() trace.SpanStartOption {
	if r == nil {
		return trace.WithLinks()
	}
	return trace.WithLinks(trace.Link{SpanContext: r.context})
}

// leaseSpan is the data of a lease for spans.
type leaseSpan struct {
	name, owner string
	token       int64
	mode        otel.Mode
	acquired    *spanRef // of the acquire span; nil without tracing
}

// start returns the options with which a span of the lease starts.
func (l leaseSpan) start(at time.Time, more ...trace.SpanStartOption) []trace.SpanStartOption {
	attrs := append(l.mode.Attributes(), otel.AttrName.String(l.name), attrToken.Int64(l.token), attrOwner.String(l.owner))
	return append(more, trace.WithTimestamp(at), trace.WithAttributes(attrs...), l.acquired.link())
}

// released makes the span of one call of Release afterwards, so that no span processor keeps the lease.
func (t *telemetry) released(ctx context.Context, l leaseSpan, began, ended clock.Validity, err error) {
	tracer := t.tracerFor(ctx)
	if tracer == nil {
		return
	}
	_, span := tracer.Start(ctx, "quorumlock.release", l.start(t.clock.Time(began), trace.WithSpanKind(trace.SpanKindClient))...)
	span.SetAttributes(otel.AttrOutcome.String(outcome(err)))
	setStatus(span, err)
	span.End(trace.WithTimestamp(t.clock.Time(ended)))
}

// held has the reporter make the hold span of a lease that has ended: a root span with the true
// times, linked to the acquire span, because no span stays open for the hours that a lease may
// last. lost is nil after a release.
func (t *telemetry) held(l leaseSpan, began, ended clock.Validity, lost *LostError) {
	tracer := t.tracer
	if l.acquired != nil {
		tracer = l.acquired.tracer
	}
	if tracer == nil {
		return
	}
	from, to := t.clock.Time(began), t.clock.Time(ended)
	t.reporter.Add(func() {
		_, span := tracer.Start(context.Background(), "quorumlock.hold", l.start(from, trace.WithNewRoot())...)
		err := ErrReleased
		if lost != nil {
			err = lost
			span.SetAttributes(otel.AttrReason.String(lost.Reason.slug()))
			setStatus(span, err)
		}
		span.SetAttributes(otel.AttrOutcome.String(outcome(err)))
		span.End(trace.WithTimestamp(to))
	})
}

// setStatus marks a span as failed when the call has failed. A name that is taken, and a caller that has given up, are
// outcomes, not failures. The description is the same for all errors of a kind: with values in it, each would form a
// group of its own.
func setStatus(span trace.Span, err error) {
	kind := errorType(err)
	if kind == "" || !span.IsRecording() {
		return
	}
	span.SetStatus(codes.Error, descriptions[kind])
	span.SetAttributes(otel.AttrError.String(kind))
}
