package quorumlock_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// translated are words that no native engineer would use here, or that have a plainer one: "must" for
// "has to", "continues" for "goes on", "ends" for "is over", "alongside" for "beside", a noun for "those of".
var translated = regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
	"nobody", "anybody", "somebody", "whoever", "(that|those) of", "(has|have|had) to", "go(es|ing|ne)? on", "went on",
	"(is|are|was|were) over", "be over", "beside", "besides", "obstacles?", "greet\\w*", "for ever", "of no grants?",
	"(is|are) no [a-z]+", "in the form that", "says? what shows", "mend(s|ed)?", "at the most", "is told", "gives no vote",
	"comes out", "in vain", "of which", "all the same",
}, "|") + `)\b|\bmeanwhile[.;:)]`)

// quotation is what others wrote: code, messages, names of planted bugs, and where links lead.
var quotation = regexp.MustCompile("(?s)```.*?```|`[^`]*`|\"[^\"]*\"|\\]\\([^)]*\\)|<!--.*?-->|(?m:^\\[[^]]+\\]: .*$)")

// natural are the uses of these words that are no translation.
var natural = regexp.MustCompile(`(?i)\bthere (is|are) no\b|\b(is|are) no (longer|more|larger|smaller|faster|busier)\b`)

func ofToday(path string) bool {
	return !strings.HasPrefix(path, filepath.Join("docs", "adr")) && !strings.HasPrefix(path, "spec") && path != "CHANGELOG.md"
}

func TestTheDocumentsSpeakPlainly(t *testing.T) {
	pages(t, func(path, text string) {
		if ofToday(path) {
			own := strings.Join(strings.Fields(quotation.ReplaceAllString(text, "")), " ")
			assert.Empty(t, translated.FindAllString(natural.ReplaceAllString(own, ""), -1), path)
		}
	})
}

// mostWords bounds the pages that have grown before. A reader of all of them needs two hours.
var mostWords = map[string]int{
	"README.md": 800, "docs/benchmarks.md": 1500, "docs/kubernetes.md": 700, "docs/reference.md": 2500, "docs/safety.md": 1500,
	"docs/reports/battery.md": 500, "docs/reports/failovers.md": 500, "docs/reports/soak.md": 500,
}

func TestThePagesAreShort(t *testing.T) {
	all := 0
	pages(t, func(path, text string) {
		if strings.HasPrefix(path, filepath.Join("docs", "adr")) || strings.HasPrefix(path, "spec") {
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
