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
func (e Entry) Extend(r *Request, keyTTL string) {
	operation, shown := e.prolongs()
	r.add(e.Lock, operation, shown, keyTTL)
}

// prolongs returns the operation that prolongs the entry, and the part of its value that it compares.
func (e Entry) prolongs() (operation, shown string) {
	if e.Shared {
		return "prolong", e.Value
	}
	return "extend", proof(e.Value)
}

// Heal adds the entry, which a node has lost while its lease is valid, to a request that creates several
// again. It shows no token: the node's register may be lost as well. After notAfter the node does nothing.
// heldUntil is when the entry would have ended on the node, 0 if the node had none: a node in quarantine
// creates it no later than that.
func (e Entry) Heal(r *Request, keyTTL string, notAfter, heldUntil clock.Steady) {
	operation := "heal"
	if e.Shared {
		operation = "restore"
	}
	r.add(e.Lock, operation, Compose(OwnerOf(e.Value), 0, MetadataOf(e.Value)), keyTTL, Micros(notAfter), Micros(heldUntil))
}

// Raise returns a request that moves the register of the lock to a value. For a reader, the register
// may be there already.
func (e Entry) Raise(to int64, expires clock.Steady) *Request {
	value := e.Value
	if !e.Shared {
		value = Compose(OwnerOf(value), to, MetadataOf(value))
	}
	return newRequest(Raise, e.Lock, expires, "raise", value, strconv.FormatInt(to, 10))
}

// Delete adds the entry of an exclusive lease to a request that releases several.
func (e Entry) Delete(r *Request) { r.add(e.Lock, "release", e.Value[:OwnerLen+1]) }

// Release returns a request that deletes the entry, and reserves a free lock for the head of its queue. Only
// the owner of an exclusive lease counts, and not the rest of its value. If undoes is not nil, nodes that
// have not sent that acquisition and find it withdrawn need no release.
func (e Entry) Release(undoes *Request, ticket TicketUpdate, expires clock.Steady) *Request {
	var r *Request
	alone := ticket == TicketUpdate{}
	switch {
	case e.Shared:
		r = newRequest(Release, e.Lock, expires, "quit", e.Value, ticket.Ticket, ticket.EnqueuedAt, ticket.mode())
	case alone:
		r = newRequest(Release, e.Lock, expires, "release", e.Value[:OwnerLen+1])
	default:
		r = newRequest(Release, e.Lock, expires, "leave", e.Value[:OwnerLen+1], ticket.Ticket, ticket.EnqueuedAt, ticket.mode())
	}
	if undoes != nil && alone { // a ticket may be in the queue since an earlier attempt
		r.undoes, r.undoesGeneration = undoes, undoes.generation.Load()
	}
	return r
}

// Undo returns the release of a failed acquisition, see Release. A node that has refused the acquisition
// needs no release: it has no lock of ours. This does not apply if the release changes the ticket, except
// when the ticket only stays in the queue where the acquisition has put it.
func (e Entry) Undo(undoes *Request, ticket TicketUpdate, expires clock.Steady) *Request {
	return e.Release(undoes, ticket, expires).afterFailure(undoes, ticket)
}

// Keep returns a request that keeps the entry for ms milliseconds from its arrival, though its lease has
// ended. No other client gets the name until then.
func (e Entry) Keep(ms string, expires clock.Steady) *Request {
	operation, shown := e.prolongs()
	r := newRequest(Extend, e.Lock, expires, operation, shown, ms)
	r.Insists = true
	return r
}

// Read returns a request that reads the lock and changes nothing. It shows the entry's value where the
// node has it.
func (e Entry) Read(expires clock.Steady) *Request {
	r := NewRead(e.Lock, expires)
	if e.Shared {
		r.args[1] = e.Value
	}
	return r
}
