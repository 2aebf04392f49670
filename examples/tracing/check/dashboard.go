package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// dashboard is the part of a Grafana dashboard that the check needs.
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

func readDashboard(file string) (*dashboard, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(d.panels()) == 0 {
		return nil, fmt.Errorf("%s has no panels", file)
	}
	var wrong []error
	for _, p := range d.panels() {
		if p.Description == "" || len(p.Targets) == 0 {
			wrong = append(wrong, fmt.Errorf("panel %q has no description, or no query", p.Title))
		}
		for _, t := range p.Targets {
			if left := d.substitute(t.Expr); strings.Contains(left, "$") {
				wrong = append(wrong, fmt.Errorf("panel %q uses a variable that the dashboard does not have: %s", p.Title, left))
			}
		}
	}
	return &d, errors.Join(wrong...)
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
