package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"
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

// metrics runs the example with a Prometheus that scrapes it, and asserts that every
// query of the dashboard returns data.
func metrics(ctx context.Context, s *settings) error {
	board, err := readDashboard(s.dashboard)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "quorumlock-metrics-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	page, err := freePort()
	if err != nil {
		return err
	}
	example, err := start(s.example, "-endpoint", "none", "-metrics", page, "-rounds", "0", "-for", s.limit.String(), "-faults")
	if err != nil {
		return err
	}
	defer example.stop()
	if err := until(ctx, example, func() error { return listening(page) }); err != nil {
		return err
	}
	prometheus, addr, err := startPrometheus(ctx, s, dir, page)
	if err != nil {
		return err
	}
	defer prometheus.stop()
	fmt.Printf("-- a Prometheus on %s (pid %d) scrapes the example on %s (pid %d)\n", addr, prometheus.cmd.Process.Pid, page, example.cmd.Process.Pid)

	// Some queries have data only at times: leases are at risk while a node is down.
	seen := map[string]string{}
	begun := time.Now()
	err = until(ctx, prometheus, func() error { return ask(ctx, addr, board, seen) })
	for _, p := range board.panels() {
		for _, t := range p.Targets {
			if seen[t.Expr] == "" {
				fmt.Printf("   %-34s NO DATA: %s\n", p.Title, t.Expr)
				continue
			}
			fmt.Printf("   %-34s %s\n", p.Title, seen[t.Expr])
		}
	}
	if err != nil {
		return err
	}
	healthy, err := rules(ctx, addr)
	if err != nil {
		return err
	}
	fmt.Printf("-- metrics: ok: %d queries of %d panels returned data within %v, and Prometheus evaluates %d alerts\n",
		len(seen), len(board.panels()), time.Since(begun).Round(time.Second), healthy)
	return nil
}

func startPrometheus(ctx context.Context, s *settings, dir, page string) (*process, string, error) {
	addr, err := freePort()
	if err != nil {
		return nil, "", err
	}
	alerts, err := filepath.Abs(filepath.Join(filepath.Dir(s.dashboard), "alerts.yaml"))
	if err != nil {
		return nil, "", err
	}
	config := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, prometheusConfig, page, alerts), 0o600); err != nil {
		return nil, "", err
	}
	p, err := start(s.prometheus, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	if err != nil {
		return nil, "", err
	}
	if err := until(ctx, p, func() error { return listening(addr) }); err != nil {
		p.stop()
		return nil, "", err
	}
	return p, addr, nil
}

// ask sends every query that has had no data yet. It returns nil when all have had some.
func ask(ctx context.Context, addr string, board *dashboard, seen map[string]string) error {
	var missing []error
	for _, p := range board.panels() {
		for _, t := range p.Targets {
			if seen[t.Expr] != "" {
				continue
			}
			found, err := query(ctx, addr, board.substitute(t.Expr))
			if err != nil {
				missing = append(missing, fmt.Errorf("%s: %w", p.Title, err))
				continue
			}
			seen[t.Expr] = found
		}
	}
	return errors.Join(missing...)
}

// query asks Prometheus, and returns one of the values. It returns an error if there are
// no values, or none that is a number.
func query(ctx context.Context, addr, expr string) (string, error) {
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := get(ctx, "http://"+addr+"/api/v1/query?query="+url.QueryEscape(expr), &answer); err != nil {
		return "", err
	}
	if answer.Error != "" {
		return "", fmt.Errorf("%s: %s", answer.Error, expr)
	}
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
			return fmt.Sprintf("%-9.4g %v, of %d series", v, r.Metric, len(answer.Data.Result)), nil
		}
	}
	return "", fmt.Errorf("no data: %s", expr)
}

// rules returns how many alerts Prometheus has evaluated, or an error if one has failed.
func rules(ctx context.Context, addr string) (int, error) {
	var answer struct {
		Data struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
	}
	if err := get(ctx, "http://"+addr+"/api/v1/rules", &answer); err != nil {
		return 0, err
	}
	n := 0
	for _, g := range answer.Data.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" {
				return 0, fmt.Errorf("alert %s is %s: %s", r.Name, r.Health, r.LastError)
			}
			n++
		}
	}
	if n == 0 {
		return 0, errors.New("the Prometheus has no alerts")
	}
	return n, nil
}

func get(ctx context.Context, address string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}
