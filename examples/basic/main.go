// Basic works under a lease, on a local Redis. Freeze that Redis (kill -STOP), and see how the work ends.
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
	m, err := quorumlock.New(ctx, quorumlock.Addrs("localhost:6379")) // or three or five independent servers
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close(ctx)

	err = m.Do(ctx, "reports/daily", func(ctx context.Context, lease *quorumlock.Lease) error {
		for {
			fmt.Println("working, token", lease.Token())
			select {
			case <-ctx.Done(): // the lease is lost: stop
				return context.Cause(ctx)
			case <-time.After(time.Second):
			}
		}
	})
	fmt.Println("the end:", err)
}
