package config

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Together is how far ahead the watchdog looks for locks to renew in one script. A round
// starts at most that long before it is due, see Terms.Slack.
const Together = 100 * time.Millisecond

// Terms are the conditions of a lease. Leases without options of their own share the Manager's.
type Terms struct {
	quorum.Terms // the options set TTL and MaxHold; complete derives the rest

	MinHold, LockDelay time.Duration
	Label              string
	Manual             bool          // the holder renews
	Call               Call          // what one call asks for: Lease takes it out
	Trip               time.Duration // to the nodes, where it lengthens the node timeout: see At

	// Derived by complete.
	KeyTTL  string // life of the keys, ms
	PassKey uint64 // equal for terms between which a lock may be passed on
	// MinUseful is how much of a lease must be left for a grant to be of use.
	MinUseful time.Duration
}

var defaultTerms = Terms{Terms: quorum.Terms{TTL: DefaultTTL}}

// Call has the options of one call that are not options of its lease.
type Call struct {
	Wait
	Kind Kind
}

// Wait is what a call waits for, and how long.
type Wait struct {
	Set      bool
	Most     time.Duration
	FailFast bool // it does not wait for a quorum
}

// Once reports whether the call asks once.
func (w Wait) Once() bool { return w.Set && w.Most == 0 }

// complete checks the terms of a lease and derives the rest.
func (c *Config) complete(t *Terms) *Problem {
	t.Nodes, t.Drift = c.Nodes, quorum.Drift(t.TTL, c.Drift)
	t.SafetyMargin = quorum.SafetyMargin(t.TTL)
	t.Early = quorum.Early(t.SafetyMargin)
	t.Timeout = quorum.NodeTimeout(t.TTL, t.Trip)
	if c.NodeTimeoutSet {
		t.Timeout = c.NodeTimeout
	}
	t.Interval = t.TTL / 3
	t.MinUseful = t.TTL / 10
	if t.MaxHold > 0 {
		t.MinUseful = min(t.MinUseful, t.MaxHold/10)
	}
	t.Slack = min(t.Interval/20, Together)
	t.KeyTTL = strconv.FormatInt((t.TTL + t.LockDelay).Milliseconds(), 10)
	t.PassKey = passKey(t)
	spent := t.Interval + t.Interval/10 + t.Timeout + t.SafetyMargin + t.Early + t.Drift
	t.MaxLag = quorum.MaxLag(t.TTL, t.TTL-spent)
	switch {
	case t.TTL < MinTTL || t.TTL > MaxTTL:
		return &Problem{What: "WithTTL", Value: t.TTL.String(),
			Bound: fmt.Sprintf("must be within %v … %v", MinTTL, MaxTTL), Fix: unit(t.TTL) + "10s suits most; below 1s a busy machine loses leases"}
	case t.TTL%time.Millisecond != 0:
		return &Problem{What: "WithTTL", Value: t.TTL.String(), Bound: "must be whole milliseconds",
			Fix: "round it, because Redis keeps time in milliseconds"}
	case t.MaxHold < 0 || t.MaxHold > 0 && t.MaxHold < MinTTL:
		return &Problem{What: "WithMaxHold", Value: t.MaxHold.String(),
			Bound: fmt.Sprintf("must be 0 or at least %v", MinTTL), Fix: unit(t.MaxHold) + "0 means no limit"}
	case t.MinHold < 0 || t.MinHold > MaxTTL || t.MinHold%time.Millisecond != 0:
		return &Problem{What: "WithMinHold", Value: t.MinHold.String(),
			Bound: fmt.Sprintf("must be whole milliseconds from 0 to %v", MaxTTL), Fix: unit(t.MinHold) + "0 means no minimum"}
	case t.MaxHold > 0 && t.MinHold > t.MaxHold:
		return &Problem{What: "WithMinHold", Value: t.MinHold.String(),
			Bound: fmt.Sprintf("must be at most WithMaxHold's %v", t.MaxHold), Fix: "shorten it, or lengthen the maximum"}
	case c.Guarded && t.MinHold > c.Guard-c.Failover:
		return &Problem{What: "WithMinHold", Value: t.MinHold.String(),
			Bound: fmt.Sprintf("must be at most WithRestartGuard's %v%s", c.Guard, c.lessWindow()),
			Fix:   fmt.Sprintf("shorten it, or set the guard to %v on every client: a node that restarts forgets the name after that time", t.MinHold+c.Failover)}
	case t.LockDelay < 0 || t.LockDelay > MaxTTL-t.TTL || t.LockDelay%time.Millisecond != 0:
		return &Problem{What: "WithLockDelay", Value: t.LockDelay.String(),
			Bound: fmt.Sprintf("must be whole milliseconds from 0 to %v less the TTL", MaxTTL), Fix: "half the TTL is ample"}
	case len(t.Label) > MaxLabelLen || !utf8.ValidString(t.Label):
		return &Problem{What: "WithHolder", Value: fmt.Sprintf("(%d bytes)", len(t.Label)),
			Bound: fmt.Sprintf("must be valid UTF-8 of at most %d bytes", MaxLabelLen), Fix: "shorten it, for example to a host name and a process id"}
	case spent >= t.TTL || t.Timeout >= t.TTL: // the sum may overflow
		return &Problem{What: "WithNodeTimeout", Value: t.Timeout.String(),
			Bound: fmt.Sprintf("renewal interval %v + jitter + node timeout %v + safety margin %v + drift %v must be below the TTL %v",
				t.Interval, t.Timeout, t.SafetyMargin+t.Early, t.Drift, t.TTL),
			Fix: fmt.Sprintf("set it below %v, or lengthen the TTL", t.TTL-(t.Interval+t.Interval/10+t.SafetyMargin+t.Early+t.Drift))}
	case c.Guarded && t.TTL+t.LockDelay+c.Failover > c.Guard:
		return &Problem{What: "WithTTL", Value: t.TTL.String(),
			Bound: fmt.Sprintf("plus the lock delay %v must be at most WithRestartGuard's %v%s", t.LockDelay, c.Guard, c.lessWindow()),
			Fix:   fmt.Sprintf("shorten the lease, or set the guard to %v on every client", t.TTL+t.LockDelay+c.Failover)}
	}
	return nil
}

// lessWindow names the window of WithFailover, which the guard covers as well.
func (c *Config) lessWindow() string {
	if !c.FailoverSet {
		return ""
	}
	return fmt.Sprintf(" less WithFailover's %v", c.Failover)
}

// Lease returns the terms of a lease whose options have changed the Manager's terms to t, and
// what its call asks for.
func (c *Config) Lease(t Terms) (*Terms, Call, *Problem) {
	call := t.Call
	t.Call = Call{}
	if call.Most < 0 {
		return nil, call, &Problem{What: "WithWait", Value: call.Most.String(), Bound: "must be 0 or more", Fix: "0 asks once; leave it out to wait until the context ends"}
	}
	if p := call.Kind.Check(); p != nil {
		return nil, call, p
	}
	if t == c.Terms {
		return &c.Terms, call, nil
	}
	if p := c.complete(&t); p != nil {
		return nil, call, p
	}
	return &t, call, nil
}

// Renewed returns the terms t of a lease that is held with another TTL.
func (c *Config) Renewed(t *Terms, ttl time.Duration) (*Terms, *Problem) {
	trip, changed := t.Trip, *t
	changed.TTL, changed.Trip = ttl, 0 // a trip lengthens the node timeout where it has room
	if p := c.complete(&changed); p != nil {
		return nil, p
	}
	return c.At(trip, &changed), nil
}

// At returns the terms for a client that is a round trip of trip away from the nodes.
func (c *Config) At(trip time.Duration, t *Terms) *Terms {
	if c.NodeTimeoutSet || quorum.NodeTimeout(t.TTL, trip) <= t.Timeout {
		return t
	}
	far := *t
	far.Trip = trip
	if c.complete(&far) != nil {
		return t
	}
	return &far
}

// passKey returns a number that is equal for terms between which a lock may be passed
// on.
func passKey(t *Terms) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%v %v %v %v %t %s", t.TTL, t.LockDelay, t.MaxHold, t.MinHold, t.Manual, t.Label) // a hash takes everything
	return h.Sum64()
}

var nameBound = fmt.Sprintf("must have 1 to %d bytes", MaxNameLen)

// CheckName refuses names that are not legal keys.
func CheckName(name string) *Problem {
	const fix = "use a short readable text"
	switch {
	case name == "":
		return &Problem{What: "name", Value: `""`, Bound: nameBound, Fix: fix}
	case len(name) > MaxNameLen:
		return &Problem{What: "name", Value: fmt.Sprintf("(%d bytes)", len(name)),
			Bound: nameBound, Fix: fix}
	case !utf8.ValidString(name):
		return &Problem{What: "name", Value: strconv.Quote(name), Bound: "must be valid UTF-8", Fix: fix}
	}
	return nil
}

// MaxPermits bounds the permits of a name.
const MaxPermits = 1024

// Kind is what a call asks of a name. The zero Kind is an exclusive lease.
type Kind struct {
	Shared  bool // a shared lease
	Permits bool // one of Limit permits
	Limit   int
}

// With adds what another option asks of the name. A later limit of permits replaces an earlier one, as a later
// value of any option does.
func (k Kind) With(other Kind) Kind {
	k.Shared = k.Shared || other.Shared
	if other.Permits {
		k.Permits, k.Limit = true, other.Limit
	}
	return k
}

// Option returns the name of the option that asks for the kind, "" for an exclusive lease.
func (k Kind) Option() string {
	switch {
	case k.Shared:
		return "Shared"
	case k.Permits:
		return "Permits"
	}
	return ""
}

// Check returns why a name cannot have a lease of this kind, nil if it can.
func (k Kind) Check() *Problem {
	switch {
	case k.Shared && k.Permits:
		return &Problem{What: "Shared", Value: "with Permits", Bound: "a lease is either a shared one or a permit", Fix: "leave one of the two out"}
	case k.Permits && (k.Limit < 1 || k.Limit > MaxPermits):
		return &Problem{What: "Permits", Value: strconv.Itoa(k.Limit), Bound: "must be 1 to " + strconv.Itoa(MaxPermits), Fix: "use several names for more permits"}
	}
	return nil
}
