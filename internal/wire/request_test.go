package wire

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// An acquisition's request is reused for the next one. A release that undoes the first
// use may still wait in a lane by then. It must be sent, whatever happens to the second
// use.
func TestAReleaseOfAnEarlierUseIsSent(t *testing.T) {
	const asked, untouched = 1, 2 // nodes, by their bits
	value := Compose(strings.Repeat("0", OwnerLen), 0, "0 - -")
	for _, shared := range []bool{false, true} {
		entry := Entry{Lock: "p:job", Value: value, Shared: shared}
		acquisition := Acquisition{Lock: "p:job", Value: value, KeyTTL: "1000", Token: "0", NotAfter: clock.Steady(time.Minute), Shared: shared}
		r := &Request{}
		r.Init(&acquisition)
		r.sent.Store(asked)
		release := entry.Release(r, TicketUpdate{}, clock.Steady(time.Minute))
		assert.False(t, release.UndoesNothing(untouched), "it may still be sent")
		r.Withdraw()
		assert.True(t, release.UndoesNothing(untouched))
		assert.False(t, release.UndoesNothing(asked))
		assert.False(t, entry.Release(r, TicketUpdate{Ticket: "t"}, clock.Steady(time.Minute)).UndoesNothing(untouched), "the ticket may be there")

		r.MadeElsewhere(0)
		r.Reset()
		assert.False(t, r.Withdrawn())
		assert.Zero(t, r.sent.Load())
		r.Init(&acquisition)
		r.Withdraw()
		assert.False(t, release.UndoesNothing(asked), "the first use was sent to this node")
		assert.True(t, entry.Release(r, TicketUpdate{}, clock.Steady(time.Minute)).UndoesNothing(asked), "the second use was not")
	}
}

// A refusal has put the ticket of the acquisition into the queue, so a release that keeps it there has nothing to do.
// Any other release does.
func TestANodeThatHasRefusedAnAcquisitionNeedsNoRelease(t *testing.T) {
	const refused, other = 1, 2 // nodes, by their bits
	value := Compose(strings.Repeat("0", OwnerLen), 0, "0 - -")
	for what, a := range map[string]Acquisition{"a writer": {}, "a reader": {Shared: true}, "a permit": {Limit: 3}} {
		a.Lock, a.Value, a.NotAfter, a.Ticket, a.EnqueuedAt = "p:job", value, clock.Steady(time.Minute), "t", "5"
		r := &Request{}
		r.Init(&a)
		r.MarkSent(refused | other)
		r.MarkRefused(refused)
		entry := Entry{Lock: a.Lock, Value: value, Shared: a.Shared}
		undo := func(u TicketUpdate) *Request { return entry.Undo(r, u, clock.Steady(time.Minute)) }
		assert.True(t, undo(TicketUpdate{Ticket: "t", EnqueuedAt: "5"}).UndoesNothing(refused), what)
		assert.False(t, undo(TicketUpdate{Ticket: "t", EnqueuedAt: "5"}).UndoesNothing(other), what)
		for _, u := range []TicketUpdate{{Ticket: "t"}, {Ticket: "u", EnqueuedAt: "5"}, {Ticket: "t", EnqueuedAt: "5", Yields: true}} {
			assert.False(t, undo(u).UndoesNothing(refused), "%s: %+v", what, u)
		}
	}
}

// A reader's renewal needs the set of the readers, wherever it stands among the renewals of other leases.
func TestARenewalWithAReaderNeedsTheCompanions(t *testing.T) {
	writer := Entry{Lock: "p:a", Value: Compose(strings.Repeat("0", OwnerLen), 7, "0 - -")}
	reader := Entry{Lock: "p:b", Value: Compose(strings.Repeat("1", OwnerLen), 0, "0 - -"), Shared: true}
	permit := Entry{Lock: SlotKey("p:c", 3), Value: writer.Value}
	for _, c := range []struct {
		entries []Entry
		want    Need
	}{
		{[]Entry{writer}, Perhaps},
		{[]Entry{reader}, Always},
		{[]Entry{writer, reader}, Always},
		{[]Entry{reader, writer}, Always},
		{[]Entry{writer, writer, permit}, Always},
		{[]Entry{writer, writer}, Perhaps},
	} {
		r := NewBatch(Extend, len(c.entries), clock.Steady(time.Minute))
		for _, e := range c.entries {
			e.Extend(r, "1000")
		}
		assert.Equal(t, c.want, r.Needs(), "%v", c.entries)
	}
}

// When the wait may have ended, the ticket must not come back.
func TestAPlainReleaseTouchesNoTicket(t *testing.T) {
	for _, shared := range []bool{false, true} {
		entry := Entry{Lock: "p:job", Value: Compose(strings.Repeat("0", OwnerLen), 0, "0 - -"), Shared: shared}
		plain := NewPlainRelease(entry.Release(nil, TicketUpdate{Ticket: "t", EnqueuedAt: "5", Yields: true}, clock.Steady(time.Minute)), clock.Steady(time.Hour))
		assert.True(t, plain.Same(entry.Release(nil, TicketUpdate{}, clock.Steady(time.Minute))))
		assert.Equal(t, clock.Steady(time.Hour), plain.Expires)
	}
}

// An unused reservation lapses on one node only: the other queues have another head.
func TestALapseIsReportedToItsNodeAlone(t *testing.T) {
	r := &Request{}
	r.Init(&Acquisition{Value: Compose(strings.Repeat("0", OwnerLen), 0, "0 - -"), Ticket: "t", EnqueuedAt: "5", Lapsed: 0b10})
	for node, want := range map[uint32]string{0b1: "", 0b10: "l", 0b100: ""} {
		args := r.ArgsFor(node)
		assert.Equal(t, want, args[len(args)-1], "node %b", node)
	}
}

// The lean script looks for a queue behind the lock, and the slots of a name have one for all.
func TestALoneReleaseOfASlotIsNotLean(t *testing.T) {
	value := Compose(strings.Repeat("a", OwnerLen), 8, "0 - -")
	release := func(lock string) *Request {
		return Entry{Lock: lock, Value: value}.Release(nil, TicketUpdate{}, clock.Steady(time.Hour))
	}
	assert.True(t, release("p:job").Lean())
	assert.False(t, release(SlotKey("p:job", 3)).Lean())
}

func TestTheFirstPermitOfANameWeighsAsMuchAsItsSet(t *testing.T) {
	permit := func(name string, slot, limit int) *Request {
		r := &Request{}
		r.Init(&Acquisition{Lock: SlotKey(name, slot), Value: Compose(strings.Repeat("0", OwnerLen), 0, "0 - -"), Limit: limit})
		return r
	}
	const limit, first = 1024, permitWeight + 1024/setWeight
	pass := NewPass(SlotKey("p:job", 0), strings.Repeat("0", TicketLen), 0)
	assert.Equal(t, permitWeight, pass.Weight(nil))
	assert.Equal(t, 1, NewRead(SlotKey("p:job", 0), 0).Weight(nil))
	for what, c := range map[string]struct {
		before *Request
		weighs int
	}{
		"nothing":                       {nil, first},
		"a permit of the name":          {permit("p:job", 1, limit), permitWeight},
		"a permit of another name":      {permit("p:jo", 1, limit), first},
		"another number of its permits": {permit("p:job", 1, limit-1), first},
		"what makes no set":             {pass, first},
		"an empty batch":                {NewBatch(Extend, 0, 0), first},
	} {
		assert.Equal(t, c.weighs, permit("p:job", 0, limit).Weight(c.before), "behind %s", what)
	}
}
