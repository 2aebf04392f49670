package quorumlock

import (
	"fmt"
	"log/slog"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// config is what a Manager was made with.
type config struct {
	prefix         string
	unfenced       bool
	drift          float64
	nodeTimeout    time.Duration
	nodeTimeoutSet bool
	retry          func() backoff.BackOff // the user's; nil for the default
	retrySet       bool
	guard          time.Duration
	guarded, trust bool
	rollout        bool
	failover       time.Duration
	failoverSet    bool
	telemetry      providers
	log            *slog.Logger
	startupWait    time.Duration
	terms          terms // of leases without options of their own
	nodes          int
}

// terms are the conditions of a lease. Leases without options of their own
// share the Manager's.
type terms struct {
	ttl, maxHold, minHold, lockDelay time.Duration
	label                            string
	manual                           bool
	wait                             waitLimit     // of one call: termsFor takes it out
	trip                             time.Duration // to the nodes, where it lengthens the node timeout: see at

	// Derived by complete.
	quorum.Terms
	interval time.Duration // between the starts of two rounds
	slack    time.Duration // how much earlier a round may start, to go with others
	keyTTL   string        // life of the keys, ms
	key      uint64        // equal for terms under which a hold may be passed on
	// minUseful is what has to be left of a lease for a grant to be of use.
	minUseful time.Duration
}

// waitLimit says what a call waits for, and how long.
type waitLimit struct {
	set      bool
	most     time.Duration
	failFast bool // it does not wait for a quorum
}

// registerCap is how far a grant may move a fencing register ahead of a node's clock. It
// bounds how far a wrong clock can push tokens into the future. 0 mints no tokens.
func (c *config) registerCap() time.Duration {
	if c.unfenced {
		return 0
	}
	longest := MaxTTL
	if c.guarded {
		longest = c.guard - c.failover
	}
	return min(2*time.Second, longest/4)
}

// newConfig applies defaults, then options, then checks the relations.
func newConfig(nodes []rueidis.ClientOption, opts []Option) (*config, error) {
	c := &config{
		prefix: DefaultPrefix, drift: DefaultDriftFactor,
		log: slog.New(warnings{slog.Default().Handler()}), nodes: len(nodes),
		terms: terms{ttl: DefaultTTL},
	}
	for _, o := range opts {
		if o != nil {
			o.manager(c)
		}
	}
	if err := checkNodes(nodes); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := c.checkGroups(nodes); err != nil {
		return nil, err
	}
	if err := c.complete(&c.terms); err != nil {
		return nil, err
	}
	return c, nil
}

func defaultRetry() backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(10*time.Millisecond), backoff.WithMaxInterval(500*time.Millisecond),
		backoff.WithMaxElapsedTime(0))
}

// check refuses options that no lease could live with.
func (c *config) check() error {
	switch {
	case len(c.prefix) > MaxNameLen:
		return &InvalidError{What: "WithPrefix", Value: fmt.Sprint(len(c.prefix), " bytes"),
			Bound: fmt.Sprintf("has to be at most %d bytes", MaxNameLen), Fix: "choose a shorter prefix"}
	case !utf8.ValidString(c.prefix):
		return &InvalidError{What: "WithPrefix", Value: strconv.Quote(c.prefix), Bound: "has to be valid UTF-8",
			Fix: "choose another prefix"}
	case !wire.PrefixShards(c.prefix):
		return &InvalidError{What: "WithPrefix", Value: strconv.Quote(c.prefix), Bound: "has a brace that is no hash tag",
			Fix: "write a whole tag, like {app}:, or no brace"}
	case !(c.drift > 0 && c.drift <= MaxDriftFactor):
		return &InvalidError{What: "WithDriftFactor", Value: fmt.Sprint(c.drift),
			Bound: fmt.Sprintf("has to be above 0 and at most %v", MaxDriftFactor), Fix: "0.01 covers any clock that works"}
	case c.nodeTimeoutSet && c.nodeTimeout < MinNodeTimeout:
		return &InvalidError{What: "WithNodeTimeout", Value: c.nodeTimeout.String(),
			Bound: fmt.Sprintf("has to be at least %v", MinNodeTimeout), Fix: unit(c.nodeTimeout) + "leave it out for a tenth of the TTL"}
	case c.retrySet && c.retry == nil:
		return &InvalidError{What: "WithRetryBackoff", Bound: "needs a function", Fix: "leave it out for the default"}
	case c.guarded && (c.guard < MinTTL || c.guard > 2*MaxTTL):
		return &InvalidError{What: "WithRestartGuard", Value: c.guard.String(),
			Bound: fmt.Sprintf("has to be within %v … %v", MinTTL, 2*MaxTTL), Fix: "give the longest TTL of any client"}
	case c.trust && !c.guarded:
		return &InvalidError{What: "WithTrustEmptyNodes", Bound: "says something about the restart guard, which is off",
			Fix: "add WithRestartGuard, or leave it out"}
	case c.startupWait < 0:
		return &InvalidError{What: "WithStartupWait", Value: c.startupWait.String(), Bound: "has to be 0 or more",
			Fix: "0 does not wait; a context bounds New as well"}
	case c.rollout && !c.guarded:
		return &InvalidError{What: "WithGuardRollout", Bound: "says something about the restart guard, which is off",
			Fix: "add WithRestartGuard, or leave it out"}
	}
	return nil
}

// complete checks the terms of a lease and derives the rest.
func (c *config) complete(t *terms) error {
	t.Terms = quorum.Terms{
		Nodes: c.nodes, TTL: t.ttl, MaxHold: t.maxHold,
		Drift: quorum.Drift(t.ttl, c.drift), Guard: quorum.Guard(t.ttl), Early: quorum.Early(quorum.Guard(t.ttl)),
		Timeout: quorum.NodeTimeout(t.ttl, t.trip),
	}
	if c.nodeTimeoutSet {
		t.Timeout = c.nodeTimeout
	}
	t.interval = t.ttl / 3
	t.minUseful = t.ttl / 10
	if t.maxHold > 0 {
		t.minUseful = min(t.minUseful, t.maxHold/10)
	}
	t.slack = min(t.interval/20, together)
	t.keyTTL = strconv.FormatInt((t.ttl + t.lockDelay).Milliseconds(), 10)
	t.key = termsKey(t)
	spent := t.interval + t.interval/10 + t.Timeout + t.Guard + t.Early + t.Drift
	t.MaxLag = quorum.MaxLag(t.ttl, t.ttl-spent)
	switch {
	case t.ttl < MinTTL || t.ttl > MaxTTL:
		return &InvalidError{What: "WithTTL", Value: t.ttl.String(),
			Bound: fmt.Sprintf("has to be within %v … %v", MinTTL, MaxTTL), Fix: unit(t.ttl) + "10s suits most; below 1s a busy machine loses leases"}
	case t.ttl%time.Millisecond != 0:
		return &InvalidError{What: "WithTTL", Value: t.ttl.String(), Bound: "has to be whole milliseconds",
			Fix: "Redis counts no finer"}
	case t.maxHold < 0 || t.maxHold > 0 && t.maxHold < MinTTL:
		return &InvalidError{What: "WithMaxHold", Value: t.maxHold.String(),
			Bound: fmt.Sprintf("has to be 0 or at least %v", MinTTL), Fix: unit(t.maxHold) + "0 is no limit"}
	case t.minHold < 0 || t.minHold > MaxTTL || t.minHold%time.Millisecond != 0:
		return &InvalidError{What: "WithMinHold", Value: t.minHold.String(),
			Bound: fmt.Sprintf("has to be whole milliseconds from 0 to %v", MaxTTL), Fix: unit(t.minHold) + "0 is no minimum"}
	case t.maxHold > 0 && t.minHold > t.maxHold:
		return &InvalidError{What: "WithMinHold", Value: t.minHold.String(),
			Bound: fmt.Sprintf("has to be at most WithMaxHold's %v", t.maxHold), Fix: "shorten it, or lengthen the maximum"}
	case c.guarded && t.minHold > c.guard-c.failover:
		return &InvalidError{What: "WithMinHold", Value: t.minHold.String(),
			Bound: fmt.Sprintf("has to be at most WithRestartGuard's %v%s", c.guard, c.lessWindow()),
			Fix:   fmt.Sprintf("shorten it, or set the guard to %v on every client: a node that restarts forgets the name after that time", t.minHold+c.failover)}
	case t.lockDelay < 0 || t.lockDelay > MaxTTL-t.ttl || t.lockDelay%time.Millisecond != 0:
		return &InvalidError{What: "WithLockDelay", Value: t.lockDelay.String(),
			Bound: fmt.Sprintf("has to be whole milliseconds from 0 to %v less the TTL", MaxTTL), Fix: "half the TTL is ample"}
	case len(t.label) > MaxLabelLen || !utf8.ValidString(t.label):
		return &InvalidError{What: "WithHolder", Value: fmt.Sprintf("(%d bytes)", len(t.label)),
			Bound: fmt.Sprintf("has to be valid UTF-8 of at most %d bytes", MaxLabelLen), Fix: "a host name and a process id do"}
	case spent >= t.ttl || t.Timeout >= t.ttl: // the sum may overflow
		return &InvalidError{What: "WithNodeTimeout", Value: t.Timeout.String(),
			Bound: fmt.Sprintf("renewal interval %v + jitter + node timeout %v + guard %v + drift %v has to be below the TTL %v",
				t.interval, t.Timeout, t.Guard+t.Early, t.Drift, t.ttl),
			Fix: fmt.Sprintf("set it below %v, or lengthen the TTL", t.ttl-(t.interval+t.interval/10+t.Guard+t.Early+t.Drift))}
	case c.guarded && c.failoverSet && t.ttl+t.lockDelay+c.failover > c.guard:
		return &InvalidError{What: "WithTTL", Value: t.ttl.String(),
			Bound: fmt.Sprintf("plus the lock delay %v and WithFailover's %v has to be at most WithRestartGuard's %v", t.lockDelay, c.failover, c.guard),
			Fix:   fmt.Sprintf("shorten the lease, or set the guard to %v on every client", t.ttl+t.lockDelay+c.failover)}
	case c.guarded && t.ttl+t.lockDelay > c.guard:
		return &InvalidError{What: "WithTTL", Value: t.ttl.String(),
			Bound: fmt.Sprintf("plus the lock delay %v has to be at most WithRestartGuard's %v", t.lockDelay, c.guard), Fix: "shorten the lease, or lengthen the guard on every client"}
	}
	return nil
}

// lessWindow names the window of WithFailover, which the guard covers as well.
func (c *config) lessWindow() string {
	if !c.failoverSet {
		return ""
	}
	return fmt.Sprintf(" less WithFailover's %v", c.failover)
}

// unit returns a hint for a duration that looks like a bare number: a Duration counts
// nanoseconds.
func unit(d time.Duration) string {
	if d <= 0 || d >= 100*time.Microsecond {
		return ""
	}
	return fmt.Sprintf("write %d*time.Second if seconds were meant, because a bare number counts nanoseconds; ", d.Nanoseconds())
}

// termsFor returns the terms of a lease, and how long the call may wait for it.
func (c *config) termsFor(opts []AcquireOption) (*terms, waitLimit, error) {
	if len(opts) == 0 {
		return &c.terms, waitLimit{}, nil
	}
	t := c.terms
	for _, o := range opts {
		if o != nil {
			o.acquire(&t)
		}
	}
	wait := t.wait
	t.wait = waitLimit{}
	if wait.most < 0 {
		return nil, wait, &InvalidError{What: "WithWait", Value: wait.most.String(), Bound: "has to be 0 or more", Fix: "0 asks once; leave it out to wait until the context ends"}
	}
	if t == c.terms {
		return &c.terms, wait, nil
	}
	if err := c.complete(&t); err != nil {
		return nil, wait, err
	}
	return &t, wait, nil
}

// at returns the terms for a client that is a round trip of trip away from the nodes.
func (c *config) at(trip time.Duration, t *terms) *terms {
	if c.nodeTimeoutSet || quorum.NodeTimeout(t.ttl, trip) <= t.Timeout {
		return t
	}
	far := *t
	far.trip = trip
	if c.complete(&far) != nil {
		return t
	}
	return &far
}

var nameBound = fmt.Sprintf("has to have 1 to %d bytes", MaxNameLen)

// checkName refuses names that are no legal keys.
func checkName(name string) error {
	const fix = "use a short readable text"
	switch {
	case name == "":
		return &InvalidError{What: "name", Value: `""`, Bound: nameBound, Fix: fix}
	case len(name) > MaxNameLen:
		return &InvalidError{What: "name", Value: fmt.Sprintf("(%d bytes)", len(name)),
			Bound: nameBound, Fix: fix}
	case !utf8.ValidString(name):
		return &InvalidError{What: "name", Value: strconv.Quote(name), Bound: "has to be valid UTF-8", Fix: fix}
	}
	return nil
}
