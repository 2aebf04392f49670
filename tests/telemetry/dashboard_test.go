package telemetry

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// dashboard is the part of a Grafana dashboard that the checks need.
type dashboard struct {
	Editable   bool
	Panels     []panel
	Templating struct {
		List []struct{ Name, Type string }
	}
}

type panel struct {
	Title, Type, Description string
	Targets                  []struct{ Expr string }
	Panels                   []panel // the panels inside a collapsed row
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text, err := os.ReadFile("../../docs/grafana/quorumlock.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &d))
	return d
}

// panels returns the panels with queries: not the rows, but the panels inside them.
func (d *dashboard) panels() (all []panel) {
	for _, p := range d.Panels {
		if p.Type == "row" {
			all = append(all, p.Panels...)
			continue
		}
		all = append(all, p)
	}
	return all
}

// substitute sets the variables of a query, as Grafana does. Each is set to match
// everything.
func (d *dashboard) substitute(expr string) string {
	expr = strings.ReplaceAll(expr, "$__rate_interval", "15s")
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			expr = strings.ReplaceAll(expr, "$"+v.Name, ".*")
		}
	}
	return expr
}

func TestTheDashboardIsComplete(t *testing.T) {
	board := readDashboard(t)
	assert.False(t, board.Editable)
	assert.Len(t, board.panels(), 12)
	var names []string
	for _, v := range board.Templating.List {
		names = append(names, v.Name)
	}
	assert.Equal(t, []string{"datasource", "job", "instance"}, names)
	for _, p := range board.panels() {
		assert.NotEmpty(t, p.Description, p.Title)
		assert.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			assert.Contains(t, target.Expr, `{job=~"$job", instance=~"$instance"`, p.Title)
			assert.NotContains(t, board.substitute(target.Expr), "$", "%s uses a variable that the dashboard does not have", p.Title)
		}
	}
}
