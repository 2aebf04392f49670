package node

import (
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Kind is a kind of operation.
type Kind uint8

// The operations; apply.lua describes each.
const (
	Acquire Kind = iota + 1
	Extend
	Heal
	Raise
	Release
	Pass
	Read
	Forget // posted by the node itself

	// Kinds is the number of values of Kind, including 0 for none.
	Kinds = int(Forget) + 1
)

// String returns the name of the operation in errors and telemetry.
func (k Kind) String() string {
	return [...]string{"none", "acquire", "extend", "heal", "raise", "release", "pass", "read", "forget"}[k]
}

// MaxLocks is the largest number of locks in one Extend, Heal or Release, and of
// operations in one script: a script stops the server for all clients while it runs.
const MaxLocks = 128

// Request asks each node to which it is posted for the same operation, on one lock or on
// several. The functions below make requests. A Request must not change after it was
// posted.
type Request struct {
	Kind Kind
	// Expires is the instant on the steady clock after which the request is not sent any
	// more. By then, a request that creates a lock is void on the node, too.
	Expires time.Duration

	keys []string // one for each operation
	args []string // of all operations, each with its name
	room [8]string

	// urgent requests keep or release a lease, and go before requests for new leases.
	urgent bool
	// hint means that a message caused the request. Anybody may send messages, so such
	// requests have a short lane of their own, behind those that keep or release a lease.
	hint bool
	// insists means that the request survives a broken connection until it is answered or
	// expires, because only a release deletes a key early.
	insists bool
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
	// generation counts the calls of Reset.
	generation atomic.Uint32
}

// Acquisition has the parameters of a request for a lock.
type Acquisition struct {
	Lock     string
	Value    string        // the lock's value, from Compose, with Token
	KeyTTL   string        // how long the lock lives, ms
	NotAfter time.Duration // on the steady clock; after it the request is void
	Token    string        // the proposal; "0" without fencing
	// Ticket waits in the node's queue while the lock is taken; "" for none.
	Ticket     string
	EnqueuedAt string // the score in the queue: when the wait began, µs, the same for every node
	// Lapsed has a bit for each node whose reservation for another ticket lapsed unused
	// while the client waited.
	Lapsed uint32
	// Again means that the client already has the lease, and that this is one more vote.
	// Such a request goes before requests for new leases.
	Again bool
}

// Init makes r the request for an acquisition. The arguments without a ticket fit into r.
func (r *Request) Init(a *Acquisition) {
	r.Kind, r.Expires, r.urgent = Acquire, a.NotAfter, a.Again
	r.room[0] = a.Lock
	r.keys = r.room[:1:1]
	notAfter := micros(a.NotAfter)
	if a.Ticket == "" {
		r.args = append(r.room[1:1], "acquire", a.Value, a.KeyTTL, notAfter, a.Token)
		return
	}
	r.lapsed = a.Lapsed
	r.args = []string{"wait", a.Value, a.KeyTTL, notAfter, a.Token, a.Ticket, a.EnqueuedAt, ""}
}

// argsFor returns the arguments for one node, which is given as a bit.
func (r *Request) argsFor(node uint32) []string {
	if r.lapsed&node == 0 {
		return r.args
	}
	args := slices.Clone(r.args)
	args[len(args)-1] = "l" // the mode of wait
	return args
}

// Reset clears r for reuse. Every node must have answered it. A release that undoes r may
// still wait somewhere; it recognises the reuse by the generation.
func (r *Request) Reset() {
	r.generation.Add(1)
	r.keys, r.args, r.undoes, r.room = nil, nil, nil, [8]string{}
	r.urgent, r.insists, r.lapsed = false, false, 0
	r.failed, r.sameTicket = false, false
	r.withdrawn.Store(false)
	r.sent.Store(0)
	r.refused.Store(0)
}

// Withdraw makes nodes that have not sent the request drop it. A release that undoes it
// is then not sent to them.
func (r *Request) Withdraw() { r.withdrawn.Store(true) }

// MadeElsewhere records that another request, such as a heal, may create the lock of this
// acquisition on a node. So a release of it goes there even if the acquisition never did.
func (r *Request) MadeElsewhere(node int) { r.sent.Or(1 << node) }

// undoesNothing reports whether the request is a release with nothing to undo on this
// node: its acquisition was withdrawn before the node sent it, or the node refused it.
func (r *Request) undoesNothing(node uint32) bool {
	u := r.undoes
	if u == nil {
		return false
	}
	neverSent := !r.sameTicket && u.withdrawn.Load() && u.sent.Load()&node == 0
	refused := r.failed && u.refused.Load()&node != 0
	return (neverSent || refused) && u.generation.Load() == r.undoesGeneration
}

// Renewals collects the locks of one Extend.
type Renewals struct{ req *Request }

// NewRenewals returns a request that prolongs up to that many locks.
func NewRenewals(locks int) *Renewals {
	return &Renewals{req: &Request{
		Kind: Extend, urgent: true, keys: make([]string, 0, locks), args: make([]string, 0, 3*locks),
	}}
}

// Add adds a lock with the value of its lease, as Compose returned it.
func (r *Renewals) Add(lock, value, keyTTL string) {
	r.req.keys = append(r.req.keys, lock)
	r.req.args = append(r.req.args, "extend", proof(value), keyTTL)
}

// Request returns the request, which expires at expires.
func (r *Renewals) Request(expires time.Duration) *Request {
	r.req.Expires = expires
	return r.req
}

// proof returns the part of a value that shows owner and token: "owner token ".
func proof(value string) string {
	if len(value) > OwnerLen+1 {
		if n := strings.IndexByte(value[OwnerLen+1:], ' '); n >= 0 {
			return value[:OwnerLen+1+n+1]
		}
	}
	return value
}

// Healing is a lock that a node has lost while its lease is valid.
type Healing struct {
	Lock     string
	Owner    string
	Metadata string
	KeyTTL   string
	NotAfter time.Duration // on the steady clock
	// HeldUntil is when the lock on the node would have ended, on the steady clock; 0 if
	// the node had none. A node in quarantine creates the lock no later than that.
	HeldUntil time.Duration
}

// NewHeal returns a request that creates the locks again. They show no token: the node's
// register may be lost as well.
func NewHeal(locks []Healing, expires time.Duration) *Request {
	r := &Request{
		Kind: Heal, Expires: expires, urgent: true,
		keys: make([]string, 0, len(locks)), args: make([]string, 0, 5*len(locks)),
	}
	for _, h := range locks {
		r.keys = append(r.keys, h.Lock)
		r.args = append(r.args, "heal", Compose(h.Owner, 0, h.Metadata), h.KeyTTL, micros(h.NotAfter), micros(h.HeldUntil))
	}
	return r
}

// NewRaise returns a request that moves the register of a lock that owner holds.
func NewRaise(lock, owner string, token int64, metadata string, expires time.Duration) *Request {
	return &Request{
		Kind: Raise, Expires: expires, urgent: true, keys: []string{lock},
		args: []string{"raise", owner + " ", strconv.FormatInt(token, 10), metadata},
	}
}

// TicketUpdate is what a release does with a waiter's ticket.
type TicketUpdate struct {
	Ticket     string // "" for none
	EnqueuedAt string // the score; "" when the ticket leaves the queue
	Yields     bool   // the other tickets go first this once
	// LeavesFree means that the lock is not reserved for the head of the queue, so that a
	// client without tickets may take it before the head comes.
	LeavesFree bool
}

// NewRelease returns a request that deletes a lock with this value, and reserves it for
// the head of its queue. The value comes from Compose; only its owner counts. If undoes
// is not nil, nodes that have not sent that acquisition and find it withdrawn need no
// release.
func NewRelease(lock, value string, undoes *Request, ticket TicketUpdate, expires time.Duration) *Request {
	r := &Request{Kind: Release, Expires: expires, urgent: true, insists: true}
	r.room[0] = lock
	r.keys = r.room[:1:1]
	owner := value[:OwnerLen+1]
	if ticket == (TicketUpdate{}) {
		if undoes != nil { // only without a ticket: one may be in the queue since an earlier attempt
			r.undoes, r.undoesGeneration = undoes, undoes.generation.Load()
		}
		r.args = append(r.room[1:1], "release", owner)
		return r
	}
	mode := ""
	switch {
	case ticket.Yields:
		mode = "y"
	case ticket.LeavesFree:
		mode = "f"
	}
	r.args = append(r.room[1:1], "leave", owner, ticket.Ticket, ticket.EnqueuedAt, mode)
	return r
}

// NewUndo returns the release of a failed acquisition, see NewRelease. A node that has
// refused the acquisition needs no release: it has no lock of ours. This does not apply
// if the release changes the ticket, except when the ticket only stays in the queue where
// the acquisition has put it.
func NewUndo(lock, value string, undoes *Request, ticket TicketUpdate, expires time.Duration) *Request {
	r := NewRelease(lock, value, undoes, ticket, expires)
	keeps := ticket.EnqueuedAt != "" && !ticket.Yields && undoes.args[0] == "wait" && undoes.args[5] == ticket.Ticket
	if keeps {
		r.undoes, r.undoesGeneration, r.sameTicket = undoes, undoes.generation.Load(), true
	}
	r.failed = keeps || ticket == (TicketUpdate{})
	return r
}

// NewReleases returns a request that deletes several locks, given as pairs of lock and
// value.
func NewReleases(locks [][2]string, expires time.Duration) *Request {
	r := &Request{
		Kind: Release, Expires: expires, urgent: true, insists: true,
		keys: make([]string, 0, len(locks)), args: make([]string, 0, 2*len(locks)),
	}
	for _, l := range locks {
		r.keys = append(r.keys, l[0])
		r.args = append(r.args, "release", l[1][:OwnerLen+1])
	}
	return r
}

// NewKeep returns a request that keeps a lock of ours for ms milliseconds from its
// arrival, though its lease is over. No other client gets the name until then.
func NewKeep(lock, value, ms string, expires time.Duration) *Request {
	return &Request{
		Kind: Extend, Expires: expires, urgent: true, insists: true, keys: []string{lock}, args: []string{"extend", proof(value), ms},
	}
}

// NewPass returns a request that removes a ticket from the queue. What is reserved for
// the ticket is then reserved for the next waiter. The request never touches a lease.
func NewPass(lock, ticket string, expires time.Duration) *Request {
	return &Request{Kind: Pass, Expires: expires, urgent: true, insists: true, keys: []string{lock}, args: []string{"pass", ticket}}
}

// NewPassOn is NewPass for a ticket that a message names. Few of these requests wait for a
// node; Post refuses more, and a second one for the same ticket.
func NewPassOn(lock, ticket string, expires time.Duration) *Request {
	return &Request{Kind: Pass, Expires: expires, hint: true, keys: []string{lock}, args: []string{"pass", ticket}}
}

// NewRead returns a request that reads a lock and changes nothing.
func NewRead(lock string, expires time.Duration) *Request {
	return &Request{Kind: Read, Expires: expires, urgent: true, keys: []string{lock}, args: []string{"read"}}
}

// Locks returns the number of locks in the request.
func (r *Request) Locks() int { return len(r.keys) }

// Lock returns the key of the i-th lock of the request.
func (r *Request) Lock(i int) string { return r.keys[i] }

// creates calls f with the owner value of every lock that the request may create.
func (r *Request) creates(f func(owner string)) {
	switch r.Kind {
	case Acquire:
		f(r.args[1][:OwnerLen])
	case Heal:
		for i := 1; i < len(r.args); i += 5 {
			f(r.args[i][:OwnerLen])
		}
	default: // the others create none
	}
}

// owners calls f with every owner value that the request releases.
func (r *Request) owners(f func(owner string)) {
	stride := len(r.args) / max(len(r.keys), 1)
	for i := 1; i < len(r.args); i += stride {
		f(r.args[i][:OwnerLen])
	}
}

// bytes estimates the size of the request on the wire.
func (r *Request) bytes() int {
	n := 0
	for _, s := range r.keys {
		n += len(s) + 8
	}
	for _, s := range r.args {
		n += len(s) + 8
	}
	return n
}

func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }
