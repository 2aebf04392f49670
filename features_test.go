package quorumlock_test

import (
	"flag"
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var rewriteFeatures = flag.Bool("rewrite", false, "write the files of each feature into testdata/features.txt, if the code says others")

// kindFiles is how many production files mention each kind of lock: the exact number, so that it can only go down. 8
// are enough: the option, the operation and its room in Lua, the decision, the kind in campaign.
var kindFiles = map[string]int{
	"shared lease":   37,
	"permit":         17,
	"resumed handle": 15,
}

// notProduction are rooms that no user's program runs.
var notProduction = []string{"internal/sim", "internal/redistest", "internal/testkit", "internal/testkit/clustercases", "internal/wire/conformance"}

// onTheAPI are rooms made from the public API: a change of a feature changes them no more than any user's program.
var onTheAPI = []string{"spread", "spread/internal/balance", "web"}

// A change of a feature needs a look at each of its files. The list is generated, so it is complete.
func TestTheListHasTheFilesOfEachFeature(t *testing.T) {
	const list = "testdata/features.txt"
	text, err := os.ReadFile(list)
	require.NoError(t, err)
	source := productionSource(t)
	kinds := map[string]int{}
	lines := strings.Split(string(text), "\n")
	features := 0
	for i, line := range lines {
		parts := strings.Split(line, " | ")
		if len(parts) != 3 {
			continue // a comment
		}
		features++
		files := filesWith(source, strings.Split(parts[1], " "))
		if _, isKind := kindFiles[parts[0]]; isKind {
			kinds[parts[0]] = len(files)
		}
		right := fmt.Sprintf("%s | %s | %s", parts[0], parts[1], strings.Join(files, ", "))
		if !*rewriteFeatures {
			assert.Equal(t, right, line, "run go test . -run TheFilesOfEachFeature -rewrite, and look whether the feature should be there")
		}
		lines[i] = right
	}
	assert.Greater(t, features, 30)
	assert.Equal(t, kindFiles, kinds, "the files of a kind: fewer are a new bar, and more are too many")
	if *rewriteFeatures {
		require.NoError(t, os.WriteFile(list, []byte(strings.Join(lines, "\n")), 0o644))
	}
}

// filesWith returns the files that have one of the words in part of a name.
func filesWith(source map[string][]string, words []string) (files []string) {
	word := regexp.MustCompile(strings.Join(words, "|"))
	for file, names := range source {
		if slices.ContainsFunc(names, word.MatchString) {
			files = append(files, strings.TrimPrefix(file, "internal/"))
		}
	}
	slices.Sort(files)
	return files
}

// productionSource returns the names in each production file: identifiers, and texts of one word, such as the name of
// an operation. Comments and sentences do not count.
func productionSource(t *testing.T) map[string][]string {
	t.Helper()
	source := map[string][]string{}
	root, err := os.Getwd()
	require.NoError(t, err)
	for _, pkg := range packages(t) {
		room, err := filepath.Rel(root, pkg.Dir)
		require.NoError(t, err)
		if slices.Contains(notProduction, room) || slices.Contains(onTheAPI, room) {
			continue
		}
		for _, name := range pkg.GoFiles {
			path := filepath.Join(room, name)
			source[path] = goNames(t, path)
		}
	}
	scripts, err := filepath.Glob("internal/wire/lua/*.lua")
	require.NoError(t, err)
	comment, name := regexp.MustCompile(`--.*`), regexp.MustCompile(`[A-Za-z_]+`)
	for _, path := range scripts {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		source[path] = name.FindAllString(comment.ReplaceAllString(string(text), ""), -1)
	}
	return source
}

func goNames(t *testing.T, path string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var s scanner.Scanner
	fset := token.NewFileSet()
	s.Init(fset.AddFile(path, -1, len(text)), text, nil, 0)
	for {
		_, kind, literal := s.Scan()
		switch {
		case kind == token.EOF:
			slices.Sort(names)
			return slices.Compact(names)
		case kind == token.IDENT:
			names = append(names, literal)
		case kind == token.STRING && !strings.ContainsAny(literal, " /"):
			names = append(names, strings.Trim(literal, "\"`"))
		}
	}
}
