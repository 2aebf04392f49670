package quorumlock_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// These bounds limit how much a reader must keep in mind at once. A circle is a set of files that all refer to each
// other, directly or through others, so none of them can be read alone. Methods and fields are not counted: such a
// bound turned methods into functions, and made no type smaller.
const (
	mostFilesInACircle = 3
	mostFunctionLines  = 60
	mostFileLines      = 400
)

// notYet lists everything above a bound, with a ceiling. A ceiling may only go down, and an entry that has come below
// its bound must leave the list.
var notYet = map[string]int{
	"internal/redistest: files in a circle":        8,
	"internal/sim: files in a circle":              24,
	"internal/wire/conformance: lines of guard.go": 545,
}

// measured is a package of the root module, as go list reports it.
type measured struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	Standard                bool
	Module                  *struct{ Main bool }
}

func TestNoRoomOfTheHouseIsTooLarge(t *testing.T) {
	found := map[string]int{}
	for _, pkg := range packages(t) {
		pkg.measure(t, func(what string, size, most int) {
			if size > most {
				found[what] = size
			}
		})
	}
	for _, what := range slices.Sorted(maps.Keys(found)) {
		assert.LessOrEqual(t, found[what], notYet[what], "%s has grown: split it", what)
	}
	for what := range notYet {
		assert.Positive(t, found[what], "%s has come below its bound: take it out of notYet", what)
	}
}

// packages returns the packages of the root module, without those that only tests use, with the compiled form of all
// their imports.
func packages(t *testing.T) (all []*room) {
	t.Helper()
	list := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Module", "./...")
	out, err := list.Output()
	require.NoError(t, err)
	exports := map[string]string{}
	fset := token.NewFileSet()
	compiled := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for in := json.NewDecoder(bytes.NewReader(out)); ; {
		var m measured
		if err := in.Decode(&m); errors.Is(err, io.EOF) {
			return all
		} else {
			require.NoError(t, err)
		}
		exports[m.ImportPath] = m.Export
		if m.Module != nil && m.Module.Main && strings.HasPrefix(m.ImportPath+"/", "github.com/quorumlock/quorumlock/") {
			all = append(all, &room{measured: m, fset: fset, compiled: compiled})
		}
	}
}

// room is a package that is measured.
type room struct {
	measured
	fset     *token.FileSet
	compiled types.Importer
}

// measure reports the size of the largest circle of files, and of each function and file.
func (r *room) measure(t *testing.T, report func(what string, size, most int)) {
	t.Helper()
	var files []*ast.File
	for _, name := range r.GoFiles {
		file, err := parser.ParseFile(r.fset, filepath.Join(r.Dir, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
	}
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	pkg, err := (&types.Config{Importer: r.compiled}).Check(r.ImportPath, r.fset, files, info)
	require.NoError(t, err)
	room := strings.TrimPrefix(strings.TrimPrefix(r.ImportPath, "github.com/quorumlock/quorumlock"), "/")
	if room == "" {
		room = "root"
	}
	report(room+": files in a circle", len(largest(r.references(pkg, info))), mostFilesInACircle)
	for i, file := range files {
		report(fmt.Sprintf("%s: lines of %s", room, r.GoFiles[i]), r.fset.File(file.FileStart).LineCount(), mostFileLines)
		for _, d := range file.Decls {
			if f, isFunction := d.(*ast.FuncDecl); isFunction {
				lines := r.fset.Position(f.End()).Line - r.fset.Position(f.Pos()).Line + 1
				report(fmt.Sprintf("%s: lines of %s in %s", room, f.Name.Name, r.GoFiles[i]), lines, mostFunctionLines)
			}
		}
	}
}

// references returns, for each file, the other files that it refers to: by a function, a type, a variable, a method or
// a field that is declared there.
func (r *room) references(pkg *types.Package, info *types.Info) map[string][]string {
	to := map[string][]string{}
	for id, object := range info.Uses {
		if object.Pkg() != pkg || !object.Pos().IsValid() {
			continue
		}
		from, at := r.fset.Position(id.Pos()).Filename, r.fset.Position(object.Pos()).Filename
		if from != at && !slices.Contains(to[from], at) {
			to[from] = append(to[from], at)
		}
	}
	return to
}

// largest returns the largest set of files in which each file reaches each other.
func largest(to map[string][]string) (circle []string) {
	reach := map[string]map[string]bool{}
	var walk func(from, at string)
	walk = func(from, at string) {
		for _, next := range to[at] {
			if !reach[from][next] {
				reach[from][next] = true
				walk(from, next)
			}
		}
	}
	for from := range to {
		reach[from] = map[string]bool{}
		walk(from, from)
	}
	for from := range to {
		var around []string
		for other := range reach[from] {
			if reach[other][from] {
				around = append(around, other)
			}
		}
		if len(around) > len(circle) {
			circle = around
		}
	}
	slices.Sort(circle)
	return circle
}
