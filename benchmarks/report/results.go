// Package report keeps what the benchmarks have found, and shows it: as JSON for
// machines, as tables and charts for people.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/stats"
)

// A Column is one figure of a table.
type Column struct {
	Key    string `json:"key"`
	Title  string `json:"title"`            // with the unit
	Digits int    `json:"digits,omitempty"` // after the decimal point
	// Library says whose figure it is, if it is not the contestant's.
	Library string `json:"library,omitempty"`
}

// A Run has the circumstances of a measurement.
type Run struct {
	When      time.Time `json:"when"`
	Command   string    `json:"command"`
	Commit    string    `json:"commit,omitempty"`
	Machine   string    `json:"machine"` // processor and cores
	Go        string    `json:"go"`
	Redis     string    `json:"redis"`
	Libraries []string  `json:"libraries"` // the contestants' modules with their versions
	Rounds    int       `json:"rounds"`
	Others    float64   `json:"others"` // the part of the machine that other processes took, in percent
	Stolen    float64   `json:"stolen"` // the part that the hypervisor took, in percent
}

// A Row has the results of one contestant in one case.
type Row struct {
	Case       string                   `json:"case"`
	Contestant string                   `json:"contestant"`
	Values     map[string]stats.Summary `json:"values"`
	Errors     []string                 `json:"errors,omitempty"` // of the rounds that failed
}

// Median returns the median of a column, NaN if it was not measured.
func (r *Row) Median(key string) float64 {
	if s, ok := r.Values[key]; ok {
		return s.Median
	}
	return math.NaN()
}

// A Section has the results of one workload, with all that is needed to show them.
type Section struct {
	Workload  string   `json:"workload"`
	Title     string   `json:"title"`
	About     string   `json:"about"`
	Columns   []Column `json:"columns"`
	Chart     string   `json:"chart,omitempty"` // the key of the column that the bar chart shows
	Log       bool     `json:"log,omitempty"`
	Multiples bool     `json:"multiples,omitempty"` // the bar chart has a panel for each number of servers: the N of "64 callers, N=3"
	Lines     []string `json:"lines,omitempty"`     // the keys of the columns that line charts show in its place
	Run       Run      `json:"run"`
	Rows      []Row    `json:"rows"` // the rows of a case follow each other
}

// drawn reports whether the section has a picture. One or two figures need none.
func (s *Section) drawn() bool { return len(s.Rows) > 2 && (s.Chart != "" || len(s.Lines) > 0) }

// column returns the column with this key.
func (s *Section) column(key string) Column {
	if i := slices.IndexFunc(s.Columns, func(c Column) bool { return c.Key == key }); i >= 0 {
		return s.Columns[i]
	}
	return Column{Key: key, Title: key}
}

// Results are all that was measured, by workload. A run of some workloads leaves
// the results of the others.
type Results struct {
	Sections []Section `json:"sections"`
}

// Put adds a section, in the place of the section about the same workload if there is one, and otherwise at its place
// in order, the names of all workloads.
func (r *Results) Put(s Section, order []string) {
	r.Sections = slices.DeleteFunc(r.Sections, func(old Section) bool { return old.Workload == s.Workload })
	r.Sections = append(r.Sections, s)
	slices.SortStableFunc(r.Sections, func(a, b Section) int {
		return slices.Index(order, a.Workload) - slices.Index(order, b.Workload)
	})
}

// Find returns the row of a contestant in a case, nil if there is none.
func (r *Results) Find(workload, name, contestant string) *Row {
	for i := range r.Sections {
		if r.Sections[i].Workload != workload {
			continue
		}
		rows := r.Sections[i].Rows
		for j := range rows {
			if rows[j].Case == name && rows[j].Contestant == contestant {
				return &rows[j]
			}
		}
	}
	return nil
}

// Load reads results; a file that does not exist has none.
func Load(path string) (*Results, error) {
	r := &Results{}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Save writes results.
func (r *Results) Save(path string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
