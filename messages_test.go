package quorumlock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
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

// Users look up a warning of the log in docs/reference.md.
func TestEachMessageOfTheLogIsInTheReference(t *testing.T) {
	page, err := os.ReadFile("docs/reference.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "\n## Warnings in the log\n")
	section, _, _ = strings.Cut(section, "\n## ")
	section = regexp.MustCompile(`\s+`).ReplaceAllString(section, " ")
	var quoted []string
	for _, span := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(section, -1) {
		if strings.Contains(strings.Trim(span[1], "… "), " ") { // not a field of a message
			quoted = append(quoted, span[1])
		}
	}
	messages := logged(t)
	require.Greater(t, len(messages), 15)
	for _, message := range messages {
		assert.True(t, says(quoted, message), "docs/reference.md does not name the warning %q", message)
	}
	for _, text := range quoted {
		if strings.Contains(section, " `"+text+"`: ") && !says([]string{text}, messages...) && !written(t, text) {
			t.Errorf("docs/reference.md names %q, which the library does not log", text)
		}
	}
}

// says reports whether one of the texts quotes one of the messages. An ellipsis stands for what is left out.
func says(texts []string, messages ...string) bool {
	for _, text := range texts {
		parts := strings.Split(text, "…")
		for i, part := range parts {
			parts[i] = regexp.QuoteMeta(strings.TrimSpace(part))
		}
		pattern := regexp.MustCompile("^" + strings.Join(parts, ".*") + "$")
		for _, message := range messages {
			if pattern.MatchString(message) {
				return true
			}
		}
	}
	return false
}

// library calls see with each file of the root and of internal, and its path.
func library(t *testing.T, see func(path string, text []byte)) {
	t.Helper()
	for _, root := range []string{".", "internal"} {
		require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && path != root && (root == "." || d.Name() == "testkit" || d.Name() == "redistest" || d.Name() == "sim"):
				return filepath.SkipDir
			case d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			text, err := os.ReadFile(path)
			see(path, text)
			return err
		}))
	}
}

// logged returns the messages that the library logs, without its name.
func logged(t *testing.T) (messages []string) {
	t.Helper()
	library(t, func(path string, text []byte) {
		file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || method.Sel.Name != "Warn" && method.Sel.Name != "Info" && method.Sel.Name != "Error" {
				return true
			}
			if message := literal(call.Args[0]); message != "" && message != "quorumlock: " {
				messages = append(messages, strings.TrimPrefix(message, "quorumlock: "))
			}
			return true
		})
	})
	return messages
}

// literal returns the text of a literal, or of a sum of literals; "" for other parts.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	}
	return ""
}

// written reports whether the parts of a text occur in the library's code.
func written(t *testing.T, text string) bool {
	t.Helper()
	found := false
	library(t, func(_ string, code []byte) {
		all := true
		for part := range strings.SplitSeq(text, "…") {
			all = all && strings.Contains(string(code), strings.TrimSpace(part))
		}
		found = found || all
	})
	return found
}

// Users find the problem of a node on the page to which the texts refer: the page quotes a part of it.
func TestEachProblemOfANodeIsInTheReference(t *testing.T) {
	page, err := os.ReadFile("docs/reference.md")
	require.NoError(t, err)
	text := regexp.MustCompile("(?s)\n```.*?\n```").ReplaceAllString(string(page), "")
	text = regexp.MustCompile(`\s+`).ReplaceAllString(text, " ")
	var quoted [][]string
	for _, span := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(text, -1) {
		parts := strings.Split(span[1], "…")
		if words := strings.TrimSpace(strings.Join(parts, "")); len(words) > 10 && strings.Contains(words, " ") {
			quoted = append(quoted, parts)
		}
	}
	found := 0
	library(t, func(path string, code []byte) {
		file, err := parser.ParseFile(token.NewFileSet(), path, code, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			pair, ok := n.(*ast.KeyValueExpr)
			if !ok {
				return true
			}
			key, ok := pair.Key.(*ast.Ident)
			if problem := constants(pair.Value); ok && key.Name == "Problem" && problem != "" {
				found++
				assert.True(t, slices.ContainsFunc(quoted, func(parts []string) bool { return inOrder(problem, parts) }),
					"docs/reference.md quotes no part of %q of %s", problem, path)
			}
			return true
		})
	})
	require.Greater(t, found, 20)
}

// constants returns the constant parts of an expression that makes a text.
func constants(text ast.Expr) (all string) {
	ast.Inspect(text, func(n ast.Node) bool {
		if value, ok := n.(*ast.BasicLit); ok && value.Kind == token.STRING {
			part, _ := strconv.Unquote(value.Value)
			all += part
		}
		return true
	})
	return strings.Trim(all, " :")
}

// inOrder reports whether a text has all parts, one after the other.
func inOrder(text string, parts []string) bool {
	for _, part := range parts {
		_, rest, found := strings.Cut(text, strings.TrimSpace(part))
		if !found {
			return false
		}
		text = rest
	}
	return true
}

// The token of a line may be below the one that the nodes show, so a line with a token has the owner as well.
func TestEachMessageWithATokenHasTheOwner(t *testing.T) {
	found := 0
	library(t, func(path string, text []byte) {
		file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			var words []ast.Expr
			switch n := n.(type) {
			case *ast.CallExpr:
				if method, ok := n.Fun.(*ast.SelectorExpr); ok && (method.Sel.Name == "Warn" || method.Sel.Name == "Info") {
					words = n.Args
				}
			case *ast.CompositeLit:
				words = n.Elts
			}
			has := map[string]bool{}
			for _, w := range words {
				has[literal(w)] = true
			}
			if has["token"] && has["name"] {
				found++
				assert.True(t, has["owner"], "%s logs a token without its owner", path)
			}
			return true
		})
	})
	assert.GreaterOrEqual(t, found, 4)
}
