package quorumlock

import (
	"github.com/quorumlock/quorumlock/internal/campaign"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/otel"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Kind is what a call asks of a name: a shared lease (Shared) or a permit (Permits). The zero Kind, and a call
// without one, ask for an exclusive lease. It is an option of Acquire, TryAcquire, Do and Lead, and of Inspect and
// Observe. AcquireAll, DoAll and Resume take exclusive leases only, and Lead does not take shared ones: they return
// ErrInvalid, as does a call with both kinds.
type Kind struct{ kind config.Kind }

// Shared asks for a shared lease: a read lock. Any number of callers, in any processes, hold shared leases of a
// name together, and no caller holds it exclusively at the same time: a call without Shared is the write lock of the same
// name. A *HeldError says of a shared holder how many there are.
//
// Writers and readers get the name in the order in which they came. Readers that come after a waiting writer wait
// for it (for some 3 s, if its process is stopped). The readers before it, or between two writers, get the name
// together. So both wait only for the leases before them. A reader that holds its lease for hours keeps a writer
// out for hours: WithMaxHold ends it, and Lease.Wanted tells it that somebody waits. TryAcquire returns ErrHeld
// also when a writer waits.
//
// The fencing token of a shared lease is larger than that of every writer before it, and smaller than that
// of every writer after it. Readers between the same two writers have the same token, or the later ones a
// larger one, if an attempt to write failed in between.
//
// There is no upgrade: two readers that each wait for the other to leave would wait forever. To read
// first and perhaps write, hold another name as well that all writers take, release the shared lease, and
// acquire the name. Inside Do or Lead of the same name a call returns ErrHeld at once, also if both are shared:
// the call might wait behind a writer that waits for its own caller.
//
// Clients of other Redlock libraries, and of this one before it had shared leases, are kept out by
// readers, and keep them out. They do not queue with readers, or leave the queue, and then poll.
func Shared() Kind { return Kind{config.Kind{Shared: true}} }

// Permits asks for one of n permits of the name, 1 to 1024: a semaphore. At most n leases of the name are
// valid at any time. With Lead, it elects up to n leaders.
//
// A permit is a lease on one of the slots 0 to n-1 of the name (Lease.Slot), each of which is an exclusive
// lease of its own: the nodes do not count holders, because a majority of each holder's votes would let more
// than n of them in. Fencing tokens are ordered within a slot: a resource that checks them keeps the
// highest token of each slot. Nodes wake waiters in the order in which they came; any waiter may get any slot,
// and two that are woken together may change places.
//
// Clients with different limits are safe for the largest: a client never takes a slot at or above its own
// limit. While the one at the head of the queue has a smaller limit than those behind it, slots above its limit
// stay free. To lower a limit, replace the clients; the slots above end with their leases. A name may be used
// for permits and for exclusive or shared leases at the same time: they do not exclude each other.
//
// TryAcquire returns ErrHeld (a *HeldError that names the holder of one slot) when no slot is free, and when others
// wait. Calls at the same instant may take votes from each other: then some of them, in rare cases all, are refused
// although a slot is free. Inside Do or Lead of the same name a call returns ErrHeld at once: it might wait for its
// own caller.
//
// For Inspect and Observe, n is how many slots they look at.
func Permits(n int) Kind { return Kind{config.Kind{Permits: true, Limit: n}} }

func (k Kind) acquire(t *config.Terms) { t.Call.Kind = t.Call.Kind.With(k.kind) }

// modeOf returns the kind as telemetry shows it.
func modeOf(k config.Kind) otel.Mode {
	switch {
	case k.Shared:
		return otel.Shared
	case k.Permits:
		return otel.Permit
	}
	return otel.Exclusive
}

// asked returns the kind as a campaign asks for it.
func asked(k config.Kind) campaign.Kind {
	switch {
	case k.Shared:
		return campaign.Shared("")
	case k.Permits:
		return campaign.Permit(k.Limit)
	}
	return campaign.Exclusive
}

// exclusiveOnly refuses the options Shared and Permits, for a call that takes exclusive leases only.
func exclusiveOnly(k config.Kind, call, fix string) error {
	if k.Option() == "" {
		return nil
	}
	return &InvalidError{What: k.Option(), Bound: "has no use in " + call + ", which takes exclusive leases only", Fix: fix}
}

// keysOf returns the keys of the locks that Inspect and Observe look at.
func keysOf(key string, k config.Kind) []string {
	if !k.Permits {
		return []string{key}
	}
	slots := make([]string, k.Limit)
	for i := range slots {
		slots[i] = wire.SlotKey(key, i)
	}
	return slots
}
