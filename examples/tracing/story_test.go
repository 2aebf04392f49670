package main

import (
	"bytes"
	"encoding/xml"
	"errors"
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
	decoder, links := xml.NewDecoder(bytes.NewReader(drawing)), 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "well-formed")
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "path" {
			for _, a := range e.Attr {
				if a.Name.Local == "class" && a.Value == "link" {
					links++
				}
			}
		}
	}
	assert.Equal(t, strings.Count(text, "behind ")+1, links, "one for each wait, and one in the legend")
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
