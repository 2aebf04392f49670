package web

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/quorumlock/quorumlock"
)

// mostLink bounds a template, in bytes.
const mostLink = 2048

// checkLink returns why a template cannot be used.
func checkLink(template string) error {
	bad := func(bound, fix string) error {
		value := template
		if len(value) > inTable {
			value = value[:inTable] + "…"
		}
		return &quorumlock.InvalidError{What: "TraceLink", Value: value, Bound: bound, Fix: fix}
	}
	const such = "write a URL such as https://jaeger.example/trace/{trace}"
	if len(template) > mostLink {
		return bad("is longer than 2048 bytes", such)
	}
	if !strings.Contains(template, "{trace}") {
		return bad("has no {trace}", such)
	}
	u, err := url.Parse(linkOf(template, "0", "0"))
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return bad("is not a URL with a host", such)
	case u.Scheme != "https" && u.Scheme != "http":
		return bad("is neither http nor https", such)
	case u.User != nil:
		u.User = url.User("***")
		template = u.String()
		return bad("has a user or password, which every viewer would see", "leave it out")
	}
	if other, err := url.Parse(linkOf(template, "1", "1")); err != nil || other.Host != u.Host {
		return bad("has a placeholder in its host", such)
	}
	return nil
}

// linkOf fills in a template.
func linkOf(template, trace, span string) string {
	return strings.NewReplacer("{trace}", trace, "{span}", span).Replace(template)
}

// traceparent is the header of W3C Trace Context, version 0 or later.
var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}$`)

// traceOf returns the link to the trace of a holder, "" for none.
func traceOf(template, parent string) string {
	ids := traceparent.FindStringSubmatch(parent)
	if template == "" || ids == nil {
		return ""
	}
	return linkOf(template, ids[1], ids[2])
}
