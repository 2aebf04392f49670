//go:build unix

package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/fence/internal/pgtest"
	"github.com/quorumlock/quorumlock/fence/sqlfence"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// database is an empty database with the table of its fence.
type database struct {
	*sql.DB
	fence *sqlfence.Fence
}

// eachDatabase runs test on every database that the package knows.
func eachDatabase(t *testing.T, test func(t *testing.T, db database)) {
	t.Run("PostgreSQL", func(t *testing.T) {
		test(t, open(t, sqlfence.Postgres, "postgres", pgtest.Start(t)))
	})
	t.Run("SQLite", func(t *testing.T) {
		file := "file:" + filepath.Join(t.TempDir(), "data.db") + "?_busy_timeout=20000&_journal_mode=WAL&_synchronous=OFF"
		test(t, open(t, sqlfence.SQLite, "sqlite3", file))
	})
}

func open(t *testing.T, dialect sqlfence.Dialect, driver, dsn string, opts ...sqlfence.Option) database {
	t.Helper()
	fence, err := sqlfence.New(dialect, opts...)
	require.NoError(t, err)
	db, err := sql.Open(driver, dsn)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, db.Close()) })
	for _, statement := range []string{fence.DDL(), fence.DDL(), `CREATE TABLE data (id INTEGER PRIMARY KEY, token BIGINT NOT NULL)`} {
		_, err = db.ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	return database{DB: db, fence: fence}
}

// write checks the token and stores it as the data, in one transaction.
func (db database) write(ctx context.Context, resource string, token int64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := db.fence.Check(ctx, tx, resource, token); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, fmt.Sprintf(`INSERT INTO data (id, token) VALUES (1, %d) ON CONFLICT (id) DO UPDATE SET token = excluded.token`, token))
	if err != nil {
		return err
	}
	return tx.Commit()
}

func (db database) seen(t *testing.T) int64 {
	t.Helper()
	seen, err := db.fence.Seen(t.Context(), db.DB, "r")
	require.NoError(t, err)
	return seen
}

func TestAWriteWithALowerTokenIsRefusedAndOneWithTheSameTokenIsNot(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db database) {
		const token = 1_795_344_466_720_373 // as large as real tokens
		assert.Zero(t, db.seen(t))
		require.NoError(t, db.write(t.Context(), "r", token))
		require.NoError(t, db.write(t.Context(), "r", token), "several writes of one holder")
		require.NoError(t, db.write(t.Context(), "r", token+1))

		err := db.write(t.Context(), "r", token)
		var stale *sqlfence.StaleError
		require.ErrorAs(t, err, &stale)
		require.ErrorIs(t, err, sqlfence.ErrStale)
		assert.Equal(t, sqlfence.StaleError{Resource: "r", Token: token, Seen: token + 1}, *stale)
		assert.EqualValues(t, token+1, db.seen(t))
		require.NoError(t, db.write(t.Context(), "other", 1), "every resource has a token of its own")
	})
}

func TestATransactionThatIsRolledBackHasShownNoToken(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db database) {
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, db.fence.Check(t.Context(), tx, "r", 7))
		require.NoError(t, tx.Rollback())
		assert.Zero(t, db.seen(t))
		require.NoError(t, db.write(t.Context(), "r", 6))
	})
}

func TestAnOlderHolderWaitsForTheNewerOneAndIsRefused(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db database) {
		require.NoError(t, db.write(t.Context(), "r", 1))
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		require.NoError(t, db.fence.Check(t.Context(), tx, "r", 3))

		older := make(chan error, 1)
		go func() { older <- db.write(t.Context(), "r", 2) }()
		select {
		case err := <-older:
			t.Fatalf("the older holder did not wait for the transaction of the newer one: %v", err)
		case <-time.After(200 * time.Millisecond):
		}
		require.NoError(t, tx.Commit())
		require.ErrorIs(t, <-older, sqlfence.ErrStale)
	})
}

func TestAWaitForAnotherTransactionEndsWithTheContext(t *testing.T) {
	db := open(t, sqlfence.Postgres, "postgres", pgtest.Start(t))
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	require.NoError(t, db.fence.Check(t.Context(), tx, "r", 1))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = db.write(ctx, "r", 2)
	require.Error(t, err)
	require.NotErrorIs(t, err, sqlfence.ErrStale)
	require.Error(t, ctx.Err())
}

// Many holders write at once, in any order of tokens. Whatever was committed
// must have been committed in the order of the tokens.
func TestConcurrentWritesAreCommittedInTheOrderOfTheirTokens(t *testing.T) {
	eachDatabase(t, func(t *testing.T, db database) {
		ctx := t.Context()
		_, err := db.ExecContext(ctx, `CREATE TABLE history (n INTEGER, token BIGINT)`)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 25 {
					err := db.record(ctx, 1+rand.Int64N(1000))
					if !errors.Is(err, sqlfence.ErrStale) {
						assert.NoError(t, err)
					}
				}
			})
		}
		wg.Wait()
		rows, err := db.QueryContext(ctx, `SELECT token FROM history ORDER BY n`)
		require.NoError(t, err)
		defer func() { assert.NoError(t, rows.Close()) }()
		var last int64
		count := 0
		for ; rows.Next(); count++ {
			var token int64
			require.NoError(t, rows.Scan(&token))
			require.GreaterOrEqual(t, token, last)
			last = token
		}
		require.NoError(t, rows.Err())
		assert.Positive(t, count)
		assert.Equal(t, last, db.seen(t))
	})
}

// record appends the token to the history. Under the row's lock, the number of
// rows is the place in the order of commits.
func (db database) record(ctx context.Context, token int64) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := db.fence.Check(ctx, tx, "r", token); err != nil {
		return err
	}
	insert := fmt.Sprintf(`INSERT INTO history SELECT count(*), %d FROM history`, token)
	if _, err := tx.ExecContext(ctx, insert); err != nil {
		return err
	}
	return tx.Commit()
}

func TestStricterIsolationRefusesOrReportsASerializationFailure(t *testing.T) {
	db := open(t, sqlfence.Postgres, "postgres", pgtest.Start(t))
	require.NoError(t, db.write(t.Context(), "r", 1))
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: level})
		require.NoError(t, err)
		var n int // takes the snapshot
		require.NoError(t, tx.QueryRowContext(t.Context(), `SELECT count(*) FROM data`).Scan(&n))
		newer := db.seen(t) + 2
		require.NoError(t, db.write(t.Context(), "r", newer))

		err = db.fence.Check(t.Context(), tx, "r", newer-1)
		var refused *pq.Error
		require.ErrorAs(t, err, &refused)
		assert.EqualValues(t, "40001", refused.Code)
		require.NoError(t, tx.Rollback())
		require.ErrorIs(t, db.write(t.Context(), "r", newer-1), sqlfence.ErrStale, "the second try")
	}
}

func TestATableCanHaveAnotherNameAndASchema(t *testing.T) {
	dsn := pgtest.Start(t)
	admin := open(t, sqlfence.Postgres, "postgres", dsn)
	_, err := admin.ExecContext(t.Context(), `CREATE SCHEMA "Billing"; DROP TABLE data`)
	require.NoError(t, err)
	db := open(t, sqlfence.Postgres, "postgres", dsn, sqlfence.WithTable("Billing.order"))
	require.NoError(t, db.write(t.Context(), "r", 2))
	require.ErrorIs(t, db.write(t.Context(), "r", 1), sqlfence.ErrStale)
	assert.Zero(t, admin.seen(t))
}

func TestAnErrorOfTheDatabaseIsWrappedAndNamesTheTable(t *testing.T) {
	db := open(t, sqlfence.SQLite, "sqlite3", ":memory:")
	db.SetMaxOpenConns(1)
	missing, err := sqlfence.New(sqlfence.SQLite, sqlfence.WithTable("missing"))
	require.NoError(t, err)
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	err = missing.Check(t.Context(), tx, "r", 1)
	require.ErrorContains(t, err, "missing")
	require.NotErrorIs(t, err, sqlfence.ErrStale)
}

func TestWhatCannotBeUsedIsRefusedByName(t *testing.T) {
	fence, err := sqlfence.New(sqlfence.Postgres)
	require.NoError(t, err)
	for what, err := range map[string]error{
		"dialect":                     second(sqlfence.New(0)),
		`table "x; DROP TABLE users"`: second(sqlfence.New(sqlfence.SQLite, sqlfence.WithTable("x; DROP TABLE users"))),
		`table "a.b.c"`:               second(sqlfence.New(sqlfence.SQLite, sqlfence.WithTable("a.b.c"))),
		"token 0":                     fence.Check(t.Context(), nil, "r", 0),
		"token -1":                    fence.Check(t.Context(), nil, "r", -1),
		"token 9007199254740992":      fence.Check(t.Context(), nil, "r", 1<<53),
		"token 9223372036854775807":   fence.Check(t.Context(), nil, "r", math.MaxInt64),
		`resource ""`:                 fence.Check(t.Context(), nil, "", 1),
		`resource "xxx`:               fence.Check(t.Context(), nil, strings.Repeat("x", 513), 1),
		`resource "\x00"`:             fence.Check(t.Context(), nil, "\x00", 1),
		"tx nil":                      fence.Check(t.Context(), nil, "r", 1),
	} {
		var invalid *sqlfence.InvalidError
		require.ErrorAs(t, err, &invalid, what)
		require.ErrorIs(t, err, sqlfence.ErrInvalid)
		assert.Contains(t, err.Error(), what)
		assert.NotEmpty(t, invalid.Bound)
		assert.NotEmpty(t, invalid.Fix)
	}
}

func second[T any](_ T, err error) error { return err }
