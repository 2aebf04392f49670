// Package sqlfence refuses writes of stale lock holders inside the database
// transaction that writes.
//
// A table has one row for each fenced resource, with the highest token that the
// resource has seen. [Fence.Check] raises it in the caller's own transaction, or
// reports that the caller's token is stale. The row stays locked until the
// transaction ends, so two holders can never write at the same time, and the
// later holder always wins:
//
//	tx, err := db.BeginTx(ctx, nil)
//	...
//	defer tx.Rollback()
//	if err := fences.Check(ctx, tx, "invoices/2026-11", lease.Token()); err != nil {
//		return err // a *StaleError: another holder has taken over
//	}
//	... // read and write
//	return tx.Commit()
//
// Call Check first in the transaction, before anything is read: what was read
// before may have been changed by the former holder since.
//
// PostgreSQL 9.5 or newer, and SQLite 3.24 or newer, with any driver of
// database/sql.
package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/quorumlock/quorumlock/fence"
)

// DefaultTable is the name of the table unless WithTable says otherwise.
const DefaultTable = "quorumlock_fences"

// ErrStale means that the resource has seen a larger token. See StaleError.
var ErrStale = fence.ErrStale

// ErrInvalid means that an argument or option cannot be used. See InvalidError.
var ErrInvalid = fence.ErrInvalid

type (
	// StaleError says which write was refused and why. It is ErrStale.
	StaleError = fence.StaleError
	// InvalidError says what cannot be used, and how to fix it. It is ErrInvalid.
	InvalidError = fence.InvalidError
)

// Dialect is the SQL that a database understands.
type Dialect int

const (
	// Postgres is PostgreSQL 9.5 or newer, and databases with its SQL.
	Postgres Dialect = iota + 1
	// SQLite is SQLite 3.24 or newer.
	SQLite
)

// String returns the name of the database.
func (d Dialect) String() string {
	switch d {
	case Postgres:
		return "PostgreSQL"
	case SQLite:
		return "SQLite"
	default:
		return "Dialect(" + strconv.Itoa(int(d)) + ")"
	}
}

// Option configures a Fence.
type Option func(*Fence)

// WithTable sets the name of the table, with its schema if it needs one: "fences"
// or "billing.fences". The name is quoted, so it is used as it is written.
// Default DefaultTable.
func WithTable(name string) Option {
	return func(f *Fence) { f.table = name }
}

// Fence checks tokens against one table. It has no state of its own and is safe
// for concurrent use.
type Fence struct {
	dialect Dialect
	table   string // as given to WithTable

	ddl, raise, read string // statements, complete
}

// name is an identifier, with its schema or without.
var name = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?$`)

// New returns a Fence for the tables of one database. It talks to no database:
// create the table with the statement of [Fence.DDL], for example in a migration.
// It returns an *InvalidError for an unknown dialect or a bad table name.
func New(dialect Dialect, opts ...Option) (*Fence, error) {
	f := &Fence{dialect: dialect, table: DefaultTable}
	for _, option := range opts {
		option(f)
	}
	if dialect != Postgres && dialect != SQLite {
		return nil, &InvalidError{
			What: "dialect", Value: dialect.String(), Bound: "Postgres or SQLite",
			Fix: "for another database see https://github.com/quorumlock/quorumlock/blob/main/docs/fencing.md",
		}
	}
	if !name.MatchString(f.table) {
		return nil, &InvalidError{
			What: "table", Value: strconv.Quote(f.table),
			Bound: "letters, digits and underscores, at most 63 of them, with at most one schema before a dot",
			Fix:   "choose another name in WithTable",
		}
	}
	f.prepare()
	return f, nil
}

// prepare writes the statements. The UPSERT is the whole guard: it locks the row until the
// transaction ends, even when the condition is false. A concurrent UPSERT waits there, and
// then compares with the committed token.
func (f *Fence) prepare() {
	table := `"` + strings.ReplaceAll(f.table, ".", `"."`) + `"`
	integer, resource, token := "BIGINT", "$1", "$2"
	if f.dialect == SQLite {
		integer, resource, token = "INTEGER", "?1", "?2"
	}
	f.ddl = fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (\n\tresource TEXT PRIMARY KEY NOT NULL,\n\ttoken %s NOT NULL CHECK (token > 0)\n)", table, integer)
	f.raise = fmt.Sprintf("INSERT INTO %s AS f (resource, token) VALUES (%s, %s) "+
		"ON CONFLICT (resource) DO UPDATE SET token = excluded.token WHERE f.token <= excluded.token", table, resource, token)
	f.read = fmt.Sprintf("SELECT token FROM %s WHERE resource = %s", table, resource)
}

// DDL returns the statement that creates the table if it does not exist.
func (f *Fence) DDL() string { return f.ddl }

// Check raises the highest token that resource has seen to token, in the caller's
// transaction, and returns nil. The same token may be checked any number of
// times. When tx is rolled back, the resource has not seen the token.
//
// It returns a *StaleError when the resource has seen a larger token: roll back.
// It returns an *InvalidError for an empty or too long resource, a token below 1
// or above fence.MaxToken, and a tx of nil. Errors of the database are wrapped:
// PostgreSQL at REPEATABLE READ and above (SQLSTATE 40001), and SQLite (SQLITE_BUSY),
// may refuse when another holder commits: try the whole transaction again.
//
// It waits for a concurrent transaction on the resource, until ctx ends.
func (f *Fence) Check(ctx context.Context, tx *sql.Tx, resource string, token int64) error {
	if err := fence.Validate(resource, token); err != nil {
		return err
	}
	if tx == nil {
		return &InvalidError{
			What: "tx", Value: "nil", Bound: "the transaction that writes",
			Fix: "begin it with BeginTx, call Check first, then write in it",
		}
	}
	result, err := tx.ExecContext(ctx, f.raise, resource, token)
	if err != nil {
		return fmt.Errorf("sqlfence: check the token of %q in %s: %w", resource, f.table, err)
	}
	raised, err := result.RowsAffected()
	if err != nil {
		return fmt.Errorf("sqlfence: check the token of %q in %s: the driver does not count rows: %w", resource, f.table, err)
	}
	if raised == 1 {
		return nil
	}
	// The row is locked by now, so this reads the token that the UPSERT compared with.
	stale := &StaleError{Resource: resource, Token: token}
	if err := tx.QueryRowContext(ctx, f.read, resource).Scan(&stale.Seen); err != nil {
		return errors.Join(stale, fmt.Errorf("sqlfence: read the token of %q in %s: %w", resource, f.table, err))
	}
	return stale
}

// Seen returns the highest token that resource has seen, 0 if none. It is for people and
// health checks: the answer may be out of date when it arrives, and does not replace Check.
func (f *Fence) Seen(ctx context.Context, db *sql.DB, resource string) (int64, error) {
	var seen int64
	err := db.QueryRowContext(ctx, f.read, resource).Scan(&seen)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("sqlfence: read the token of %q in %s: %w", resource, f.table, err)
	}
	return seen, nil
}
