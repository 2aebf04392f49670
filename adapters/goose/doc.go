// Package gooselock lets several processes start the same goose v3 migrations, with one of
// them at a time migrating the database, by a lock on a majority of independent Redis servers.
//
// A [Locker] is for goose.WithLocker. Each operation of the provider runs under a context of
// [Locker.Context], which ends when the lease is lost: so goose stops, and rolls a transaction
// back, before another process begins to migrate. A migration that takes longer than the TTL is
// safe: the lease is renewed.
//
// On PostgreSQL, goose's own lockers (package lock) are simpler and safer, because lock and data
// are in one server. This one is for the other databases, and for migrations that change more
// than one database under one name. A provider that your own code calls needs no Locker either:
// Manager.Do around Provider.Up does the same.
//
// goose makes its version table before it takes the lock. On MySQL and MariaDB, processes that are the
// first on an empty database may fail with "missing zero version migration": call
// Provider.GetDBVersion once before, or start them again.
//
// A process that is stopped for longer than its lease may still send a statement afterwards, as
// with any lease. On MySQL and MariaDB, a statement that runs when the lease is lost continues on
// the server, and DDL is not rolled back. A migration that must not run twice has a statement that
// fails the second time, as CREATE TABLE and ALTER TABLE do, or checks the token of [Lease].
package gooselock
