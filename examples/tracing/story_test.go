package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestTheStoryNamesTheTraceThatEachRequestWaitedBehind(t *testing.T) {
	var out bytes.Buffer
	file := filepath.Join(t.TempDir(), "traces.svg")
	synctest.Test(t, func(t *testing.T) {
		require.NoError(t, run(t.Context(), &settings{endpoint: "none", most: time.Minute, rounds: 1, picture: file, out: &out}))
	})
	text := out.String()
	assert.Equal(t, 1, strings.Count(text, "got the lock at once"), text)
	assert.Equal(t, 3, strings.Count(text, "waited "), text)
	pay := regexp.MustCompile(`POST /orders/4711/pay\n +trace ([0-9a-f]{32}): got the lock at once, held it for 1\.3`).FindStringSubmatch(text)
	require.NotNil(t, pay, text)
	invoice := regexp.MustCompile(`POST /invoices/4711\n +trace ([0-9a-f]{32}): waited 1\.2.*\n +behind checkout: POST /orders/4711/pay, trace ([0-9a-f]{32})`).FindStringSubmatch(text)
	require.NotNil(t, invoice, text)
	assert.Equal(t, pay[1], invoice[2])
	assert.NotEqual(t, pay[1], invoice[1])

	_, refund, found := strings.Cut(text, "POST /refunds/4711\n")
	require.True(t, found)
	assert.Contains(t, refund, "behind billing: POST /invoices/4711", "a lease of its own process that went back to the nodes before its turn came")

	drawing, err := os.ReadFile(file)
	require.NoError(t, err)
	texts, arrows := drawn(t, drawing)
	assert.Equal(t, []string{
		"Why did POST /invoices/4711 take 1.60 s?",
		"checkout", "trace " + pay[1][:8] + "…", "POST /orders/4711/pay", "checkout holds the lock for 1.30 s",
		"billing", "trace " + invoice[1][:8] + "…", "POST /invoices/4711", "billing waits for 1.20 s", "billing works",
	}, texts[:10], "one story, in the order of reading")
	require.Len(t, arrows, 2, "the link and the release")
	assert.Less(t, arrows[0].to, arrows[0].from, "the link leads back in time")
	assert.InDelta(t, arrows[1].from, arrows[1].to, 0, "the release wakes at once")
	assert.Less(t, arrows[0].from, arrows[1].from, "the arrows do not cross")
}

func TestARoundWithoutAWaitHasNoPicture(t *testing.T) {
	file := filepath.Join(t.TempDir(), "traces.svg")
	require.ErrorContains(t, draw(file, nil), "no request waited for another service")
	assert.NoFileExists(t, file)
}

// arrow is where an arrow begins and ends on the time axis.
type arrow struct{ from, to float64 }

// drawn returns the texts and the arrows of a picture. It fails the test if that is not well-formed XML.
func drawn(t *testing.T, picture []byte) (texts []string, arrows []arrow) {
	t.Helper()
	decoder := xml.NewDecoder(bytes.NewReader(picture))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return texts, arrows
		}
		require.NoError(t, err, "well-formed")
		element, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		switch element.Name.Local {
		case "text":
			var text string
			require.NoError(t, decoder.DecodeElement(&text, &element))
			texts = append(texts, text)
		case "path":
			var path struct {
				Class string `xml:"class,attr"`
				D     string `xml:"d,attr"`
			}
			require.NoError(t, decoder.DecodeElement(&path, &element))
			if path.Class == "arrow" {
				var a arrow
				var y1, y2 float64
				_, err := fmt.Sscanf(path.D, "M%f,%f L%f,%f", &a.from, &y1, &a.to, &y2)
				require.NoError(t, err, path.D)
				arrows = append(arrows, a)
			}
		}
	}
}

func TestSpansThatAreNotReceivedAreAnError(t *testing.T) {
	nobody := "http://127.0.0.1:1"
	err := run(t.Context(), &settings{endpoint: nobody, most: time.Minute, rounds: 1, out: io.Discard})
	assert.ErrorContains(t, err, "did not reach "+nobody+" (start a collector there, or use -endpoint none)")
}

func TestFaultsAreForNodesOfThisProcess(t *testing.T) {
	err := run(t.Context(), &settings{endpoint: "none", nodes: "127.0.0.1:1", faults: true, out: io.Discard})
	assert.ErrorContains(t, err, "-faults would kill real nodes")
}

// Everything that queries the metrics uses the names on the exporter's page.
func TestTheDashboardAndTheAlertsNameMetricsAndLabelsThatExist(t *testing.T) {
	known := map[string]bool{}
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		page := prometheus.NewRegistry()
		reader, err := otelprometheus.New(otelprometheus.WithRegisterer(page))
		require.NoError(t, err)
		m := manager(t, cluster, quorumlock.WithNameAttribute(kindOf),
			quorumlock.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
		exercise(t, cluster, m)
		families, err := page.Gather()
		require.NoError(t, err)
		for _, f := range families {
			known[f.GetName()] = true
			for _, metric := range f.GetMetric() {
				if metric.GetHistogram() != nil {
					known[f.GetName()+"_bucket"], known[f.GetName()+"_count"] = true, true
				}
				for _, label := range metric.GetLabel() {
					known[label.GetName()] = true
				}
			}
		}
	})
	for _, file := range []string{"quorumlock.json", "alerts.yaml", "alerts_test.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", "grafana", file))
		require.NoError(t, err)
		names := regexp.MustCompile(`\bquorumlock_[a-z_]+|\berror_type\b|\bserver_(address|port)\b`).FindAllString(string(text), -1)
		assert.NotEmpty(t, names, file)
		for _, name := range names {
			assert.True(t, known[name], "%s: %s", file, name)
		}
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "traces.md"))
	require.NoError(t, err)
	for _, i := range instruments {
		assert.Contains(t, string(text), "`"+i.name+"`")
	}
}
