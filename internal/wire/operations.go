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

// Lifetime returns the longest time for which an Acquire, an Extend or a Heal keeps one of its locks; 0 for other
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

// Proposal returns the value to which an acquire without a ticket moves the register.
func (r *Request) Proposal() string { return r.args[4] }

// proof returns the part of a value that shows owner and token: "owner token ".
func proof(value string) string {
	if len(value) > OwnerLen+1 {
		if n := strings.IndexByte(value[OwnerLen+1:], ' '); n >= 0 {
			return value[:OwnerLen+1+n+1]
		}
	}
	return value
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

func (u TicketUpdate) mode() string {
	switch {
	case u.Yields:
		return "y"
	case u.LeavesFree:
		return "f"
	}
	return ""
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

// afterFailure marks r as the release of a failed acquisition.
func (r *Request) afterFailure(undoes *Request, ticket TicketUpdate) *Request {
	keeps := ticket.EnqueuedAt != "" && !ticket.Yields && undoes.ticket() == ticket.Ticket
	if keeps {
		r.undoes, r.undoesGeneration, r.sameTicket = undoes, undoes.generation.Load(), true
	}
	r.failed = keeps || ticket == (TicketUpdate{})
	return r
}

// NewPass returns a request that removes a ticket from the queue. What is reserved for
// the ticket is then reserved for the next waiter. The request never touches a lease.
func NewPass(lock, ticket string, expires clock.Steady) *Request {
	r := newRequest(Pass, lock, expires, "quit", ticket[:TicketLen]+reservedMark, ticket, "", "")
	r.Insists = true
	return r
}

// NewPassOn is NewPass for a ticket that a message names. Few of these requests wait for a
// node; Post refuses more, and a second one for the same ticket.
func NewPassOn(lock, ticket string, expires clock.Steady) *Request {
	r := NewPass(lock, ticket, expires)
	r.Urgent, r.Hint, r.Insists = false, true, false
	return r
}

// NewAsk returns a request that asks the owner of a lock to release it. Only that owner's lock gets
// the note.
func NewAsk(lock, owner string, note Note, notAfter clock.Steady) *Request {
	return newMark(lock, owner, "a", 0, note, notAfter)
}

// NewRevoke returns a request that revokes the lease of a lock's owner: the lock lives for at least life from the
// arrival of the request, and is no longer renewed.
func NewRevoke(lock, owner string, life time.Duration, note Note, notAfter clock.Steady) *Request {
	return newMark(lock, owner, "x", life, note, notAfter)
}

// NewDetach returns a request that detaches the lease of a lock's owner: the lock lives for keep from the
// arrival of the request, for the process that resumes it.
func NewDetach(lock, owner string, keep time.Duration, notAfter clock.Steady) *Request {
	return newMark(lock, owner, "d", keep, Note{}, notAfter)
}

// NewDrop returns a request that deletes a detached lock of this owner.
func NewDrop(lock, owner string, expires clock.Steady) *Request {
	return newRequest(Release, lock, expires, "drop", owner+" ")
}

// NewBack returns a request that undoes a failed attempt to resume: a node that has given the lock to the attempt
// detaches it again for its former owner, so that another attempt may resume it.
func NewBack(lock, value, from string, undoes *Request, expires clock.Steady) *Request {
	r := Entry{Lock: lock, Value: value}.Undo(undoes, TicketUpdate{}, expires)
	r.args = append(r.room[1:1], "back", value[:OwnerLen+1], from+" ")
	return r
}

func newMark(lock, owner, kind string, life time.Duration, note Note, notAfter clock.Steady) *Request {
	ms := (life + time.Millisecond - 1).Milliseconds() // never shorter
	return newRequest(Mark, lock, notAfter, "mark", owner+" ", kind, strconv.FormatInt(ms, 10), Micros(notAfter), note.By+noteSeparator+note.Reason)
}

// NewRead returns a request that reads a lock and changes nothing.
func NewRead(lock string, expires clock.Steady) *Request {
	return newRequest(Read, lock, expires, "read", "", "")
}

// NewInspect returns a read that also asks for the first tickets in the lock's queue, MostTickets at most.
func NewInspect(lock string, expires clock.Steady) *Request {
	return newRequest(Read, lock, expires, "read", "", strconv.Itoa(MostTickets))
}

// NewScan returns a request that looks at about count keys of the server, from a cursor on, for
// locks whose keys begin with a prefix.
func NewScan(prefix, cursor string, count int, expires clock.Steady) *Request {
	return newRequest(Scan, prefix, expires, "scan", cursor, Literal(prefix)+"*", strconv.Itoa(count))
}

// Literal returns a Redis pattern that matches this text alone.
func Literal(text string) string { return signs.Replace(text) }

var signs = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// NewPlainRelease returns a release of the same locks as another release that touches no ticket: the wait may have
// ended by then, and the ticket must not be put back.
func NewPlainRelease(of *Request, expires clock.Steady) *Request {
	if of.args[0] == "quit" {
		return newRequest(Release, of.keys[0], expires, "quit", of.args[1], "", "", "")
	}
	r := NewBatch(Release, len(of.keys), expires)
	of.Owners(func(owner string) { r.add(of.keys[len(r.keys)], "release", owner+" ") })
	return r
}

// Repeated returns the request to send after the server has refused this one for a while. It puts no ticket into a queue:
// the wait may have ended by then, and requests that were sent since may have taken the ticket out.
func (r *Request) Repeated() *Request {
	if (r.args[0] == "leave" || r.args[0] == "quit") && r.args[3] != "" {
		return NewPlainRelease(r, r.Expires)
	}
	return r
}

// NewForget returns a request that drops registers older than age, at most that many. A TTL of
// Redis could not do this: the base must be raised with each drop.
func NewForget(registers string, age time.Duration, most int, expires clock.Steady) *Request {
	return newRequest(Forget, registers, expires, "forget", Micros(age), strconv.Itoa(most))
}

// Micros returns an instant or a duration in µs, as the script expects it. The script relates the node's clock to the
// steady one, so no instant of the validity clock is sent.
func Micros[T clock.Steady | time.Duration](t T) string {
	return strconv.FormatInt(time.Duration(t).Microseconds(), 10)
}
