package quorumlock

import (
	"cmp"
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/observe"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// List yields the state of each name that begins with prefix ("" for all names) and is held or
// waited for, as Inspect returns it, once and in no order. A name that is held during the whole
// scan is found, unless only permits hold it. Status.Held is false for a name that is just being
// acquired or released, or that a crashed holder has left on a minority of the nodes.
//
// List scans all keys of a majority of the nodes, one after the other, in steps of 250 keys with
// pauses of 2 ms: a node with a million keys takes more than 8 s. Each name that is found costs
// every node a read. Stop when you have what you need; for one name, use Inspect or Observe. The user
// of the nodes needs the right +scan, which shows the names of all keys.
//
// If the list is not complete, the last pair has an error: ErrNoQuorum (a *QuorumError that counts
// the nodes that were scanned, or that answered about a name), joined with ctx.Err() and ctx's
// cause if ctx ended; ErrClosed; or ErrInvalid for a bad prefix. Each range over the iterator is a
// new scan.
func (m *Manager) List(ctx context.Context, prefix string) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		if err := m.inspectable(ctx, cmp.Or(prefix, "any name")); err != nil { // every name begins with ""
			yield(Status{}, err)
			return
		}
		var problems []error
		for _, sh := range m.shards {
			l := &listing{shard: sh, ctx: ctx, yield: yield, names: sh.observers.Names(sh.key(prefix))}
			stopped := ctx.Err() != nil || m.life.ending()
			if !stopped && !l.all() {
				return
			}
			if stopped || !l.names.Complete() {
				problems = append(problems, l.incomplete(prefix))
			}
			if stopped {
				break
			}
		}
		switch len(problems) {
		case 0:
		case 1:
			yield(Status{}, problems[0])
		default:
			yield(Status{}, errs.Join(problems...))
		}
	}
}

// listed is how many names List asks the nodes about at one time.
const listed = 64

// InspectAll yields the state of each name given, in their order, as Inspect returns it, also of names that no one holds. It
// asks about 64 names at one time, and needs no right that Inspect does not need: List finds the names of a prefix, with
// SCAN. Each name costs every node a read.
//
// If no majority has answered about a name, the last pair has the error: ErrNoQuorum (a *QuorumError), joined with
// ctx.Err() and ctx's cause if ctx ended; ErrClosed; or ErrInvalid for the first bad name, before any node is asked.
// Each range over the iterator asks again. It is safe for concurrent use, and names must not change during it.
func (m *Manager) InspectAll(ctx context.Context, names []string) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		for _, name := range names {
			if err := m.inspectable(ctx, name); err != nil {
				yield(Status{}, err)
				return
			}
		}
		for group := range slices.Chunk(names, listed) {
			for s, err := range m.statuses(ctx, group) {
				if !yield(s, err) || err != nil {
					return
				}
			}
		}
	}
}

// statuses yields the states of some names, for which it asks at the same time.
func (m *Manager) statuses(ctx context.Context, names []string) iter.Seq2[Status, error] {
	return func(yield func(Status, error) bool) {
		all, longest := make([]*ensemble.Answers, len(names)), time.Duration(0)
		for i, name := range names {
			sh := m.of(name)
			timeout := sh.timeout()
			all[i], longest = sh.read(wire.NewRead, sh.key(name), timeout), max(longest, timeout)
		}
		for _, answers := range all {
			answers.Wait(ctx, longest)
		}
		for i, answers := range all {
			sh := m.of(names[i])
			s, err := sh.status(names[i], answers), enough(ctx, sh.ensemble, "inspect", names[i], answers)
			if err != nil && m.life.ending() {
				err = ErrClosed
			}
			if !yield(s, err) {
				return
			}
		}
	}
}

// listing is a range over the names of List.
type listing struct {
	shard *shard
	ctx   context.Context // it lives as long as the range
	names *observe.Names
	yield func(Status, error) bool
}

// all yields the names of a shard, and returns false when nothing more is to be yielded.
func (l *listing) all() bool {
	for keys := range l.names.Pages(l.ctx) {
		for group := range slices.Chunk(keys, listed) {
			if !l.inspect(group) {
				return false
			}
		}
	}
	return true
}

// inspect yields the states of locks, and returns false when nothing more is to be yielded.
func (l *listing) inspect(keys []string) bool {
	names := make([]string, 0, len(keys))
	for _, key := range keys {
		if name := strings.TrimPrefix(key, l.shard.prefix); checkName(name) == nil { // another program's key may begin like ours
			names = append(names, name)
		}
	}
	for s, err := range l.shard.m.statuses(l.ctx, names) {
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
	if l.shard.m.life.ending() {
		return ErrClosed
	}
	err := noQuorum(l.shard.ensemble, "list", prefix, l.names.Scanned, l.names.Problems)
	if l.ctx.Err() != nil {
		return errs.Ended(l.ctx, err, "stopped scanning")
	}
	return err
}
