// Basic works under a lock, on a local Redis, and releases it.
//
//	go run ./examples/basic
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/quorumlock/quorumlock"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
	fmt.Println("released")
}

func run(ctx context.Context) error {
	m, err := quorumlock.New(ctx, quorumlock.Addrs("localhost:6379")) // three in production
	if err != nil {
		return err
	}
	defer m.Close(context.Background())

	return m.Do(ctx, "account/17", func(ctx context.Context, lease *quorumlock.Lease) error {
		fmt.Println("charging account 17 under token", lease.Token())
		return charge(ctx, lease.Token()) // ctx ends if the lock is lost
	})
}

// charge is the work: it gives the token to what it writes to. It stops early if its context ends.
func charge(ctx context.Context, _ int64) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(100 * time.Millisecond):
		return nil
	}
}
