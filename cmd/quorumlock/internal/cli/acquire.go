package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/quorumlock/quorumlock"
)

// interrupted is the cause of a wait that a signal has ended.
type interrupted struct{ signal os.Signal }

func (i interrupted) Error() string { return "the wait was ended by a signal: " + i.signal.String() }

// taken has the leases under which a command runs: of all names, or a shared lease or a permit.
type taken interface {
	All() []*quorumlock.Lease
	Valid() bool
	Remaining() time.Duration
	Done() <-chan struct{}
	Release(ctx context.Context) error
}

// single is a shared lease, or a permit.
type single struct{ *quorumlock.Lease }

// All returns the lease.
func (s single) All() []*quorumlock.Lease { return []*quorumlock.Lease{s.Lease} }

// take takes the locks, or a shared lease or a permit of the only name.
func take(ctx context.Context, m *quorumlock.Manager, names []string, o runOptions, opts []quorumlock.AcquireOption) (taken, error) {
	var kind quorumlock.Kind
	switch {
	case o.shared:
		kind = quorumlock.Shared()
	case o.permits > 0:
		kind = quorumlock.Permits(o.permits)
	default:
		return m.AcquireAll(ctx, names, opts...)
	}
	l, err := m.Acquire(ctx, names[0], append(opts, kind)...)
	return single{l}, err
}

// acquire connects to the nodes and takes the locks, unless a signal arrives first. The caller closes the Manager, if
// there is one, even after an error.
func (p *program) acquire(
	ctx context.Context, names []string, o runOptions, signals <-chan os.Signal,
) (taken, *quorumlock.Manager, error) {
	ctx, stop := untilSignal(ctx, signals)
	all, m, err := p.await(ctx, names, o)
	stop()
	if err == nil && errors.As(context.Cause(ctx), new(interrupted)) { // it arrived just as the last lock was granted
		p.giveBack(all, o)
		err = waitEnded(context.Cause(ctx), o)
	}
	return all, m, err
}

// await is acquire for a context that a signal ends; --wait bounds connecting and taking together.
func (p *program) await(ctx context.Context, names []string, o runOptions) (taken, *quorumlock.Manager, error) {
	began := time.Now()
	rest := func() time.Duration { // of --wait
		if !o.waitGiven {
			return math.MaxInt64
		}
		return max(o.wait-time.Since(began), 0)
	}
	notes := p.waitNotes()
	defer notes.end()
	settings := []quorumlock.Option{quorumlock.WithTTL(o.ttl), quorumlock.WithHolder(o.holder), quorumlock.WithLogger(notes.logger())}
	m, err := p.connection.manager(ctx, settings...)
	if worthWaiting(err) && rest() > 0 && ctx.Err() == nil { // the servers may start later
		p.note("%s; waiting", oneLine(err))
		notes.begin(names)
		m, err = p.connection.manager(ctx, append(settings, quorumlock.WithStartupWait(rest()))...)
		err = waitOver(ctx, err, o)
	}
	if err != nil {
		return nil, nil, waitEnded(err, o)
	}
	var opts []quorumlock.AcquireOption
	if o.minHold > 0 {
		opts = append(opts, quorumlock.WithMinHold(o.minHold))
	}
	all, err := take(ctx, m, names, o, append(opts, quorumlock.WithWait(0)))
	if o.waitGiven && o.wait == 0 || !worthWaiting(err) || ctx.Err() != nil {
		return all, m, waitEnded(err, o)
	}
	if !o.quiet(err) {
		p.note("%s; waiting", oneLine(err))
		notes.begin(names)
	}
	if o.waitGiven {
		opts = append(opts, quorumlock.WithWait(rest()))
	}
	all, err = take(ctx, m, names, o, opts)
	return all, m, waitEnded(waitOver(ctx, err, o), o)
}

// quiet reports whether an error needs no message: with -E 0 another holder is as good, and cron mails each line.
func (o runOptions) quiet(err error) bool {
	return o.conflict == exitOK && errors.Is(err, quorumlock.ErrHeld)
}

// waitOver adds to an error that --wait has ended the wait.
func waitOver(ctx context.Context, err error, o runOptions) error {
	if o.waitGiven && worthWaiting(err) && ctx.Err() == nil {
		return fmt.Errorf("%w; --wait %v has passed", err, o.wait)
	}
	return err
}

// worthWaiting reports whether a later attempt may succeed.
func worthWaiting(err error) bool {
	return errors.Is(err, quorumlock.ErrHeld) || errors.Is(err, quorumlock.ErrNoQuorum)
}

// waitEnded gives the error of an acquisition its exit code.
func waitEnded(err error, o runOptions) error {
	var by interrupted
	if errors.As(err, &by) {
		number, _ := by.signal.(syscall.Signal)
		return &exitError{code: exitSignalBase + int(number), err: by}
	}
	switch code := exitCode(err); {
	case err == nil:
		return nil
	case code == exitConflict && o.quiet(err):
		return &exitError{code: exitOK}
	case code == exitConflict:
		return &exitError{code: o.conflict, err: err}
	default:
		return err
	}
}

// untilSignal returns a context that ends with the first signal that ends programs. The caller must call the returned
// function: it frees the channel of signals for the next reader, and leaves a late signal in it.
func untilSignal(ctx context.Context, signals <-chan os.Signal) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	over, joined := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(joined)
		for {
			select {
			case s := <-signals:
				if slices.Contains(ending(), s) {
					cancel(interrupted{s})
					return
				}
			case <-over:
				return
			}
		}
	}()
	return ctx, func() {
		close(over)
		<-joined
		cancel(nil)
	}
}
