// Basic takes a lease, works under it, and releases it.
//
//	go run ./examples/basic -nodes host-a:6379,host-b:6379,host-c:6379
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock"
)

func main() {
	nodes := flag.String("nodes", "127.0.0.1:6379", "comma-separated host:port of independent Redis masters")
	flag.Parse()
	if err := run(context.Background(), strings.Split(*nodes, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "basic:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, nodes []string) error {
	m, err := quorumlock.New(ctx, quorumlock.Addrs(nodes...), quorumlock.WithHolder("basic"))
	if err != nil {
		return err
	}
	defer func() { _ = m.Close(ctx) }()

	lease, err := m.Acquire(ctx, "example/basic", quorumlock.WithWait(5*time.Second))
	if err != nil {
		return err // names the holder
	}
	fmt.Println("granted, token", lease.Token(), "valid for", lease.Remaining().Round(time.Millisecond))

	select {
	case <-time.After(2 * time.Second): // the work
		fmt.Println("done")
	case lost := <-lease.Lost(): // a value: no other goroutine releases it
		return fmt.Errorf("stopped: %v", lost.Reason)
	}
	return lease.Release(ctx)
}
