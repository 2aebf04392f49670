// Check runs the example against real receivers on the loopback interface. It asserts
// that they got the spans and metrics that the documentation promises. make traces and
// make metrics run it.
//
//	check traces  -example bin/tracing -collector bin/collector
//	check metrics -example bin/tracing -prometheus bin/prometheus -dashboard docs/grafana/quorumlock.json
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

func main() {
	var s settings
	flags := flag.NewFlagSet("check", flag.ExitOnError)
	flags.StringVar(&s.example, "example", "bin/tracing", "the `program` examples/tracing")
	flags.StringVar(&s.collector, "collector", "bin/collector", "the `program` examples/tracing/collector")
	flags.StringVar(&s.prometheus, "prometheus", "prometheus", "the `program` prometheus")
	flags.StringVar(&s.dashboard, "dashboard", "docs/grafana/quorumlock.json", "the dashboard's `file`")
	flags.DurationVar(&s.limit, "limit", 3*time.Minute, "the check fails after this time")
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: check traces|metrics [flags]")
		os.Exit(2)
	}
	_ = flags.Parse(os.Args[2:])
	checks := map[string]func(context.Context, *settings) error{"traces": traces, "metrics": metrics}
	check := checks[os.Args[1]]
	if check == nil {
		fmt.Fprintf(os.Stderr, "check: there is no check %q: say traces or metrics\n", os.Args[1])
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("the check took longer than %v", s.limit))
	err := check(ctx, &s)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "check %s: FAILED: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

type settings struct {
	example, collector, prometheus, dashboard string
	limit                                     time.Duration
}

// process is a program that the check has started.
type process struct {
	cmd    *exec.Cmd
	out    output
	exited chan struct{} // closed when the process has ended
	err    error         // of Wait; read after exited
}

func start(name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), exited: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// wait waits for the end of the process.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.exited:
		return p.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// stop ends only this process: by SIGTERM, and after 10 s by SIGKILL.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// output keeps the text that a process prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// freePort returns an unused address of the loopback interface.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

// until calls f until it returns nil. When ctx ends, or the process has ended, it returns
// f's last error.
func until(ctx context.Context, p *process, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-p.exited:
			return fmt.Errorf("%s has ended: %w: %s", p.cmd.Path, errors.Join(p.err, err), p.out.String())
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// listening returns an error until a process listens on the address.
func listening(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}
