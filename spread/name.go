package spread

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/spread/internal/balance"
)

// start starts the goroutines of a name, which Run joins: one acquires the name and runs its function, and for an ask
// another one asks the holder. It is the only place with such goroutines. The caller holds mu.
func (s *Member) start(base context.Context, c balance.Command) {
	ctx, end := context.WithCancelCause(base)
	s.ends[c.Name] = end
	s.names.Go(func() {
		defer end(nil)
		s.acquire(ctx, c)
	})
	if c.Kind == balance.Ask {
		s.names.Go(func() { s.ask(ctx, c) })
	}
}

// acquire acquires a name, and runs its function under the lease.
func (s *Member) acquire(ctx context.Context, c balance.Command) {
	opts := s.options()
	if c.Kind == balance.Take {
		opts = s.options(quorumlock.WithWait(0))
	}
	err := s.m.Do(ctx, s.key(c.Name), func(ctx context.Context, l *quorumlock.Lease) error {
		s.hold(ctx, l, c.Name)
		return nil
	}, opts...)
	switch {
	case err == nil || ctx.Err() != nil || errors.Is(err, quorumlock.ErrHeld) || errors.Is(err, quorumlock.ErrClosed):
	case errors.Is(err, quorumlock.ErrLost):
		s.cfg.Log.Warn("spread: a name is lost", "group", s.cfg.Group, "name", c.Name, "error", err)
	default:
		s.failed("cannot acquire "+c.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ends, c.Name)
	s.core.Ended(s.now(), c.Name)
}

// ask asks the holder of a name when this member waits for it: the holder gives to a waiter only.
func (s *Member) ask(ctx context.Context, c balance.Command) {
	if !sleep(ctx, s.rules.AskAfter) {
		return
	}
	s.mu.Lock()
	waits := s.core.Waits(c.Name)
	s.mu.Unlock()
	if waits {
		_ = s.m.AskRelease(ctx, s.key(c.Name), c.Text) // without it the wait ends without a result
	}
}

// hold runs the function of a name until it returns.
func (s *Member) hold(ctx context.Context, l *quorumlock.Lease, name string) {
	s.mu.Lock()
	granted := s.core.Granted(s.now(), name)
	if granted {
		s.own[name] = &NameStatus{Name: name, Token: l.Token(), Since: time.Now()}
	}
	s.mu.Unlock()
	if !granted {
		return
	}
	s.cfg.Log.Debug("spread: a name begins", "group", s.cfg.Group, "name", name, "token", l.Token())
	works, returned := context.WithCancel(context.WithoutCancel(ctx)) // ends when the function has returned
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(ctx, works, l, name) })
	defer func() { // also for a panic
		returned()
		watching.Wait()
		s.mu.Lock()
		delete(s.own, name)
		s.mu.Unlock()
	}()
	s.repeat(ctx, l, name)
	s.cfg.Log.Debug("spread: a name ends", "group", s.cfg.Group, "name", name, "token", l.Token(), "cause", context.Cause(ctx))
}

// repeat calls the function until its context or the lease ends.
func (s *Member) repeat(ctx context.Context, l *quorumlock.Lease, name string) {
	for pause := time.Second; ; pause = min(2*pause, time.Minute) {
		began := time.Now()
		err := s.cfg.Func(ctx, l, name)
		if ctx.Err() != nil || l.Err() != nil {
			return
		}
		if err == nil {
			err = errReturned
		}
		if time.Since(began) >= time.Minute {
			pause = time.Second
		}
		s.mu.Lock()
		s.note(err)
		if own := s.own[name]; own != nil {
			own.Failures++
			own.LastError = err
		}
		s.mu.Unlock()
		s.cfg.Log.Warn("spread: Func returned before its context ended; it is called again", "group", s.cfg.Group, "name", name, "in", pause, "error", err)
		if !sleep(ctx, pause) {
			return
		}
	}
}

// watch reports to the core who wants the name, and its loss, until the function has returned, which ends works.
func (s *Member) watch(ctx, works context.Context, l *quorumlock.Lease, name string) {
	var last quorumlock.Wanted
	wanted, ended := l.Wanted(), ctx.Done()
	late := time.NewTimer(time.Hour)
	late.Stop()
	defer late.Stop()
	for {
		select {
		case <-works.Done():
			return
		case <-l.Done():
			s.mu.Lock()
			s.core.Lost(s.now(), name)
			s.mu.Unlock()
			return
		case <-ended:
			ended = nil
			late.Reset(s.rules.MarkAfter)
		case <-late.C: // repeatedly: a node may have been away, or an asker's text may have replaced the mark
			late.Reset(s.rules.MarkEvery)
			s.wanted(works, name, last)
		case w, open := <-wanted:
			if !open {
				wanted = nil
				continue
			}
			last = w
			s.wanted(works, name, w)
		}
	}
}

// wanted lets the core decide whether a name is given away. The end of works ends a mark: the name is not released
// before, so the mark reaches no later holder.
func (s *Member) wanted(works context.Context, name string, w quorumlock.Wanted) {
	s.mu.Lock()
	answer := s.core.Wanted(s.now(), name, w.Waiters, w.Reason)
	if answer == balance.Consent {
		s.end(name, errGiven)
	}
	s.mu.Unlock()
	if answer == balance.Remark {
		ctx, cancel := context.WithTimeout(works, s.cfg.TTL)
		defer cancel()
		_ = s.m.AskRelease(ctx, s.key(name), balance.Mark) // the next value repeats it
	}
}
