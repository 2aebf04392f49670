package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	_ "github.com/mattn/go-sqlite3" // the driver "sqlite3"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/fence/sqlfence"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// Holder A is paused past the end of its lease. Holder B gets the lock, with a
// larger token, and writes. A wakes up, does not look at its lease, and writes:
// the database refuses.
func Example() {
	ctx := context.Background()
	cluster := quorumlocktest.NewCluster(3) // in-process nodes, in place of three Redis servers
	defer cluster.Close()
	m, err := quorumlock.New(ctx, cluster.Options())
	check(err)
	defer func() { _ = m.Close(ctx) }()

	dir, err := os.MkdirTemp("", "sqlfence")
	check(err)
	defer func() { _ = os.RemoveAll(dir) }()
	db, err := sql.Open("sqlite3", filepath.Join(dir, "data.db"))
	check(err)
	defer func() { _ = db.Close() }()
	fences, err := sqlfence.New(sqlfence.SQLite)
	check(err)
	_, err = db.ExecContext(ctx, fences.DDL()+`; CREATE TABLE invoices (month TEXT PRIMARY KEY, state TEXT)`)
	check(err)

	closeMonth := func(l *quorumlock.Lease, state string) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // does nothing after a commit
		if err := fences.Check(ctx, tx, l.Name(), l.Token()); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO invoices VALUES ('2026-11', ?)`, state); err != nil {
			return err
		}
		return tx.Commit()
	}

	// A is paused: its lease is not renewed, and it does not notice.
	a, err := m.Acquire(ctx, "invoices/2026-11", quorumlock.WithTTL(300*time.Millisecond), quorumlock.WithoutRenewal())
	check(err)
	check(closeMonth(a, "begun by A"))

	b, err := m.Acquire(ctx, "invoices/2026-11") // returns when A's lease has ended
	check(err)
	defer func() { _ = b.Release(ctx) }()
	check(closeMonth(b, "closed by B"))

	err = closeMonth(a, "overwritten by A") // A wakes up
	var stale *sqlfence.StaleError
	if errors.As(err, &stale) {
		fmt.Println("A's write was refused, and its token is lower:", stale.Token < stale.Seen)
	}
	var state string
	check(db.QueryRowContext(ctx, `SELECT state FROM invoices`).Scan(&state))
	fmt.Println(state)
	// Output:
	// A's write was refused, and its token is lower: true
	// closed by B
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
