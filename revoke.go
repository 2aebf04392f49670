package quorumlock

import (
	"context"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/observe"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// AskRelease asks the holder of a name to release it. The request arrives on the holder's
// Lease.Wanted with its next renewal, and the holder may ignore it. reason is a text for people, of
// at most 256 bytes; the request also carries the label of this Manager. A second request replaces
// the first. Holders of permits are not asked, and a lease that is detached or revoked does not get it.
//
// It returns nil when a majority of the nodes has the request, and when the name is not held;
// ErrNoQuorum (a *QuorumError) when too few nodes have it, joined with ctx.Err() and ctx's cause
// when ctx ended first: the holder may still receive it; ErrClosed; and ErrInvalid for a bad name
// or reason, and for a name that another program holds.
func (m *Manager) AskRelease(ctx context.Context, name, reason string) error {
	s, note, err := m.noted(ctx, "ask", name, reason)
	if err != nil || !s.Held {
		return err
	}
	sh := m.of(name)
	answers := sh.observers.Ask(ctx, sh.key(name), ownerOn(s.Holder, s.Readers), note)
	err = enough(ctx, sh.ensemble, "ask", name, answers)
	if err != nil && m.gone(ctx, &s) {
		return nil // it has just been released
	}
	return err
}

// Revocation is the answer of Revoke.
type Revocation struct {
	Holder Holder // whose lease was revoked; zero if the name is not held
	// Until is when the lease ends at the latest: no work may continue under it. Zero if that is
	// not known.
	Until  time.Time
	Marked int // how many nodes do not renew the lease any more
}

// Revoke takes a lease away from its holder, for a name that is stuck. The nodes stop renewing the
// lease. A live holder loses it at its next renewal (LostRevoked), and the name is free a moment
// later. Otherwise the lease ends at Until, and no other client gets the name before. It deletes
// nothing, because the holder may still work.
//
// Revoke affects only the present holder, or all readers if they share the name. It does not
// revoke permits: stop the process that holds one. A holder that acquires again waits behind
// the other waiters. A node that loses its latest data before Until, by a restart or a
// failover, renews the lease again.
//
// Marked is the number of nodes that refuse renewals. With a majority, Until is known and the
// error is nil. When the name is not held, the error is also nil, and Holder is zero. The
// errors are as for AskRelease. After ErrNoQuorum the holder may continue, and is still the
// only one: call again. reason is as for AskRelease; the holder finds it in the errors of the
// nodes of its Lost.
func (m *Manager) Revoke(ctx context.Context, name, reason string) (Revocation, error) {
	s, note, err := m.noted(ctx, "revoke", name, reason)
	if err != nil || !s.Held {
		return Revocation{}, err
	}
	sh := m.of(name)
	l, marks := observe.Lease{Key: sh.key(name), Owner: ownerOn(s.Holder, s.Readers)}, 0
	reaches := time.Duration(0)
	for _, n := range s.Nodes {
		if ownerOn(n.Holder, n.Readers) == l.Owner {
			l.Longest = max(l.Longest, n.TTL)
			if n.Holder.Revoked != "" {
				marks++
			}
		}
		// The node may have lost a renewal; and a master that was replaced continues to renew for the window.
		if n.QuarantinedFor > 0 || m.cfg.Failover > 0 {
			reaches = m.cfg.Guard
		}
	}
	if l.Again = marks >= sh.ensemble.Quorum(); !l.Again {
		l.Longest = max(l.Longest, reaches)
	}
	result := sh.observers.Revoke(ctx, l, m.cfg.Drift, note)
	r := Revocation{Holder: s.Holder, Marked: result.Marked}
	if result.Until == 0 && result.Gone >= sh.ensemble.Quorum() && m.gone(ctx, &s) {
		return Revocation{}, nil // it has just been released
	}
	if result.Until == 0 {
		err := error(noQuorum(sh.ensemble, "revoke", name, result.Marked, result.Errors))
		if ctx.Err() != nil {
			err = errs.Ended(ctx, err, "stopped waiting for answers")
		}
		return r, err
	}
	r.Until = m.clock.Time(result.Until)
	m.reporter.Warn("a lease was revoked", "name", name, "holder", r.Holder.Label, "owner", r.Holder.Owner, "reason", reason, "until", r.Until)
	return r, nil
}

// gone reports whether, by the answers of a majority, the holder of before no longer holds the name.
func (m *Manager) gone(ctx context.Context, before *Status) bool {
	now, err := m.Inspect(ctx, before.Name)
	return err == nil && ownerOn(now.Holder, now.Readers) != ownerOn(before.Holder, before.Readers)
}

// noted returns the state of a name for a note to its holder. Without an error the name is held by a lease
// of this package, or it cannot be held.
func (m *Manager) noted(ctx context.Context, op, name, reason string) (s Status, note wire.Note, err error) {
	if len(reason) > wire.MaxReasonLen || !utf8.ValidString(reason) {
		return s, note, &InvalidError{What: "reason", Value: strconv.Quote(reason), Bound: "must be UTF-8 of at most " + strconv.Itoa(wire.MaxReasonLen) + " bytes", Fix: "shorten it"}
	}
	s, err = m.Inspect(ctx, name)
	if err != nil {
		return s, note, err
	}
	problems, unknown := make([]error, len(s.Nodes)), 0
	for i, n := range s.Nodes {
		if problems[i] = n.Err; n.Err != nil {
			unknown++
		}
	}
	switch {
	case s.Held && s.Holder.Since.IsZero():
		err = &InvalidError{What: "the holder of " + strconv.Quote(name), Value: strconv.Quote(s.Holder.Owner), Bound: "must have a lease of this package", Fix: "ask the program that holds it"}
	case !s.Held && s.Votes > 0 && s.Votes+unknown >= m.of(name).ensemble.Quorum():
		err = noQuorum(m.of(name).ensemble, op, name, s.Votes, problems)
	}
	return s, wire.Note{By: m.cfg.Terms.Label, Reason: reason}, err
}
