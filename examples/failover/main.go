// Failover shows a lease from its grant to its loss. Two contenders want to lead over
// five nodes. A node dies, comes back and gets the lock again. Then the leader is cut
// off. It is notified before the other contender can lead, and the other one gets a
// higher fencing token.
//
// It needs no Redis: the nodes run in this process. With -nodes it uses real servers, and
// cuts its own connections. With -svg it also draws the events.
//
//	go run ./examples/failover
//	go run ./examples/failover -svg failover.svg
//	go run ./examples/failover -nodes host-a:6379,host-b:6379,host-c:6379
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock"
)

// ttl is short, for a demonstration: a service would use the default of 10 s.
const ttl = 1500 * time.Millisecond

func main() {
	nodes := flag.String("nodes", "", "comma-separated host:port of real Redis masters; without it, nodes run in this process")
	picture := flag.String("svg", "", "file for a picture of who held what, and when")
	flag.Parse()
	var w world = inProcess()
	if *nodes != "" {
		w = realNodes(strings.Split(*nodes, ","))
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), 25*time.Second, errors.New("the story took too long"))
	s := &story{began: time.Now(), messages: make(chan message, 64)}
	err := s.play(ctx, w)
	cancel()
	w.close()
	if err == nil && *picture != "" {
		err = os.WriteFile(*picture, draw(s.marks), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

// play runs the story and prints it.
func (s *story) play(ctx context.Context, w world) error {
	n := w.size()
	s.say("", "%d nodes, a majority is %d, TTL %v", n, n/2+1, ttl)

	alice, err := s.enter(ctx, w, "alice")
	if err != nil {
		return err
	}
	defer alice.leave()
	first, err := wait(ctx, s, "alice", func(e quorumlock.Acquired) bool { return true })
	if err != nil {
		return err
	}
	bob, err := s.enter(ctx, w, "bob")
	if err != nil {
		return err
	}
	defer bob.leave()
	if err := s.meet(ctx, bob.m); err != nil {
		return err
	}
	full, err := wait(ctx, s, "alice", func(e quorumlock.Renewed) bool { return e.Margin == n-n/2-1 })
	if err != nil {
		return err
	}

	s.note("node %d dies; alice still leads", n-1)
	w.kill(n - 1)
	if _, err := wait(ctx, s, "alice", func(e quorumlock.Renewed) bool { return e.Margin < full.Margin }); err != nil {
		return err
	}
	s.note("node %d comes back empty; a renewal restores alice's lock", n-1)
	w.restart(n - 1)
	if _, err := wait(ctx, s, "alice", func(e quorumlock.Renewed) bool { return e.Margin == full.Margin }); err != nil {
		return err
	}
	s.say("", "the renewal has put the lock back: it is on all %d nodes again", n)

	s.note("the network cuts alice off from %d of %d nodes", n/2+1, n)
	w.cut("alice", n/2+1)
	lost, err := wait(ctx, s, "alice", func(quorumlock.Lost) bool { return true })
	if err != nil {
		return err
	}
	next, err := wait(ctx, s, "bob", func(quorumlock.Acquired) bool { return true })
	if err != nil {
		return err
	}
	if next.Token <= first.Token {
		return fmt.Errorf("token %d after token %d", next.Token, first.Token)
	}
	s.say("", "bob leads %v after alice's loss was reported; his token is larger by %d, so the resource can refuse a late write of alice's",
		time.Since(lost.At).Round(time.Millisecond), next.Token-first.Token)
	if _, err := wait(ctx, s, "bob", func(quorumlock.Renewed) bool { return true }); err != nil {
		return err
	}
	s.say("", "the end")
	return nil
}

// story prints what happens, with the time since it began.
type story struct {
	began    time.Time
	messages chan message // events of all contenders, in their order; never closed
	marks    []mark       // the contents of the picture
}

// message is an event of a contender.
type message struct {
	who   string
	at    time.Duration // since the story began
	event quorumlock.Event
}

func (s *story) say(who, format string, args ...any) {
	fmt.Printf("%6.2fs  %-6s %s\n", time.Since(s.began).Seconds(), who, fmt.Sprintf(format, args...))
}

// note prints an event of the nodes, and adds it to the picture.
func (s *story) note(format string, args ...any) {
	s.say("", format, args...)
	s.marks = append(s.marks, mark{at: time.Since(s.began), text: fmt.Sprintf(format, args...)})
}

// contender is a process that wants to lead.
type contender struct {
	m     *quorumlock.Manager
	leave func() // stops leading, closes, waits
}

// enter starts a contender.
func (s *story) enter(ctx context.Context, w world, who string) (*contender, error) {
	m, err := quorumlock.New(ctx, w.options(who), quorumlock.WithTTL(ttl), quorumlock.WithHolder(who),
		quorumlock.WithLogger(slog.New(slog.DiscardHandler))) // the story prints the events itself
	if err != nil {
		return nil, err
	}
	events := m.Subscribe(64)
	go func() {
		for e := range events.C() {
			select {
			case s.messages <- message{who, time.Since(s.began), e}:
			case <-ctx.Done():
			default: // the story has ended
			}
		}
	}()
	s.say(who, "campaigns")
	leading, resign := context.WithCancel(ctx)
	led := make(chan struct{})
	go func() {
		defer close(led)
		_ = m.Lead(leading, "demo/leader", func(ctx context.Context, l *quorumlock.Lease) error {
			return s.work(ctx, who, l)
		})
	}()
	return &contender{m: m, leave: func() {
		resign()
		<-led
		_ = m.Close(context.Background())
	}}, nil
}

// work is the job of a leader: small steps, each under a valid lease, each with the
// token.
func (s *story) work(ctx context.Context, who string, l *quorumlock.Lease) error {
	step := time.NewTicker(50 * time.Millisecond)
	defer step.Stop()
	for n := 0; ; n++ {
		select {
		case <-step.C:
			if err := write(l.Token()); err != nil {
				return err
			}
		case <-ctx.Done():
			s.say(who, "stops working after %d steps: %v", n, context.Cause(ctx))
			return ctx.Err()
		}
	}
}

// write stands for the write of a real job: the resource gets the token, and refuses one
// below the highest that it has seen.
func write(int64) error { return nil }

// meet shows the error that a second contender gets.
func (s *story) meet(ctx context.Context, m *quorumlock.Manager) error {
	_, err := m.TryAcquire(ctx, "demo/leader")
	var held *quorumlock.HeldError
	if !errors.As(err, &held) {
		return fmt.Errorf("the lease should be held, but: %w", err)
	}
	s.say("bob", "waits: %s has led since %s", held.Holder.Label, held.Holder.Since.Format(time.TimeOnly))
	return nil
}

// wait prints events until the wanted one of a contender.
func wait[E quorumlock.Event](ctx context.Context, s *story, who string, wanted func(E) bool) (E, error) {
	for {
		select {
		case t := <-s.messages:
			s.print(t)
			s.marks = append(s.marks, mark{at: t.at, who: t.who, event: t.event})
			if e, ok := t.event.(E); ok && t.who == who && wanted(e) {
				return e, nil
			}
		case <-ctx.Done():
			var none E
			return none, fmt.Errorf("waiting for %T of %s: %w", none, who, context.Cause(ctx))
		}
	}
}

// print prints one event.
func (s *story) print(t message) {
	switch e := t.event.(type) {
	case quorumlock.Acquired:
		s.say(t.who, "leads with token %d, valid for %v", e.Token, left(e.ValidUntil))
	case quorumlock.Renewed:
		s.say(t.who, "renewed: valid for %v, margin %d", left(e.ValidUntil), e.Margin)
	case quorumlock.AtRisk:
		s.say(t.who, "at risk: %v left, %d nodes do not confirm", e.Remaining.Round(time.Millisecond), len(e.Nodes))
	case quorumlock.Lost:
		when := "reported before another client can get it"
		if late := e.At.Sub(e.ValidUntil).Round(time.Millisecond); late > 0 {
			when = fmt.Sprintf("reported %v too late", late)
		}
		s.say(t.who, "lost: %v, %s", e.Reason, when)
	case quorumlock.Released:
		s.say(t.who, "released")
	case quorumlock.NodeChanged:
		if e.Err != nil {
			s.say(t.who, "node %d does not answer", e.Node)
		}
	}
}

func left(until time.Time) time.Duration { return time.Until(until).Round(10 * time.Millisecond) }
