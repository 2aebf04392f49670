package main

import (
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// holdsOfKeptRequests keeps the span of a hold if the span of its acquisition was kept. A hold is a trace of
// its own, so a sampler decides about it separately: without this, one request in ten and one hold in ten
// are kept, which rarely belong together. To keep no holds, drop the name.
type holdsOfKeptRequests struct{ sdktrace.Sampler }

func (s holdsOfKeptRequests) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if p.Name != "quorumlock.hold" {
		return s.Sampler.ShouldSample(p)
	}
	if len(p.Links) == 1 && p.Links[0].SpanContext.IsSampled() {
		return sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample}
	}
	return sdktrace.SamplingResult{Decision: sdktrace.Drop}
}
