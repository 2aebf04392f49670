package quorum_test

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var rewrite = flag.Bool("rewrite", false,
	"write the results into testdata; commit a changed line only if you can say why it is right")

// A golden file holds cases, separated by blank lines:
//
//	# What the case shows.
//	tally n=3
//	grant 0
//	grant 1
//	----
//	grant 0  pending
//	grant 1  won
//
// The first line of a case sets it up. Each line after it is a step. Below the bar each
// step is repeated, with its result on the right.

// line is a line of a case, split into words; words with "=" are named values.
type line struct {
	words []string
	named map[string]string
}

func parseLine(text string) line {
	l := line{named: map[string]string{}}
	for _, word := range strings.Fields(text) {
		if key, value, ok := strings.Cut(word, "="); ok {
			l.named[key] = value
		} else {
			l.words = append(l.words, word)
		}
	}
	return l
}

// nodes returns the words from the given one on as node indices.
func (l line) nodes(t *testing.T, from int) []int {
	t.Helper()
	var nodes []int
	for _, word := range l.words[from:] {
		nodes = append(nodes, number(t, word))
	}
	return nodes
}

func number(t *testing.T, word string) int {
	t.Helper()
	n, err := strconv.Atoi(word)
	if err != nil {
		t.Fatalf("not a number: %q", word)
	}
	return n
}

func duration(t *testing.T, word string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(word)
	if err != nil {
		t.Fatalf("not a duration: %q", word)
	}
	return d
}

// golden runs every case of testdata/name.txt. begin reads the first line of a case, and
// returns the function that runs its steps.
func golden(t *testing.T, name string, begin func(t *testing.T, head line) func(step line) string) {
	t.Helper()
	path := "testdata/" + name + ".txt"
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(strings.TrimRight(string(file), "\n"), "\n\n")
	for i, block := range blocks {
		comment, text := splitComment(block)
		if text == "" {
			continue
		}
		input, want, _ := strings.Cut(text, "\n----")
		steps := strings.Split(strings.TrimSpace(input), "\n")
		t.Run(title(comment), func(t *testing.T) {
			step := begin(t, parseLine(steps[0]))
			width := 0
			for _, s := range steps[1:] {
				width = max(width, utf8.RuneCountInString(s))
			}
			var got strings.Builder
			for _, s := range steps[1:] {
				fmt.Fprintf(&got, "\n%-*s  %s", width, s, step(parseLine(s)))
			}
			blocks[i] = comment + strings.Join(steps, "\n") + "\n----" + got.String()
			if !*rewrite && got.String() != want {
				t.Errorf("%s:\n%s\n----%s\n\nbut got%s", path, strings.Join(steps, "\n"), want, got.String())
			}
		})
	}
	if *rewrite {
		if err := os.WriteFile(path, []byte(strings.Join(blocks, "\n\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// splitComment splits the leading lines that start with # from the rest.
func splitComment(block string) (comment, text string) {
	text = block
	for strings.HasPrefix(text, "#") {
		_, text, _ = strings.Cut(text, "\n")
	}
	return block[:len(block)-len(text)], text
}

// title makes a test name of the first sentence of a comment.
func title(comment string) string {
	sentence := strings.ReplaceAll(strings.TrimPrefix(comment, "# "), "\n# ", " ")
	if end := strings.IndexAny(sentence, ".:;\n"); end > 0 {
		sentence = sentence[:end]
	}
	return sentence
}
