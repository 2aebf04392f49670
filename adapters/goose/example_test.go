package gooselock_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing/fstest"

	_ "github.com/mattn/go-sqlite3" // the driver sqlite3
	"github.com/pressly/goose/v3"

	"github.com/quorumlock/quorumlock"
	gooselock "github.com/quorumlock/quorumlock/adapters/goose"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// Every instance of a service migrates when it starts. One applies the migrations, and the others wait, and find nothing
// to do.
func ExampleLocker() {
	ctx := context.Background()
	cluster := quorumlocktest.NewCluster(3) // three nodes inside this process, in place of servers
	defer cluster.Close()
	dir, err := os.MkdirTemp("", "goose")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	files := fstest.MapFS{ // in a service, an embed.FS
		"1_orders.sql": {Data: []byte("-- +goose Up\nCREATE TABLE orders (id INTEGER PRIMARY KEY);\n")},
	}
	paid := func(ctx context.Context, tx *sql.Tx) error {
		fmt.Println("a migration under the lease", gooselock.Lease(ctx).Name())
		_, err := tx.ExecContext(ctx, "ALTER TABLE orders ADD COLUMN paid INTEGER")
		return err
	}

	start := func() (applied int, err error) {
		m, err := quorumlock.New(ctx, cluster.Options())
		if err != nil {
			return 0, err
		}
		defer func() { _ = m.Close(ctx) }()
		db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "shop")+"?_busy_timeout=10000")
		if err != nil {
			return 0, err
		}
		defer func() { _ = db.Close() }()
		locker := gooselock.NewLocker(m, "migrations/shop")
		provider, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithLocker(locker),
			goose.WithGoMigrations(goose.NewGoMigration(2, &goose.GoFunc{RunTx: paid}, nil)))
		if err != nil {
			return 0, err
		}
		ctx, cancel := locker.Context(ctx) // ends if the lease is lost
		defer cancel()
		results, err := provider.Up(ctx)
		return len(results), err
	}

	var applied [2]int
	var errs [2]error
	var instances sync.WaitGroup
	for i := range applied {
		instances.Go(func() { applied[i], errs[i] = start() })
	}
	instances.Wait()
	fmt.Println("one applied", max(applied[0], applied[1]), "and the other", min(applied[0], applied[1]))
	fmt.Println(errs)
	// Output:
	// a migration under the lease migrations/shop
	// one applied 2 and the other 0
	// [<nil> <nil>]
}
