package otel

import (
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// maxNotes is how many links and how many events are kept: a span of the SDK has room for as many. Later
// ones replace the oldest.
const maxNotes = 128

// Notes are events and links for the end of a span: until then no user code runs.
type Notes struct {
	links  []trace.Link
	events []event
}

type event struct {
	at    time.Time
	name  string
	attrs []attribute.KeyValue
}

// Event notes an event.
func (n *Notes) Event(name string, attrs ...attribute.KeyValue) {
	n.events = append(latest(n.events), event{name: name, attrs: attrs, at: time.Now()})
}

// Link notes a link.
func (n *Notes) Link(to trace.SpanContext, attrs ...attribute.KeyValue) {
	n.links = append(latest(n.links), trace.Link{SpanContext: to, Attributes: attrs})
}

// latest makes room for one more.
func latest[T any](all []T) []T {
	if len(all) == maxNotes {
		return slices.Delete(all, 0, 1)
	}
	return all
}

// AddTo adds the notes to the span.
func (n *Notes) AddTo(span trace.Span) {
	for _, link := range n.links {
		span.AddLink(link)
	}
	for _, e := range n.events {
		span.AddEvent(e.name, trace.WithTimestamp(e.at), trace.WithAttributes(e.attrs...))
	}
}
