//go:build unix

// Package pgtest runs a real PostgreSQL server for the tests of a package.
package pgtest

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/lib/pq" // the driver of Start
	"go.uber.org/goleak"
)

// startTimeout is generous: it only decides when a hopeless start is given up.
const startTimeout = 60 * time.Second

// errNoPostgres means that no PostgreSQL server is installed.
var errNoPostgres = errors.New("no PostgreSQL server found: run `make deps`, which installs it, or name its directory of binaries in POSTGRES_BIN")

// server is the one server of the test binary.
var server struct {
	mu        sync.Mutex // guards what follows
	dir       string     // with the socket; "" before the first Start
	err       error      // why it did not start
	stop      func()     // nil while none runs
	databases int
}

// Main runs the tests, stops the server and looks for goroutines that were left
// behind. It is for TestMain, which passes the result to os.Exit.
func Main(m *testing.M) int {
	code := m.Run()
	server.mu.Lock()
	defer server.mu.Unlock()
	if server.stop != nil {
		server.stop()
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return 1
	}
	return code
}

// Start returns the data source name of a new, empty database, for lib/pq. The
// server is started by the first call and lasts until Main returns. It listens at
// a Unix socket in a directory of its own. Where no PostgreSQL is installed the
// test is skipped, except in CI (CI=true), where it fails.
func Start(tb testing.TB) (dsn string) {
	tb.Helper()
	server.mu.Lock()
	defer server.mu.Unlock()
	if server.dir == "" && server.err == nil {
		server.dir, server.stop, server.err = start()
	}
	if errors.Is(server.err, errNoPostgres) && os.Getenv("CI") != "true" {
		tb.Skip("pgtest: ", server.err)
	}
	if server.err != nil {
		tb.Fatal("pgtest: ", server.err)
	}
	server.databases++
	name := "test" + strconv.Itoa(server.databases)
	dsn = "host=" + server.dir + " user=postgres sslmode=disable dbname="
	admin, err := sql.Open("postgres", dsn+"postgres")
	if err != nil {
		tb.Fatal("pgtest: ", err)
	}
	defer func() { _ = admin.Close() }()
	if _, err := admin.ExecContext(tb.Context(), "CREATE DATABASE "+name); err != nil {
		tb.Fatal("pgtest: ", err)
	}
	return dsn + name
}

// findBinaries returns the directory that has initdb and postgres. Debian keeps
// them out of PATH.
func findBinaries() (string, error) {
	candidates, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", err
	}
	slices.Reverse(candidates) // the newest first, roughly
	if path, err := exec.LookPath("initdb"); err == nil {
		candidates = append([]string{filepath.Dir(path)}, candidates...)
	}
	if named := os.Getenv("POSTGRES_BIN"); named != "" {
		candidates = []string{named}
	}
	for _, dir := range candidates {
		_, initdb := os.Stat(filepath.Join(dir, "initdb"))
		_, postgres := os.Stat(filepath.Join(dir, "postgres"))
		if initdb == nil && postgres == nil {
			return dir, nil
		}
	}
	return "", errNoPostgres
}

// start runs a server in a new directory. It returns the directory, which has the
// socket too, and a function that stops the server and removes the directory.
func start() (dir string, stop func(), err error) {
	bin, err := findBinaries()
	if err != nil {
		return "", nil, err
	}
	dir, err = os.MkdirTemp("", "pg") // a socket's path must be short
	if err != nil {
		return "", nil, err
	}
	stop = func() { _ = os.RemoveAll(dir) }
	attributes, err := ordinaryUser(dir)
	if err != nil {
		return "", stop, err
	}
	data := filepath.Join(dir, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-N", "--no-locale", "-E", "UTF8")
	initdb.Dir, initdb.SysProcAttr = dir, attributes
	if text, err := initdb.CombinedOutput(); err != nil {
		return "", stop, fmt.Errorf("initdb: %w: %s", err, text)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return "", stop, err
	}
	defer func() { _ = log.Close() }()
	postgres := exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-c", "listen_addresses=",
		"-c", "unix_socket_directories="+dir, "-c", "fsync=off")
	postgres.Dir, postgres.SysProcAttr = dir, attributes
	postgres.Stdout, postgres.Stderr = log, log
	exited, err := launch(postgres)
	if err != nil {
		return "", stop, err
	}
	stop = func() {
		_ = postgres.Process.Signal(syscall.SIGQUIT) // immediate shutdown, with all its children
		<-exited
		_ = os.RemoveAll(dir)
	}
	return dir, stop, awaitReady(log.Name(), exited)
}

// ordinaryUser returns the attributes that make a command run as a user other
// than root, which PostgreSQL refuses, and gives dir to that user.
func ordinaryUser(dir string) (*syscall.SysProcAttr, error) {
	attributes := dieWithParent()
	if os.Geteuid() != 0 {
		return attributes, nil
	}
	account, err := user.Lookup("postgres")
	if err != nil {
		account, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL refuses to run as root, and there is no user postgres, and no other ordinary user: %w", err)
	}
	uid, err := strconv.ParseUint(account.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(account.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attributes, os.Chown(dir, int(uid), int(gid))
}

// launch starts the server. One goroutine, locked to its thread, both forks it
// and waits for it, because the death signal of dieWithParent fires when the
// forking thread ends.
func launch(server *exec.Cmd) (exited chan struct{}, err error) {
	exited = make(chan struct{})
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := server.Start()
		started <- err
		if err == nil {
			_ = server.Wait()
		}
		close(exited)
	}()
	return exited, <-started
}

// awaitReady waits until the server says in its log that it accepts connections.
func awaitReady(log string, exited chan struct{}) error {
	for deadline := time.Now().Add(startTimeout); ; {
		text, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		if bytes.Contains(text, []byte("database system is ready to accept connections")) {
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("postgres ended; its log:\n%s", text)
		case <-time.After(10 * time.Millisecond):
			if time.Now().After(deadline) {
				return fmt.Errorf("postgres is not ready after %v; its log:\n%s", startTimeout, text)
			}
		}
	}
}
