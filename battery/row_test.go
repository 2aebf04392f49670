package battery

import (
	"fmt"
	"os"
	"sync"
	"testing"
)

// full is whether this is "make battery": counts as in the table of
// docs/testing.md. Otherwise they are small enough for every CI run.
var full = os.Getenv("QUORUMLOCK_BATTERY") == "full"

// count returns how often a row repeats its case.
func count(inFull, inCI int) int {
	if full {
		return inFull
	}
	return inCI
}

// row is one line of the table: a case, and figures that each have a bar.
type row struct {
	t    *testing.T
	name string
	mu   sync.Mutex
	any  bool
}

// newRow begins a row. It fails the test if no figure was ever measured.
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

// figure prints a line: what was measured, the bar, and whether it was
// reached. A bar that was not reached fails the test.
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
