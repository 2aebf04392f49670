package main

import (
	"fmt"
	"strings"
	"time"
)

// span is a span as the Collector's debug exporter prints it.
type span struct {
	service    string
	scope      string
	trace      string
	parent     string
	id         string
	name       string
	status     string
	start, end time.Time
	attributes map[string]string
	links      []link
}

type link struct{ trace, id string }

func (s *span) length() time.Duration { return s.end.Sub(s.start) }

// parse reads the detailed output of the debug exporter. It reads the fields that the
// check needs, and skips every other line.
func parse(text string) ([]*span, error) {
	var p parser
	for number, line := range strings.Split(text, "\n") {
		if err := p.line(strings.TrimSpace(line)); err != nil {
			return nil, fmt.Errorf("line %d: %w", number+1, err)
		}
	}
	return p.spans, nil
}

type parser struct {
	spans          []*span
	service, scope string
	section        string // the lines with arrows belong to it
}

func (p *parser) line(line string) error {
	switch {
	case strings.HasPrefix(line, "ResourceSpans #"):
		p.service, p.scope, p.section = "", "", "resource"
	case strings.HasPrefix(line, "InstrumentationScope "):
		p.scope, _, _ = strings.Cut(strings.TrimPrefix(line, "InstrumentationScope "), " ")
		p.section = "scope"
	case strings.HasPrefix(line, "Span #"):
		p.spans = append(p.spans, &span{service: p.service, scope: p.scope, attributes: map[string]string{}})
		p.section = "span"
	case line == "Attributes:", line == "Events:", line == "Links:":
		p.section = strings.ToLower(strings.TrimSuffix(line, ":"))
	case strings.HasPrefix(line, "SpanLink #"):
		last := p.spans[len(p.spans)-1]
		last.links = append(last.links, link{})
	default:
		return p.field(line)
	}
	return nil
}

// field reads "key : value" of a span, or "-> key: value" of its attributes and links.
func (p *parser) field(line string) (err error) {
	key, value, found := strings.Cut(strings.TrimPrefix(line, "-> "), ":")
	if !found {
		return nil
	}
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	if p.section == "resource" {
		if key == "service.name" {
			p.service = plain(value)
		}
		return nil
	}
	if len(p.spans) == 0 {
		return nil
	}
	s := p.spans[len(p.spans)-1]
	switch p.section {
	case "span":
		return s.set(key, value)
	case "attributes":
		s.attributes[key] = plain(value)
	case "links":
		switch key {
		case "Trace ID":
			s.links[len(s.links)-1].trace = value
		case "ID":
			s.links[len(s.links)-1].id = value
		}
	}
	return nil
}

func (s *span) set(key, value string) (err error) {
	const layout = "2006-01-02 15:04:05.999999999 -0700 MST"
	switch key {
	case "Trace ID":
		s.trace = value
	case "Parent ID":
		s.parent = value
	case "ID":
		s.id = value
	case "Name":
		s.name = value
	case "Status code":
		s.status = value
	case "Start time":
		s.start, err = time.Parse(layout, value)
	case "End time":
		s.end, err = time.Parse(layout, value)
	}
	return err
}

// plain returns the value of Str(value), Int(value) or Double(value).
func plain(value string) string {
	if _, inner, found := strings.Cut(value, "("); found && strings.HasSuffix(value, ")") {
		return strings.TrimSuffix(inner, ")")
	}
	return value
}
