//go:build unix

// Benchmarks measures quorumlock against other lock libraries, on redis-server
// processes that it starts and ends itself: "make bench-peers" in the
// repository's root. With -gate it checks the goals: "make bench-gate". With
// -cluster it compares two of its own clients: "make bench-cluster".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/goals"
	"github.com/quorumlock/quorumlock/benchmarks/report"
	"github.com/quorumlock/quorumlock/benchmarks/workload"
)

// The gate is a short form of the whole: fewer and shorter rounds.
const (
	gateRounds   = 3
	gateDuration = 500 * time.Millisecond
)

// The figures of a whole cluster are from these.
const (
	clusterTTL    = 12 * time.Second
	clusterLeases = 100_000
)

const chartsName = "benchmarks" // the directory of the charts, next to the document

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // nodes are killed on purpose
	if role, ok := roleOf(os.Args); ok {
		os.Exit(role())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchmarks:", err)
		os.Exit(1)
	}
}

// roleOf returns what this program does when it starts itself.
func roleOf(args []string) (func() int, bool) {
	if len(args) < 2 {
		return nil, false
	}
	switch args[1] {
	case measureRole:
		return measure, true
	case workload.SpinRole:
		return func() int { workload.Spin(); return 0 }, true
	default:
		return nil, false
	}
}

// settings are the knobs of a run.
type settings struct {
	options workload.Options
	rounds  int
	only    *regexp.Regexp // of "workload/case/contestant"
	gate    bool
	cluster bool
	list    bool
	render  bool
	docs    string // the directory of benchmarks.md; "" leaves it alone
	results string // the file of the results
}

func parse(args []string) (s settings, err error) {
	defaults := workload.DefaultOptions()
	flags := flag.NewFlagSet("benchmarks", flag.ContinueOnError)
	only := flags.String("workloads", ".", "regexp of workload/case/contestant")
	leases := flags.String("leases", joinInts(defaults.Leases), "how many leases are watched, separated by commas")
	flags.IntVar(&s.rounds, "count", 5, "rounds; the contestants take turns in each")
	flags.DurationVar(&s.options.Duration, "duration", defaults.Duration, "how long one measurement takes")
	flags.DurationVar(&s.options.TTL, "ttl", defaults.TTL, "TTL of all locks")
	flags.BoolVar(&s.gate, "gate", false, "check the goals in a short form, and write nothing")
	flags.BoolVar(&s.cluster, "cluster", false, "compare a client of a whole Redis Cluster with a client of one slot, and write nothing")
	flags.BoolVar(&s.list, "list", false, "list what would be measured")
	flags.BoolVar(&s.render, "render", false, "measure nothing: write the document and the charts from the results")
	flags.StringVar(&s.docs, "docs", "docs", "directory of benchmarks.md; empty writes no document")
	flags.StringVar(&s.results, "results", "", "file of the results (default results.json beside the charts)")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if s.only, err = regexp.Compile(*only); err != nil {
		return s, err
	}
	if s.options.Leases, err = splitInts(*leases); err != nil {
		return s, fmt.Errorf("-leases: %w", err)
	}
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case s.rounds < 1, s.options.Duration <= 0, s.options.TTL < time.Second:
		return s, errors.New("-count must be at least 1, -duration above 0, and -ttl at least 1s")
	}
	said := make(map[string]bool)
	flags.Visit(func(f *flag.Flag) { said[f.Name] = true })
	if s.gate {
		s.gateOnly(said)
	}
	if s.cluster {
		s.clusterOnly(said)
	}
	if s.results == "" && s.docs != "" {
		s.results = filepath.Join(s.docs, chartsName, "results.json")
	}
	return s, nil
}

// gateOnly sets the short form, except for flags that were given.
func (s *settings) gateOnly(said map[string]bool) {
	if !said["count"] {
		s.rounds = gateRounds
	}
	if !said["duration"] {
		s.options.Duration = gateDuration
	}
	s.options.Leases = []int{goals.ClosedLeases, goals.WatchedLeases}
	s.docs = "" // figures of so short a run are not for documents
}

// clusterOnly sets the conditions of a whole cluster's figures, except for flags that were given.
func (s *settings) clusterOnly(said map[string]bool) {
	if !said["count"] {
		s.rounds = 1 // the clients take turns in it
	}
	if !said["ttl"] {
		s.options.TTL = clusterTTL
	}
	if !said["leases"] {
		s.options.Leases = []int{clusterLeases}
	}
	s.docs = ""
}

func joinInts(numbers []int) string {
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = strconv.Itoa(n)
	}
	return strings.Join(texts, ",")
}

func splitInts(text string) ([]int, error) {
	var numbers []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		if n < 1 {
			return nil, fmt.Errorf("%d is below 1", n)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}

func run(ctx context.Context, args []string) error {
	s, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if s.render {
		return s.write(nil)
	}
	plan := newPlan(&s)
	if len(plan) == 0 {
		return fmt.Errorf("nothing matches %q", s.only)
	}
	if s.list {
		for _, j := range plan {
			fmt.Println(j)
		}
		return nil
	}
	sections, err := runPlan(ctx, &s, plan)
	if err != nil {
		return err
	}
	for i := range sections {
		if err := sections[i].Print(os.Stdout); err != nil {
			return err
		}
	}
	if s.gate {
		return judge(sections)
	}
	return s.write(sections)
}

var errGate = errors.New("goals are missed by more than a third")

// judge prints a line for each goal and fails if one is missed by too much.
func judge(sections []report.Section) error {
	failures, err := goals.Check(os.Stdout, goals.All(), &report.Results{Sections: sections})
	if err != nil {
		return err
	}
	if failures > 0 {
		return fmt.Errorf("%d %w", failures, errGate)
	}
	return nil
}

// write adds sections to the results and rewrites the document from all of them.
func (s *settings) write(sections []report.Section) error {
	if s.results == "" {
		return nil
	}
	results, err := report.Load(s.results)
	if err != nil {
		return err
	}
	var order []string
	for _, w := range workload.All(s.options) {
		order = append(order, w.Name)
	}
	for _, section := range sections {
		results.Put(section, order)
	}
	if s.docs != "" {
		if err := results.Write(filepath.Join(s.docs, "benchmarks.md"), chartsName); err != nil {
			return err
		}
	}
	if len(sections) == 0 {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(s.results), 0o755); err != nil {
		return err
	}
	return results.Save(s.results)
}

// command returns how to repeat a run.
func (s *settings) command() string {
	parts := []string{"make bench-peers", "COUNT=" + strconv.Itoa(s.rounds), "DURATION=" + s.options.Duration.String()}
	if !slices.Equal(s.options.Leases, workload.DefaultOptions().Leases) {
		parts = append(parts, "LEASES="+joinInts(s.options.Leases))
	}
	if only := s.only.String(); only != "." {
		parts = append(parts, "WORKLOADS='"+only+"'")
	}
	return strings.Join(parts, " ")
}
