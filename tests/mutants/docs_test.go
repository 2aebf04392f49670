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
)

var (
	testsInFile = regexp.MustCompile("((?:`Test\\w+`(?:, )?)+) \\((\\S+_test\\.go)\\)")
	testName    = regexp.MustCompile("`(Test\\w+)`")
	quoted      = regexp.MustCompile(`"([^"]+)"`)
	fileName    = regexp.MustCompile(`[\w/.-]+\.(?:go|lua|txt)\b`)
	identifier  = regexp.MustCompile("`(?:\\w+\\.)?(\\w+)`")
)

// A lemma is worth as much as its tests: docs/lemmas.md names them, and the planted bugs that show that they can fail.
// Each lemma has the same parts and its own name.
func TestEveryLemmaNamesTestsAndPlantedBugsThatExist(t *testing.T) {
	root, err := findRoot()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "docs/lemmas.md"))
	require.NoError(t, err)
	all, err := load(root)
	require.NoError(t, err)
	bugs, named := map[string]bool{}, map[string]bool{}
	for _, m := range all {
		bugs[strings.ToLower(m.name)] = true
	}
	lemmas := strings.Split(string(text), "\n### ")[1:]
	require.NotEmpty(t, lemmas)
	ids := map[string]bool{}
	for _, lemma := range lemmas {
		title, body, _ := strings.Cut(lemma, "\n")
		id, _, _ := strings.Cut(title, ". ")
		assert.False(t, ids[id], "two lemmas are called %s", id)
		ids[id] = true
		body = strings.ReplaceAll(body, "\n  ", " ") // an item of a list may have several lines
		for _, part := range []string{"\n**Claim.** ", "\n**Argument.**", "\n- Code: ", "\n- Tests: ", "\n- Planted bugs: "} {
			assert.Contains(t, body, part, title)
		}
		var tests, planted int
		for line := range strings.Lines(body) {
			switch {
			case strings.HasPrefix(line, "- Tests: "):
				for _, in := range testsInFile.FindAllStringSubmatch(line, -1) {
					source, err := os.ReadFile(filepath.Join(root, in[2]))
					require.NoError(t, err, title)
					for _, name := range testName.FindAllStringSubmatch(in[1], -1) {
						tests++
						assert.True(t, strings.Contains(string(source), "func "+name[1]+"("), "%s: no %s in %s", title, name[1], in[2])
					}
				}
				assert.Len(t, testName.FindAllString(line, -1), tests, "%s: tests that name no file", title)
			case strings.HasPrefix(line, "- Planted bugs: "):
				for _, name := range quoted.FindAllStringSubmatch(line, -1) {
					planted++
					named[strings.ToLower(name[1])] = true
					assert.Contains(t, bugs, strings.ToLower(name[1]), title)
				}
			}
		}
		assert.Positive(t, tests, title)
		assert.Positive(t, planted, title)
	}
	for _, m := range all {
		assert.Equal(t, named[strings.ToLower(m.name)], m.why == "a lemma", "%s says %q, and docs/lemmas.md is of another mind", m.patch, m.why)
	}
}

// Each patch is tied to lines, so a change of these lines requires a look at the patch. For rules without a lemma, a
// promise or a past, golden cases, the simulation and the differential are enough: ADR 58.
func TestThereAreAtMost300Patches(t *testing.T) {
	root, err := findRoot()
	require.NoError(t, err)
	all, err := load(root)
	require.NoError(t, err)
	assert.LessOrEqual(t, len(all), 300)
}

// docs/design.md names places in the code. A missing file or name would mislead its reader.
func TestTheDesignNamesFilesAndIdentifiersThatExist(t *testing.T) {
	root, err := findRoot()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "docs/design.md"))
	require.NoError(t, err)
	var files []string
	var code strings.Builder
	require.NoError(t, filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch hidden := strings.HasPrefix(entry.Name(), ".") && path != root; {
		case entry.IsDir() && (hidden || entry.Name() == "patches"):
			return filepath.SkipDir
		case entry.IsDir():
			return nil
		}
		files = append(files, "/"+filepath.ToSlash(path))
		if ext := filepath.Ext(path); ext == ".go" || ext == ".lua" {
			source, err := os.ReadFile(path)
			code.Write(source)
			return err
		}
		return nil
	}))
	named := fileName.FindAllString(string(text), -1)
	assert.Greater(t, len(named), 40)
	for _, name := range named {
		assert.True(t, slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, "/"+strings.TrimPrefix(name, "../")) }), "no file %s", name)
	}
	_, tables, found := strings.Cut(string(text), "\n## The house")
	require.True(t, found)
	names := identifier.FindAllStringSubmatch(tables, -1)
	assert.Greater(t, len(names), 20)
	for _, name := range names {
		assert.True(t, regexp.MustCompile(`\b`+name[1]+`\b`).MatchString(code.String()), "nothing is called %s", name[1])
	}
}
