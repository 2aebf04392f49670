package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// visit is one request, as its spans show it.
type visit struct {
	service string
	request sdktrace.ReadOnlySpan
	acquire sdktrace.ReadOnlySpan
	hold    sdktrace.ReadOnlySpan // nil if it has not arrived yet
	behind  []*visit              // the requests that it waited behind, in order
}

func (v *visit) trace() trace.TraceID { return v.acquire.SpanContext().TraceID() }

// waited returns the attribute that a trace viewer shows.
func (v *visit) waited() time.Duration {
	seconds := attributeOf(v.acquire, "quorumlock.wait.duration").AsFloat64()
	return time.Duration(seconds * float64(time.Second))
}

// visits reads the spans of a round. It follows the links like a user of a trace viewer:
// from a waiter's acquire span to its holder's, and from a hold span to the acquire span.
func visits(spans []sdktrace.ReadOnlySpan) []*visit {
	byID := map[trace.SpanID]sdktrace.ReadOnlySpan{}
	for _, s := range spans {
		byID[s.SpanContext().SpanID()] = s
	}
	var all []*visit
	byAcquire := map[trace.SpanID]*visit{}
	for _, s := range spans {
		if s.Name() == "quorumlock.acquire" && byID[s.Parent().SpanID()] != nil {
			v := &visit{service: serviceOf(s), request: byID[s.Parent().SpanID()], acquire: s}
			all = append(all, v)
			byAcquire[s.SpanContext().SpanID()] = v
		}
	}
	for _, s := range spans {
		if s.Name() == "quorumlock.hold" && len(s.Links()) > 0 {
			if v := byAcquire[s.Links()[0].SpanContext.SpanID()]; v != nil {
				v.hold = s
			}
		}
	}
	for _, v := range all {
		for _, link := range v.acquire.Links() {
			holder := byAcquire[link.SpanContext.SpanID()]
			if holder != nil && !slices.Contains(v.behind, holder) {
				v.behind = append(v.behind, holder)
			}
		}
	}
	slices.SortFunc(all, func(a, b *visit) int { return a.request.StartTime().Compare(b.request.StartTime()) })
	return all
}

// story returns the text that the program prints about a round.
func story(spans []sdktrace.ReadOnlySpan, s *settings) string {
	all := visits(spans)
	var text strings.Builder
	where := "3 nodes in this process"
	if s.nodes != "" {
		where = "nodes " + s.nodes
	}
	fmt.Fprintf(&text, "%s; the lock %s; %d requests\n", where, lock, len(all))
	if len(all) == 0 {
		return text.String()
	}
	began := all[0].request.StartTime()
	for _, v := range all {
		outcome := "got the lock at once"
		if len(v.behind) > 0 {
			outcome = fmt.Sprintf("waited %v for the lock", v.waited().Round(time.Millisecond))
		}
		if v.hold != nil {
			outcome += fmt.Sprintf(", held it for %v", lengthOf(v.hold))
		}
		fmt.Fprintf(&text, "\n%5.2fs  %-8s  %s\n", v.request.StartTime().Sub(began).Seconds(), v.service, v.request.Name())
		fmt.Fprintf(&text, "        trace %s: %s\n", v.trace(), outcome)
		for _, h := range v.behind {
			fmt.Fprintf(&text, "        behind %s: %s, trace %s\n", h.service, h.request.Name(), h.trace())
		}
	}
	if longest := slowest(all); len(longest.behind) > 0 {
		fmt.Fprintf(&text, "\nThe slowest wait is trace %s.\nIts acquire span links to trace %s, which held the lock.\n",
			longest.trace(), longest.behind[0].trace())
	}
	return text.String()
}

// slowest returns the visit that waited longest.
func slowest(all []*visit) *visit {
	return slices.MaxFunc(all, func(a, b *visit) int { return cmp.Compare(a.waited(), b.waited()) })
}

func lengthOf(s sdktrace.ReadOnlySpan) time.Duration {
	return s.EndTime().Sub(s.StartTime()).Round(time.Millisecond)
}

func serviceOf(s sdktrace.ReadOnlySpan) string {
	for _, a := range s.Resource().Attributes() {
		if a.Key == "service.name" {
			return a.Value.AsString()
		}
	}
	return ""
}

func attributeOf(s sdktrace.ReadOnlySpan, key attribute.Key) attribute.Value {
	for _, a := range s.Attributes() {
		if a.Key == key {
			return a.Value
		}
	}
	return attribute.Value{}
}
