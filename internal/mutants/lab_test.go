package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Found here and not only by the gate, which takes minutes: whoever changes a
// line that a mutant names has to say what the bug looks like now.
func TestNoMutantIsStale(t *testing.T) {
	l, err := newLab(all(), 1)
	require.NoError(t, err)
	l.close()
	names := map[string]bool{}
	for _, m := range all() {
		assert.False(t, names[m.name], "two mutants are called %q", m.name)
		names[m.name] = true
		assert.DirExists(t, filepath.Join(l.root, m.pkg))
	}
}

func TestAMutantChangesOnePlaceOfItsFile(t *testing.T) {
	m := mutant{name: "m", file: "f", old: "a + b", new: "a - b"}
	planted, err := m.plant("x := a + b\n")
	require.NoError(t, err)
	assert.Equal(t, "x := a - b\n", planted)
	for _, content := range []string{"", "x := a+b", "a + b; a + b"} {
		_, err := m.plant(content)
		assert.ErrorContains(t, err, "stale", content)
	}
	m.new = m.old
	_, err = m.plant("a + b")
	assert.Error(t, err)
}

// The text of a script has its place in the binary, and its lines their numbers.
func TestAScriptWithABugIsAsLongAsOneWithout(t *testing.T) {
	const script = "-- one\n--\n-- two\ncall()\n"
	for planted, want := range map[string]string{
		script:                                script,
		"-- one\n--\n-- two\ncal()\n":         "-- one\n--\n-- two\ncal()\n ",
		"-- one\n--\n-- two\ncall(12)\n":      "--ne\n--\n-- two\ncall(12)\n",
		"-- one\n--\n-- two\ncall(1234567)\n": "--\n--\n--o\ncall(1234567)\n",
	} {
		got, err := fit([]byte(planted), len(script))
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
		assert.Len(t, got, len(script))
	}
	_, err := fit([]byte("-- one\ncall(123456789)\n"), 10)
	require.Error(t, err)
}

func TestOnlyAFailedTestCatchesAMutant(t *testing.T) {
	for output, want := range map[string]string{
		"=== RUN   TestA\n--- PASS: TestA (0.00s)\nPASS\n":                                                                     "",
		"panic: no script\n\ngoroutine 1 [running]:\n":                                                                         "",
		"--- FAIL: TestA (0.01s)\n    a_test.go:7: wrong\n":                                                                    "TestA",
		"--- FAIL: TestA (0.01s)\n    --- PASS: TestA/one (0.00s)\n    --- FAIL: TestA/two (0.00s)\n--- FAIL: TestB (0.00s)\n": "TestA/two",
		"panic: test timed out after 1m0s\n\trunning tests:\n\t\tTestA (1m0s)\n":                                               "TestA (hangs)",
	} {
		assert.Equal(t, want, failed(output), output)
	}
}

// The whole way, with a bug in a file of the tests' own package and with one
// that is none.
func TestTheGateTellsACaughtMutantFromOneThatSurvives(t *testing.T) {
	if testing.Short() {
		t.Skip("builds test binaries")
	}
	const pkg, run = "internal/quorum", "TestTally$"
	l, err := newLab([]mutant{
		{name: "caught", file: "internal/quorum/tally.go", old: "n/2 + 1", new: "n / 2", pkg: pkg, run: run},
		{name: "harmless", file: "internal/quorum/tally.go", old: "n/2 + 1", new: "1 + n/2", pkg: pkg, run: run},
		{name: "broken", file: "internal/quorum/tally.go", old: "n/2 + 1", new: "n/2 +", pkg: pkg, run: run},
	}, 1)
	require.NoError(t, err)
	defer l.close()
	require.NoError(t, l.prepare(t.Context()))
	var verdicts []string
	for _, result := range l.judge(t.Context()) {
		verdicts = append(verdicts, (<-result).verdict)
	}
	assert.Equal(t, []string{caught, "SURVIVED", "DOES NOT COMPILE"}, verdicts)

	l.mutants[0].run = "TestThatIsNot$"
	assert.ErrorContains(t, l.prepare(t.Context()), "names no test")
	l.close()
	_, err = os.Stat(l.work)
	assert.ErrorIs(t, err, os.ErrNotExist)
}
