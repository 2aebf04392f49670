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
	ctx := context.Background()
	m, err := quorumlock.New(ctx, quorumlock.Addrs("localhost:6379")) // in production three, with WithRestartGuard
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close(context.Background())

	err = m.Do(ctx, "reports/daily", func(ctx context.Context, lease *quorumlock.Lease) error {
		fmt.Println("building the report under token", lease.Token())
		return build(ctx) // ctx ends if the lock is lost
	})
	if err != nil {
		log.Println("not done:", err)
		return
	}
	fmt.Println("released")
}

// build is the work. It stops early if its context ends.
func build(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(100 * time.Millisecond):
		return nil
	}
}
