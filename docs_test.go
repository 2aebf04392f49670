package quorumlock_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Whoever copies a program from the first page gets one that was compiled: it stands in an example.
func TestSnippetsOfTheFirstPageAreCompiled(t *testing.T) {
	var compiled strings.Builder
	require.NoError(t, filepath.WalkDir("examples", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		compiled.Write(text)
		return err
	}))
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, snippets)
	for _, s := range snippets {
		assert.Contains(t, compiled.String(), s[1])
	}
}

// The first page is short: options stand in the comments of the code, and the rest in docs.
func TestTheFirstPageIsShort(t *testing.T) {
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	assert.LessOrEqual(t, len(strings.Fields(string(page))), 800)
}
