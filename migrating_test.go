package quorumlock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const migrating = "docs/migrating.md"

// notOurs are foreign names in the prose and in the right columns of docs/migrating.md.
var notOurs = map[string]bool{
	"OnStartedLeading": true, "ReleaseOnCancel": true, "RunOrDie": true, // client-go
	"Mutex": true, "IsOwner": true, "LockDelay": true, // etcd, Consul
	"RLock":             true,                                                                                             // Redisson
	"Refresh":           true,                                                                                             // redislock
	"AuthCredentialsFn": true, "AlwaysRESP2": true, "PING": true, "SET": true, "DEL": true, "SETNX": true, "EXPIRE": true, // rueidis, Redis
	"MaxRetries": true, "CredentialsProvider": true, "CredentialsProviderContext": true, // go-redis
	"Scheduler": true, "Executor": true, "Idempotency": true, // asynq, River, HTTP
}

// api has the exported names of a package, and the methods and fields of each type.
type api struct {
	names   map[string]bool
	members map[string]map[string]bool
}

func (a *api) read(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), dir+"/"+e.Name(), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			a.declared(d)
		}
	}
}

func (a *api) declared(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			a.names[d.Name.Name] = true
			return
		}
		of := d.Recv.List[0].Type
		if pointer, ok := of.(*ast.StarExpr); ok {
			of = pointer.X
		}
		if name, ok := of.(*ast.Ident); ok {
			a.member(name.Name, d.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			a.specified(spec)
		}
	}
}

func (a *api) specified(spec ast.Spec) {
	switch spec := spec.(type) {
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			a.names[name.Name] = true
		}
	case *ast.TypeSpec:
		a.names[spec.Name.Name] = true
		if fields, ok := spec.Type.(*ast.StructType); ok {
			for _, field := range fields.Fields.List {
				for _, name := range field.Names {
					a.member(spec.Name.Name, name.Name)
				}
			}
		}
	}
}

func (a *api) member(of, name string) {
	if a.members[of] == nil {
		a.members[of] = map[string]bool{}
	}
	a.members[of][name] = true
}

// has reports whether a name exists, alone, as a member of the type of its variable, or as a method of a
// Manager or a Lease.
func (a *api) has(of, name string) bool {
	switch of {
	case "":
		return a.names[name] || a.members["Manager"][name] || a.members["Lease"][name]
	case "quorumlock", "election":
		return a.names[name]
	case "m":
		return a.members["Manager"][name]
	case "lease", "l", "reader":
		return a.members["Lease"][name]
	default:
		return a.members[of][name]
	}
}

// The names in the right column of each table and in the prose are ours, except for the listed foreign names.
func TestNamesInThePageOnMigratingExist(t *testing.T) {
	page, err := os.ReadFile(migrating)
	require.NoError(t, err)
	ours := &api{names: map[string]bool{}, members: map[string]map[string]bool{}}
	ours.read(t, ".")
	ours.read(t, "election")
	prose := regexp.MustCompile("(?s)```.*?```").ReplaceAllString(string(page), "")
	code := regexp.MustCompile("`([^`]+)`")
	qualified := regexp.MustCompile(`\b(quorumlock|election|m|lease|l|[A-Z]\w+)\.([A-Z]\w*)`)
	alone := regexp.MustCompile(`^[A-Z]\w+`)
	checked := 0
	for line := range strings.Lines(prose) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for _, span := range code.FindAllStringSubmatch(cells[len(cells)-1], -1) {
			names := qualified.FindAllStringSubmatch(span[1], -1)
			if name := alone.FindString(span[1]); name != "" && len(names) == 0 && !notOurs[name] {
				names = [][]string{{name, "", name}}
			}
			for _, n := range names {
				checked++
				assert.True(t, ours.has(n[1], n[2]), "%s in: %s", n[0], line)
			}
		}
	}
	assert.Positive(t, checked)
}

func TestSnippetsOfThePageOnMigratingAreCompiled(t *testing.T) {
	page, err := os.ReadFile(migrating)
	require.NoError(t, err)
	code, err := os.ReadFile("interop/migrating_test.go")
	require.NoError(t, err)
	indent := regexp.MustCompile(`(?m)^\t+`)
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, snippets)
	for _, s := range snippets {
		assert.Contains(t, indent.ReplaceAllString(string(code), ""), indent.ReplaceAllString(s[1], ""))
	}
}
