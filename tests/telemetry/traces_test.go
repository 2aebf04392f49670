package telemetry

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recorded is the output of a Collector in a run of the example, one export a line.
const recorded = "testdata/exports.json"

var record = flag.Bool("record", false, "write what the Collector sends to "+recorded)

const collectorConfig = `
receivers:
  otlp:
    protocols:
      http:
        endpoint: %s
exporters:
  otlphttp:
    endpoint: %s
    encoding: json
    compression: none
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    traces:
      receivers: [otlp]
      exporters: [otlphttp]
`

func TestACollectorGetsSpansThatLinkEachWaiterToItsHolders(t *testing.T) {
	var mu sync.Mutex
	var exports []byte
	backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if assert.NoError(t, err) {
			mu.Lock()
			exports = append(append(exports, body...), '\n')
			mu.Unlock()
		}
	}))
	defer backend.Close()
	addr := freeAddr(t)
	start(t, fmt.Sprintf(collectorConfig, addr, backend.URL), programs.collector, "$config")
	listening(t, addr)

	out, err := exec.CommandContext(t.Context(), programs.example, "-endpoint", "http://"+addr, "-for", "1m").CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("the example says\n%s", out)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		mu.Lock()
		defer mu.Unlock()
		verdict, err := judge(read(c, exports))
		if assert.NoError(c, err) {
			t.Logf("the Collector got\n%s", verdict)
		}
	}, 20*time.Second, 100*time.Millisecond)
	if *record {
		require.NoError(t, os.WriteFile(recorded, exports, 0o600))
	}
}

func TestSpansThatAreNotAsDocumentedFailTheCheck(t *testing.T) {
	exports, err := os.ReadFile(recorded)
	require.NoError(t, err)
	verdict, err := judge(read(t, exports))
	require.NoError(t, err)
	assert.Contains(t, verdict, "4 acquire, 3 of them linked to holders; 4 hold, 4 release")

	for name, spoil := range map[string]func(s *span){
		"no links":             func(s *span) { s.Links = nil },
		"links lead elsewhere": func(s *span) { s.Links = []link{{s.TraceID, "0000000000000001"}, {s.TraceID, s.SpanID}} },
		"a hold is a child":    func(s *span) { s.ParentSpanID = "0000000000000001" },
		"nobody waited":        func(s *span) { s.set("quorumlock.wait.duration", 0.0) },
		"a token of another":   func(s *span) { s.set("quorumlock.token", s.SpanID) },
		"one service":          func(s *span) { s.service = "checkout" },
		"a hold of no length":  func(s *span) { s.EndTimeUnixNano = s.StartTimeUnixNano - int64(time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			spans := read(t, exports)
			for _, s := range spans {
				if s.Name == "quorumlock.acquire" && len(s.Links) > 0 || s.Name == "quorumlock.hold" {
					spoil(s)
				}
			}
			_, err := judge(spans)
			assert.Error(t, err)
		})
	}
	_, err = judge(read(t, exports)[:12])
	assert.Error(t, err, "some are missing")
}

// span is the part of a span that the check needs, in the JSON of OTLP.
type span struct {
	service, scope                      string
	TraceID, SpanID, ParentSpanID, Name string
	StartTimeUnixNano, EndTimeUnixNano  int64 `json:",string"`
	Attributes                          []attribute
	Links                               []link
}

type link struct{ TraceID, SpanID string }

// attribute has one value, under the name of its type.
type attribute struct {
	Key   string
	Value map[string]any
}

func (s *span) attribute(key string) (value any) {
	for _, a := range s.Attributes {
		if a.Key == key {
			for _, value = range a.Value {
				return value
			}
		}
	}
	return nil
}

func (s *span) set(key string, value any) {
	for i, a := range s.Attributes {
		if a.Key == key {
			s.Attributes[i].Value = map[string]any{"value": value}
		}
	}
}

func (s *span) length() time.Duration { return time.Duration(s.EndTimeUnixNano - s.StartTimeUnixNano) }

// read returns the spans of the exports, in the order of their start.
func read(t require.TestingT, exports []byte) (spans []*span) {
	for line := range bytes.Lines(exports) {
		var export struct {
			ResourceSpans []struct {
				Resource   span // for its attributes
				ScopeSpans []struct {
					Scope struct{ Name string }
					Spans []*span
				}
			}
		}
		require.NoError(t, json.Unmarshal(line, &export))
		for _, r := range export.ResourceSpans {
			for _, scope := range r.ScopeSpans {
				for _, s := range scope.Spans {
					s.scope = scope.Scope.Name
					s.service, _ = r.Resource.attribute("service.name").(string)
					spans = append(spans, s)
				}
			}
		}
	}
	slices.SortFunc(spans, func(a, b *span) int { return int(a.StartTimeUnixNano - b.StartTimeUnixNano) })
	return spans
}

// judge asserts that the spans match the documentation, and returns a summary.
func judge(spans []*span) (string, error) {
	byID := map[string]*span{}
	for _, s := range spans {
		byID[s.SpanID] = s
	}
	var crossed string
	var wrong []error
	waits := 0
	count := map[string]int{}
	for _, s := range spans {
		if s.scope == "github.com/quorumlock/quorumlock" {
			count[s.Name]++
		}
		switch {
		case s.Name == "quorumlock.acquire" && len(s.Links) > 0:
			waits++
			line, err := followed(s, byID)
			wrong = append(wrong, err)
			if crossed == "" {
				crossed = line
			}
		case s.Name == "quorumlock.hold":
			wrong = append(wrong, holds(s, byID))
		}
	}
	if err := errors.Join(wrong...); err != nil {
		return "", err
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
func followed(s *span, byID map[string]*span) (text string, _ error) {
	seconds, _ := s.attribute("quorumlock.wait.duration").(float64)
	if seconds <= 0 || seconds > s.length().Seconds()+0.001 {
		return "", fmt.Errorf("span %s of %v waited for %v s", s.SpanID, s.length(), seconds)
	}
	for _, l := range s.Links {
		holder := byID[l.SpanID]
		if holder == nil || holder.Name != "quorumlock.acquire" || holder.TraceID != l.TraceID {
			return "", fmt.Errorf("span %s links to trace %s span %s, which is no acquire span", s.SpanID, l.TraceID, l.SpanID)
		}
		if holder.service != s.service && holder.TraceID != s.TraceID && text == "" {
			text = fmt.Sprintf("  waiter  %-8s trace %s span %s waited %.3f s\n  holder  %-8s trace %s span %s (the link leads here)\n",
				s.service, s.TraceID, s.SpanID, seconds, holder.service, holder.TraceID, holder.SpanID)
		}
	}
	return text, nil
}

// holds asserts that a hold span is a root, and that its link points to the acquire span
// of the lease, in the same service.
func holds(s *span, byID map[string]*span) error {
	if s.ParentSpanID != "" || len(s.Links) != 1 {
		return fmt.Errorf("hold span %s has the parent %q and %d links", s.SpanID, s.ParentSpanID, len(s.Links))
	}
	acquire := byID[s.Links[0].SpanID]
	if acquire == nil || acquire.Name != "quorumlock.acquire" || acquire.service != s.service {
		return fmt.Errorf("hold span %s links to %s, which is no acquire span of its service", s.SpanID, s.Links[0].SpanID)
	}
	if token := acquire.attribute("quorumlock.token"); token == nil || s.attribute("quorumlock.token") != token {
		return fmt.Errorf("hold span %s has token %v, its acquire span %v", s.SpanID, s.attribute("quorumlock.token"), token)
	}
	const slack = int64(10 * time.Millisecond) // a hold span and its acquire span use different clocks
	if s.StartTimeUnixNano+slack < acquire.StartTimeUnixNano || s.EndTimeUnixNano+slack < acquire.EndTimeUnixNano {
		return fmt.Errorf("hold span %s is %v long and its acquire span %v, and it begins or ends first", s.SpanID, s.length(), acquire.length())
	}
	return nil
}
