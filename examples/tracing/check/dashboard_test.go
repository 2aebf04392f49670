package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ofTheRepository = "../../../docs/grafana/quorumlock.json"

func TestTheDashboardIsComplete(t *testing.T) {
	board, err := readDashboard(ofTheRepository)
	require.NoError(t, err)
	assert.False(t, board.Editable)
	assert.Len(t, board.panels(), 12)
	var names []string
	for _, v := range board.Templating.List {
		names = append(names, v.Name)
	}
	assert.Equal(t, []string{"datasource", "job", "instance"}, names)
	for _, p := range board.panels() {
		for _, target := range p.Targets {
			assert.Contains(t, target.Expr, `{job=~"$job", instance=~"$instance"`, p.Title)
		}
	}
}

func TestADashboardWithAnUnknownVariableIsRefused(t *testing.T) {
	text, err := os.ReadFile(ofTheRepository)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "board.json")
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(text), "$instance", "$host")), 0o600))
	_, err = readDashboard(file)
	assert.ErrorContains(t, err, "$host")
}

func TestAnAnswerWithoutNumbersIsNoData(t *testing.T) {
	for body, want := range map[string]string{
		`{"data":{"result":[]}}`:                                                                        "no data",
		`{"data":{"result":[{"metric":{},"value":[1,"NaN"]}]}}`:                                         "no data",
		`{"status":"error","error":"parse error"}`:                                                      "parse error",
		`{"data":{"result":[{"metric":{},"value":[1,"NaN"]},{"metric":{"le":"1"},"value":[1,"2.5"]}]}}`: "",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		found, err := query(t.Context(), server.Listener.Addr().String(), "up")
		server.Close()
		if want != "" {
			assert.ErrorContains(t, err, want)
			continue
		}
		require.NoError(t, err)
		assert.Contains(t, found, "2.5")
	}
}
