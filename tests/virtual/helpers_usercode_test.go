package virtual

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// trap is a user's function that fails once it is armed: it hangs until the gate is closed, or panics.
type trap struct {
	panics  bool
	gate    chan struct{} // closed at the end of the test
	armed   atomic.Bool
	reached atomic.Int64
}

func (p *trap) spring() {
	if !p.armed.Load() {
		return
	}
	p.reached.Add(1)
	if p.panics {
		panic("the user's")
	}
	<-p.gate
}

// meters is a MeterProvider with a trap in one instrument, or in the end of its callback.
type meters struct {
	metricnoop.MeterProvider
	trap   *trap
	in     string  // the name of the instrument, or "unregister"
	totals *totals // nil for none
}

// totals are the sums of the counters that go up and down.
type totals struct {
	mu   sync.Mutex
	sums map[string]int64
}

func (s *totals) add(name string, change int64) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sums == nil {
		s.sums = map[string]int64{}
	}
	s.sums[name] += change
}

func (s *totals) of(name string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sums[name]
}

func (p meters) Meter(string, ...metric.MeterOption) metric.Meter {
	return trappedMeter{metricnoop.Meter{}, p}
}

type trappedMeter struct {
	metricnoop.Meter
	p meters
}

func (m trappedMeter) Float64Histogram(name string, _ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return trappedHistogram{p: m.p, name: name}, nil
}

func (m trappedMeter) Int64UpDownCounter(name string, _ ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	return trappedGauge{p: m.p, name: name}, nil
}

func (m trappedMeter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return trappedCounter{p: m.p, name: name}, nil
}

func (m trappedMeter) RegisterCallback(metric.Callback, ...metric.Observable) (metric.Registration, error) {
	return trappedRegistration{p: m.p}, nil
}

func (p meters) measure(name string) {
	if p.in == name {
		p.trap.spring()
	}
}

type trappedHistogram struct {
	metricnoop.Float64Histogram
	p    meters
	name string
}

func (h trappedHistogram) Record(context.Context, float64, ...metric.RecordOption) {
	h.p.measure(h.name)
}

type trappedGauge struct {
	metricnoop.Int64UpDownCounter
	p    meters
	name string
}

func (g trappedGauge) Add(_ context.Context, change int64, _ ...metric.AddOption) {
	g.p.measure(g.name)
	g.p.totals.add(g.name, change)
}

type trappedCounter struct {
	metricnoop.Int64Counter
	p    meters
	name string
}

func (c trappedCounter) Add(context.Context, int64, ...metric.AddOption) { c.p.measure(c.name) }

type trappedRegistration struct {
	metricnoop.Registration
	p meters
}

func (r trappedRegistration) Unregister() error { r.p.measure("unregister"); return nil }

// spans is a TracerProvider with a trap in one method of the spans of one name.
type spans struct {
	tracenoop.TracerProvider
	trap *trap
	name string // of the spans
	in   string // the method
}

func (p spans) Tracer(string, ...trace.TracerOption) trace.Tracer { return trappedTracer{p: p} }

type trappedTracer struct {
	tracenoop.Tracer
	p spans
}

func (r trappedTracer) Start(ctx context.Context, name string, _ ...trace.SpanStartOption) (context.Context, trace.Span) {
	s := trappedSpan{p: r.p, name: name}
	s.spring("Start")
	return trace.ContextWithSpan(ctx, s), s
}

// context returns a context with a span of the provider, like a traced request's.
func (p spans) context() context.Context {
	return trace.ContextWithSpan(background, trappedSpan{p: p, name: "request"})
}

type trappedSpan struct {
	tracenoop.Span
	p    spans
	name string
}

func (s trappedSpan) spring(method string) {
	if s.name == s.p.name && method == s.p.in {
		s.p.trap.spring()
	}
}

func (s trappedSpan) SpanContext() trace.SpanContext {
	s.spring("SpanContext")
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled})
}

func (s trappedSpan) IsRecording() bool                     { s.spring("IsRecording"); return true }
func (s trappedSpan) SetStatus(codes.Code, string)          { s.spring("SetStatus") }
func (s trappedSpan) SetAttributes(...attribute.KeyValue)   { s.spring("SetAttributes") }
func (s trappedSpan) AddEvent(string, ...trace.EventOption) { s.spring("AddEvent") }
func (s trappedSpan) AddLink(trace.Link)                    { s.spring("AddLink") }
func (s trappedSpan) End(...trace.SpanEndOption)            { s.spring("End") }
func (s trappedSpan) TracerProvider() trace.TracerProvider  { return s.p }

// trappedLog is a log handler with a trap in one method.
type trappedLog struct {
	slog.Handler
	trap *trap
	in   string
}

func (h trappedLog) spring(method string) {
	if method == h.in {
		h.trap.spring()
	}
}

func (h trappedLog) Enabled(context.Context, slog.Level) bool { h.spring("Enabled"); return true }

func (h trappedLog) Handle(context.Context, slog.Record) error { h.spring("Handle"); return nil }

func (h trappedLog) WithAttrs([]slog.Attr) slog.Handler { h.spring("WithAttrs"); return h }

// trappedBackoff is a backoff with a trap.
type trappedBackoff struct {
	backoff.ConstantBackOff
	trap *trap
}

func (b *trappedBackoff) NextBackOff() time.Duration {
	b.trap.spring()
	return b.ConstantBackOff.NextBackOff()
}

// trappedContext is a user's implementation of a context with a trap in one method.
type trappedContext struct {
	trap *trap
	in   string
}

func (c trappedContext) spring(method string) {
	if method == c.in {
		c.trap.spring()
	}
}

func (c trappedContext) Deadline() (time.Time, bool) { c.spring("Deadline"); return time.Time{}, false }
func (c trappedContext) Done() <-chan struct{}       { c.spring("Done"); return nil }
func (c trappedContext) Err() error                  { c.spring("Err"); return nil }
func (c trappedContext) Value(any) any               { c.spring("Value"); return nil }
