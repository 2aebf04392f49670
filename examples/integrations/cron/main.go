// Cron runs the jobs of robfig/cron in one of several processes. When the leader stops,
// it waits for its running jobs before it releases the lease. To share the jobs among the
// processes, use adapters/cron.
//
//	go run ./cron -nodes host-a:6379,host-b:6379,host-c:6379
//
// Start it twice, stop one with ctrl-C or kill -9, and watch the other.
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

	"github.com/robfig/cron/v3"

	"github.com/quorumlock/quorumlock"
)

func main() {
	nodes := flag.String("nodes", "127.0.0.1:6379", "comma-separated host:port of independent Redis masters")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, strings.Split(*nodes, ","), func(_ context.Context, token int64) {
		fmt.Println("job, token", token)
	})
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "cron:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, nodes []string, job func(ctx context.Context, token int64)) error {
	m, err := quorumlock.New(ctx, quorumlock.Addrs(nodes...))
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = m.Close(closing)
	}()
	return m.Lead(ctx, "example/cron", func(ctx context.Context, l *quorumlock.Lease) error {
		c := cron.New()
		if _, err := c.AddFunc("@every 1s", func() {
			if l.Valid() { // by the clocks, now: the term may have ended before cron notices
				job(ctx, l.Token())
			}
		}); err != nil {
			return err
		}
		c.Start()
		<-ctx.Done()
		<-c.Stop().Done() // the running jobs have ended
		return nil
	})
}
