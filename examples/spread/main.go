// Spread consumes the shards of a queue in several processes: each shard has one consumer at a time, and a process that
// comes or goes gets or leaves its share.
//
//	go run ./examples/spread
//	go run ./examples/spread -nodes host-a:6379,host-b:6379,host-c:6379
//
// Without -nodes it needs no Redis: the nodes and three members run in this process, and one of the members leaves after
// a while. With -nodes it is one member: start it several times, stop one with ctrl-C, kill -9 or kill -STOP, and watch
// the others.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
	"github.com/quorumlock/quorumlock/spread"
)

func main() {
	nodes := flag.String("nodes", "", "comma-separated host:port of independent Redis masters; without it, nodes run in this process")
	shards := flag.Int("shards", 8, "shards of the queue")
	ttl := flag.Duration("ttl", 0, "TTL of the leases; 0 for 10s")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	log := slog.New(slog.NewTextHandler(os.Stdout, nil)).With("pid", os.Getpid())
	var err error
	if *nodes == "" {
		err = demonstrate(ctx, log, *shards)
	} else {
		err = member(ctx, log, quorumlock.Addrs(strings.Split(*nodes, ",")...), *shards, *ttl)
	}
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "spread:", err)
		os.Exit(1)
	}
}

// member consumes this process's share of the shards until ctx ends.
func member(ctx context.Context, log *slog.Logger, nodes []rueidis.ClientOption, shards int, ttl time.Duration) error {
	// A service adds WithRestartGuard: without it a node that restarts empty gives leases away.
	m, err := quorumlock.New(ctx, nodes, quorumlock.WithLogger(log))
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), 5*time.Second) // ctx has ended by now
		defer cancel()
		_ = m.Close(closing)
	}()
	var names []string
	for i := range shards {
		names = append(names, fmt.Sprintf("shard-%02d", i))
	}
	return spread.New(m, spread.Config{
		Group: "example-orders", Names: names, TTL: ttl, Log: log,
		Func: func(ctx context.Context, l *quorumlock.Lease, shard string) error { return consume(ctx, log, l, shard) },
	}).Run(ctx)
}

// consume handles the messages of a shard until ctx ends. The message in hand is finished: the shard moves when consume
// has returned.
func consume(ctx context.Context, log *slog.Logger, l *quorumlock.Lease, shard string) error {
	log.Info("consuming", "shard", shard, "token", l.Token())
	defer func() { log.Info("stopped", "shard", shard, "token", l.Token(), "cause", context.Cause(ctx)) }()
	for ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond) // a message; what it writes carries the token
	}
	return nil
}

// demonstrate runs three members over nodes in this process. The first two begin together, the third comes 8 s later, and
// the first leaves 8 s after that.
func demonstrate(ctx context.Context, log *slog.Logger, shards int) error {
	c := quorumlocktest.NewCluster(3)
	defer c.Close()
	ctx, end := context.WithTimeout(ctx, 24*time.Second)
	defer end()
	first, leave := context.WithTimeout(ctx, 16*time.Second)
	defer leave()
	var running sync.WaitGroup
	errs := make(chan error, 3) // one for each member; not closed
	join := func(ctx context.Context, name string) {
		running.Go(func() { errs <- member(ctx, log.With("member", name), c.OptionsFor(name), shards, 5*time.Second) })
	}
	join(first, "anna")
	join(ctx, "bert")
	select {
	case <-time.After(8 * time.Second):
		join(ctx, "carla")
	case <-ctx.Done():
	}
	running.Wait()
	for len(errs) > 0 {
		if err := <-errs; !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return nil
}
