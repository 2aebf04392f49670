package otel_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/quorumlock/quorumlock/internal/otel"
)

// recorded is a span that keeps what is added to it.
type recorded struct {
	noop.Span
	links  []trace.Link
	events []string
	times  []time.Time
}

func (r *recorded) AddLink(link trace.Link) { r.links = append(r.links, link) }

func (r *recorded) AddEvent(name string, opts ...trace.EventOption) {
	config := trace.NewEventConfig(opts...)
	r.events, r.times = append(r.events, name), append(r.times, config.Timestamp())
}

// A call that waits for hours has many events, and few links, which show what it waited behind.
func TestLaterEventsReplaceOlderEventsAndNoLink(t *testing.T) {
	var notes otel.Notes
	holder := attribute.String("quorumlock.holder", "checkout")
	to := func(n int) trace.SpanContext {
		return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{byte(n), byte(n >> 8), 1}})
	}
	notes.Link(to(0), holder)
	began := time.Now()
	for i := range 200 {
		notes.Event(strconv.Itoa(i))
	}
	span := &recorded{}
	notes.AddTo(span)
	assert.Equal(t, []trace.Link{{SpanContext: to(0), Attributes: []attribute.KeyValue{holder}}}, span.links)
	assert.Len(t, span.events, 128)
	assert.Equal(t, "72", span.events[0])
	assert.Equal(t, "199", span.events[127])
	assert.WithinRange(t, span.times[0], began, span.times[127])

	for i := range 200 {
		notes.Link(to(1 + i))
	}
	span = &recorded{}
	notes.AddTo(span)
	assert.Len(t, span.links, 128)
	assert.Equal(t, to(73), span.links[0].SpanContext)
	assert.Equal(t, to(200), span.links[127].SpanContext)
	assert.Len(t, span.events, 128)
}
