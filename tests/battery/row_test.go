package battery

import (
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/quorumlock/quorumlock/internal/testkit"
)

// full reports whether this is "make battery", with the counts in the table of docs/reports/battery.md. Otherwise the
// counts are small enough for every CI run.
var full = os.Getenv("QUORUMLOCK_BATTERY") == "full"

// eachNight skips a row that takes too long for make test. make test-nightly runs its small form, and make battery the
// full one.
func eachNight(t *testing.T) {
	t.Helper()
	if !full {
		testkit.OnlyNightly(t, "the row takes 7 s or more of two processors")
	}
}

// count returns how often a row repeats its case.
func count(inFull, inCI int) int {
	if full {
		return inFull
	}
	return inCI
}

// row is one line of the table: a case, and figures with a bar each.
type row struct {
	t    *testing.T
	name string
	mu   sync.Mutex
	any  bool
}

// newRow begins a row. The test fails if the row never measures a figure.
func newRow(t *testing.T, name string) *row {
	t.Helper()
	r := &row{t: t, name: name}
	if full {
		t.Cleanup(watchHost(name))
	}
	t.Cleanup(func() {
		if !r.any && !t.Failed() {
			t.Errorf("row %q measured nothing", name)
		}
	})
	return r
}

// figure prints a line: the measured figure, the bar, and whether the figure reached it.
// A missed bar fails the test.
func (r *row) figure(figure, bar string, pass bool) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.any = true
	verdict := "pass"
	if !pass {
		verdict = "FAIL"
		r.t.Errorf("%s: %s, bar: %s", r.name, figure, bar)
	}
	fmt.Printf("| %s | %s | %s | %s |\n", r.name, figure, bar, verdict)
}
