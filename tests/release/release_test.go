// Package release shows that the modules can be installed in the form in which they would be tagged.
package release

import (
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"
)

const root = "../.."

// unpublished are the directories whose modules are not tagged, because no other module imports them.
var unpublished = []string{"benchmarks", "examples", "interop", "tests"}

// Users outside the checkout get each module alone, and install the command, from a module proxy. The proxy has the
// checkout's files under the version that the modules require of each other.
func TestModulesInstallFromAProxy(t *testing.T) {
	if os.Getenv("QUORUMLOCK_NIGHTLY") == "" {
		t.Skip("make test-nightly and make release run it: it compiles each module once more, for 1 to 2 min")
	}
	modules := checkout(t)
	version := required(t, modules)
	proxy, cache, programs := t.TempDir(), t.TempDir(), t.TempDir()
	for _, m := range modules {
		m.serve(t, proxy, version)
	}
	// Modules that this machine already has are not fetched again. The go.sum files of the checkout guard their
	// versions, so the test needs no checksum database and no network.
	known := filepath.Join(output(t, "go", "env", "GOMODCACHE"), "cache", "download")
	env := append(os.Environ(), "GOBIN="+programs, "GOENV=off", "GOWORK=off", "GOFLAGS=-modcacherw -trimpath", "GOMODCACHE="+cache,
		"GOCACHE="+output(t, "go", "env", "GOCACHE"), "GONOSUMDB=*", "GOPRIVATE=", "GONOPROXY=",
		"GOPROXY=file://"+proxy+",file://"+known+","+output(t, "go", "env", "GOPROXY"))
	for _, m := range modules {
		t.Run(m.dir, func(t *testing.T) {
			u := user{t: t, dir: t.TempDir(), env: env}
			if strings.HasPrefix(m.dir, "cmd/") {
				u.run("go", "install", m.name()+"@"+version)
				assert.Contains(t, u.run(filepath.Join(programs, path.Base(m.dir)), "version"), version)
				return
			}
			imports := m.packages(t)
			program := "package main\n\nimport (\n\t_ \"" + strings.Join(imports, "\"\n\t_ \"") + "\"\n)\n\nfunc main() {}\n"
			require.NoError(t, os.WriteFile(filepath.Join(u.dir, "main.go"), []byte(program), 0o600))
			u.run("go", "mod", "init", "example.com/user")
			get := []string{"get"}
			for _, path := range imports {
				get = append(get, path+"@"+version)
			}
			u.run("go", get...)
			u.run("go", "build", "-o", os.DevNull, ".")
			// For an import that go.mod does not require, Go takes the newest version.
			for _, r := range parse(t, filepath.Join(u.dir, "go.mod")).Require {
				assert.True(t, r.Mod.Path == m.name() || m.requires(r.Mod.Path), "go.mod of %s does not require %s", m.name(), r.Mod.Path)
			}
		})
	}
}

// published is a module of the checkout that is tagged.
type published struct {
	dir   string // of the root it is "."
	mod   *modfile.File
	files []string // from the root
}

func (m *published) name() string { return m.mod.Module.Mod.Path }

func (m *published) requires(name string) bool {
	return slices.ContainsFunc(m.mod.Require, func(r *modfile.Require) bool { return r.Mod.Path == name })
}

func parse(t *testing.T, name string) *modfile.File {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	mod, err := modfile.Parse(name, text, nil)
	require.NoError(t, err)
	return mod
}

// checkout returns the modules with the files that git knows or would add.
func checkout(t *testing.T) (modules []*published) {
	t.Helper()
	files := strings.Split(output(t, "git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"), "\x00")
	files = slices.DeleteFunc(files, func(name string) bool {
		_, err := os.Lstat(filepath.Join(root, name))
		return name == "" || err != nil // git knows files that were deleted in the work tree
	})
	owners := map[string]*published{}
	for _, name := range files {
		if path.Base(name) == "go.mod" {
			m := &published{dir: path.Dir(name), mod: parse(t, filepath.Join(root, name))}
			owners[m.dir] = m
			if !slices.Contains(unpublished, strings.Split(name, "/")[0]) {
				modules = append(modules, m)
			}
		}
	}
	for _, name := range files {
		dir := path.Dir(name)
		for owners[dir] == nil {
			dir = path.Dir(dir)
		}
		owners[dir].files = append(owners[dir].files, name)
	}
	return modules
}

// required returns the one version that all modules require of each other.
func required(t *testing.T, modules []*published) (version string) {
	t.Helper()
	for _, m := range modules {
		if strings.HasPrefix(m.dir, "cmd/") {
			assert.Empty(t, m.mod.Replace, "go install refuses a module that replaces others")
		}
		for _, r := range m.mod.Require {
			if slices.ContainsFunc(modules, func(of *published) bool { return of.name() == r.Mod.Path }) {
				if version == "" {
					version = r.Mod.Version
				}
				assert.Equal(t, version, r.Mod.Version, "%s in %s", r.Mod.Path, m.name())
			}
		}
	}
	require.NotEmpty(t, version)
	return version
}

// packages returns the import paths that users may import from the module.
func (m *published) packages(t *testing.T) (imports []string) {
	t.Helper()
	for _, name := range m.files {
		if strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && !strings.Contains(name, "internal/") {
			parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.PackageClauseOnly)
			require.NoError(t, err)
			of := path.Join(m.name(), strings.TrimPrefix(path.Dir(name), m.dir))
			if parsed.Name.Name != "main" && !slices.Contains(imports, of) {
				imports = append(imports, of)
			}
		}
	}
	return imports
}

// serve writes a module proxy's answers about the module.
func (m *published) serve(t *testing.T, proxy, version string) {
	t.Helper()
	dir := filepath.Join(proxy, m.name(), "@v")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	archive, err := os.Create(filepath.Join(dir, version+".zip"))
	require.NoError(t, err)
	files := make([]zip.File, len(m.files))
	for i, name := range m.files {
		files[i] = file{name, strings.TrimPrefix(name, m.dir+"/")}
	}
	require.NoError(t, zip.Create(archive, module.Version{Path: m.name(), Version: version}, files))
	require.NoError(t, archive.Close())
	text, err := m.mod.Format()
	require.NoError(t, err)
	for name, text := range map[string]string{"list": version, version + ".info": `{"Version": "` + version + `"}`, version + ".mod": string(text)} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
}

// file is a file of a module.
type file struct{ name, path string }

func (f file) Path() string                 { return f.path }
func (f file) Lstat() (os.FileInfo, error)  { return os.Lstat(filepath.Join(root, f.name)) }
func (f file) Open() (io.ReadCloser, error) { return os.Open(filepath.Join(root, f.name)) }

// user runs commands in a directory outside the checkout.
type user struct {
	t   *testing.T
	dir string
	env []string
}

func (u *user) run(name string, args ...string) string {
	u.t.Helper()
	c := exec.CommandContext(u.t.Context(), name, args...)
	c.Dir, c.Env = u.dir, u.env
	out, err := c.CombinedOutput()
	require.NoError(u.t, err, "%s: %s", c, out)
	return string(out)
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}
