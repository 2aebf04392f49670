package quorumlock_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The argument of docs/safety.md rests on every lemma, and on no other.
func TestTheArgumentNamesEachLemma(t *testing.T) {
	read := func(page string) string {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		return string(text)
	}
	var lemmas, named []string
	for _, title := range regexp.MustCompile(`(?m)^### (\w+)\. `).FindAllStringSubmatch(read("docs/lemmas.md"), -1) {
		lemmas = append(lemmas, title[1])
	}
	_, argument, _ := strings.Cut(read("docs/safety.md"), "\n## The argument\n")
	argument, _, _ = strings.Cut(argument, "\n## ")
	for _, letters := range regexp.MustCompile(`\(([A-Z]+\d?(?:, [A-Z]+\d?)*)\)`).FindAllStringSubmatch(argument, -1) {
		named = append(named, strings.Split(letters[1], ", ")...)
	}
	assert.NotEmpty(t, lemmas)
	assert.ElementsMatch(t, lemmas, named)
}
