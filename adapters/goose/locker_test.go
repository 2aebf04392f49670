//go:build unix

package gooselock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver sqlite3
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
	gooselock "github.com/quorumlock/quorumlock/adapters/goose"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

const name = "migrations"

// TestMain makes this test binary a process that migrates, when a test starts it so.
func TestMain(m *testing.M) {
	if database := os.Getenv("GOOSELOCK_DATABASE"); database != "" {
		if err := migrate(os.Getenv("GOOSELOCK_DRIVER"), database, strings.Split(os.Getenv("GOOSELOCK_NODES"), ",")); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// migrations take long enough for processes to meet in them.
func migrations() (fs.FS, goose.ProviderOption) {
	slow := func(ctx context.Context, db *sql.DB) error {
		if _, err := db.ExecContext(ctx, "INSERT INTO visits VALUES (1)"); err != nil {
			return err
		}
		time.Sleep(300 * time.Millisecond)
		_, err := db.ExecContext(ctx, "CREATE TABLE slow (id INTEGER)")
		return err
	}
	files := fstest.MapFS{
		"1_visits.sql": {Data: []byte("-- +goose Up\nCREATE TABLE visits (id INTEGER);\n")},
		"3_last.sql":   {Data: []byte("-- +goose Up\nCREATE TABLE last (id INTEGER);\n")},
	}
	return files, goose.WithGoMigrations(goose.NewGoMigration(2, &goose.GoFunc{RunDB: slow}, nil))
}

// migrate runs in a process of its own, and prints how many migrations it has run.
func migrate(driver, database string, addrs []string) error {
	ctx := context.Background()
	m, err := quorumlock.New(ctx, quorumlock.Addrs(addrs...))
	if err != nil {
		return err
	}
	defer func() { _ = m.Close(ctx) }()
	db, err := sql.Open(driver, database)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	files, option := migrations()
	locker := gooselock.NewLocker(m, name)
	options := []goose.ProviderOption{option}
	if os.Getenv("GOOSELOCK_WITHOUT") == "" {
		options = append(options, goose.WithLocker(locker))
	}
	provider, err := goose.NewProvider(goose.Dialect(driver), db, files, options...)
	if err != nil {
		return err
	}
	ctx, cancel := locker.Context(ctx)
	defer cancel()
	if err := meet(os.Getenv("GOOSELOCK_MEET")); err != nil {
		return err
	}
	results, err := provider.Up(ctx)
	fmt.Printf("migrated: %d\n", len(results))
	return err
}

// meet waits until two processes are here.
func meet(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(os.Getpid())), nil, 0o600); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if here, err := os.ReadDir(dir); err != nil || len(here) == 2 {
			return err
		}
	}
	return errors.New("alone")
}

// together starts two processes at once on a database, and returns their output.
func together(t *testing.T, driver, database string, environment ...string) (said []string, failed error) {
	t.Helper()
	environment = append(os.Environ(), append(environment, "GOOSELOCK_DRIVER="+driver, "GOOSELOCK_DATABASE="+database, "GOOSELOCK_MEET="+t.TempDir())...)
	outputs, processes := make([]strings.Builder, 2), make([]*exec.Cmd, 2)
	for i := range processes {
		processes[i] = exec.CommandContext(t.Context(), os.Args[0])
		processes[i].Env, processes[i].Stdout = environment, &outputs[i]
		require.NoError(t, processes[i].Start())
	}
	for i, p := range processes {
		failed = errors.Join(failed, p.Wait())
		said = append(said, strings.TrimSpace(outputs[i].String()))
	}
	return said, failed
}

// sqlite returns a function for the data source name of a new database.
func sqlite(t *testing.T) (fresh func() string) {
	return func() string { return "file:" + filepath.Join(t.TempDir(), "db") + "?_busy_timeout=60000" }
}

func TestOfTwoProcessesOneMigratesAndTheOtherFindsNothingToDo(t *testing.T) {
	nodes := "GOOSELOCK_NODES=" + strings.Join(redistest.Addrs(redistest.Start(t, 3)), ",")
	for driver, start := range map[string]func(*testing.T) (fresh func() string){"sqlite3": sqlite, "mysql": mariadb} {
		t.Run(driver, func(t *testing.T) {
			fresh := start(t)
			for range 2 {
				database := fresh()
				versioned(t, driver, database)
				said, err := together(t, driver, database, nodes)
				require.NoError(t, err, "%v", said)
				assert.ElementsMatch(t, []string{"migrated: 3", "migrated: 0"}, said)
				assert.Equal(t, 1, visits(t, driver, database))
			}
			for range 10 { // on a busy machine two processes may miss each other
				if _, err := together(t, driver, fresh(), nodes, "GOOSELOCK_WITHOUT=1"); err != nil {
					return
				}
			}
			t.Error("without the lock nothing goes wrong either, so this test shows nothing")
		})
	}
}

// versioned makes goose's version table. Provider.Up does that before it takes the lock, and in two steps on MariaDB: a
// process may see the table between the two, and fails with "missing zero version migration".
func versioned(t *testing.T, driver, database string) {
	t.Helper()
	db, err := sql.Open(driver, database)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	files, option := migrations()
	provider, err := goose.NewProvider(goose.Dialect(driver), db, files, option)
	require.NoError(t, err)
	_, err = provider.GetDBVersion(t.Context())
	require.NoError(t, err)
}

// visits returns how often the slow migration has run.
func visits(t *testing.T, driver, database string) (n int) {
	t.Helper()
	db, err := sql.Open(driver, database)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM visits").Scan(&n))
	return n
}

// open returns a provider with one Go migration, in a transaction, followed by one in SQL.
func open(t *testing.T, locker *gooselock.Locker, work func(context.Context) error) (*goose.Provider, *sql.DB) {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(t.TempDir(), "db"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	first := func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "CREATE TABLE first (id INTEGER)")
		return errors.Join(err, work(ctx))
	}
	files := fstest.MapFS{"2_second.sql": {Data: []byte("-- +goose Up\nCREATE TABLE second (id INTEGER);\n")}}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithLocker(locker),
		goose.WithGoMigrations(goose.NewGoMigration(1, &goose.GoFunc{RunTx: first}, nil)))
	require.NoError(t, err)
	return p, db
}

// tables returns the tables of the migrations.
func tables(t *testing.T, db *sql.DB) (all []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT name FROM sqlite_schema WHERE name IN ('first', 'second') ORDER BY name")
	require.NoError(t, err)
	defer func() { require.NoError(t, rows.Close()) }()
	for rows.Next() {
		var table string
		require.NoError(t, rows.Scan(&table))
		all = append(all, table)
	}
	require.NoError(t, rows.Err())
	return all
}

func connect(t *testing.T, server *redistest.Server) *quorumlock.Manager {
	t.Helper()
	m, err := quorumlock.New(t.Context(), quorumlock.Addrs(server.Addr()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close(context.Background()) })
	return m
}

func TestALossStopsTheMigrationAndItsTransactionIsRolledBack(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	locker := gooselock.NewLocker(connect(t, server), name, quorumlock.WithTTL(3*time.Second))
	provider, db := open(t, locker, func(ctx context.Context) error {
		assert.Positive(t, gooselock.Lease(ctx).Token())
		server.Stop()
		defer server.Continue()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Minute):
			return errors.New("the migration continues")
		}
	})
	ctx, cancel := locker.Context(t.Context())
	defer cancel()
	_, err := provider.Up(ctx)
	require.ErrorIs(t, err, quorumlock.ErrLost)
	require.ErrorIs(t, err, context.Canceled)
	var lost *quorumlock.LostError
	require.ErrorAs(t, context.Cause(ctx), &lost)
	assert.Empty(t, tables(t, db))
	assert.Nil(t, gooselock.Lease(ctx))
}

func TestACancelledMigrationReleasesTheLockAtOnceAndItsContextIsForOneOperationAtATime(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	m := connect(t, server)
	locker := gooselock.NewLocker(m, name, quorumlock.WithTTL(time.Minute), quorumlock.WithWait(20*time.Second))
	ctx, cancel := locker.Context(t.Context())
	provider, db := open(t, locker, func(ctx context.Context) error {
		require.ErrorIs(t, locker.Lock(ctx, nil), quorumlock.ErrInvalid, "another operation with the same context")
		_, err := m.TryAcquire(ctx, name)
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		cancel()
		return ctx.Err()
	})
	_, err := provider.Up(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, quorumlock.ErrLost)
	assert.Empty(t, tables(t, db))
	lease, err := m.TryAcquire(t.Context(), name)
	require.NoError(t, err, "it is free")
	require.NoError(t, lease.Release(t.Context()))
}

func TestOneContextIsForSeveralOperationsOneAfterTheOther(t *testing.T) {
	locker := gooselock.NewLocker(connect(t, redistest.Start(t, 1)[0]), name)
	provider, db := open(t, locker, func(context.Context) error { return nil })
	ctx, cancel := locker.Context(t.Context())
	defer cancel()
	for range 2 {
		_, err := provider.UpByOne(ctx)
		require.NoError(t, err)
	}
	require.NoError(t, ctx.Err(), "a release is no loss")
	assert.Equal(t, []string{"first", "second"}, tables(t, db))
}

func TestAContextThatWouldNotEndIsRefused(t *testing.T) {
	m := connect(t, redistest.Start(t, 1)[0])
	locker, other := gooselock.NewLocker(m, name), gooselock.NewLocker(m, "other")
	provider, db := open(t, locker, func(context.Context) error { return nil })
	foreign, cancel := other.Context(t.Context())
	defer cancel()
	for _, ctx := range []context.Context{t.Context(), foreign} {
		_, err := provider.Up(ctx)
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
		require.ErrorIs(t, locker.Unlock(ctx, db), quorumlock.ErrInvalid)
	}
	assert.Empty(t, tables(t, db))
	assert.Nil(t, gooselock.Lease(t.Context()))
	ctx, cancel := locker.Context(t.Context())
	defer cancel()
	require.ErrorIs(t, locker.Unlock(ctx, db), quorumlock.ErrReleased, "nothing is locked")
}
