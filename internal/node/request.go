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

// The operations; apply.lua says what each does.
const (
	Acquire Kind = iota + 1
	Extend
	Heal
	Raise
	Release
	Pass
	Recall
	Read
	Forget // the node's own

	// Kinds is how many values of Kind there are, none among them.
	Kinds = int(Forget) + 1
)

// String returns the name of the operation in errors and telemetry.
func (k Kind) String() string {
	return [...]string{"none", "acquire", "extend", "heal", "raise", "release", "pass", "recall", "read", "forget"}[k]
}

// MaxLocks is the largest number of locks in one Extend, Heal or ReleaseAll, and of
// operations in one script: a script stops the server for everybody while it runs.
const MaxLocks = 128

// Request asks each node to which it is posted for the same operation, on one lock
// or on several. The functions below make requests; a Request must not change after
// it was posted.
type Request struct {
	Kind Kind
	// Expires is the instant on the steady clock after which the request is not sent
	// any more. A request that creates a lock is void by then on the node, too.
	Expires time.Duration

	keys []string // one for each operation
	args []string // of all operations, each with its name
	room [8]string

	// urgent requests keep a lease or give one back, and go before those that ask for one.
	urgent bool
	// insists says that the request survives a broken connection until it is answered
	// or expires: releases are all that deletes a key early.
	insists bool
	// lapsed has a bit for each node to which the mode of a wait says so.
	lapsed uint32
	// undoes is the acquisition whose effect a release takes back, as long as it is of
	// that generation.
	undoes           *Request
	undoesGeneration uint32
	// failed says that undoes is all that was ever asked for, so that a node that has
	// refused it has nothing to release; sameTicket, that it carried the ticket as well.
	failed, sameTicket bool

	// withdrawn is set by Withdraw. sent has a bit for each node that may have run the
	// request; the node's worker sets it.
	withdrawn atomic.Bool
	sent      atomic.Uint32
	// refused has a bit for each node that has answered that another has the lock.
	refused atomic.Uint32
	// generation counts the Resets.
	generation atomic.Uint32
}

// Acquisition is what a node needs to know to grant a lock.
type Acquisition struct {
	Lock     string
	Value    string        // of the lock, by Compose, with Token
	KeyTTL   string        // how long the lock lives, ms
	NotAfter time.Duration // on the steady clock: later than this the request is void
	Token    string        // the proposal; "0" without fencing
	// Ticket stands in the node's queue while the lock is taken; "" for none.
	Ticket string
	Place  string // in the queue: when the wait began, µs, the same for every node
	// Lapsed has a bit for each node whose reservation for another ticket the client has
	// waited out, and nobody has used.
	Lapsed uint32
	// Again says that the request is for a lease that the client has already: one more
	// vote. It goes before requests for new leases.
	Again bool
}

// Init makes r the request for an acquisition. The args of both kinds fit into r.
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
	r.args = []string{"wait", a.Value, a.KeyTTL, notAfter, a.Token, a.Ticket, a.Place, ""}
}

// argsFor returns the arguments for one node, given as its bit.
func (r *Request) argsFor(node uint32) []string {
	if r.lapsed&node == 0 {
		return r.args
	}
	args := slices.Clone(r.args)
	args[len(args)-1] = "l" // the mode of wait
	return args
}

// Reset makes r as good as new. Every node must have answered it. A release that undoes
// it may still wait somewhere, and finds another generation.
func (r *Request) Reset() {
	r.generation.Add(1)
	r.keys, r.args, r.undoes, r.room = nil, nil, nil, [8]string{}
	r.urgent, r.insists, r.lapsed = false, false, 0
	r.failed, r.sameTicket = false, false
	r.withdrawn.Store(false)
	r.sent.Store(0)
	r.refused.Store(0)
}

// Withdraw has nodes that have not sent the request drop it. A release that undoes it
// costs such a node nothing.
func (r *Request) Withdraw() { r.withdrawn.Store(true) }

// MadeElsewhere notes that another request may make the lock of this acquisition on a node,
// a heal for example: a release of it goes there even if the acquisition never did.
func (r *Request) MadeElsewhere(node int) { r.sent.Or(1 << node) }

// undoesNothing reports whether the request is a release of an acquisition that was
// withdrawn before this node sent it, or that came to nothing and was refused by it.
func (r *Request) undoesNothing(node uint32) bool {
	u := r.undoes
	if u == nil {
		return false
	}
	unsent := !r.sameTicket && u.withdrawn.Load() && u.sent.Load()&node == 0
	refused := r.failed && u.refused.Load()&node != 0
	return (unsent || refused) && u.generation.Load() == r.undoesGeneration
}

// Renewals collects the locks of one Extend.
type Renewals struct{ req *Request }

// NewRenewals returns a request that prolongs so many locks at most.
func NewRenewals(locks int) *Renewals {
	return &Renewals{req: &Request{
		Kind: Extend, urgent: true, keys: make([]string, 0, locks), args: make([]string, 0, 3*locks),
	}}
}

// Add adds a lock with the value of the lease, which begins with owner and token, as
// Compose has it.
func (r *Renewals) Add(lock, value, keyTTL string) {
	r.req.keys = append(r.req.keys, lock)
	r.req.args = append(r.req.args, "extend", proof(value), keyTTL)
}

// Request returns the request, which expires then.
func (r *Renewals) Request(expires time.Duration) *Request {
	r.req.Expires = expires
	return r.req
}

// proof returns the beginning of a value that shows owner and token: "owner token ".
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
	// HeldUntil is until when the node should have had the lock, on the steady clock; 0 if
	// it had none. A node in quarantine creates it no later than that.
	HeldUntil time.Duration
}

// NewHeal returns a request that creates the locks again. What it creates shows no
// token: the node's register may be lost as well.
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

// TicketUpdate says what becomes of a waiter's ticket when what it holds is released.
type TicketUpdate struct {
	Ticket string // "" for none
	Place  string // "" when the ticket leaves the queue
	Yields bool   // the others go first this once
	// LeavesFree says that the lock is not reserved for the head of the queue, so that
	// a client without tickets may take it before the head comes.
	LeavesFree bool
}

// NewRelease returns a request that deletes a lock if it has this value, and hands
// it to the head of its queue. The value is the one that Compose made; only the owner
// in it counts. What undoes is not nil, a node that has not sent that acquisition and
// finds it withdrawn need not be asked.
func NewRelease(lock, value string, undoes *Request, ticket TicketUpdate, expires time.Duration) *Request {
	r := &Request{Kind: Release, Expires: expires, urgent: true, insists: true}
	r.room[0] = lock
	r.keys = r.room[:1:1]
	owner := value[:OwnerLen+1]
	if ticket == (TicketUpdate{}) {
		if undoes != nil { // a ticket may be in the queue since an earlier attempt
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
	r.args = append(r.room[1:1], "leave", owner, ticket.Ticket, ticket.Place, mode)
	return r
}

// NewUndo returns the release of an acquisition that came to nothing, see NewRelease. A
// node that has refused it meanwhile need not be asked: it has nothing of ours, unless
// something is to be done with the ticket but to leave it where the acquisition has put it.
func NewUndo(lock, value string, undoes *Request, ticket TicketUpdate, expires time.Duration) *Request {
	r := NewRelease(lock, value, undoes, ticket, expires)
	keeps := ticket.Place != "" && !ticket.Yields && undoes.args[0] == "wait" && undoes.args[5] == ticket.Ticket
	if keeps {
		r.undoes, r.undoesGeneration, r.sameTicket = undoes, undoes.generation.Load(), true
	}
	r.failed = keeps || ticket == (TicketUpdate{})
	return r
}

// NewReleases returns a request that deletes several locks, given as lock and value
// in turn.
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

// NewKeep returns a request that has a lock of ours live so many milliseconds from when it
// arrives, though its lease is over: nobody else gets the name until then.
func NewKeep(lock, value, ms string, expires time.Duration) *Request {
	return &Request{
		Kind: Extend, Expires: expires, urgent: true, insists: true, keys: []string{lock}, args: []string{"extend", proof(value), ms},
	}
}

// NewPass returns a request that takes a ticket out of the queue and passes on what
// is reserved for it. It never touches a lease.
func NewPass(lock, ticket string, expires time.Duration) *Request {
	return &Request{Kind: Pass, Expires: expires, urgent: true, insists: true, keys: []string{lock}, args: []string{"pass", ticket}}
}

// NewRecall returns a request that empties the queue of a free lock whose reservation
// has lapsed, and wakes everybody in it.
func NewRecall(lock string, expires time.Duration) *Request {
	return &Request{Kind: Recall, Expires: expires, urgent: true, keys: []string{lock}, args: []string{"recall"}}
}

// NewRead returns a request that reads a lock and changes nothing.
func NewRead(lock string, expires time.Duration) *Request {
	return &Request{Kind: Read, Expires: expires, urgent: true, keys: []string{lock}, args: []string{"read"}}
}

// Locks returns how many locks the request is about.
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
