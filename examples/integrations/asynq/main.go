// Asynq runs the periodic tasks of asynq in one of several processes: each starts
// its scheduler only while it leads, so every task is enqueued once.
//
//	go run ./asynq -nodes host-a:6379,host-b:6379,host-c:6379 -queue host-q:6379
//
// Start it twice, stop one with ctrl-C or kill -9, and watch the other.
//
// Asynq has no interface for a lock. Its own locks, such as asynq.Unique, are keys of its
// one Redis, and a Scheduler or a PeriodicTaskManager enqueues in each process that starts
// it.
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

	"github.com/hibiken/asynq"
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
)

func main() {
	nodes := flag.String("nodes", "127.0.0.1:6379", "comma-separated host:port of independent Redis masters, for the lock")
	queue := flag.String("queue", "", "host:port of asynq's Redis (default: the first node)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	addrs := strings.Split(*nodes, ",")
	if *queue == "" {
		*queue = addrs[0]
	}
	err := run(ctx, quorumlock.Addrs(addrs...), asynq.RedisClientOpt{Addr: *queue})
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "asynq:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, nodes []rueidis.ClientOption, queue asynq.RedisConnOpt) error {
	m, err := quorumlock.New(ctx, nodes)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = m.Close(closing)
	}()
	return m.Lead(ctx, "example/asynq-scheduler", func(ctx context.Context, l *quorumlock.Lease) error {
		fmt.Println("scheduling, token", l.Token())
		defer fmt.Println("no longer scheduling, token", l.Token())
		return schedule(ctx, queue)
	})
}

// schedule enqueues until the term ends. A scheduler cannot be restarted after its end,
// so each term has its own; an asynq.PeriodicTaskManager likewise.
func schedule(ctx context.Context, queue asynq.RedisConnOpt) error {
	scheduler := asynq.NewScheduler(queue, &asynq.SchedulerOpts{LogLevel: asynq.WarnLevel})
	// A leader that was paused can still enqueue one task too late. If that matters, add
	// asynq.Unique with a bit less than the interval: asynq then refuses the same task,
	// which is a check at the resource.
	if _, err := scheduler.Register("@every 1s", asynq.NewTask("report", nil)); err != nil {
		return err
	}
	if err := scheduler.Start(); err != nil {
		return err
	}
	defer scheduler.Shutdown() // before the lease is released
	<-ctx.Done()
	return nil
}
