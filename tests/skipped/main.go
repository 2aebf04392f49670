// Command skipped prints, as the last line of make test, how many tests were skipped and why. Its arguments are the
// files that gotestsum --jsonfile wrote.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// event is a line of go test -json.
type event struct{ Action, Package, Test, Output string }

// message matches the output of t.Skip: the file, the line and the reason.
var message = regexp.MustCompile(`^\s+\S+\.go:\d+: (.*)`)

// count adds the skipped tests of one file to the reasons. The reason of a test is the last message that it printed,
// cut after the target that runs it.
func count(from io.Reader, reasons map[string]int) error {
	said := map[event]string{}
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
		test := event{Package: e.Package, Test: e.Test}
		switch found := message.FindStringSubmatch(e.Output); {
		case e.Test == "":
		case found != nil:
			said[test] = found[1]
		case e.Action == "skip":
			target, _, elsewhere := strings.Cut(said[test], " runs it: ")
			if elsewhere {
				target += " runs it"
			}
			reasons[cmp.Or(target, "no reason given")]++
		case e.Action == "pass" || e.Action == "fail":
			delete(said, test)
		}
	}
}

// summary returns one line: the number of skipped tests, and the reasons, most frequent first.
func summary(reasons map[string]int) string {
	total := 0
	var parts []string
	for _, reason := range slices.SortedFunc(maps.Keys(reasons), func(a, b string) int {
		return cmp.Or(reasons[b]-reasons[a], cmp.Compare(a, b))
	}) {
		total += reasons[reason]
		parts = append(parts, fmt.Sprintf("%d (%s)", reasons[reason], reason))
	}
	if total == 0 {
		return "no test was skipped"
	}
	return fmt.Sprintf("%d tests were skipped: %s", total, strings.Join(parts, ", "))
}

func main() {
	reasons := map[string]int{}
	for _, name := range os.Args[1:] {
		file, err := os.Open(name)
		if err == nil {
			err = count(file, reasons)
			_ = file.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "skipped:", err)
			os.Exit(1)
		}
	}
	fmt.Println(summary(reasons))
}
