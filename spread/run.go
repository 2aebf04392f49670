package spread

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/spread/internal/balance"
)

// Run takes names and runs their functions until ctx ends. Then it leaves the group, ends the contexts of all functions,
// and returns when they have returned; their names go to the other members as they come free. The contexts of functions
// have the values of ctx.
//
// It returns ctx.Err() and ctx's cause, if that is another error; ErrInvalid (an *quorumlock.InvalidError) for a bad
// Config, a nil ctx, options that the Manager refuses, and a second call: a Member runs once; and ErrClosed when the
// Manager was closed. Run does not return because nodes are missing.
func (s *Member) Run(ctx context.Context) error {
	if err := s.begin(ctx); err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	base := context.WithoutCancel(ctx)
	var presence sync.WaitGroup
	presence.Go(func() { s.appear(ctx, fail) })
	s.ticks(ctx, base)
	presence.Wait() // the others' shares grow before the names become free
	s.mu.Lock()
	for _, name := range s.core.SetNames(s.now(), nil) {
		s.end(name, context.Cause(ctx))
	}
	s.mu.Unlock()
	s.names.Wait()
	if err, cause := ctx.Err(), context.Cause(ctx); !errors.Is(cause, err) {
		if errors.Is(cause, quorumlock.ErrClosed) || errors.Is(cause, quorumlock.ErrInvalid) {
			return cause
		}
		return fmt.Errorf("%w: %w", err, cause)
	}
	return context.Cause(ctx)
}

// begin returns an error if Run cannot begin.
func (s *Member) begin(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.wrong != nil:
		return s.wrong
	case ctx == nil:
		return &quorumlock.InvalidError{What: "context", Bound: "must not be nil", Fix: "give context.Background()"}
	case s.started:
		return &quorumlock.InvalidError{What: "Run", Bound: "may be called once", Fix: "make another Member with New"}
	}
	s.started = true
	return nil
}

// key returns the name of the lock of a name; the name "" stands for the presence.
func (s *Member) key(name string) string { return s.cfg.Group + "/" + name }

// options returns the options of all leases. They override the Manager's defaults that delay a change of the holder.
func (s *Member) options(more ...quorumlock.AcquireOption) []quorumlock.AcquireOption {
	return append(more, quorumlock.WithTTL(s.cfg.TTL), quorumlock.WithHolder(s.id), quorumlock.WithMinHold(0), quorumlock.WithLockDelay(0))
}

// appear holds the presence until ctx ends. It ends Run for permanent errors.
func (s *Member) appear(ctx context.Context, fail context.CancelCauseFunc) {
	for ctx.Err() == nil {
		l, err := s.m.Acquire(ctx, s.key(""), s.options(quorumlock.Shared())...)
		switch {
		case err == nil:
			s.present(true)
			select {
			case <-l.Done():
			case <-ctx.Done():
			}
			s.present(false)
			if ctx.Err() != nil {
				s.release(ctx, l)
			}
		case ctx.Err() != nil:
		case errors.Is(err, quorumlock.ErrClosed) || errors.Is(err, quorumlock.ErrInvalid):
			fail(err)
		default:
			s.failed("cannot join the group", err)
			sleep(ctx, time.Second)
		}
	}
}

// release releases the presence. On a node that does not confirm, it expires.
func (s *Member) release(ctx context.Context, l *quorumlock.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.TTL)
	defer cancel()
	_ = l.Release(ctx)
}

func (s *Member) present(held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.core.Presence(s.now(), held)
}

// sleep waits, and returns false when ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// ticks lets the core decide, again and again, until ctx ends.
func (s *Member) ticks(ctx, base context.Context) {
	for {
		s.mu.Lock()
		pause := s.core.Pause(s.now())
		s.mu.Unlock()
		if !sleep(ctx, pause) {
			return
		}
		s.tick(ctx, base)
	}
}

// tick counts the members, looks at names, and carries out the core's commands.
func (s *Member) tick(ctx, base context.Context) {
	members, err := s.m.Inspect(ctx, s.key(""))
	if err != nil {
		s.refused(ctx, "cannot count the members", err)
		return
	}
	s.mu.Lock()
	names := s.core.Tick(s.now(), members.Readers)
	s.mu.Unlock()
	looks, failed := s.look(ctx, names)
	if ctx.Err() != nil {
		return
	}
	for _, member := range s.carryOut(base, looks, failed) {
		s.cfg.Log.Warn("spread: a member hands over no names: the shares stay uneven; does its Func return when its context ends?", "group", s.cfg.Group, "member", member)
	}
}

// carryOut carries out the core's commands, and returns the members that hand over no names.
func (s *Member) carryOut(base context.Context, looks []balance.Look, failed []string) (deaf []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.core.Looked(s.now(), looks, failed...) {
		switch c.Kind {
		case balance.Take, balance.Ask, balance.Await:
			s.start(base, c)
		case balance.Leave:
			s.end(c.Name, errLapsed)
		case balance.Deaf:
			deaf = append(deaf, c.Name)
		}
	}
	return deaf
}

// mostFailed is how many names of a tick may fail, each after a node timeout, before the rest is left out.
const mostFailed = 4

// look asks the nodes about names. Some may fail alone: those in a bucket of a cluster that has no master now.
func (s *Member) look(ctx context.Context, names []string) (looks []balance.Look, failed []string) {
	for len(names) > 0 && len(failed) < mostFailed && ctx.Err() == nil {
		keys := make([]string, len(names))
		for i, name := range names {
			keys[i] = s.key(name)
		}
		for status, err := range s.m.InspectAll(ctx, keys) {
			name := names[0]
			names = names[1:]
			if err != nil {
				s.refused(ctx, "cannot look at the names", err)
				failed = append(failed, name)
				break
			}
			looks = append(looks, sight(name, &status))
		}
	}
	return looks, failed
}

// sight returns the part of a status that the core needs.
func sight(name string, status *quorumlock.Status) balance.Look {
	l := balance.Look{Name: name, Free: !status.Held, Partial: !status.Held && status.Votes > 0, Waiters: status.Waiters}
	if status.Held {
		l.Holder, l.TTL = status.Holder.Label, status.TTL
		l.Marked = strings.HasSuffix(status.Holder.Asked, balance.Mark) // after the label of its Manager, if it has one
		if l.Holder == "" {
			l.Holder = status.Holder.Owner // another program's
		}
	}
	return l
}

// refused notes an error of the nodes, unless Run ends.
func (s *Member) refused(ctx context.Context, what string, err error) {
	if ctx.Err() == nil && !errors.Is(err, quorumlock.ErrClosed) {
		s.failed(what, err)
	}
}

// failed notes an error, and logs one a minute.
func (s *Member) failed(what string, err error) {
	s.mu.Lock()
	s.note(err)
	quiet := !s.warned.IsZero() && time.Since(s.warned) < time.Minute
	if !quiet {
		s.warned = time.Now()
	}
	s.mu.Unlock()
	if !quiet {
		s.cfg.Log.Warn("spread: "+what, "group", s.cfg.Group, "error", err)
	}
}

// note counts an error. The caller holds mu.
func (s *Member) note(err error) {
	s.tally.Failures++
	s.tally.LastError, s.tally.LastErrorAt = err, time.Now()
}
