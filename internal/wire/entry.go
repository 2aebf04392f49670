package wire

import (
	"strconv"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// Entry is what a node keeps for a lease. For an exclusive lease it is the lock itself. For a shared
// one it is a reader of the lock; its value shows no token, and stays the same for its life.
type Entry struct {
	Lock   string
	Value  string // from Compose
	Shared bool
}

// Extend adds the entry to a request that prolongs several.
func (e Entry) Extend(r *Renewals, keyTTL string) {
	if !e.Shared {
		r.Add(e.Lock, e.Value, keyTTL)
		return
	}
	r.req.keys = append(r.req.keys, e.Lock)
	r.req.args = append(r.req.args, "prolong", e.Value, keyTTL)
}

// Raise returns a request that moves the register of the lock to a value. For a reader, the register
// may be there already.
func (e Entry) Raise(to int64, expires clock.Steady) *Request {
	if !e.Shared {
		return NewRaise(e.Lock, OwnerOf(e.Value), to, MetadataOf(e.Value), expires)
	}
	return e.request(Raise, expires, "align", e.Value, strconv.FormatInt(to, 10))
}

// Release returns a request that deletes the entry, see NewRelease.
func (e Entry) Release(undoes *Request, ticket TicketUpdate, expires clock.Steady) *Request {
	if !e.Shared {
		return NewRelease(e.Lock, e.Value, undoes, ticket, expires)
	}
	r := e.request(Release, expires, "quit", e.Value, ticket.Ticket, ticket.EnqueuedAt, ticket.mode())
	r.Insists = true
	if undoes != nil && ticket == (TicketUpdate{}) {
		r.undoes, r.undoesGeneration = undoes, undoes.generation.Load()
	}
	return r
}

// Undo returns the release of a failed acquisition, see NewUndo.
func (e Entry) Undo(undoes *Request, ticket TicketUpdate, expires clock.Steady) *Request {
	return e.Release(undoes, ticket, expires).afterFailure(undoes, ticket)
}

// Keep returns a request that keeps the entry for ms milliseconds, see NewKeep.
func (e Entry) Keep(ms string, expires clock.Steady) *Request {
	if !e.Shared {
		return NewKeep(e.Lock, e.Value, ms, expires)
	}
	r := e.request(Extend, expires, "prolong", e.Value, ms)
	r.Insists = true
	return r
}

// Read returns a request that reads the lock and changes nothing. It shows the entry's value where the
// node has it.
func (e Entry) Read(expires clock.Steady) *Request {
	if !e.Shared {
		return NewRead(e.Lock, expires)
	}
	return e.request(Read, expires, "look", e.Value)
}

func (e Entry) request(kind Kind, expires clock.Steady, args ...string) *Request {
	r := &Request{Kind: kind, Expires: expires, Urgent: true}
	r.room[0] = e.Lock
	r.keys = r.room[:1:1]
	r.args = append(r.room[1:1], args...)
	return r
}
