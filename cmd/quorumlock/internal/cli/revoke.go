package cli

import (
	"context"
	"os"
	"os/signal"
	"os/user"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/quorumlock"
)

// reasonFlags are the flags of a note to a holder.
type reasonFlags struct{ reason, by string }

func (r *reasonFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&r.reason, "reason", "", "a `TEXT` for the holder, at most 256 bytes")
	c.Flags().StringVar(&r.by, "by", "", "who you are, for the holder\n(default: user@host)")
}

// me names the user of this process.
func me() string {
	host, _ := os.Hostname()
	if u, err := user.Current(); err == nil {
		return u.Username + "@" + host
	}
	return host
}

func (p *program) askReleaseCommand() *cobra.Command {
	var r reasonFlags
	c := &cobra.Command{
		Use:   "ask-release NAME",
		Short: "Ask the holder of a lock to release it",
		Long: `Ask-release tells the holder of the lock NAME, at its next renewal, that another
client wants it. A program gets that on Lease.Wanted; quorumlock run prints it,
or stops its command if it was started with --release-when-asked. The holder
decides. If readers share NAME, all of them are asked, also later ones. To take
the lock away, use revoke.`,
		Annotations: needsNodes,
		Args:        exactly("NAME"),
		RunE:        func(cmd *cobra.Command, args []string) error { return p.askRelease(cmd.Context(), args[0], r) },
	}
	r.register(c)
	return c
}

func (p *program) askRelease(ctx context.Context, name string, r reasonFlags) error {
	m, err := p.connection.manager(ctx, quorumlock.WithHolder(orMe(r.by)))
	if err != nil {
		return err
	}
	defer closeManager(m)
	if err := m.AskRelease(ctx, name, r.reason); err != nil {
		return err
	}
	s, err := m.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if p.connection.json {
		return p.printJSON(lockJSON(s, p.connection.quorum()))
	}
	if !s.Held {
		p.line("%s is not held", strconv.Quote(name))
		return nil
	}
	learns := "it finds out at its next renewal"
	if s.Readers > 1 {
		learns = "they find out at their next renewals"
	}
	p.line("asked %s to release %s; %s", called(s.Holder, s.Readers), strconv.Quote(name), learns)
	return nil
}

func (p *program) revokeCommand() *cobra.Command {
	var r reasonFlags
	var wait bool
	c := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Take a lock away from its holder",
		Long: `Revoke makes the nodes refuse further renewals of the lease of the lock NAME. It
deletes nothing: no other client gets the lock before the holder's lease has
ended. A live holder finds out at its next renewal, and the lock is free; stop a
program that continues to work. Otherwise the lease ends at the instant that
revoke prints. Later holders are not affected.

If readers share NAME, all of them lose it, and no other client gets the lock
before that instant, even if all of them stop at once.`,
		Annotations: needsNodes,
		Args:        exactly("NAME"),
		RunE:        func(cmd *cobra.Command, args []string) error { return p.revoke(cmd.Context(), args[0], wait, r) },
	}
	r.register(c)
	c.Flags().BoolVar(&wait, "wait", false, "return when the holder has lost the lock")
	return c
}

// revocationJSON is the answer of revoke. Its keys are stable.
type revocationJSON struct {
	Name    string      `json:"name"`
	Holder  *holderJSON `json:"holder"`  // null if the lock is not held
	Readers int         `json:"readers"` // how many held the lock together, 0 if the holder had it alone, or for a repeated revocation
	Until   string      `json:"until"`   // RFC 3339, when the lease ends at the latest; empty without a holder
	Marked  int         `json:"marked"`  // nodes
}

func (p *program) revoke(ctx context.Context, name string, wait bool, f reasonFlags) error {
	ctx, stop := signal.NotifyContext(ctx, ending()...)
	defer stop()
	m, err := p.connection.manager(ctx, quorumlock.WithHolder(orMe(f.by)), quorumlock.WithObserveEvery(minInterval))
	if err != nil {
		return err
	}
	defer closeManager(m)
	before, _ := m.Inspect(ctx, name) // Revoke returns its own error
	r, err := m.Revoke(ctx, name, f.reason)
	if err != nil {
		if r.Marked > 0 {
			p.note("%d nodes refuse to renew the lease, too few to end it: call revoke again when more nodes answer", r.Marked)
		}
		return err
	}
	readers := before.Readers
	if r.Holder == (quorumlock.Holder{}) { // they have just left
		readers = 0
	}
	err = p.revocation(name, r, readers)
	if err != nil || !wait || r.Until.IsZero() {
		return err
	}
	statuses, err := m.Observe(ctx, name)
	if err != nil {
		return err
	}
	for s := range statuses {
		if s.Known && s.Holder.Owner != r.Holder.Owner && s.Holder.Owner != revokedReaders { // the marks stay until the readers' leases end
			return p.holding(s, nil)
		}
	}
	return ctx.Err()
}

// revocation prints the result of the revocation of a holder, or of this number of readers.
func (p *program) revocation(name string, r quorumlock.Revocation, readers int) error {
	if p.connection.json {
		j := revocationJSON{Name: name, Holder: holderOf(r.Holder), Readers: readers, Marked: r.Marked}
		if !r.Until.IsZero() {
			j.Until = stamp(r.Until)
		}
		return p.printJSON(j)
	}
	quoted := strconv.Quote(name)
	done, ends, then := "revoked "+quoted+" of "+called(r.Holder, readers), "ends", "or when the holder notices"
	switch {
	case r.Holder == (quorumlock.Holder{}):
		p.line("%s is not held", quoted)
		return nil
	case r.Holder.Owner == revokedReaders:
		done, ends, then = "the leases of the readers of "+quoted+" were revoked before", "end", "and no other client gets it before"
	case readers > 0:
		then = "and no other client gets it before"
	}
	p.line("%s: %s at the latest at %s, in %s, %s", done, ends, stamp(r.Until), short(time.Until(r.Until)), then)
	return nil
}
