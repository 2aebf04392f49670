// Handover is a leader that is restarted without another leader in between: a rolling deployment. On
// SIGTERM it stops its work, detaches its lease, and leaves the handle in a file. The process that starts
// next resumes the lease with it.
//
//	go run ./examples/handover -nodes host-a:6379,host-b:6379,host-c:6379 -handle /run/job.handle
//
// Start it, and a second one with another -handle, which waits. Stop the first with kill -TERM, and start it
// again within 30 seconds: it leads again, with a larger token, and the second one still waits.
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
	"syscall"
	"time"

	"github.com/quorumlock/quorumlock"
)

// keep is how long a restart may take. If no process has resumed the lease by then, it is free.
const keep = 30 * time.Second

func main() {
	nodes := flag.String("nodes", "127.0.0.1:6379", "comma-separated host:port of independent Redis masters")
	name := flag.String("name", "example/handover", "name of the lease")
	file := flag.String("handle", "handover.handle", "file for the handle: a secret, in a directory of this user")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, strings.Split(*nodes, ","), *name, *file)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "handover:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, nodes []string, name, file string) error {
	log := slog.New(slog.NewTextHandler(os.Stdout, nil)).With("pid", os.Getpid())
	m, err := quorumlock.New(ctx, quorumlock.Addrs(nodes...), quorumlock.WithLogger(log))
	if err != nil {
		return err
	}
	// A new context at the end, because ctx has ended by then.
	closing := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), 5*time.Second)
	}
	defer func() {
		ctx, cancel := closing()
		defer cancel()
		_ = m.Close(ctx)
	}()
	lease, err := take(ctx, m, name, file, log)
	if err != nil {
		return err
	}
	work(ctx, lease, log)
	if err := lease.Err(); err != nil {
		return err // lost: there is nothing to hand over
	}
	log.Info("no longer leading", "token", lease.Token())
	detaching, cancel := closing()
	defer cancel()
	handle, err := lease.Detach(detaching, keep) // the work has stopped
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(handle), 0o600)
}

// take resumes the lease of the previous process, or acquires one if it cannot.
func take(ctx context.Context, m *quorumlock.Manager, name, file string, log *slog.Logger) (*quorumlock.Lease, error) {
	handle, err := os.ReadFile(file)
	if err == nil {
		_ = os.Remove(file) // only one process may resume it
		lease, err := m.Resume(ctx, quorumlock.Handle(handle))
		if err == nil {
			log.Info("leading", "token", lease.Token(), "resumed", true)
			return lease, nil
		}
		log.Warn("the lease of the process before is gone", "error", err) // the restart took too long
	}
	log.Info("waiting to lead", "name", name)
	lease, err := m.Acquire(ctx, name)
	if err == nil {
		log.Info("leading", "token", lease.Token(), "resumed", false)
	}
	return lease, err
}

// work does one step a second until ctx or the lease ends.
func work(ctx context.Context, lease *quorumlock.Lease, log *slog.Logger) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			log.Info("step", "token", lease.Token())
		case <-lease.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}
