package quorumlock_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// patterns read as translated, or have a plainer word.
var patterns = []struct {
	text    *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`(?i)\b(no|any|some)body\b`), "name the subject"},
	{regexp.MustCompile(`(?i)\b(that|those) of\b`), "repeat the noun"},
	{regexp.MustCompile(`(?i)\b(has|have|had) to\b`), "must"},
	{regexp.MustCompile(`(?i)\b(go|goes|going|gone|went) on\b`), "continue"},
	{regexp.MustCompile(`(?i)\b(is|are|was|were) over\b`), "ends, has ended"},
	{regexp.MustCompile(`(?i)\b(is|are|was|were) no [a-z]+`), "is not a"},
	{regexp.MustCompile(`(?i)\b(beside|besides)\b`), "alongside, next to"},
	{regexp.MustCompile(`(?i)\bobstacles?\b`), "cause"},
	{regexp.MustCompile(`(?i)\bgreet[a-z]*\b`), "connect to"},
	{regexp.MustCompile(`(?i)\bfor ever\b`), "forever"},
	{regexp.MustCompile(`(?i)\bmeanwhile[.;:)]`), "name the time"},
	{regexp.MustCompile(`(?i)\bwho(ever|so)\b`), "name the subject"},
	{regexp.MustCompile(`(?i)\b(is|are|be) told\b`), "say who reports it"},
	{regexp.MustCompile(`(?i)\b(as (they|it) (have|has)\b[.,;]|stands? still for longer)`), "say it in full"},
	{regexp.MustCompile(`(?i)\b(in vain|at the most|gives no vote|mend(s|ed)?|comes out|of no grants?|in the form that|says? what shows)\b`), "a plainer word"},
}

// plain are matches of a pattern that are plain English all the same.
var plain = regexp.MustCompile(`(?i)^(there (is|are|was|were) no [a-z]+|[a-z]* ?(is|are|was|were) no (longer|more|less|larger|later|different|older)|[a-z]* ?for every)$`)

// translated returns the phrases of a text that a native engineer would not write, and what to write instead. Names of
// the code, in allowed, are not phrases.
func translated(text string, allowed ...string) (found []string) {
	text = strings.Join(strings.Fields(text), " ")
	for _, p := range patterns {
		for _, at := range p.text.FindAllStringIndex(text, -1) {
			before := text[:at[0]]
			word := before[strings.LastIndexByte(strings.TrimSuffix(before, " "), ' ')+1:]
			quoted := strings.HasSuffix(before, `"`) && strings.HasPrefix(text[at[1]:], `"`) // a value, and no prose
			if match := text[at[0]:at[1]]; !quoted && !plain.MatchString(word+match) && !plain.MatchString(match) && !slices.Contains(allowed, match) {
				found = append(found, fmt.Sprintf("%q (%s) in …%s…", match, p.instead, text[max(0, at[0]-40):min(len(text), at[1]+30)]))
			}
		}
	}
	return found
}

func TestTranslatedPhrasesAreFound(t *testing.T) {
	for text, want := range map[string]int{
		"Nobody has to go\non.": 3, "It is no error.": 1, "There is no error, and it is no longer held.": 0,
		"The wait is over, and those of others are over.": 3, "A whole line for every node": 0, "It waits for ever": 1, "another one has it meanwhile.": 1,
		"A majority grants the lease.": 0,
	} {
		assert.Len(t, translated(text), want, text)
	}
}

// read are the directories with what users read: on pkg.go.dev, in errors, in logs and in the command's output.
var read = []string{".", "election", "spread", "web", "adapters", "quorumlocktest", "fence", "cmd", "examples"}

// inside are the directories that only maintainers read. Their comments may use the code's own words.
var inside = []string{"internal", "tests", "interop", "benchmarks"}

// sources calls see with each file of a directory and its subdirectories, except for tests. In the root it skips
// subdirectories.
func sources(t *testing.T, dir string, see func(path string, set *token.FileSet, file *ast.File)) {
	t.Helper()
	files(t, dir, func(path string, set *token.FileSet, file *ast.File) {
		if !strings.HasSuffix(path, "_test.go") {
			see(path, set, file)
		}
	})
}

// files is sources with tests.
func files(t *testing.T, dir string, see func(path string, set *token.FileSet, file *ast.File)) {
	t.Helper()
	set := token.NewFileSet()
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && (dir == "." || d.Name() == "node_modules"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		file, err := parser.ParseFile(set, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		see(path, set, file)
		return nil
	}))
}

func TestTheCodeSpeaksPlainly(t *testing.T) {
	forTests := regexp.MustCompile(`^internal/(sim|testkit|redistest|wire/conformance)/`)
	for _, dir := range append(slices.Clone(read), "internal") { // of internal the texts: errors of nodes and lines of the log
		sources(t, dir, func(path string, set *token.FileSet, file *ast.File) {
			check := func(at token.Pos, text string) {
				if forTests.MatchString(filepath.ToSlash(path)) {
					return
				}
				for _, phrase := range translated(text) {
					t.Errorf("%v: %s", set.Position(at), phrase)
				}
			}
			if dir != "internal" {
				for _, group := range file.Comments {
					check(group.Pos(), group.Text())
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING && strings.Contains(literal.Value, " ") { // else a value
					text, err := strconv.Unquote(literal.Value)
					require.NoError(t, err)
					check(literal.Pos(), text)
				}
				return true
			})
		})
	}
}

func TestTheCommentsInsideSpeakPlainly(t *testing.T) {
	for _, dir := range inside {
		files(t, dir, func(_ string, set *token.FileSet, file *ast.File) {
			names := []string{"greet", "greets", "greeted", "greeter", "greeting", "greetings", "Obstacle"} // see internal/node, internal/queue
			ast.Inspect(file, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					names = append(names, id.Name)
				}
				return true
			})
			for _, group := range file.Comments {
				for _, phrase := range translated(group.Text(), names...) {
					t.Errorf("%v: %s", set.Position(group.Pos()), phrase)
				}
			}
		})
	}
}

// Scripts, settings and forms, which `make help`, a cluster or a contributor shows.
func TestSettingsAndScriptsSpeakPlainly(t *testing.T) {
	margin := regexp.MustCompile(`(?m)^\s*(#|--) ?`)
	for _, pattern := range []string{"Makefile", ".github/*.yml", ".github/*/*.yml", "examples/*/*.yaml", "docs/grafana/alerts.yaml", "docs/redis.conf", "scripts/*.sh"} {
		paths, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, paths, pattern)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Empty(t, translated(margin.ReplaceAllString(string(text), "")), path)
		}
	}
}

// pkg.go.dev shows these comments. An example next to a comment has a part of the information.
func TestDocCommentsAreShort(t *testing.T) {
	const most, mostWithExample, mostOfThePackage = 120, 200, 1000
	for _, dir := range []string{".", "election", "spread", "web", "adapters", "fence", "quorumlocktest"} {
		sources(t, dir, func(path string, set *token.FileSet, file *ast.File) {
			if strings.Contains(path, "internal") {
				return
			}
			check := func(name string, doc *ast.CommentGroup, most int) {
				if words := len(strings.Fields(doc.Text())); words > most {
					t.Errorf("%v: the comment of %s has %d words: shorten it to %d", set.Position(doc.Pos()), name, words, most)
				}
			}
			check("package "+file.Name.Name, file.Doc, mostOfThePackage)
			for name, doc := range documented(file) {
				bound := most
				if hasExample(t, filepath.Dir(path), name) {
					bound = mostWithExample
				}
				check(name, doc, bound)
			}
		})
	}
}

// hasExample reports whether the tests of a package have an example of a name, which has the form
// Type_Method for a method.
func hasExample(t *testing.T, dir, name string) bool {
	t.Helper()
	tests, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	return slices.ContainsFunc(tests, func(path string) bool {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return strings.Contains(string(text), "\nfunc Example"+name+"() {")
	})
}

// documented returns the comments of the exported functions, methods, types, constants, variables and fields.
func documented(file *ast.File) map[string]*ast.CommentGroup {
	docs := map[string]*ast.CommentGroup{}
	add := func(doc *ast.CommentGroup, prefix string, names ...*ast.Ident) {
		if doc != nil && slices.ContainsFunc(names, (*ast.Ident).IsExported) {
			docs[prefix+names[0].Name] = doc
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Doc, receiver(n), n.Name)
			return false
		case *ast.GenDecl:
			if n.Tok == token.TYPE && len(n.Specs) == 1 {
				add(n.Doc, "", n.Specs[0].(*ast.TypeSpec).Name) //nolint:forcetypeassert // of the token TYPE
			}
		case *ast.TypeSpec:
			add(n.Doc, "", n.Name)
		case *ast.ValueSpec:
			add(n.Doc, "", n.Names...)
		case *ast.Field:
			if len(n.Names) > 0 {
				add(n.Doc, "", n.Names...)
			}
		}
		return true
	})
	return docs
}

// receiver returns the type of a method and an underscore, "" for a function.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	of := f.Recv.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	return types.ExprString(of) + "_"
}

// The reader of an error or a log line has no copy of the repository at hand.
func TestPagesInMessagesHaveAFullAddress(t *testing.T) {
	const repository = "https://github.com/quorumlock/quorumlock/blob/main/"
	page := regexp.MustCompile(`\S*\bdocs/[a-z/-]+\.md`)
	found := 0
	for _, dir := range append([]string{"internal"}, read...) {
		sources(t, dir, func(_ string, set *token.FileSet, file *ast.File) {
			ast.Inspect(file, func(n ast.Node) bool {
				if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
					for _, name := range page.FindAllString(literal.Value, -1) {
						found++
						assert.Contains(t, name, repository, "%v", set.Position(literal.Pos()))
					}
				}
				return true
			})
		})
	}
	assert.Positive(t, found)
}
