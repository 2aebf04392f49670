package otel

import "go.opentelemetry.io/otel/trace"

// TraceParent returns the W3C name of a span, empty for none. A holder stores it with its lock.
func TraceParent(sc trace.SpanContext) string {
	if !sc.IsValid() {
		return ""
	}
	return "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + sc.TraceFlags().String()
}

// ParseTraceParent parses a text of TraceParent: version 00 of the W3C header, or a later version that begins in the
// same way.
func ParseTraceParent(text string) (trace.SpanContext, bool) {
	const size = len("00-0123456789abcdef0123456789abcdef-0123456789abcdef-01")
	if len(text) < size || text[2] != '-' || text[35] != '-' || text[52] != '-' || text[:2] == "ff" {
		return trace.SpanContext{}, false
	}
	traceID, err1 := trace.TraceIDFromHex(text[3:35])
	spanID, err2 := trace.SpanIDFromHex(text[36:52])
	if err1 != nil || err2 != nil {
		return trace.SpanContext{}, false
	}
	var flags trace.TraceFlags
	if text[54] == '1' || text[54] == '3' {
		flags = trace.FlagsSampled
	}
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: traceID, SpanID: spanID, TraceFlags: flags, Remote: true}), true
}
