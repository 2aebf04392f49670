package quorumlock

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/observe"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Status is the answer of Inspect: the state of a name on the nodes.
type Status struct {
	Name   string
	Held   bool          // a majority of the nodes names the same owner
	Holder Holder        // the holder that most nodes name, even without a majority
	Votes  int           // how many nodes name Holder
	TTL    time.Duration // how long a majority keeps Holder's key; negative for no end, 0 unless Held
	Fence  int64         // the highest fencing register of the nodes that answered; with a majority of answers, no token is above it
	// Waiters is how many processes wait in the queue, this one included: the largest number
	// on any node. Of the callers of one process only the first is in it. A call that was not
	// refused yet may be missing, and one that ended a moment ago may be counted.
	Waiters int
	Nodes   []NodeStatus
}

// Inspect asks every node for the holder of a name, and changes nothing. It waits for all
// nodes, one node timeout at most, and returns their answers. It does not wait for a node that
// has been silent for a node timeout already, unless too few others are left. When fewer than a majority
// answered, it also returns ErrNoQuorum (a *QuorumError), joined with ctx.Err() and ctx's
// cause when ctx ended first.
func (m *Manager) Inspect(ctx context.Context, name string) (Status, error) {
	if err := inspectable(ctx, m, name); err != nil {
		return Status{}, err
	}
	_, now := m.ensemble.Clock.Both()
	timeout := m.cfg.At(m.ensemble.Trip(), &m.cfg.Terms).Timeout
	req := wire.NewRead(wire.LockKey(m.cfg.Prefix, name), now+timeout)
	answers := m.ensemble.Collect(ctx, req, timeout, m.ensemble.Size(), nil)
	return status(m, name, answers), enough(ctx, m.ensemble, "inspect", name, answers)
}

// AskRelease asks the holder of a name to release it: the holder's lease gets it on Lease.Wanted, with
// its next renewal, and does what it likes. reason is a text for people, of at most 256 bytes; the
// label of this Manager goes along. Only the holder of now is asked, and no later one. A second
// request replaces the first.
//
// It returns nil when a majority of the nodes has the request, and when nobody holds the name;
// ErrNoQuorum (a *QuorumError) when too few nodes have it, joined with ctx.Err() and ctx's cause when
// ctx ended first: the holder may learn it all the same; ErrClosed; and ErrInvalid for a name or a
// reason out of bounds, and for a name that another program holds. It is safe for concurrent use.
func (m *Manager) AskRelease(ctx context.Context, name, reason string) error {
	s, note, err := noted(ctx, m, "ask", name, reason)
	if err != nil || !s.Held {
		return err
	}
	answers := m.out.observers.Ask(ctx, wire.LockKey(m.cfg.Prefix, name), s.Holder.Owner, note)
	err = enough(ctx, m.ensemble, "ask", name, answers)
	if err != nil && gone(ctx, m, &s) {
		return nil // it has just been released
	}
	return err
}

// Revocation is the answer of Revoke.
type Revocation struct {
	Holder Holder // whose lease was revoked; zero if nobody holds the name
	// Until is when the lease is over at the latest: nobody works under it from then on. Zero if that is
	// not known.
	Until  time.Time
	Marked int // how many nodes do not renew the lease any more
}

// Revoke takes a lease away from its holder, for a name that is stuck. It deletes nothing, because
// another client would then get the name while the holder still works: the nodes renew the lease no
// more. A holder that lives finds out with its next renewal, after a third of its TTL: its lease is
// lost, with LostRevoked, and the name is free a moment later. If it does not, its lease is over at
// Until, and nobody gets the name before that: as long as its keys had to live, and two node timeouts,
// after the call; with failover groups, or a node in quarantine, the time of the guard in place of the
// keys'.
//
// Only the holder of now is hit, and no later one. A process that passes the name from one of its callers
// to the next is one holder. A holder whose work goes on, such as one in Lead, may acquire again, behind
// those who wait. A node that loses its latest data before Until, by a restart or a failover, loses the
// mark, and renews the lease again. With marks on fewer than a majority the holder goes on, and is still
// the only one: revoke again. reason is as for AskRelease; the holder finds it in the errors of the nodes
// of its Lost.
//
// Marked has the number of nodes that were marked. With a majority Until is known, and the error is nil; it
// is nil, too, and Holder zero, when nobody holds the name, or the holder has just released it. The errors
// are those of AskRelease: after ErrNoQuorum the nodes that were marked stay so, and the call can be
// repeated. It is safe for concurrent use.
func (m *Manager) Revoke(ctx context.Context, name, reason string) (Revocation, error) {
	s, note, err := noted(ctx, m, "revoke", name, reason)
	if err != nil || !s.Held {
		return Revocation{}, err
	}
	l, marks := observe.Lease{Key: wire.LockKey(m.cfg.Prefix, name), Owner: s.Holder.Owner}, 0
	reaches := time.Duration(0)
	for _, n := range s.Nodes {
		if n.Holder.Owner == s.Holder.Owner {
			l.Longest = max(l.Longest, n.TTL)
			if n.Holder.Revoked != "" {
				marks++
			}
		}
		// The node may have lost a renewal; and a master that was replaced goes on renewing for the window.
		if n.QuarantinedFor > 0 || m.cfg.Failover > 0 {
			reaches = m.cfg.Guard
		}
	}
	if l.Again = marks >= m.ensemble.Quorum(); !l.Again {
		l.Longest = max(l.Longest, reaches)
	}
	result := m.out.observers.Revoke(ctx, l, m.cfg.Drift, note)
	r := Revocation{Holder: s.Holder, Marked: result.Marked}
	if result.Until == 0 && result.Gone >= m.ensemble.Quorum() && gone(ctx, m, &s) {
		return Revocation{}, nil // it has just been released
	}
	if result.Until == 0 {
		err := error(noQuorum(m.ensemble, "revoke", name, result.Marked, result.Errors))
		if ctx.Err() != nil {
			err = errs.Ended(ctx, err, "stopped waiting for answers")
		}
		return r, err
	}
	r.Until = m.ensemble.Clock.Time(result.Until)
	m.reporter.Warn("a lease was revoked", "name", name, "holder", r.Holder.Label, "owner", r.Holder.Owner, "reason", reason, "until", r.Until)
	return r, nil
}

// gone reports whether a majority says that the holder of before does not hold the name any more.
func gone(ctx context.Context, m *Manager, before *Status) bool {
	now, err := m.Inspect(ctx, before.Name)
	return err == nil && now.Holder.Owner != before.Holder.Owner
}

// noted returns the state of a name for a note to its holder. Without an error the name is held by a lease
// of this package, or nobody can hold it.
func noted(ctx context.Context, m *Manager, op, name, reason string) (s Status, note wire.Note, err error) {
	if len(reason) > MaxReasonLen || !utf8.ValidString(reason) {
		return s, note, &InvalidError{What: "reason", Value: strconv.Quote(reason), Bound: "has to be UTF-8 of at most " + strconv.Itoa(MaxReasonLen) + " bytes", Fix: "shorten it"}
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
		err = &InvalidError{What: "the holder of " + strconv.Quote(name), Value: strconv.Quote(s.Holder.Owner), Bound: "has to be a lease of this package", Fix: "ask the program that holds it"}
	case !s.Held && s.Votes > 0 && s.Votes+unknown >= m.ensemble.Quorum():
		err = noQuorum(m.ensemble, op, name, s.Votes, problems)
	}
	return s, wire.Note{By: m.cfg.Terms.Label, Reason: reason}, err
}

// List yields the state of each name that begins with prefix ("" for all names) and is held or
// waited for, once and in no order, as Inspect returns it. A name that is held all the time is
// found; one that is acquired or released meanwhile may be missing. Status.Held is false for a name
// that is just being acquired or released, and for what a crashed holder has left on a minority of
// the nodes, until that ends.
//
// List looks at the names of all keys of a majority of the nodes, one node after the other, with
// SCAN in steps of about 250 keys and pauses of 2 ms. So it takes a server about a tenth of its
// time, and about 10 s for a million keys. Each name that is found costs every node a read, as
// Inspect does. Break off when you have what you want; for one name, use Inspect or Observe. The
// iterator keeps the names that it has found until it ends.
//
// The user of the nodes needs the right +scan beside those in docs/operations.md. It shows the names
// of all keys of a server.
//
// If the list is not complete, the last pair has an error: ErrNoQuorum (a *QuorumError that counts
// the nodes that were scanned, or those that answered about a name), joined with ctx.Err() and ctx's
// cause if ctx ended; ErrClosed; or ErrInvalid, for a prefix with which no name can begin. Each range
// over the iterator is a new scan. It is safe for concurrent use.
func (m *Manager) List(ctx context.Context, prefix string) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		if err := inspectable(ctx, m, cmp.Or(prefix, "any name")); err != nil { // every name begins with ""
			yield(Status{}, err)
			return
		}
		l := &listing{m: m, ctx: ctx, yield: yield, names: m.out.observers.Names(wire.LockKey(m.cfg.Prefix, prefix))}
		for keys := range l.names.Pages(ctx) {
			for group := range slices.Chunk(keys, listed) {
				if !l.inspect(group) {
					return
				}
			}
		}
		if !l.names.Complete() {
			yield(Status{}, l.incomplete(prefix))
		}
	}
}

// listed is how many names List asks the nodes about at one time.
const listed = 64

// listing is a range over the names of List.
type listing struct {
	m     *Manager
	ctx   context.Context //nolint:containedctx // it lives as long as the range
	names *observe.Names
	yield func(Status, error) bool
}

// inspect yields the states of locks, and returns false when nothing more is to be yielded.
func (l *listing) inspect(keys []string) bool {
	names := make([]string, 0, len(keys))
	for _, key := range keys {
		if name := strings.TrimPrefix(key, l.m.cfg.Prefix); checkName(name) == nil { // another program's key may begin like ours
			names = append(names, name)
		}
	}
	timeout := l.names.Timeout()
	_, now := l.m.ensemble.Clock.Both()
	all := make([]*ensemble.Answers, len(names))
	for i, name := range names {
		all[i] = l.m.ensemble.AskAll(wire.NewRead(wire.LockKey(l.m.cfg.Prefix, name), now+timeout), l.m.ensemble.Size(), nil)
	}
	for _, answers := range all {
		answers.Wait(l.ctx, timeout)
	}
	for i, answers := range all {
		s, err := status(l.m, names[i], answers), enough(l.ctx, l.m.ensemble, "inspect", names[i], answers)
		if err != nil && l.m.ending() {
			err = ErrClosed
		}
		if err != nil {
			l.yield(s, err)
			return false
		}
		if (s.Votes > 0 || s.Waiters > 0) && !l.yield(s, nil) {
			return false
		}
	}
	return true
}

// incomplete returns why too few nodes were scanned.
func (l *listing) incomplete(prefix string) error {
	if l.m.ending() {
		return ErrClosed
	}
	err := noQuorum(l.m.ensemble, "list", prefix, l.names.Scanned, l.names.Problems)
	if l.ctx.Err() != nil {
		return errs.Ended(l.ctx, err, "stopped scanning")
	}
	return err
}

// inspectable returns why the nodes are not asked about a name.
func inspectable(ctx context.Context, m *Manager, name string) error {
	if ctx == nil {
		return errNilContext()
	}
	if err := checkName(name); err != nil {
		return err
	}
	if m.ending() {
		return ErrClosed
	}
	return nil
}

func status(m *Manager, name string, answers *ensemble.Answers) Status {
	s := Status{Name: name, Nodes: make([]NodeStatus, m.ensemble.Size())}
	votes := map[string]int{}
	for i := range answers.Replies {
		r, n := &answers.Replies[i], &s.Nodes[i]
		*n = nodeStatus(m.ensemble, i)
		n.TTL, n.Fence, n.Err = r.TTL, r.Register, nil
		health := m.ensemble.Nodes()[i].Health()
		s.Fence = max(s.Fence, r.Register)
		if health.Withheld {
			if n.Warning = health.Err; health.Warning != nil {
				n.Warning = errs.Join(health.Err, health.Warning)
			}
		}
		if r.Status != wire.Done {
			n.Err = answers.Err(i)
			continue
		}
		s.Waiters = max(s.Waiters, int(r.Waiters))
		if r.TTL == wire.Absent || wire.ParseValue(r.Held).Reserved {
			n.TTL = wire.Absent // a reservation is no lease
			continue
		}
		n.Holder = holder(r.Held)
		if votes[n.Holder.Owner]++; votes[n.Holder.Owner] > s.Votes {
			s.Votes, s.Holder = votes[n.Holder.Owner], n.Holder
		}
	}
	if s.Held = s.Votes >= m.ensemble.Quorum(); s.Held {
		left := make(quorum.Window, m.ensemble.Size())
		for i, n := range s.Nodes {
			if n.Holder.Owner == s.Holder.Owner {
				if left[i] = n.TTL; n.TTL < 0 {
					left[i] = quorum.Never
				}
			}
		}
		if s.TTL = left.Deadline(); s.TTL == quorum.Never {
			s.TTL = wire.Endless
		}
	}
	return s
}

// Nodes returns the state of each node from memory, for a health endpoint for example. It
// sends no request and never blocks.
func (m *Manager) Nodes() []NodeStatus {
	all := make([]NodeStatus, m.ensemble.Size())
	for i := range all {
		all[i] = nodeStatus(m.ensemble, i)
	}
	return all
}

// Ready returns nil while a majority of the nodes votes, so that names can be acquired: for a
// readiness probe. It reads memory, sends no request and never blocks.
//
// It returns ErrNoQuorum (a *QuorumError with each node that does not vote, and RetryAfter if
// quarantines are the only reason), and ErrClosed after Close has begun. A lease that is held
// may be valid all the same: do not restart a program because it is not ready. With
// WithRestartGuard, nodes that are new are in quarantine, and a Manager is not ready, for the
// time of the guard.
func (m *Manager) Ready() error {
	if m.ending() {
		return ErrClosed
	}
	votes, problems := 0, make([]error, m.ensemble.Size())
	for i := range m.ensemble.Nodes() {
		if s := nodeStatus(m.ensemble, i); s.Voting {
			votes++
		} else {
			problems[i] = s.Err
		}
	}
	if votes >= m.ensemble.Quorum() {
		return nil
	}
	err := noQuorum(m.ensemble, "ready", "", votes, problems)
	err.RetryAfter = m.ensemble.Quarantined()
	return err
}
