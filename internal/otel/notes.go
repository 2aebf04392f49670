package otel

import (
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// maxNotes is how many notes are kept: a span of the SDK has room for as many events. Later ones
// replace the oldest.
const maxNotes = 128

// Notes are events and links for the end of a span: until then no code of a user's runs.
type Notes struct{ all []note }

// note is an event, or a link if it has no name.
type note struct {
	at      time.Time
	name    string
	attrs   []attribute.KeyValue
	context trace.SpanContext // of a link
}

// Event notes an event.
func (n *Notes) Event(name string, attrs ...attribute.KeyValue) {
	n.add(note{name: name, attrs: attrs, at: time.Now()})
}

// Link notes a link.
func (n *Notes) Link(to trace.SpanContext, attrs ...attribute.KeyValue) {
	n.add(note{context: to, attrs: attrs})
}

func (n *Notes) add(one note) {
	if len(n.all) == maxNotes {
		n.all = slices.Delete(n.all, 0, 1)
	}
	n.all = append(n.all, one)
}

// AddTo adds the notes to the span.
func (n *Notes) AddTo(span trace.Span) {
	for _, one := range n.all {
		if one.name == "" {
			span.AddLink(trace.Link{SpanContext: one.context, Attributes: one.attrs})
		} else {
			span.AddEvent(one.name, trace.WithTimestamp(one.at), trace.WithAttributes(one.attrs...))
		}
	}
}
