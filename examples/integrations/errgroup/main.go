// Errgroup spreads one job over several goroutines under one lease. All of them
// stop when one fails, when the lease is lost, and at ctrl-C.
//
//	go run ./errgroup -nodes host-a:6379,host-b:6379,host-c:6379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/quorumlock"
)

func main() {
	nodes := flag.String("nodes", "127.0.0.1:6379", "comma-separated host:port of independent Redis masters")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, strings.Split(*nodes, ","), []string{"north", "south", "east", "west"},
		func(ctx context.Context, part string, token int64) error {
			fmt.Println("part", part, "token", token)
			select {
			case <-time.After(time.Second):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "errgroup:", err)
		os.Exit(1)
	}
}

// run works on all parts under one lease. Each part gets the token, for its writes.
func run(ctx context.Context, nodes, parts []string, work func(ctx context.Context, part string, token int64) error, opts ...quorumlock.Option) error {
	m, err := quorumlock.New(ctx, quorumlock.Addrs(nodes...), opts...)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close(context.WithoutCancel(ctx)) }()
	err = m.Do(ctx, "example/errgroup", func(ctx context.Context, l *quorumlock.Lease) error {
		group, ctx := errgroup.WithContext(ctx) // the lease's end cancels it too
		for _, part := range parts {
			group.Go(func() error { return work(ctx, part, l.Token()) })
		}
		return group.Wait() // Do releases only after the last part has returned
	})
	if errors.Is(err, quorumlock.ErrLost) {
		return fmt.Errorf("another process may have begun the same parts: %w", err)
	}
	return err
}
