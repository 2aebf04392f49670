// Command mutants plants known bugs, one at a time, and demands that the tests catch each of them: make mutants. A test
// that cannot fail proves nothing, and this command shows that ours can.
//
// There are two kinds. Some are permanent switches in the simulation (internal/sim). The others are patches of the
// production files, Go and Lua, below patches/; they are applied in an overlay of the build and never in the tree. Each
// names the tests that must fail; these also run without it, and must pass. There are at most 300 patches:
// docs/adr/0058-at-most-300-patches.md defines which bugs are worth one.
//
// It prints a table, and ends with 1 unless every bug was caught. A patch whose lines are no longer in its file is
// stale. That is as bad as a patch that no test catches, and needs a repair by hand.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"time"

	"github.com/quorumlock/quorumlock/internal/sim"
)

func main() {
	names := flag.String("run", "", "only mutants whose name matches this expression, in either case")
	files := flag.String("in", "", "only mutants in files that match this expression, and none of the simulation")
	parallel := flag.Int("p", runtime.GOMAXPROCS(0), "how many at a time")
	verbose := flag.Bool("v", false, "show what the tests said")
	flag.Parse()
	only, err := regexp.Compile("(?i)" + *names)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	in, err := regexp.Compile(*files)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	ok, err := run(ctx, only, in, *parallel, *verbose)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// row is one line of the table.
type row struct{ name, where, by, verdict string }

const caught = "caught"

func (r row) print() { fmt.Printf("%-52s  %-36s  %-76s  %s\n", r.name, r.where, r.by, r.verdict) }

// run judges every selected mutant, and reports whether all were caught.
func run(ctx context.Context, only, in *regexp.Regexp, parallel int, verbose bool) (bool, error) {
	began := time.Now()
	root, err := findRoot()
	if err != nil {
		return false, err
	}
	all, err := load(root)
	if err != nil {
		return false, err
	}
	var wanted []mutant
	for _, m := range all {
		if only.MatchString(m.name) && in.MatchString(m.file) {
			wanted = append(wanted, m)
		}
	}
	lab, err := newLab(root, wanted, parallel)
	if err != nil {
		return false, err
	}
	defer lab.close()
	if err := lab.prepare(ctx); err != nil {
		return false, err
	}
	ready := time.Since(began)

	row{"mutant", "planted in", "caught by", "verdict"}.print()
	total, good := 0, 0
	count := func(r row) {
		r.print()
		if total++; r.verdict == caught {
			good++
		}
	}
	for _, result := range lab.judge(ctx) {
		r := <-result
		count(r.row)
		if verbose {
			fmt.Println(r.output)
		}
	}
	if in.String() == "" {
		simulate(only, count)
	}
	if total == 0 {
		return false, fmt.Errorf("no mutant is named like %q", only)
	}
	fmt.Printf("%d of %d mutants caught (%d %%), in %v, of which %v for the tests without them\n",
		good, total, good*100/total, time.Since(began).Round(time.Second), ready.Round(time.Second))
	return good == total, ctx.Err()
}

// simulate plants the bugs of the simulation.
func simulate(only *regexp.Regexp, count func(row)) {
	runner := sim.NewRunner()
	for _, plant := range sim.Plants() {
		if !only.MatchString(plant.Bug.String()) {
			continue
		}
		r := row{name: plant.Bug.String(), where: "simulation, " + plant.World.String(), verdict: caught}
		if result, err := runner.Catch(plant); err != nil {
			r.verdict = "SURVIVED: " + err.Error()
		} else {
			r.by = fmt.Sprintf("%s, seed %d with %d nodes", result.Violation.Oracle, result.Seed, result.Nodes)
		}
		count(r)
	}
}
