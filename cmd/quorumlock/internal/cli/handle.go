package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
)

// handlePrefix begins every handle.
const handlePrefix = "ql1."

// maxHandle bounds how much of stdin is read for a handle.
const maxHandle = 4096

func (p *program) acquireCommand() *cobra.Command {
	ttl, wait := time.Minute, time.Duration(0)
	var holder string
	c := &cobra.Command{
		Use:   "acquire NAME",
		Short: "Take a lock for a script whose steps are different processes",
		Long: `Acquire takes the lock NAME for --ttl and prints its handle, which is a secret:
its owner can prolong the lock with renew, give it back with release, or
resume it in a program (Manager.Resume). The lock is not renewed until then. A
single command is safer under run, which renews the lock and stops the command
when it is lost. A shared lease has no handle: to read, use run --shared.`,
		Example: `  handle=$(quorumlock acquire deploy --ttl 30s) || exit
  ./build && handle=$(quorumlock renew "$handle" --ttl 30s) && ./roll-out
  quorumlock release "$handle"`,
		Annotations: needsNodes,
		Args:        exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts := []quorumlock.AcquireOption{quorumlock.WithHolder(orMe(holder))}
			if cmd.Flags().Changed("wait") {
				opts = append(opts, quorumlock.WithWait(wait))
			}
			return p.detached(cmd.Context(), ttl, func(ctx context.Context, m *quorumlock.Manager) (*quorumlock.Lease, error) {
				return m.Acquire(ctx, args[0], opts...)
			})
		},
	}
	c.Flags().Var(durationFlag{&ttl}, "ttl", "how long the lock lives, 100ms to 24h")
	c.Flags().Var(durationFlag{&wait}, "wait", "how long to wait for the lock; 0 asks once\n(default: forever)")
	c.Flags().StringVar(&holder, "holder", "", "`LABEL` that others see (default: user@host)")
	return c
}

// orMe returns the label, or the user of this process if it is empty.
func orMe(label string) string {
	if label == "" {
		return me()
	}
	return label
}

func (p *program) renewCommand() *cobra.Command {
	ttl := time.Minute
	var holder string
	c := &cobra.Command{
		Use:   "renew HANDLE",
		Short: "Prolong a lock that acquire has taken",
		Long: `Renew prolongs the lock of HANDLE (or of the line on stdin, for -) by --ttl from
now, and prints its new handle; the old one no longer works. Its fencing
token has grown. It exits with 76 if the lock was lost.`,
		Annotations: needsNodes,
		Args:        exactly("HANDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := p.handle(args[0])
			if err != nil {
				return err
			}
			return p.detached(cmd.Context(), ttl, func(ctx context.Context, m *quorumlock.Manager) (*quorumlock.Lease, error) {
				return m.Resume(ctx, h, quorumlock.WithHolder(orMe(holder)))
			})
		},
	}
	c.Flags().Var(durationFlag{&ttl}, "ttl", "how long the lock lives from now,\n100ms to 24h")
	c.Flags().StringVar(&holder, "holder", "", "`LABEL` that others see (default: user@host)")
	return c
}

// detached takes a lock, detaches it, and prints its handle. If printing fails, it releases the lock.
func (p *program) detached(ctx context.Context, ttl time.Duration, take func(context.Context, *quorumlock.Manager) (*quorumlock.Lease, error)) error {
	longest := config.MaxTTL
	if p.connection.guard > 0 {
		longest = min(longest, p.connection.guard-p.connection.window)
	}
	if ttl < config.MinTTL || ttl > longest { // before anything is taken
		return usagef("--ttl %v: must be %v to %v; with a restart guard it is at most the guard's time less the failover window", ttl, config.MinTTL, longest)
	}
	ctx, stop := signal.NotifyContext(ctx, ending()...)
	defer stop()
	surviveClosedPipes()
	m, err := p.connection.manager(ctx)
	if err != nil {
		return err
	}
	defer closeManager(m)
	l, err := take(ctx, m)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout) // a signal may not prevent printing or releasing
	defer cancel()
	h, err := l.Detach(ctx, ttl)
	if err != nil {
		return &exitError{code: exitLost, text: "the lock was released again: " + oneLine(err)}
	}
	text := string(h)
	if p.connection.json {
		text = `{"handle":` + strconv.Quote(text) + "}"
	}
	if _, err := fmt.Fprintln(p.stdout, text); err != nil {
		return errors.Join(&exitError{code: exitInternal, text: "the handle cannot be written, and the lock was released: " + err.Error()}, m.ReleaseHandle(ctx, h))
	}
	return nil
}

// handle returns the handle of an argument, or the handle on stdin for "-".
func (p *program) handle(text string) (quorumlock.Handle, error) {
	if text == "-" {
		line := bufio.NewScanner(p.stdin)
		line.Buffer(nil, maxHandle)
		line.Scan()
		text = line.Text()
	}
	if text = strings.TrimSpace(text); !strings.HasPrefix(text, handlePrefix) {
		return "", usagef("%d bytes that do not begin with %s are not a handle: give the line that acquire or renew has printed", len(text), handlePrefix)
	}
	return quorumlock.Handle(text), nil
}

func (p *program) releaseCommand() *cobra.Command {
	owner, permits := "", 0
	c := &cobra.Command{
		Use:   "release HANDLE | NAME --dead OWNER",
		Short: "Give back a lock of acquire, or break a dead holder's",

		SuggestFor: []string{"unlock"},
		Long: `Release gives the lock of HANDLE (or of the line on stdin, for -) back.

With --dead OWNER, the owner that inspect shows, it deletes the keys that OWNER
has of the lock NAME on every server, or of one of its N permits (--permits N),
so that the next client gets it at once. It breaks the lock: IF THE HOLDER STILL
RUNS, TWO WORK AT THE SAME TIME, and only resources that check the fencing token
are safe. First make sure that it is dead: killed, its machine off. A paused
process is not dead, and a detached lock may belong to a script that is at work.
Other readers keep a lock that OWNER shares; 32 zeros are all readers of a lock
that was revoked. If another client holds the lock by now, nothing is deleted.
Otherwise use revoke, which waits for the end of the lease.`,
		Annotations: needsNodes,
		Args:        exactly("HANDLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			breaks, some := cmd.Flags().Changed("dead"), cmd.Flags().Changed("permits")
			switch handle := args[0] == "-" || strings.HasPrefix(args[0], handlePrefix); {
			case some && !breaks:
				return usagef("--permits without --dead: a handle is never of a permit; leave --permits out")
			case breaks && handle:
				return usagef("--dead with a handle: give the NAME of the lock; a handle alone is released without --dead")
			case breaks && some && checkPermits(permits) != nil:
				return checkPermits(permits)
			case breaks:
				return p.breakLock(cmd.Context(), args[0], owner, permits)
			case !handle:
				return usagef("release of a name deletes the keys of its holder: kill that first, then give --dead and the owner that inspect shows; or use quorumlock revoke, which waits for the end of its lease")
			}
			return p.release(cmd.Context(), args[0])
		},
	}
	c.Flags().StringVar(&owner, "dead", "", "an `OWNER` whose process you have made sure is dead")
	c.Flags().IntVar(&permits, "permits", 0, "with --dead, OWNER has one of `N` permits, 1 to 1024")
	return c
}

func (p *program) release(ctx context.Context, text string) error {
	h, err := p.handle(text)
	if err != nil {
		return err
	}
	m, err := p.connection.manager(ctx)
	if err != nil {
		return err
	}
	defer closeManager(m)
	if err := m.ReleaseHandle(ctx, h); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}
