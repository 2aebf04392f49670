package quorumlock

import (
	"context"
	"strconv"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/otel"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// MaxPermits bounds the permits of a name.
const MaxPermits = 128

// AcquirePermit waits until it holds one of limit permits of the name, or until ctx ends: a semaphore. At
// most limit leases of the name are valid at any time. limit is 1 to MaxPermits. Options and errors are
// those of Acquire.
//
// A permit is a lease on one of the slots 0 to limit-1 of the name (Lease.Slot), each of which is an exclusive
// lease of its own: the nodes do not count holders, because a majority of each holder's votes would let more
// than limit of them in. Fencing tokens are ordered within a slot: a resource that checks them keeps the
// highest token of each slot. Nodes wake waiters in the order in which they came; any waiter may get any slot,
// and two that are woken together may change places.
//
// Clients with different limits are safe for the largest: a client never takes a slot at or above its own
// limit. While the one at the head of the queue has a smaller limit than those behind it, slots above its limit
// stay free. To lower a limit, replace the clients; the slots above end with their leases. A name may be used
// for permits and for exclusive or shared leases at the same time: they do not exclude each other.
//
// Inside DoPermit, Do or Lead of the same name it returns ErrHeld at once: the call might wait for its own
// caller. It is safe for concurrent use.
func (m *Manager) AcquirePermit(ctx context.Context, name string, limit int, opts ...AcquireOption) (*Lease, error) {
	return permit(ctx, m, name, limit, opts, true)
}

// TryAcquirePermit asks for a permit without waiting, as TryAcquire does for an exclusive lease. It returns ErrHeld
// (a *HeldError that names the holder of one slot) when no slot is free, and when others wait. Calls at the same
// instant may take votes from each other: then some of them, in rare cases all, are refused although a slot is free.
func (m *Manager) TryAcquirePermit(ctx context.Context, name string, limit int, opts ...AcquireOption) (*Lease, error) {
	return permit(ctx, m, name, limit, opts, false)
}

// DoPermit acquires a permit as AcquirePermit does, and runs fn under it as Do does.
func (m *Manager) DoPermit(ctx context.Context, name string, limit int, fn func(ctx context.Context, l *Lease) error, opts ...AcquireOption) error {
	acquire := func(ctx context.Context, name string, opts ...AcquireOption) (*Lease, error) {
		return m.AcquirePermit(ctx, name, limit, opts...)
	}
	return do(ctx, m, acquire, name, fn, opts)
}

func permit(ctx context.Context, m *Manager, name string, limit int, opts []AcquireOption, wait bool) (*Lease, error) {
	if err := checkLimit(limit); err != nil {
		return nil, err
	}
	return acquire(ctx, m, &call{name: name, mode: otel.Permit, limit: limit}, opts, wait)
}

func checkLimit(limit int) error {
	if limit >= 1 && limit <= MaxPermits {
		return nil
	}
	return &InvalidError{What: "limit", Value: strconv.Itoa(limit), Bound: "has to be 1 to " + strconv.Itoa(MaxPermits), Fix: "use several names for more permits"}
}

// InspectPermits returns the state of each of the first limit slots of a name, as Inspect returns that of a
// name, and how many of them are held. Waiters are those for any slot. Its errors are those of Inspect, and
// ErrInvalid for a limit out of bounds.
func (m *Manager) InspectPermits(ctx context.Context, name string, limit int) (held int, slots []Status, err error) {
	if err := inspectable(ctx, m, name); err != nil {
		return 0, nil, err
	}
	if err := checkLimit(limit); err != nil {
		return 0, nil, err
	}
	_, now := m.ensemble.Clock.Both()
	timeout := m.cfg.At(m.ensemble.Trip(), &m.cfg.Terms).Timeout
	all := make([]*ensemble.Answers, limit)
	for i := range all {
		all[i] = m.ensemble.AskAll(wire.NewRead(wire.SlotKey(wire.LockKey(m.cfg.Prefix, name), i), now+timeout), m.ensemble.Size(), nil)
	}
	for _, answers := range all {
		answers.Wait(ctx, timeout)
		s := status(m, name, answers)
		if s.Held {
			held++
		}
		slots = append(slots, s)
		if err == nil {
			err = enough(ctx, m.ensemble, "inspect", name, answers)
		}
	}
	return held, slots, err
}
