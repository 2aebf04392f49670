//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/goals"
	"github.com/quorumlock/quorumlock/benchmarks/report"
	"github.com/quorumlock/quorumlock/benchmarks/stats"
	"github.com/quorumlock/quorumlock/benchmarks/workload"
)

const (
	// jobTimeout bounds one measurement with its preparations.
	jobTimeout = 5 * time.Minute
	// endTimeout is how long an abandoned measurement may take to end its servers.
	endTimeout = 10 * time.Second
)

// A job is one contestant in one case.
type job struct {
	workload   *workload.Workload
	name       string // of the case
	contestant string
}

func (j job) String() string { return j.workload.Name + "/" + j.name + "/" + j.contestant }

// once reports whether the gate has time for one round only.
func (j job) once() bool { return j.workload.Name == "watchdog" || j.workload.Name == "close" }

// newPlan returns the jobs of one round in their order: the contestants of a case
// take turns.
func newPlan(s *settings) []job {
	needs := goals.Needs(goals.All())
	workloads := workload.All(s.options)
	if s.cluster {
		workloads = []workload.Workload{workload.Cluster(s.options)}
	}
	var plan []job
	for _, w := range workloads {
		for _, c := range w.Cases {
			for _, contestant := range c.Contestants {
				j := job{workload: &w, name: c.Name, contestant: contestant}
				if s.only.MatchString(j.String()) && (!s.gate || needs[goals.Key{Workload: w.Name, Case: c.Name, Contestant: contestant}]) {
					plan = append(plan, j)
				}
			}
		}
	}
	return plan
}

// runPlan measures all rounds and returns a section for each workload. A round of
// a job that fails is a line in its section; only the end of ctx ends the run.
func runPlan(ctx context.Context, s *settings, plan []job) ([]report.Section, error) {
	// The servers' directories are in here, so that none stays whatever happens.
	dir, err := os.MkdirTemp("", "quorumlock-benchmarks-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	began, machine := time.Now(), readLoad()
	values := make([]map[string][]float64, len(plan))
	problems := make([][]string, len(plan))
	redis := ""
	for round := range s.rounds {
		for i, j := range plan {
			if s.gate && round > 0 && j.once() {
				continue
			}
			fmt.Fprintf(os.Stderr, "%6.0f s  round %d of %d  %s\n", time.Since(began).Seconds(), round+1, s.rounds, j)
			a, err := runJob(ctx, s, j, dir)
			if ctx.Err() != nil {
				return nil, errors.New("interrupted: nothing is written")
			}
			if err != nil {
				problems[i] = append(problems[i], err.Error())
				fmt.Fprintf(os.Stderr, "%s: %v\n", j, err)
				continue
			}
			redis = a.Redis
			if values[i] == nil {
				values[i] = make(map[string][]float64)
			}
			for key, value := range a.Values {
				values[i][key] = append(values[i][key], value)
			}
		}
	}
	about := report.Run{
		When: began.UTC().Truncate(time.Second), Command: s.command(), Rounds: s.rounds, Redis: redis,
	}
	describe(ctx, &about)
	about.Others, about.Stolen = machine.since()
	return sections(plan, values, problems, about), nil
}

// sections puts the figures of all jobs together.
func sections(plan []job, values []map[string][]float64, problems [][]string, about report.Run) []report.Section {
	var all []report.Section
	for i, j := range plan {
		if w := j.workload; len(all) == 0 || all[len(all)-1].Workload != w.Name {
			all = append(all, report.Section{
				Workload: w.Name, Title: w.Title, About: w.About, Columns: w.Columns,
				Chart: w.Chart, Log: w.Log, Multiples: w.Multiples, Lines: w.Lines, Run: about,
			})
		}
		row := report.Row{
			Case: j.name, Contestant: j.contestant, Values: make(map[string]stats.Summary), Errors: problems[i],
		}
		for key, rounds := range values[i] {
			row.Values[key] = stats.Summarise(rounds)
		}
		section := &all[len(all)-1]
		section.Rows = append(section.Rows, row)
	}
	return all
}

// runJob measures once, in a process of its own: what one contestant leaves in
// memory, and its goroutines, must not be in the figures of another.
func runJob(ctx context.Context, s *settings, j job, dir string) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, jobTimeout)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return a, err
	}
	ask, err := json.Marshal(question{Options: s.options, Workload: j.workload.Name, Case: j.name, Contestant: j.contestant})
	if err != nil {
		return a, err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, self, measureRole)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	// The process measures until this pipe ends, so it ends with this one.
	life, err := cmd.StdinPipe()
	if err != nil {
		return a, err
	}
	cmd.Cancel, cmd.WaitDelay = life.Close, endTimeout
	if err := cmd.Start(); err != nil {
		return a, err
	}
	_, writeErr := life.Write(append(ask, '\n'))
	err = cmd.Wait() // closes the pipe
	if ctx.Err() != nil {
		return a, fmt.Errorf("given up after %v: %w", jobTimeout, context.Cause(ctx))
	}
	if err != nil {
		return a, errors.Join(err, writeErr)
	}
	if err := json.Unmarshal(out.Bytes(), &a); err != nil {
		return a, fmt.Errorf("the measurement said %q: %w", out.Bytes(), err)
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}
