package quorumlock_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// quotation matches quoted text: code, messages, names of planted bugs, and the targets of links.
var quotation = regexp.MustCompile("(?s)```.*?```|`[^`]*`|\"[^\"]*\"|\\]\\([^)]*\\)|<!--.*?-->|(?m:^\\[[^]]+\\]: .*$)")

func ofToday(path string) bool {
	return !strings.HasPrefix(path, filepath.Join("docs", "adr")) && !strings.HasPrefix(path, "spec") && path != "CHANGELOG.md"
}

func TestTheDocumentsSpeakPlainly(t *testing.T) {
	pages(t, func(path, text string) {
		if ofToday(path) {
			own := strings.Join(strings.Fields(quotation.ReplaceAllString(text, "")), " ")
			assert.Empty(t, translated(own), path)
		}
	})
}

// mostWords bounds the pages that have grown before. A reader of all of them needs two hours.
var mostWords = map[string]int{
	"README.md": 800, "docs/benchmarks.md": 1500, "docs/kubernetes.md": 700, "docs/reference.md": 2500, "docs/safety.md": 1500,
	"docs/reports/battery.md": 500, "docs/reports/failovers.md": 500, "docs/verification.md": 700,
}

func TestThePagesAreShort(t *testing.T) {
	all := 0
	pages(t, func(path, text string) {
		if !ofToday(path) { // the changelog grows with each release
			return
		}
		words := len(strings.Fields(text))
		all += words
		if most, ok := mostWords[filepath.ToSlash(path)]; ok {
			assert.LessOrEqual(t, words, most, path)
		}
	})
	assert.LessOrEqual(t, all, 25_000)
}
