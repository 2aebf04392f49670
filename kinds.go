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

// Shared asks for a shared lease: a read lock. Any number of callers, in any processes, hold shared
// leases of a name together, and no caller holds it exclusively at the same time: a call without
// Shared is the write lock of the name.
//
// Writers and readers get the name in the order in which they came. Readers that come after a
// waiting writer wait for it, and TryAcquire returns ErrHeld then. A reader that holds its lease
// for hours keeps a writer out for hours: WithMaxHold ends it, and Lease.Wanted reports the waiting
// writer.
//
// The fencing token of a shared lease is larger than the token of every writer before it, and
// smaller than the token of every writer after it. Readers between the same two writers may have
// the same token.
//
// A reader cannot become a writer: release the shared lease and acquire the name. Inside Do or Lead
// of the same name a call returns ErrHeld at once. Clients of other Redlock libraries exclude
// readers and are excluded by them, but do not queue with them.
func Shared() Kind { return Kind{config.Kind{Shared: true}} }

// Permits asks for one of n permits of the name, 1 to 1024: a semaphore. At most n leases of the
// name are valid at any time. With Lead, it elects up to n leaders. For Inspect and Observe, n is
// how many slots they look at.
//
// A permit is an exclusive lease on one of the slots 0 to n-1 of the name (Lease.Slot). Fencing
// tokens are ordered within a slot: a resource that checks them keeps the highest token of each
// slot. Nodes wake waiters in the order in which they came, and any waiter may get any slot.
//
// Clients with different limits are safe for the largest: a client never takes a slot at or above
// its own limit. To lower a limit, replace the clients. Permits and leases of other kinds of the
// same name do not exclude each other.
//
// TryAcquire returns ErrHeld when no slot is free or others wait. When several calls arrive at
// the same instant, some (in rare cases all) are refused although a slot is free. Inside Do or
// Lead of the same name a call returns ErrHeld at once.
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
		return campaign.Shared()
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
