package quorumlock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rowsOf has the place of the code of each table of docs/migrating.md. In interop/rows_FILE_test.go, the function
// withNAME has the left column, which a module of the peer compiles, and fromNAME has the right one.
var rowsOf = map[string]struct{ file, name string }{
	"redsync": {"redsync", "Redsync"}, "bsm/redislock": {"redislock", "Redislock"}, "rueidislock": {"rueidislock", "Rueidislock"},
	"client-go": {"clientgo", "ClientGo"}, "etcd": {"etcd", "Etcd"}, "Consul": {"consul", "Consul"},
	"Redisson": {"java", "Redisson"},
}

// ofPackages are qualifiers that the page may leave out.
var ofPackages = regexp.MustCompile(`\b(quorumlock|election|redsync|redislock|rueidislock|leaderelection|concurrency|api)\.`)

// column has the names and calls in the code of one column.
type column struct {
	names map[string]bool
	calls []string // without qualifiers
}

func columnOf(t *testing.T, file, function string) column {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), "interop/rows_"+file+"_test.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	c := column{names: map[string]bool{}}
	for _, d := range parsed.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Name.Name == function {
			c.read(f)
		}
	}
	require.NotEmpty(t, c.calls, function)
	return c
}

func (c *column) read(f *ast.FuncDecl) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			c.names[n.Name] = true
		case *ast.CallExpr:
			c.calls = append(c.calls, text(n))
		}
		return true
	})
}

// lacks returns the names and calls of a code span that the column does not have. A call may have more options there.
func (c *column) lacks(span string) (all []string) {
	exported := regexp.MustCompile(`(?:\b[A-Z]\w*\.)*\b([A-Z]\w*)`)
	for _, name := range exported.FindAllStringSubmatch(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(span, ""), -1) {
		if !c.names[name[1]] {
			all = append(all, name[1])
		}
	}
	for _, call := range callsIn(span) {
		beginning := regexp.MustCompile(`(^|\.)` + regexp.QuoteMeta(strings.TrimSuffix(call, ")")) + `(, |\)$)`)
		found := false
		for _, compiled := range c.calls {
			found = found || beginning.MatchString(compiled)
		}
		if !found {
			all = append(all, call)
		}
	}
	return all
}

// callsIn returns the calls of a code span, and none if it is not Go or leaves an argument out.
func callsIn(span string) (calls []string) {
	span = regexp.MustCompile(`{ ?… ?}`).ReplaceAllString(span, "{}")
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc _() {\n"+span+"\n}", parser.SkipObjectResolution)
	if err != nil {
		return nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if ok {
			calls = append(calls, text(call))
		}
		return !ok
	})
	return calls
}

func text(call *ast.CallExpr) string {
	return strings.ReplaceAll(ofPackages.ReplaceAllString(types.ExprString(call), ""), "{…}", "{}")
}

// Both columns of each table are in code that is compiled: the left one by the peer's module, if the peer is in Go.
func TestRowsOfThePageOnMigratingAreCompiled(t *testing.T) {
	page, err := os.ReadFile(migrating)
	require.NoError(t, err)
	tables := map[string]bool{}
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		rows := regexp.MustCompile(`(?m)^\|(.*)\|(.*)\|$`).FindAllStringSubmatch(body, -1)
		if len(rows) == 0 {
			continue
		}
		tables[title] = true
		code, known := rowsOf[title]
		if !assert.True(t, known, "the table of %s has no code", title) {
			continue
		}
		right := columnOf(t, code.file, "from"+code.name)
		left := column{}
		if code.file != "java" {
			left = columnOf(t, code.file, "with"+code.name)
		}
		for _, row := range rows[2:] {
			if code.file != "java" {
				assertCompiled(t, left, row[1], nil)
			}
			assertCompiled(t, right, row[2], notOurs)
		}
	}
	for title := range rowsOf {
		assert.True(t, tables[title], "no table of %s", title)
	}
}

func assertCompiled(t *testing.T, c column, cell string, except map[string]bool) {
	t.Helper()
	for _, span := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
		for _, missing := range c.lacks(span[1]) {
			assert.True(t, except[missing], "%s, of the cell%s, is not compiled", missing, cell)
		}
	}
}

// make test leaves out the peers with many packages, and make interop compiles them.
func TestAllPeersAreCompiled(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	require.NoError(t, err)
	assert.Contains(t, string(makefile), "cd interop && $(GO) vet -tags peers ./... && ")
}
