package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// This test finds stale patches, because make mutants takes minutes. A change of a line that a patch names must also
// update the bug.
func TestNoPatchIsStale(t *testing.T) {
	root, err := findRoot()
	require.NoError(t, err)
	all, err := load(root)
	require.NoError(t, err)
	l, err := newLab(root, all, 1)
	require.NoError(t, err)
	l.close()
	names := map[string]bool{}
	for _, m := range all {
		assert.False(t, names[m.name], "two planted bugs are called %q", m.name)
		names[m.name] = true
		top, _, _ := strings.Cut(m.run, "/")
		assert.True(t, slices.ContainsFunc(testsOf(t, filepath.Join(root, m.pkg)), regexp.MustCompile(top).MatchString),
			"%s: no test of %s is called %s", m.patch, m.pkg, m.run)
	}
}

var testFunction = regexp.MustCompile(`(?m)^func (Test\w+|Fuzz\w+)\(`)

// testsOf returns the names of the tests in a directory.
func testsOf(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range testFunction.FindAllStringSubmatch(string(text), -1) {
			names = append(names, found[1])
		}
	}
	return names
}

const patch = `It adds where it should not.

Why: it happened, 160e762f
Caught by: go test ./internal/quorum -run 'TestTally$'

--- a/f.go
+++ b/f.go
@@ -1,3 +1,3 @@ func f() {
 	x
-	y
+	z
@@ -9,1 +9,2 @@
 	last
+	more
`

func TestAPatchChangesOnePlaceForEachHunk(t *testing.T) {
	m, err := parse(directory+"/f.go/it.patch", patch)
	require.NoError(t, err)
	assert.Equal(t, mutant{
		name: "It adds where it should not", why: "it happened, 160e762f", patch: directory + "/f.go/it.patch", file: "f.go", pkg: "internal/quorum", run: "TestTally$",
		hunks: []hunk{{"\tx\n\ty\n", "\tx\n\tz\n"}, {"\tlast\n", "\tlast\n\tmore\n"}},
	}, m)
	planted, err := m.plant("\tx\n\ty\nmiddle\n\tlast\n")
	require.NoError(t, err)
	assert.Equal(t, "\tx\n\tz\nmiddle\n\tlast\n\tmore\n", planted)
	for content, problem := range map[string]string{
		"": "stale", "\tx\n\ty\n": "stale", "\tlast\n": "stale", "\t\tx\n\ty\n\tlast\n": "stale",
		"\tx\n\ty\n\tx\n\ty\n\tlast\n": "ambiguous",
	} {
		_, err := m.plant(content)
		assert.ErrorContains(t, err, problem, "%q", content)
	}
	m.hunks = []hunk{{"a\n", "a\n"}}
	_, err = m.plant("a\n")
	assert.ErrorContains(t, err, "changes nothing")
}

func TestABadPatchIsRefusedByName(t *testing.T) {
	for claim, text := range map[string]string{
		"no header":      strings.Replace(patch, "Caught by: ", "By: ", 1),
		"no reason":      strings.Replace(patch, "it happened, 160e762f", "it may happen", 1),
		"two files":      strings.Replace(patch, "+++ b/f.go", "+++ b/g.go", 1),
		"no hunk":        strings.SplitN(patch, "@@", 2)[0],
		"text before @@": strings.Replace(patch, "@@ -1", " x\n@@ -1", 1),
		"a bare line":    patch + "bare\n",
		"another place":  strings.ReplaceAll(patch, "f.go", "g.go"),
	} {
		_, err := parse(directory+"/f.go/it.patch", text)
		assert.ErrorContains(t, err, directory+"/f.go/it.patch: ", claim)
	}
}

// A changed script must keep its length in the binary and the numbers of its lines.
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
		"=== RUN   TestA\npanic: Fail in goroutine after TestA/one has completed\n\ngoroutine 7 [running]:\n":                  "TestA/one",
	} {
		assert.Equal(t, want, failed(output), output)
	}
}

// The whole way, with a bug in a file of the tests' own package and with a change that isn't a bug.
func TestTheGateTellsACaughtMutantFromOneThatSurvives(t *testing.T) {
	if testing.Short() {
		t.Skip("builds test binaries")
	}
	root, err := findRoot()
	require.NoError(t, err)
	bug := func(name, after string) mutant {
		return mutant{name: name, file: "internal/quorum/tally.go", pkg: "internal/quorum", run: "TestTally$",
			hunks: []hunk{{"func Size(n int) int { return n/2 + 1 }\n", "func Size(n int) int { return " + after + " }\n"}}}
	}
	l, err := newLab(root, []mutant{bug("caught", "n / 2"), bug("harmless", "1 + n/2"), bug("broken", "n/2 +")}, 1)
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
