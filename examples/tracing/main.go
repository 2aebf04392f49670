// Tracing shows two services that queue for one lock, in their traces and metrics.
//
// The services, checkout and billing, have a Manager and a tracer provider each, as in
// two processes. Four requests want the lock on one order. The program prints which
// request waited behind which, and the trace IDs to look up.
//
// It needs no Redis: the nodes run in this process. With -nodes it uses real ones.
//
//	cd examples/tracing && go run . -endpoint none
//	go run . -endpoint http://127.0.0.1:4318 -nodes host-a:6379,host-b:6379,host-c:6379
//	go run . -metrics 127.0.0.1:9464 -rounds 0 -for 10m -faults
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

type settings struct {
	nodes    string
	endpoint string
	metrics  string
	most     time.Duration
	rounds   int
	faults   bool
	picture  string    // its file
	out      io.Writer // of the story
}

func main() {
	s := settings{out: os.Stdout}
	flag.StringVar(&s.nodes, "nodes", "", "comma-separated host:port of real Redis masters; empty runs nodes in this process")
	flag.StringVar(&s.endpoint, "endpoint", "http://127.0.0.1:4318", "OTLP/HTTP `URL` that gets the spans; none exports nothing")
	flag.StringVar(&s.metrics, "metrics", "", "`host:port` to serve /checkout/metrics and /billing/metrics on, for Prometheus; empty serves nothing")
	flag.DurationVar(&s.most, "for", 5*time.Second, "longest time that requests are made")
	flag.IntVar(&s.rounds, "rounds", 1, "how often the four requests are made; 0 repeats them until -for has passed")
	flag.BoolVar(&s.faults, "faults", false, "kill a node now and then, and let a lease be lost (not with -nodes)")
	flag.StringVar(&s.picture, "svg", "", "`file` to draw a wait of the first round into")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, &s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tracing:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s *settings) error {
	nodes, cluster, err := connect(s)
	if err != nil {
		return err
	}
	if cluster != nil {
		defer cluster.Close()
	}
	kept := &recorder{}
	var services []*service
	defer func() {
		for _, s := range services {
			s.close()
		}
	}()
	for _, name := range []string{"checkout", "billing"} {
		service, err := newService(ctx, name, s, kept, nodes())
		if err != nil {
			return err
		}
		services = append(services, service)
	}
	if s.metrics != "" {
		stop, err := serve(ctx, s, services)
		if err != nil {
			return err
		}
		defer stop()
	}
	if err := repeat(ctx, s, services, kept, cluster); err != nil {
		return err
	}
	var failed []error
	for _, s := range services {
		failed = append(failed, s.flush())
	}
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("the spans did not reach %s (start a collector there, or use -endpoint none): %w", s.endpoint, err)
	}
	return nil
}

// connect returns a function that makes the options of one more client. It also returns
// the nodes, if they run in this process.
func connect(s *settings) (func() []rueidis.ClientOption, *quorumlocktest.Cluster, error) {
	if s.nodes == "" {
		cluster := quorumlocktest.NewCluster(3)
		return cluster.Options, cluster, nil
	}
	if s.faults {
		return nil, nil, errors.New("-faults would kill real nodes: leave -nodes out")
	}
	addrs := strings.Split(s.nodes, ",")
	return func() []rueidis.ClientOption { return quorumlock.Addrs(addrs...) }, nil, nil
}

// repeat makes the requests, round after round. It prints and draws the first round.
func repeat(ctx context.Context, s *settings, services []*service, kept *recorder, cluster *quorumlocktest.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, s.most)
	defer cancel()
	var troubled <-chan struct{}
	for round := 1; round <= s.rounds || s.rounds == 0; round++ {
		err := play(ctx, services)
		if ctx.Err() != nil {
			if round == 1 {
				return fmt.Errorf("-for %v is too short for the four requests: %w", s.most, err)
			}
			break
		}
		if err != nil {
			return err
		}
		spans := kept.take()
		if round == 1 {
			_, _ = io.WriteString(s.out, story(spans, s))
			if err := draw(s.picture, spans); err != nil {
				return err
			}
			if s.faults {
				troubled = trouble(ctx, cluster, services[0].manager)
			}
		}
	}
	cancel()
	if troubled != nil {
		<-troubled
	}
	return nil
}
