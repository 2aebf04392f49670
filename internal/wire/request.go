package wire

import (
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// Kind is a kind of operation.
type Kind uint8

// The operations; the files of lua describe each.
const (
	Acquire Kind = iota + 1
	Extend
	Heal
	Raise
	Release
	Pass
	Mark
	Read
	Scan
	Forget // posted by the node itself

	// Kinds is the number of values of Kind, including 0 for none.
	Kinds = int(Forget) + 1
)

// String returns the name of the operation in errors and telemetry.
func (k Kind) String() string {
	return [...]string{"none", "acquire", "extend", "heal", "raise", "release", "pass", "mark", "read", "scan", "forget"}[k]
}

// MaxLocks is the largest number of locks in one Extend, Heal or Release, and of
// operations in one script: a script stops the server for all clients while it runs.
const MaxLocks = 128

// Request asks each node to which it is posted for the same operation, on one lock or on
// several. The functions below make requests. A Request must not change after it was
// posted.
type Request struct {
	Kind Kind
	// Expires is the instant on the steady clock after which the request is no longer sent. By then, a request that
	// creates a lock is void on the node, too.
	Expires clock.Steady

	keys []string // one for each operation
	args []string // of all operations, each with its name
	room [8]string

	// Urgent requests keep or release a lease, and go before requests for new leases.
	Urgent bool
	// Hint means that a message caused the request. Any client may send messages, so such
	// requests have a short lane of their own, behind those that keep or release a lease.
	Hint bool
	// Insists means that the request survives a broken connection until it is answered or
	// expires, because only a release deletes a key early.
	Insists bool
	// lapsed has a bit for each node to which the mode of a wait reports a lapsed
	// reservation.
	lapsed uint32
	// undoes is the acquisition that a release undoes, while the acquisition still has
	// undoesGeneration.
	undoes           *Request
	undoesGeneration uint32
	// failed means that the release does nothing but undo a failed acquisition, so a node
	// that has refused the acquisition needs no release. sameTicket means that the
	// acquisition carried the same ticket.
	failed, sameTicket bool

	// withdrawn is set by Withdraw. sent has a bit for each node that may have run the
	// request; the node's worker sets it.
	withdrawn atomic.Bool
	sent      atomic.Uint32
	// refused has a bit for each node that has answered that another owner has the lock.
	refused atomic.Uint32
	// elsewhere has a bit for each node where another request may make the same lock.
	elsewhere atomic.Uint32
	// unproven has a bit for each node that may have a lock of this acquisition that isn't a vote, see vote.Look.
	unproven atomic.Uint32
	// generation counts the calls of Reset.
	generation atomic.Uint32
}

// newRequest returns a request for one operation, which keeps or releases a lease unless the caller says
// otherwise.
func newRequest(kind Kind, lock string, expires clock.Steady, args ...string) *Request {
	r := &Request{Kind: kind, Expires: expires, Urgent: true, Insists: kind == Release}
	r.room[0] = lock
	r.keys = r.room[:1:1]
	r.args = append(r.room[1:1], args...)
	return r
}

// NewBatch returns a request that extends, heals or releases up to that many locks, which their entries add.
func NewBatch(kind Kind, locks int, expires clock.Steady) *Request {
	return &Request{
		Kind: kind, Expires: expires, Urgent: true, Insists: kind == Release,
		keys: make([]string, 0, locks), args: make([]string, 0, 3*locks),
	}
}

// add adds the operation of one lock.
func (r *Request) add(lock string, args ...string) {
	r.keys = append(r.keys, lock)
	r.args = append(r.args, args...)
}

// ArgsFor returns the arguments of the operations for one node, which is given as a bit.
func (r *Request) ArgsFor(node uint32) []string {
	unproven := r.Unproven(node)
	if r.lapsed&node == 0 && !unproven {
		return r.args
	}
	args := slices.Clone(r.args)
	if unproven {
		args[0] = "anew"
		return args
	}
	args[len(args)-1] = "l" // the mode of wait
	return args
}

// Lean reports whether the script Lean knows the operation. It knows no slots: it would release one and
// wake no waiter, because their queue is the queue of the name.
func (r *Request) Lean() bool {
	return r.unproven.Load() == 0 && len(r.keys) == 1 && (r.args[0] == "acquire" || r.args[0] == "release") && !strings.Contains(r.keys[0], permitTag)
}

// Reset clears r for reuse. Every node must have answered it. A release that undoes r may still wait somewhere; it
// recognises the reuse by the generation.
func (r *Request) Reset() {
	r.generation.Add(1)
	r.keys, r.args, r.undoes, r.room = nil, nil, nil, [8]string{}
	r.Urgent, r.Insists, r.lapsed = false, false, 0
	r.failed, r.sameTicket = false, false
	r.withdrawn.Store(false)
	r.sent.Store(0)
	r.refused.Store(0)
	r.elsewhere.Store(0)
	r.unproven.Store(0)
}

// Withdraw makes nodes that have not sent the request drop it. A release that undoes it
// is then not sent to them.
func (r *Request) Withdraw() { r.withdrawn.Store(true) }

// Withdrawn reports whether the request was withdrawn.
func (r *Request) Withdrawn() bool { return r.withdrawn.Load() }

// MarkSent records that a node, which is given as a bit, may run the request from now on.
func (r *Request) MarkSent(node uint32) { r.sent.Or(node) }

// MarkRefused records that a node, which is given as a bit, has answered that another owner
// has the lock.
func (r *Request) MarkRefused(node uint32) { r.refused.Or(node) }

// MarkUnproven records that nodes, which are given as bits, may have a lock of this acquisition that isn't a vote:
// asked again, they delete it first.
func (r *Request) MarkUnproven(nodes uint32) { r.unproven.Or(nodes) }

// ClearUnproven records that nodes no longer have such a lock.
func (r *Request) ClearUnproven(nodes uint32) {
	if r.Unproven(nodes) { // hardly ever, and each answer asks
		r.unproven.And(^nodes)
	}
}

// Unproven reports whether one of these nodes may have a lock of this acquisition that isn't a vote.
func (r *Request) Unproven(nodes uint32) bool { return r.unproven.Load()&nodes != 0 }

// MadeElsewhere records that another request, such as a heal or an earlier attempt, may make the lock of this
// acquisition on a node, perhaps after this one: over another connection, it may be run later. So a release of the
// lock goes there whatever became of this acquisition.
func (r *Request) MadeElsewhere(node int) { r.elsewhere.Or(1 << node) }

// UndoesNothing reports whether the request is a release with nothing to undo on this
// node: its acquisition was withdrawn before the node sent it, or the node refused it, and
// no other request makes the same lock there.
func (r *Request) UndoesNothing(node uint32) bool {
	u := r.undoes
	if u == nil {
		return false
	}
	neverSent := !r.sameTicket && u.withdrawn.Load() && u.sent.Load()&node == 0
	refused := r.failed && u.refused.Load()&node != 0
	return (neverSent || refused) && u.elsewhere.Load()&node == 0 && u.generation.Load() == r.undoesGeneration
}

// Locks returns the number of locks in the request.
func (r *Request) Locks() int { return len(r.keys) }

// permitWeight is how many operations an operation counts for that may let waiters in to slots. The first permit of a
// name makes the set of its slots, which counts as one more for each setWeight of them. So neither sets nor dead
// waiters (see f.spare in queue.lua) stop a server for much more than 2 ms; 64 living waiters that one operation lets in
// may take as long.
const (
	permitWeight = 8
	setWeight    = 16
)

// Weight returns how many of the MaxLocks operations of a script the request takes up behind another; before is nil
// for the first.
func (r *Request) Weight(before *Request) int {
	if r.Kind != Acquire && r.Kind != Release && r.Kind != Pass || !strings.Contains(r.keys[0], permitTag) {
		return len(r.keys)
	}
	weight := permitWeight * len(r.keys)
	if r.args[0] == "permit" && !r.follows(before) {
		limit, _ := strconv.Atoi(r.args[permitLimit])
		weight += limit / setWeight
	}
	return weight
}

// permitLimit is where the arguments of a permit have how many permits there are.
const permitLimit = 7

// follows reports whether a permit finds the set that the request before it needs.
func (r *Request) follows(before *Request) bool {
	name, _, _ := strings.Cut(r.keys[0], permitTag)
	return before != nil && before.Kind == Acquire && before.args[0] == "permit" && before.args[permitLimit] == r.args[permitLimit] &&
		strings.HasPrefix(before.keys[0], FamilyKey(name))
}

// Need is when operations need the companions of their locks.
type Need uint8

// A call of the script has the companions of all its locks, or of none: they cost a server up to a quarter of its time
// for an operation (docs/adr/0066-scripts-declare-their-keys.md).
const (
	Never Need = iota
	// Perhaps means that they need the companions only if the prefix has a queue, or readers have the lock. The script
	// answers that, and has done nothing.
	Perhaps
	Always
)

// Needs returns when the operations of the request need the companions of their locks.
func (r *Request) Needs() Need {
	if r.unproven.Load() != 0 {
		return Always
	}
	need, stride := Never, len(r.args)/max(len(r.keys), 1)
	for i, key := range r.keys { // a renewal may have readers behind locks of our own
		if need = max(need, needOf(r.args[i*stride])); need == Always || strings.Contains(key, permitTag) {
			return Always
		}
	}
	return need
}

// needOf returns when an operation on a lock that is not a slot needs the companions.
func needOf(operation string) Need {
	switch operation {
	case "guard", "list", "announce", "scan", "forget", "back":
		return Never
	case "acquire", "release", "extend":
		return Perhaps
	default:
		return Always
	}
}

// Lock returns the key of the i-th lock of the request.
func (r *Request) Lock(i int) string { return r.keys[i] }

// Creates calls f with the owner value of every lock that the request may create.
func (r *Request) Creates(f func(owner string)) {
	if r.Kind == Acquire || r.Kind == Heal {
		r.Owners(f)
	}
}

// Owners calls f with every owner value that the request creates or releases.
func (r *Request) Owners(f func(owner string)) {
	stride := len(r.args) / max(len(r.keys), 1)
	for i := 1; i < len(r.args); i += stride {
		f(r.args[i][:OwnerLen])
	}
}

// Same reports whether two requests ask for the same operations, with the same arguments.
func (r *Request) Same(other *Request) bool { return slices.Equal(r.args, other.args) }

// Lot returns 16 random bits of an acquisition, the same on every node: the bits of its owner
// value.
func (r *Request) Lot() uint64 {
	bits, _ := strconv.ParseUint(r.args[1][:4], 16, 16)
	return bits
}

// Bytes estimates the size of the request on the wire.
func (r *Request) Bytes() int {
	n := 0
	for _, s := range r.keys {
		n += len(s) + 8
	}
	for _, s := range r.args {
		n += len(s) + 8
	}
	return n
}
