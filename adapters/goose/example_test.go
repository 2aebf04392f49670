package gooselock_test

import (
	"context"
	"database/sql"
	"log"
	"os"

	"github.com/pressly/goose/v3"

	"github.com/quorumlock/quorumlock"
	gooselock "github.com/quorumlock/quorumlock/adapters/goose"
)

// Every instance of a service calls this when it starts. One migrates, and the others wait, and
// find nothing to do.
func ExampleLocker() {
	ctx := context.Background()
	var m *quorumlock.Manager // from New
	var db *sql.DB
	locker := gooselock.NewLocker(m, "migrations/shop")
	provider, err := goose.NewProvider(goose.DialectMySQL, db, os.DirFS("migrations"), goose.WithLocker(locker))
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := locker.Context(ctx) // ends if the lease is lost
	defer cancel()
	if _, err := provider.Up(ctx); err != nil {
		log.Print(err, context.Cause(ctx))
	}
}
