// Readers is a price list that several processes read at the same time, and that one of them changes: readers
// have shared leases, and the writer has the exclusive lease of the same name.
//
// It needs no Redis: the nodes run in this process. With -nodes it uses real servers.
//
//	go run ./examples/readers
//	go run ./examples/readers -nodes host-a:6379,host-b:6379,host-c:6379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

const name = "example/prices"

func main() {
	nodes := flag.String("nodes", "", "comma-separated host:port of real Redis masters; without it, nodes run in this process")
	flag.Parse()
	if err := run(*nodes, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "readers:", err)
		os.Exit(1)
	}
}

func run(nodes string, out io.Writer) error {
	options := func() []rueidis.ClientOption { return quorumlock.Addrs(strings.Split(nodes, ",")...) }
	if nodes == "" {
		cluster := quorumlocktest.NewCluster(3)
		defer cluster.Close()
		options = cluster.Options
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, errors.New("the story took too long"))
	defer cancel()
	s := &story{out: out}
	defer s.end()
	for _, who := range []string{"shop 1", "shop 2", "shop 3", "the editor"} { // a process each
		m, err := quorumlock.New(ctx, options(), quorumlock.WithHolder(who), quorumlock.WithTTL(2*time.Second))
		if err != nil {
			return err
		}
		s.processes = append(s.processes, m)
	}
	return s.play(ctx)
}

// prices is what the lock protects. It refuses a token below the highest that it has seen, so a process that
// was paused, and continues under a lease that has ended, does no harm.
type prices struct {
	mu    sync.Mutex
	price int
	seen  int64
}

func (p *prices) use(l *quorumlock.Lease, change func(price *int)) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.Token() < p.seen {
		return 0, errors.New("a later holder has used the price")
	}
	p.seen = l.Token()
	change(&p.price)
	return p.price, nil
}

func (p *prices) read(l *quorumlock.Lease) (int, error) { return p.use(l, func(*int) {}) }

func (p *prices) write(l *quorumlock.Lease, price int) error {
	if l.Shared() {
		return errors.New("only a writer may do this")
	}
	_, err := p.use(l, func(p *int) { *p = price })
	return err
}

type story struct {
	processes []*quorumlock.Manager
	prices    prices
	out       io.Writer
}

func (s *story) say(format string, args ...any) { _, _ = fmt.Fprintf(s.out, format+"\n", args...) }

func (s *story) end() {
	for _, m := range s.processes {
		_ = m.Close(context.Background())
	}
}

func (s *story) play(ctx context.Context) error {
	shops, editor := s.processes[:3], s.processes[3]
	var first [2]*quorumlock.Lease
	for i := range first {
		l, err := shops[i].Acquire(ctx, name, quorumlock.Shared())
		if err != nil {
			return err
		}
		first[i] = l
	}
	for i, l := range first {
		price, err := s.prices.read(l)
		if err != nil {
			return err
		}
		s.say("shop %d reads %d; both have the lock", i+1, price)
	}
	_, err := editor.TryAcquire(ctx, name)
	var held *quorumlock.HeldError
	if !errors.As(err, &held) {
		return fmt.Errorf("a writer among readers: %w", err)
	}
	s.say("the editor finds %d readers, and waits", held.Readers)
	writer := wait(ctx, editor, quorumlock.Kind{})
	if err := s.queued(ctx, 1); err != nil {
		return err
	}
	later := wait(ctx, shops[2], quorumlock.Shared())
	if err := s.queued(ctx, 2); err != nil {
		return err
	}
	s.say("shop 3 came later, and waits behind the editor")
	for i, l := range first {
		w := <-l.Wanted() // with its next renewal
		s.say("shop %d sees that %d wait, and leaves", i+1, w.Waiters)
		if err := l.Release(ctx); err != nil {
			return err
		}
	}
	w := <-writer
	if w.err != nil {
		return w.err
	}
	if err := s.prices.write(w.Lease, 110); err != nil {
		return err
	}
	s.say("the editor is alone, and writes 110")
	return s.goOn(ctx, w.Lease, later)
}

// goOn makes the writer a reader of its own change, and lets in the readers behind it: no other writer comes in
// between.
func (s *story) goOn(ctx context.Context, w *quorumlock.Lease, later <-chan lease) error {
	reader, err := w.Downgrade(ctx)
	if err != nil {
		return err
	}
	third := <-later
	if third.err != nil {
		return third.err
	}
	for who, l := range map[string]*quorumlock.Lease{"the editor": reader, "shop 3": third.Lease} {
		if price, err := s.prices.read(l); err != nil || price != 110 {
			return fmt.Errorf("%s reads %d: %w", who, price, err)
		}
	}
	s.say("the editor continues as a reader, and shop 3 reads 110 at the same time")
	s.say("a late write of the editor is refused: %v", s.prices.write(w, 120))
	return errors.Join(reader.Release(ctx), third.Release(ctx))
}

// lease is the result of a call.
type lease struct {
	*quorumlock.Lease
	err error
}

// wait makes a call that waits, and returns a channel for its lease.
func wait(ctx context.Context, m *quorumlock.Manager, kind quorumlock.Kind) <-chan lease {
	got := make(chan lease, 1)
	go func() {
		l, err := m.Acquire(ctx, name, kind)
		got <- lease{l, err}
	}()
	return got
}

// queued waits until n processes wait for the lock.
func (s *story) queued(ctx context.Context, n int) error {
	for {
		status, err := s.processes[0].Inspect(ctx, name)
		if err != nil || status.Waiters >= n {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
