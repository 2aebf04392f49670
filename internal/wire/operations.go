package wire

import (
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// Acquisition has the parameters of a request for a lock.
type Acquisition struct {
	Lock     string
	Value    string       // the lock's value, from Compose, with Token
	KeyTTL   string       // how long the lock lives, ms
	NotAfter clock.Steady // on the steady clock; after it the request is void
	Token    string       // the proposal; "0" without fencing
	// Ticket waits in the node's queue while the lock is taken; "" for none.
	Ticket     string
	EnqueuedAt string // the score in the queue: when the wait began, µs, the same for every node
	// From is the owner value of a detached lease, which the acquisition resumes; "" for none.
	From   string
	Shared bool // it asks for a shared lease, and From does not count
	Limit  int  // it asks for a permit, of that many; 0 for none
	// Lapsed has a bit for each node whose reservation for another ticket lapsed unused
	// while the client waited.
	Lapsed uint32
}

// Init makes r the request for an acquisition. The arguments without a ticket fit into r.
func (r *Request) Init(a *Acquisition) {
	r.Kind, r.Expires = Acquire, a.NotAfter
	r.room[0] = a.Lock
	r.keys = r.room[:1:1]
	notAfter := Micros(a.NotAfter)
	if a.Limit > 0 {
		r.lapsed = a.Lapsed
		r.args = []string{"permit", a.Value, a.KeyTTL, notAfter, a.Token, a.Ticket, a.EnqueuedAt, strconv.Itoa(a.Limit), ""}
		return
	}
	if a.Shared {
		r.lapsed = a.Lapsed
		r.args = append(r.room[1:1], "share", a.Value, a.KeyTTL, notAfter, a.Ticket, a.EnqueuedAt, "")
		return
	}
	if a.From != "" {
		r.args = append(r.room[1:1], "resume", a.Value, a.KeyTTL, notAfter, a.Token, a.From+" ")
		return
	}
	if a.Ticket == "" {
		r.args = append(r.room[1:1], "acquire", a.Value, a.KeyTTL, notAfter, a.Token)
		return
	}
	r.lapsed = a.Lapsed
	r.args = []string{"wait", a.Value, a.KeyTTL, notAfter, a.Token, a.Ticket, a.EnqueuedAt, ""}
}

// Renewals collects the locks of one Extend.
type Renewals struct{ req *Request }

// NewRenewals returns a request that prolongs up to that many locks.
func NewRenewals(locks int) *Renewals {
	return &Renewals{req: &Request{
		Kind: Extend, Urgent: true, keys: make([]string, 0, locks), args: make([]string, 0, 3*locks),
	}}
}

// Add adds a lock with the value of its lease, as Compose returned it.
func (r *Renewals) Add(lock, value, keyTTL string) {
	r.req.keys = append(r.req.keys, lock)
	r.req.args = append(r.req.args, "extend", proof(value), keyTTL)
}

// Request returns the request, which expires at expires.
func (r *Renewals) Request(expires clock.Steady) *Request {
	r.req.Expires = expires
	return r.req
}

// Lifetime returns how long an Acquire, an Extend or a Heal keeps one of its locks, the longest; 0 for other
// requests.
func (r *Request) Lifetime() (longest time.Duration) {
	if r.Kind != Acquire && r.Kind != Extend && r.Kind != Heal {
		return 0
	}
	for i := 2; i < len(r.args); i += len(r.args) / len(r.keys) {
		ms, _ := strconv.ParseInt(r.args[i], 10, 64)
		longest = max(longest, time.Duration(ms)*time.Millisecond)
	}
	return longest
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
	Shared   bool
	NotAfter clock.Steady // on the steady clock
	// HeldUntil is when the lock on the node would have ended, on the steady clock; 0 if
	// the node had none. A node in quarantine creates the lock no later than that.
	HeldUntil clock.Steady
}

// NewHeal returns a request that creates the locks again. They show no token: the node's
// register may be lost as well.
func NewHeal(locks []Healing, expires clock.Steady) *Request {
	r := &Request{
		Kind: Heal, Expires: expires, Urgent: true,
		keys: make([]string, 0, len(locks)), args: make([]string, 0, 5*len(locks)),
	}
	for _, h := range locks {
		op := "heal"
		if h.Shared {
			op = "restore"
		}
		r.keys = append(r.keys, h.Lock)
		r.args = append(r.args, op, Compose(h.Owner, 0, h.Metadata), h.KeyTTL, Micros(h.NotAfter), Micros(h.HeldUntil))
	}
	return r
}

// NewRaise returns a request that moves the register of a lock that owner holds.
func NewRaise(lock, owner string, token int64, metadata string, expires clock.Steady) *Request {
	return &Request{
		Kind: Raise, Expires: expires, Urgent: true, keys: []string{lock},
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
func NewRelease(lock, value string, undoes *Request, ticket TicketUpdate, expires clock.Steady) *Request {
	r := &Request{Kind: Release, Expires: expires, Urgent: true, Insists: true}
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
	r.args = append(r.room[1:1], "leave", owner, ticket.Ticket, ticket.EnqueuedAt, ticket.mode())
	return r
}

func (u TicketUpdate) mode() string {
	switch {
	case u.Yields:
		return "y"
	case u.LeavesFree:
		return "f"
	}
	return ""
}

// NewUndo returns the release of a failed acquisition, see NewRelease. A node that has
// refused the acquisition needs no release: it has no lock of ours. This does not apply
// if the release changes the ticket, except when the ticket only stays in the queue where
// the acquisition has put it.
func NewUndo(lock, value string, undoes *Request, ticket TicketUpdate, expires clock.Steady) *Request {
	return NewRelease(lock, value, undoes, ticket, expires).afterFailure(undoes, ticket)
}

// ticket returns the ticket that an acquisition carries, "" for none.
func (r *Request) ticket() string {
	switch r.args[0] {
	case "wait", "permit":
		return r.args[5]
	case "share":
		return r.args[4]
	}
	return ""
}

// afterFailure makes a release one of a failed acquisition.
func (r *Request) afterFailure(undoes *Request, ticket TicketUpdate) *Request {
	keeps := ticket.EnqueuedAt != "" && !ticket.Yields && undoes.ticket() == ticket.Ticket
	if keeps {
		r.undoes, r.undoesGeneration, r.sameTicket = undoes, undoes.generation.Load(), true
	}
	r.failed = keeps || ticket == (TicketUpdate{})
	return r
}

// NewReleases returns a request that deletes several locks, given as pairs of lock and
// value.
func NewReleases(locks [][2]string, expires clock.Steady) *Request {
	r := &Request{
		Kind: Release, Expires: expires, Urgent: true, Insists: true,
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
func NewKeep(lock, value, ms string, expires clock.Steady) *Request {
	return &Request{
		Kind: Extend, Expires: expires, Urgent: true, Insists: true, keys: []string{lock}, args: []string{"extend", proof(value), ms},
	}
}

// NewPass returns a request that removes a ticket from the queue. What is reserved for
// the ticket is then reserved for the next waiter. The request never touches a lease.
func NewPass(lock, ticket string, expires clock.Steady) *Request {
	return &Request{Kind: Pass, Expires: expires, Urgent: true, Insists: true, keys: []string{lock}, args: []string{"pass", ticket}}
}

// NewPassOn is NewPass for a ticket that a message names. Few of these requests wait for a
// node; Post refuses more, and a second one for the same ticket.
func NewPassOn(lock, ticket string, expires clock.Steady) *Request {
	return &Request{Kind: Pass, Expires: expires, Hint: true, keys: []string{lock}, args: []string{"pass", ticket}}
}

// Note is what an operator has written into a lock, and who that is.
type Note struct{ By, Reason string }

// String returns the note for people: "who: why".
func (n Note) String() string {
	switch {
	case n == Note{}:
		return "no reason given"
	case n.By == "":
		return n.Reason
	case n.Reason == "":
		return n.By
	}
	return n.By + ": " + n.Reason
}

// MaxReasonLen bounds the reason of a Note, in bytes; MaxLabelLen bounds who it is by.
const MaxReasonLen = 256

// NewAsk returns a request that asks the owner of a lock to release it. Only that owner's lock gets
// the note.
func NewAsk(lock, owner string, note Note, notAfter clock.Steady) *Request {
	return newMark(lock, owner, "a", 0, note, notAfter)
}

// NewRevoke returns a request that revokes the lease of a lock's owner: the lock lives for at least
// life from the arrival of the request, and is not renewed any more.
func NewRevoke(lock, owner string, life time.Duration, note Note, notAfter clock.Steady) *Request {
	return newMark(lock, owner, "x", life, note, notAfter)
}

// NewDetach returns a request that detaches the lease of a lock's owner: the lock lives for keep from the
// arrival of the request, for whoever resumes it.
func NewDetach(lock, owner string, keep time.Duration, notAfter clock.Steady) *Request {
	return newMark(lock, owner, "d", keep, Note{}, notAfter)
}

// NewDrop returns a request that deletes a detached lock of this owner.
func NewDrop(lock, owner string, expires clock.Steady) *Request {
	return &Request{Kind: Release, Expires: expires, Urgent: true, Insists: true, keys: []string{lock}, args: []string{"drop", owner + " "}}
}

// NewBack returns a request that undoes a failed attempt to resume: nodes that have made the lock the
// attempt's make it a detached one of its former owner again, so that another attempt may resume it.
func NewBack(lock, value, from string, undoes *Request, expires clock.Steady) *Request {
	r := NewRelease(lock, value, undoes, TicketUpdate{}, expires).afterFailure(undoes, TicketUpdate{})
	r.args = append(r.room[1:1], "back", value[:OwnerLen+1], from+" ")
	return r
}

func newMark(lock, owner, kind string, life time.Duration, note Note, notAfter clock.Steady) *Request {
	ms := (life + time.Millisecond - 1).Milliseconds() // never shorter
	return &Request{
		Kind: Mark, Expires: notAfter, Urgent: true, keys: []string{lock},
		args: []string{"mark", owner + " ", kind, strconv.FormatInt(ms, 10), Micros(notAfter), note.By + noteSeparator + note.Reason},
	}
}

// NewRead returns a request that reads a lock and changes nothing.
func NewRead(lock string, expires clock.Steady) *Request {
	return &Request{Kind: Read, Expires: expires, Urgent: true, keys: []string{lock}, args: []string{"read"}}
}

// NewScan returns a request that looks at about count keys of the server, from a cursor on, for
// locks whose keys begin with a prefix.
func NewScan(prefix, cursor string, count int, expires clock.Steady) *Request {
	return &Request{
		Kind: Scan, Expires: expires, Urgent: true, keys: []string{prefix}, args: []string{"scan", cursor, Literal(prefix) + "*", strconv.Itoa(count)},
	}
}

// Literal returns a text as a pattern of Redis that fits this text alone.
func Literal(text string) string { return signs.Replace(text) }

var signs = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// NewPlainRelease returns a release of the same locks as another release that touches no
// ticket: the wait may be over by then, and the ticket must not be put back.
func NewPlainRelease(of *Request, expires clock.Steady) *Request {
	r := &Request{Kind: Release, Expires: expires, Urgent: true, Insists: true, keys: of.keys}
	if of.args[0] == "quit" {
		r.args = []string{"quit", of.args[1], "", "", ""}
		return r
	}
	of.Owners(func(owner string) { r.args = append(r.args, "release", owner+" ") })
	return r
}

// NewForget returns a request that drops registers older than age, at most that many. A TTL of
// Redis could not do this: the base has to be raised with each drop.
func NewForget(registers string, age time.Duration, most int, expires clock.Steady) *Request {
	return &Request{
		Kind: Forget, Expires: expires, Urgent: true, keys: []string{registers}, args: []string{"forget", Micros(age), strconv.Itoa(most)},
	}
}

// Micros returns an instant or a duration in µs, as the script has them. It knows the node's clock
// against the steady one, so no instant of the validity clock is sent.
func Micros[T clock.Steady | time.Duration](t T) string {
	return strconv.FormatInt(time.Duration(t).Microseconds(), 10)
}
