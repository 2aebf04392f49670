package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

const collectorConfig = `
receivers:
  otlp:
    protocols:
      http:
        endpoint: %s
exporters:
  debug:
    verbosity: detailed
    use_internal_logger: false
    output_paths: [stdout]
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [debug]
`

// traces runs the example against a Collector, and asserts that the right spans arrived there.
func traces(ctx context.Context, s *settings) error {
	dir, err := os.MkdirTemp("", "quorumlock-traces-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	addr, err := freePort()
	if err != nil {
		return err
	}
	config := filepath.Join(dir, "collector.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, collectorConfig, addr), 0o600); err != nil {
		return err
	}
	collector, err := start(s.collector, config)
	if err != nil {
		return err
	}
	defer collector.stop()
	if err := until(ctx, collector, func() error { return listening(addr) }); err != nil {
		return err
	}
	fmt.Printf("-- a Collector listens on %s (pid %d)\n", addr, collector.cmd.Process.Pid)

	example, err := start(s.example, "-endpoint", "http://"+addr, "-for", "1m")
	if err != nil {
		return err
	}
	defer example.stop()
	err = example.wait(ctx)
	fmt.Print(example.out.String())
	if err != nil {
		return fmt.Errorf("the example: %w", err)
	}
	var verdict string
	late, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("10 s after the example"))
	defer cancel()
	err = until(late, collector, func() error {
		spans, err := parse(collector.out.String())
		if err != nil {
			return err
		}
		verdict, err = judge(spans)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Printf("\n-- the Collector got\n%s-- traces: ok\n", verdict)
	return nil
}

// judge asserts that the spans match the documentation, and returns a summary.
func judge(spans []*span) (string, error) {
	byID := map[string]*span{}
	for _, s := range spans {
		byID[s.id] = s
	}
	slices.SortFunc(spans, func(a, b *span) int { return a.start.Compare(b.start) })
	var crossed string
	var wrong []error
	waits := 0
	for _, s := range spans {
		switch s.name {
		case "quorumlock.acquire":
			if len(s.links) == 0 {
				continue
			}
			waits++
			line, err := followed(s, byID)
			wrong = append(wrong, err)
			if line != "" && crossed == "" {
				crossed = line
			}
		case "quorumlock.hold":
			wrong = append(wrong, holds(s, byID))
		}
	}
	if err := errors.Join(wrong...); err != nil {
		return "", err
	}
	count := map[string]int{}
	for _, s := range spans {
		if s.scope == "github.com/quorumlock/quorumlock" {
			count[s.name]++
		}
	}
	acquired := count["quorumlock.acquire"]
	if acquired == 0 || waits == 0 || crossed == "" || count["quorumlock.hold"] != acquired || count["quorumlock.release"] != acquired {
		return "", fmt.Errorf("spans are missing: %v, %d of them waited, across services: %q", count, waits, crossed)
	}
	return fmt.Sprintf("%d spans: %d acquire, %d of them linked to holders; %d hold, %d release\n%s",
		len(spans), acquired, waits, count["quorumlock.hold"], count["quorumlock.release"], crossed), nil
}

// followed follows the links of a waiter's acquire span. It returns a description if one
// of them points into the trace of another service.
func followed(s *span, byID map[string]*span) (string, error) {
	seconds, err := strconv.ParseFloat(s.attributes["quorumlock.wait.duration"], 64)
	if err != nil || seconds <= 0 || seconds > s.length().Seconds()+0.001 {
		return "", fmt.Errorf("span %s of %v waited for %q s", s.id, s.length(), s.attributes["quorumlock.wait.duration"])
	}
	text := ""
	for _, l := range s.links {
		holder := byID[l.id]
		if holder == nil || holder.name != "quorumlock.acquire" || holder.trace != l.trace {
			return "", fmt.Errorf("span %s links to trace %s span %s, which is no acquire span", s.id, l.trace, l.id)
		}
		if holder.service != s.service && holder.trace != s.trace && text == "" {
			text = fmt.Sprintf("  waiter  %-8s trace %s span %s waited %.3f s\n  holder  %-8s trace %s span %s (the link leads here)\n",
				s.service, s.trace, s.id, seconds, holder.service, holder.trace, holder.id)
			for _, h := range byID {
				if h.name == "quorumlock.hold" && len(h.links) == 1 && h.links[0].id == holder.id {
					text += fmt.Sprintf("  hold    %-8s trace %s span %s held the lock for %v\n", h.service, h.trace, h.id, h.length().Round(time.Millisecond))
				}
			}
		}
	}
	return text, nil
}

// holds asserts that a hold span is a root, and that its link points to the acquire span
// of the lease, in the same service.
func holds(s *span, byID map[string]*span) error {
	if s.parent != "" || len(s.links) != 1 {
		return fmt.Errorf("hold span %s has the parent %q and %d links", s.id, s.parent, len(s.links))
	}
	acquire := byID[s.links[0].id]
	if acquire == nil || acquire.name != "quorumlock.acquire" || acquire.service != s.service {
		return fmt.Errorf("hold span %s links to %s, which is no acquire span of its service", s.id, s.links[0].id)
	}
	if s.attributes["quorumlock.token"] != acquire.attributes["quorumlock.token"] {
		return fmt.Errorf("hold span %s has token %s, its acquire span %s", s.id, s.attributes["quorumlock.token"], acquire.attributes["quorumlock.token"])
	}
	const slack = 10 * time.Millisecond // a hold span and its acquire span use different clocks
	if s.start.Add(slack).Before(acquire.start) || s.end.Add(slack).Before(acquire.end) {
		return fmt.Errorf("hold span %s goes from %v to %v, its acquire span from %v to %v", s.id, s.start, s.end, acquire.start, acquire.end)
	}
	return nil
}
