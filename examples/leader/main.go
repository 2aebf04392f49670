// Leader runs a job in one of several processes until it is stopped: one process works,
// the others wait, and another one takes over when it dies.
//
//	go run ./examples/leader -nodes host-a:6379,host-b:6379,host-c:6379
//
// Start it twice, stop one with ctrl-C or kill -9, and watch the other.
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

func main() {
	nodes := flag.String("nodes", "127.0.0.1:6379", "comma-separated host:port of independent Redis masters")
	name := flag.String("name", "example/leader", "name of the lease")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, strings.Split(*nodes, ","), *name)
	stop()
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "leader:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, nodes []string, name string) error {
	host, _ := os.Hostname()
	log := slog.New(slog.NewTextHandler(os.Stdout, nil)).With("pid", os.Getpid())
	// A service adds WithRestartGuard: without it a node that restarts empty gives the lease away.
	m, err := quorumlock.New(ctx, quorumlock.Addrs(nodes...),
		quorumlock.WithHolder(fmt.Sprintf("%s/%d", host, os.Getpid())),
		quorumlock.WithLogger(log))
	if err != nil {
		return err
	}
	defer func() {
		// A new context, because ctx has ended by now.
		closing, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = m.Close(closing)
	}()
	log.Info("waiting to lead", "name", name)
	return m.Lead(ctx, name, func(ctx context.Context, l *quorumlock.Lease) error {
		log.Info("leading", "token", l.Token())
		defer log.Info("no longer leading", "token", l.Token())
		return work(ctx, l, log)
	})
}

// work does one step a second until the term ends. A step that cannot be repeated and
// cannot carry the token would call l.Verify first.
func work(ctx context.Context, l *quorumlock.Lease, log *slog.Logger) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			log.Info("step", "token", l.Token(), "valid", l.Remaining().Round(time.Millisecond))
		case risk, open := <-l.AtRisk():
			if open {
				log.Warn("at risk: a step that cannot be undone must wait", "left", risk.Remaining, "nodes", risk.Nodes)
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
