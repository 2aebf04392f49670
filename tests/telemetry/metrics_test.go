package telemetry

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Prometheus also evaluates the alert rules, to check their health; promtool tests their
// results.
const prometheusConfig = `
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: [%[2]s]
scrape_configs:
  - job_name: checkout
    metrics_path: /checkout/metrics
    static_configs: [{targets: ["%[1]s"]}]
  - job_name: billing
    metrics_path: /billing/metrics
    static_configs: [{targets: ["%[1]s"]}]
`

func TestAPrometheusHasDataForEachQueryOfTheDashboard(t *testing.T) {
	alerts, err := filepath.Abs("../../docs/grafana/alerts.yaml")
	require.NoError(t, err)
	page, addr := freeAddr(t), freeAddr(t)
	start(t, fmt.Sprintf(prometheusConfig, page, alerts), programs.prometheus,
		"--config.file=$config", "--storage.tsdb.path="+t.TempDir(), "--web.listen-address="+addr)
	start(t, "", programs.example, "-endpoint", "none", "-metrics", page, "-rounds", "0", "-for", "3m", "-faults")
	listening(t, addr)
	client, err := api.NewClient(api.Config{Address: "http://" + addr})
	require.NoError(t, err)
	defer client.(api.CloseIdler).CloseIdleConnections()
	server := prometheus.NewAPI(client)

	// Some queries have data only at times: leases are at risk while a node is down.
	board := readDashboard(t)
	seen := map[string]bool{}
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		for _, p := range board.panels() {
			for _, target := range p.Targets {
				if seen[target.Expr] {
					continue
				}
				answer, _, err := server.Query(t.Context(), board.substitute(target.Expr), time.Now())
				require.NoError(c, err, p.Title)
				if found := number(answer); assert.NotNil(c, found, "%s: no data: %s", p.Title, target.Expr) {
					seen[target.Expr] = true
					t.Logf("%-34s %-9.4g %v", p.Title, float64(found.Value), found.Metric)
				}
			}
		}
	}, 3*time.Minute, 200*time.Millisecond)

	rules, err := server.Rules(t.Context(), nil)
	require.NoError(t, err)
	evaluated := 0
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			alert, is := rule.(prometheus.AlertingRule)
			require.True(t, is)
			assert.EqualValues(t, prometheus.RuleHealthGood, alert.Health, "%s: %s", alert.Name, alert.LastError)
			evaluated++
		}
	}
	assert.Positive(t, evaluated)
	t.Logf("%d queries have data, %d alerts are evaluated", len(seen), evaluated)
}

// number returns a series whose value is a number, or nil.
func number(answer model.Value) *model.Sample {
	vector, _ := answer.(model.Vector)
	for _, s := range vector {
		if v := float64(s.Value); !math.IsNaN(v) && !math.IsInf(v, 0) {
			return s
		}
	}
	return nil
}

func TestAnAnswerWithoutNumbersIsNoData(t *testing.T) {
	nan := &model.Sample{Value: model.SampleValue(math.NaN())}
	assert.Nil(t, number(model.Vector{}))
	assert.Nil(t, number(model.Vector{nan, {Value: model.SampleValue(math.Inf(1))}}))
	assert.Equal(t, 2.5, float64(number(model.Vector{nan, {Value: 2.5}}).Value))
}
