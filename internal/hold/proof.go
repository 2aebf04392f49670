package hold

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// proof names the nodes that have shown our owner value and our token. A lock may be passed on without Redis only while
// a quorum has shown both: otherwise another client may have had the lock since.
type proof struct {
	nodes quorum.Set // that have shown both since the proof was last reset
	// unproven are nodes that may show both although the acquisition was not a vote there, see vote.Look. Until a check
	// moves the token, what they show proves nothing.
	unproven quorum.Set
	// from is the earliest send time of a request whose answer counts: the last reset, or the
	// check that moved the token.
	from clock.Validity
}

// reset forgets what was shown. Answers to requests that were sent before now no longer count.
func (p *proof) reset(now clock.Validity) { p.nodes, p.from = 0, now }

// record records whether node i shows our owner value and our token, in answer to a request that was
// sent at sent.
func (p *proof) record(i int, answer int64, sent, now clock.Validity) {
	switch {
	case answer == wire.Ours && p.unproven.Has(i):
	case answer == wire.Ours && sent >= p.from:
		p.nodes = p.nodes.With(i)
	case answer == wire.Ours:
	case answer == wire.OursWithoutToken && (!p.nodes.Has(i) || sent < p.from):
		// The key was healed, or its register was ahead: it has never shown the token.
	default:
		p.reset(now)
	}
}

// block is the tokens that a grant or a check has reserved for the leases on a lock.
type block struct {
	next int64 // the next unused one
	last int64 // the top
}

// blockSize is the largest number of tokens in a block: 100,000. The highest one is an instant
// in µs, so the lowest is 100 ms before it.
const blockSize = int64(100 * time.Millisecond / time.Microsecond)

// size returns how many tokens are unused.
func (b *block) size() int { return int(max(b.last-b.next+1, 0)) }

// ticket is a ticket that the waiter that acquired the lock may have left in queues.
type ticket struct {
	text     string     // "" for none
	queued   quorum.Set // nodes that may have it in their queues, because they have not granted
	reserved quorum.Set // nodes that reserved the lock for it before they answered the acquisition
}
