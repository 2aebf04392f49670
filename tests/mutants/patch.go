package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A planted bug is a patch below tests/mutants/patches, in a directory named like the file that it changes:
//
//	A reset is of one node.
//
//	Why: a lemma
//	Caught by: go test ./internal/hold -run 'TestAProofCountsAnswersSinceItWasLastWithdrawn$'
//
//	--- a/internal/hold/proof.go
//	+++ b/internal/hold/proof.go
//	@@ -31,3 +31,3 @@
//	 	default:
//	-		p.reset(now)
//	+		p.nodes = p.nodes.Without(i)
//	 	}
//
// The lines without a sign and with a minus must occur exactly once in the file; the line numbers are for readers and
// for git apply. Why is the reason that the patch is worth its lines: docs/lemmas.md names it ("a lemma"), it breaks a
// sentence of README.md, of doc.go or of an assumption ("a promise"), or it was in the code and a commit repaired it
// ("it happened, 160e762f").

// mutant is one planted bug.
type mutant struct {
	name  string // a sentence without its full stop
	patch string // path below the root of the repository
	file  string // the changed file, below the root
	why   string // why it stays
	hunks []hunk
	pkg   string // directory of the tests that must fail, below the root
	run   string // expression for -test.run
}

// hunk is one change: these lines become those.
type hunk struct{ before, after string }

// directory has the patches, below the root.
const directory = "tests/mutants/patches"

// load reads all patches, in the order of their paths.
func load(root string) (all []mutant, err error) {
	err = filepath.WalkDir(filepath.Join(root, directory), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		m, err := parse(filepath.ToSlash(relative), string(text))
		all = append(all, m)
		return err
	})
	return all, err
}

var (
	header = regexp.MustCompile(`^(.+)\.\n\nWhy: (a lemma|a promise|it happened, [0-9a-f]{8})\nCaught by: go test (\S+) -run '([^'\n]+)'\n\n--- a/(\S+)\n\+\+\+ b/(\S+)\n`)
	cut    = regexp.MustCompile(`(?m)^@@ .*@@.*\n`)
)

// parse reads one patch.
func parse(path, text string) (m mutant, err error) {
	head := header.FindStringSubmatch(text)
	if head == nil || head[5] != head[6] {
		return m, fmt.Errorf("%s: has no header; it is a sentence, a line \"Why: a lemma\", \"Why: a promise\" or \"Why: it happened, \" and the commit that mended it, a line \"Caught by: go test package -run 'tests'\", and --- a/file and +++ b/file", path)
	}
	m = mutant{name: head[1], why: head[2], patch: path, file: head[5], pkg: filepath.Clean(head[3]), run: head[4]}
	if want := directory + "/" + m.file; filepath.ToSlash(filepath.Dir(path)) != want {
		return m, fmt.Errorf("%s: is not in %s, the directory of the file that it changes", path, want)
	}
	hunks := cut.Split(text[len(head[0]):], -1)
	for _, lines := range hunks[1:] {
		var h hunk
		for line := range strings.Lines(lines) {
			switch line[0] {
			case ' ':
				h.before, h.after = h.before+line[1:], h.after+line[1:]
			case '-':
				h.before += line[1:]
			case '+':
				h.after += line[1:]
			default:
				return m, fmt.Errorf("%s: a line begins with none of space, plus and minus: %q", path, line)
			}
		}
		m.hunks = append(m.hunks, h)
	}
	if hunks[0] != "" || len(m.hunks) == 0 {
		return m, fmt.Errorf("%s: no @@ line behind the header", path)
	}
	return m, nil
}

// plant returns the file's content with the bug in it.
func (m *mutant) plant(content string) (string, error) {
	content = "\n" + content
	for _, h := range m.hunks {
		before, after := "\n"+h.before, "\n"+h.after
		first, last := strings.Index(content, before), strings.LastIndex(content, before)
		switch {
		case before == after:
			return "", fmt.Errorf("%s: changes nothing", m.patch)
		case first < 0:
			return "", fmt.Errorf("%s is stale: these lines are not in %s:%s", m.patch, m.file, before)
		case first != last:
			return "", fmt.Errorf("%s is ambiguous: these lines are more than once in %s:%s", m.patch, m.file, before)
		}
		content = strings.Replace(content, before, after, 1)
	}
	return content[1:], nil
}
