//go:build unix

package gooselock_test

import (
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql" // the driver mysql
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const patience = time.Minute // decides only when a hopeless start is given up

// mariadb starts a server, which ends with the test, and returns a function for the data source name of a new database.
// The server listens at a Unix socket.
func mariadb(t *testing.T) (fresh func() string) {
	t.Helper()
	bin, err := exec.LookPath("mariadbd")
	if err != nil {
		bin, err = exec.LookPath("/usr/sbin/mariadbd") // Debian keeps it out of PATH
	}
	const missing = "no MariaDB server found: run `make deps`, which installs it, or have mariadbd in PATH"
	switch {
	case err != nil && os.Getenv("CI") == "true":
		t.Fatal(missing)
	case err != nil:
		t.Skip(missing)
	}
	dir, err := os.MkdirTemp("", "mariadb") // a socket's path must be short
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	data, socket := filepath.Join(dir, "data"), filepath.Join(dir, "socket")
	require.NoError(t, os.Mkdir(data, 0o700))
	// The shell kills the server when its input ends, and so also when the test is killed.
	server := exec.Command("sh", "-c", `"$@" & read -r _; kill -9 $!; wait`, "sh", bin, "--no-defaults", "--datadir="+data, "--socket="+socket,
		"--pid-file="+filepath.Join(dir, "pid"), "--skip-networking", "--skip-grant-tables", "--innodb-flush-log-at-trx-commit=0")
	if os.Geteuid() == 0 {
		server.Args = append(server.Args, "--user=root")
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	defer func() { require.NoError(t, log.Close()) }()
	server.Stdout, server.Stderr = log, log
	input, err := server.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = input.Close()
		_ = server.Wait()
	})

	name := func(database string) string { return "root@unix(" + socket + ")/" + database + "?parseTime=true" }
	admin, err := sql.Open("mysql", name(""))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, admin.Close()) })
	if !assert.Eventually(t, func() bool {
		_, absent := os.Stat(socket)
		return absent == nil && admin.PingContext(t.Context()) == nil
	}, patience, 10*time.Millisecond) {
		text, _ := os.ReadFile(log.Name())
		t.Fatalf("%s:\n%s", bin, text)
	}
	databases := 0
	return func() string {
		databases++
		database := "shop" + strconv.Itoa(databases)
		_, err := admin.ExecContext(t.Context(), "CREATE DATABASE "+database)
		require.NoError(t, err)
		return name(database)
	}
}
