package quorumlock

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// Defaults and bounds of the options.
const (
	DefaultTTL         = 10 * time.Second
	MinTTL             = 100 * time.Millisecond
	MaxTTL             = 24 * time.Hour
	DefaultPrefix      = "quorumlock:"
	DefaultDriftFactor = 0.01
	MaxDriftFactor     = 0.1
	MinNodeTimeout     = 5 * time.Millisecond
	MaxNameLen         = 512              // bytes
	MaxLabelLen        = node.MaxLabelLen // 256 bytes
	MaxNodes           = 15
)

// Option configures a Manager.
type Option interface{ manager(*config) }

// AcquireOption configures one lease.
type AcquireOption interface{ acquire(*terms) }

// LeaseOption is for New, where it sets the default of all leases, and for
// Acquire, where it sets this lease.
type LeaseOption interface {
	Option
	AcquireOption
}

type leaseOption func(*terms)

func (o leaseOption) manager(c *config) { o(&c.terms) }
func (o leaseOption) acquire(t *terms)  { o(t) }

type acquireOption func(*terms)

func (o acquireOption) acquire(t *terms) { o(t) }

type managerOption func(*config)

func (o managerOption) manager(c *config) { o(c) }

// WithTTL sets how long a lease outlives a holder that has died, and so the longest wait
// for its successor. Default 10 s, bounds 100 ms … 24 h, whole milliseconds, as Redis
// counts them. A holder that lives renews the lease every third of the TTL.
func WithTTL(d time.Duration) LeaseOption {
	return leaseOption(func(t *terms) { t.ttl = d })
}

// WithMaxHold ends a lease at this age (LostMaxHold), however well it renews: against a
// holder that hangs for ever. Default 0, which is no limit; otherwise at least 100 ms. A
// lease with a limit is never passed on inside the process.
func WithMaxHold(d time.Duration) LeaseOption {
	return leaseOption(func(t *terms) { t.maxHold = d })
}

// WithMinHold keeps the name taken until the lease has this age, even if it is released
// earlier, so that two hosts whose clocks differ run a job of 10 ms once and not twice. The
// lease itself ends at the release, as always. Close does the same; after a crash the keys live as long as the
// TTL says. Default 0, at most 24 h, whole milliseconds, not above WithMaxHold. (ShedLock
// calls it lockAtLeastFor.)
func WithMinHold(d time.Duration) LeaseOption {
	return leaseOption(func(t *terms) { t.minHold = d })
}

// WithWait bounds how long Acquire and Do wait, and each campaign of Lead, for a name that
// is taken or for nodes that are missing: then they return ErrHeld or ErrNoQuorum. It
// bounds nothing else; the deadline of a context would cut the work of Do short as well. 0
// asks once, as TryAcquire does. Default no bound. A negative time is ErrInvalid, and so is
// one above 0 for TryAcquire.
func WithWait(d time.Duration) AcquireOption {
	return acquireOption(func(t *terms) { t.wait = waitLimit{set: true, most: d} })
}

// WithLockDelay keeps the keys of a holder that died for so much longer than the lease was
// valid, so that what the holder had in flight can run out. A release is not delayed.
// Default 0, at most 24 h together with the TTL. (Burrows, "The Chubby lock service",
// section 2.4.)
func WithLockDelay(d time.Duration) LeaseOption {
	return leaseOption(func(t *terms) { t.lockDelay = d })
}

// WithHolder stores a label with the lock, for people: HeldError and Inspect show it. At
// most 256 bytes of UTF-8. Default none.
func WithHolder(label string) LeaseOption {
	return leaseOption(func(t *terms) { t.label = label })
}

// WithoutRenewal leaves renewing to Lease.Renew. A loss is reported in time all the same.
func WithoutRenewal() LeaseOption {
	return leaseOption(func(t *terms) { t.manual = true })
}

// WithPrefix sets what the keys of all locks begin with. Default "quorumlock:"; "" is
// allowed. A lock's key is the prefix and the name, so that other Redlock clients on the
// same key exclude this one and the other way round. All users of a name need the same
// prefix. A brace is allowed as part of a whole hash tag.
func WithPrefix(s string) Option {
	return managerOption(func(c *config) { c.prefix = s })
}

// WithoutFencing mints no tokens: Lease.Token is 0, and the nodes keep no register. A lock
// is SET NX PX and a compare-and-delete in effect. Waiters queue all the same.
func WithoutFencing() Option {
	return managerOption(func(c *config) { c.unfenced = true })
}

// WithNodeTimeout sets how long a node may take to answer before it counts as failed.
// Default a tenth of the TTL within 20 … 500 ms; at least 5 ms, and short enough for a
// round of renewal to fit into the TTL.
func WithNodeTimeout(d time.Duration) Option {
	return managerOption(func(c *config) { c.nodeTimeout = d; c.nodeTimeoutSet = true })
}

// WithDriftFactor sets how much the clock rates of client and nodes may differ. It shortens
// a lease's validity by that fraction of the TTL. Default 0.01; above 0, at most 0.1.
func WithDriftFactor(f float64) Option {
	return managerOption(func(c *config) { c.drift = f })
}

// WithRetryBackoff sets how long Acquire, Do and Lead wait before the next attempt when no
// wake-up arrives, because the name is taken or too few nodes answer. Each call that has to
// wait calls the function once, and asks the result before each wait; if the result is nil,
// the default is used. A waiter in the nodes' queues asks less often, and keeps its place:
// its wait is the backoff, 50 ms at least, times its place, up to 5 s. A backoff that is
// longer than that counts as it is, up to 20 s. No wait is longer than the holder's keys
// live. backoff.Stop ends the call with the error of the last attempt. Default exponential
// with jitter, 10 ms to 500 ms.
func WithRetryBackoff(f func() backoff.BackOff) Option {
	return managerOption(func(c *config) { c.retry = f })
}

// WithRestartGuard keeps a node that has lost its data from voting for maxTTL: after a
// restart, a failover to a replica, a FLUSHALL, or at first use (see WithTrustEmptyNodes).
// A marker in the database shows it, and every vote is compared with the marker, at no
// extra command. The guard does not see an eviction, so New refuses a node that may evict,
// and one that becomes such loses its vote. No lease may be longer than maxTTL, lock delay
// included, and all clients of a node must give the same value, in whole milliseconds, 100
// ms … 48 h. Without the guard, a node that restarts empty can give away a lease that is
// held (redis.io "Distributed Locks", delayed restarts). Default off.
func WithRestartGuard(maxTTL time.Duration) Option {
	return managerOption(func(c *config) { c.guard = maxTTL; c.guarded = true })
}

// WithTrustEmptyNodes lets the restart guard trust a database without any key, for a first
// deployment, which would otherwise start with maxTTL of no grants. A Manager that has seen
// a node's marker does not trust that node empty any more. A Manager that starts later has
// seen no marker, and would: remove the option after the first deployment.
func WithTrustEmptyNodes() Option {
	return managerOption(func(c *config) { c.trust = true })
}

// WithFailover declares the window of a failover: how much later the old master of a node
// may confirm a last request than the new one is first used. WithRestartGuard has to cover
// it: at least TTL + lock delay + window. For a group with min-replicas-to-write m of k
// replicas, 2(m+1) > k+1, on all servers, it is min-replicas-max-lag + 4 s. Needed for
// nodes from Sentinel and ClusterSlot, and wise for the endpoint of a managed service.
// Above 0, at most 24 h. docs/managed.md has the table and how it was measured.
func WithFailover(window time.Duration) Option {
	return managerOption(func(c *config) { c.failover, c.failoverSet = window, true })
}

// WithLogger sets where the Manager logs node changes, doubtful settings, unconfirmed
// releases, and leases that seem to be forgotten: changes for the better at Info, the rest
// at Warn. Default slog.Default(), from Warn up; nil is ignored. A logger of
// slog.DiscardHandler turns it off. The handler runs in a goroutine of its own: a slow one
// holds nothing up, and what it cannot take is counted.
func WithLogger(l *slog.Logger) Option {
	return managerOption(func(c *config) {
		if l != nil {
			c.log = l
		}
	})
}

// warnings is a handler for what is at Warn or above: the default of a program that has
// said nothing about this library.
type warnings struct{ slog.Handler }

// Enabled reports whether a level is logged.
func (h warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.Handler.Enabled(ctx, level)
}

// WithAttrs returns the handler with attributes.
func (h warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnings{h.Handler.WithAttrs(attrs)}
}

// WithGroup returns the handler with a group.
func (h warnings) WithGroup(name string) slog.Handler { return warnings{h.Handler.WithGroup(name)} }

// config is what a Manager was made with.
type config struct {
	prefix         string
	unfenced       bool
	drift          float64
	nodeTimeout    time.Duration
	nodeTimeoutSet bool
	retry          func() backoff.BackOff
	guard          time.Duration
	guarded, trust bool
	failover       time.Duration
	failoverSet    bool
	telemetry      providers
	log            *slog.Logger
	terms          terms // of leases without options of their own
	nodes          int
}

// terms are the conditions of a lease. Leases without options of their own
// share the Manager's.
type terms struct {
	ttl, maxHold, minHold, lockDelay time.Duration
	label                            string
	manual                           bool
	wait                             waitLimit // of one call: termsFor takes it out

	// Derived by complete.
	quorum.Terms
	interval time.Duration // between the starts of two rounds
	slack    time.Duration // how much earlier a round may start, to go with others
	keyTTL   string        // life of the keys, ms
	key      uint64        // equal for terms under which a hold may be passed on
	// minUseful is what has to be left of a lease for a grant to be of use.
	minUseful time.Duration
}

// waitLimit bounds how long a call waits.
type waitLimit struct {
	set  bool
	most time.Duration
}

// registerCap is how far a grant may move a fencing register ahead of a node's clock. It
// bounds how far a wrong clock can push tokens into the future. 0 mints no tokens.
func (c *config) registerCap() time.Duration {
	if c.unfenced {
		return 0
	}
	longest := MaxTTL
	if c.guarded {
		longest = c.guard
	}
	return min(2*time.Second, longest/4)
}

// newConfig applies defaults, then options, then checks the relations.
func newConfig(nodes []rueidis.ClientOption, opts []Option) (*config, error) {
	c := &config{
		prefix: DefaultPrefix, drift: DefaultDriftFactor, retry: defaultRetry,
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
	case !node.PrefixShards(c.prefix):
		return &InvalidError{What: "WithPrefix", Value: strconv.Quote(c.prefix), Bound: "has a brace that is no hash tag",
			Fix: "write a whole tag, like {app}:, or no brace"}
	case !(c.drift > 0 && c.drift <= MaxDriftFactor):
		return &InvalidError{What: "WithDriftFactor", Value: fmt.Sprint(c.drift),
			Bound: fmt.Sprintf("has to be above 0 and at most %v", MaxDriftFactor), Fix: "0.01 covers any clock that works"}
	case c.nodeTimeoutSet && c.nodeTimeout < MinNodeTimeout:
		return &InvalidError{What: "WithNodeTimeout", Value: c.nodeTimeout.String(),
			Bound: fmt.Sprintf("has to be at least %v", MinNodeTimeout), Fix: unit(c.nodeTimeout) + "leave it out for a tenth of the TTL"}
	case c.retry == nil:
		return &InvalidError{What: "WithRetryBackoff", Bound: "needs a function", Fix: "leave it out for the default"}
	case c.guarded && (c.guard < MinTTL || c.guard > 2*MaxTTL):
		return &InvalidError{What: "WithRestartGuard", Value: c.guard.String(),
			Bound: fmt.Sprintf("has to be within %v … %v", MinTTL, 2*MaxTTL), Fix: "give the longest TTL of any client"}
	case c.trust && !c.guarded:
		return &InvalidError{What: "WithTrustEmptyNodes", Bound: "says something about the restart guard, which is off",
			Fix: "add WithRestartGuard, or leave it out"}
	}
	return nil
}

// complete checks the terms of a lease and derives the rest.
func (c *config) complete(t *terms) error {
	t.Terms = quorum.Terms{
		Nodes: c.nodes, TTL: t.ttl, MaxHold: t.maxHold,
		Drift: quorum.Drift(t.ttl, c.drift), Guard: quorum.Guard(t.ttl), Early: quorum.Early(quorum.Guard(t.ttl)),
		Timeout: min(max(t.ttl/10, 20*time.Millisecond), 500*time.Millisecond),
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
