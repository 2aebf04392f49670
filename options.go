package quorumlock

import (
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/master"
)

// Addrs returns the options of nodes that need nothing but an address: host:port, or the absolute
// path of a Unix socket, which unix:// may precede. Each is one server, or the endpoint of a managed
// service; one that fails over must not be the only node, see docs/managed.md.
func Addrs(hostport ...string) []rueidis.ClientOption {
	nodes := make([]rueidis.ClientOption, len(hostport))
	for i, addr := range hostport {
		nodes[i] = rueidis.ClientOption{InitAddress: []string{addr}}
	}
	return nodes
}

// Sentinel returns the option of one node that is a failover group: the master of the master set,
// whichever server that is now, as a majority of these Sentinels says. List all Sentinels of the
// group, and the same ones on every client. The result's Username, Password and TLSConfig are for
// the master, and the fields of the same names in its field Sentinel are for the Sentinels.
//
// Such a node needs WithRestartGuard and WithFailover, and Redis 7.0 or newer. docs/managed.md says
// what keeps a lock safe through a failover, and what it costs. The Sentinels' user needs
// +sentinel|master, +sentinel|get-master-addr-by-name, +sentinel|myid and +sentinel|sentinels.
//
// New returns an InvalidError for an empty master set, and for a bad or repeated address. It
// also does so if wrong addresses leave no majority: Sentinels that do not know the set, refuse
// the user or belong to another group, or servers that are not Sentinels. If a majority
// remains, NodeStatus has a warning instead. New returns a QuorumError if no majority answers.
func Sentinel(masterSet string, sentinels ...string) rueidis.ClientOption {
	if masterSet == "" { // or else this would be the option of a plain server
		masterSet = master.NoMasterSet
	}
	return rueidis.ClientOption{InitAddress: sentinels, Sentinel: rueidis.SentinelOption{MasterSet: masterSet}}
}

// ClusterSlot returns the option of one node that is a failover group: the master that owns the
// hash slot of tag in a Redis Cluster, whichever server that is now. The tag has its braces, as in
// "{locks}", and WithPrefix must begin with it, so that all keys lie in that slot. The seeds are
// nodes of the cluster, three or more, and the same ones on every client; a majority of them must
// name the same owner. An address that leads to different nodes, such as a configuration endpoint,
// is not a seed. The slots of one cluster do not fail independently.
//
// Such a node needs WithRestartGuard and WithFailover, and Redis 7.0 or newer.
//
// New returns an InvalidError for a tag without its braces, a prefix with another tag, and a bad or
// repeated seed. It also does so if wrong seeds leave no majority: seeds that refuse the user, or
// belong to no cluster or to another one. If a majority remains, NodeStatus has a warning instead.
// New returns a QuorumError if no majority of the seeds answers.
func ClusterSlot(tag string, seeds ...string) rueidis.ClientOption {
	return master.SlotOption(tag, seeds)
}

// Option configures a Manager.
type Option interface{ manager(*settings) }

// AcquireOption configures one lease.
type AcquireOption interface{ acquire(*config.Terms) }

// LeaseOption is for New, where it sets the default of all leases, and for Acquire,
// TryAcquire, Do and Lead, where it sets this lease.
type LeaseOption interface {
	Option
	AcquireOption
}

// RenewOption changes a lease that is held, see Lease.Renew.
type RenewOption interface{ renew(*config.Terms) }

// TTLOption is what WithTTL returns: for New and Acquire a LeaseOption, and for Lease.Renew a RenewOption.
type TTLOption interface {
	LeaseOption
	RenewOption
}

type ttlOption struct{ leaseOption }

func (o ttlOption) renew(t *config.Terms) { o.leaseOption(t) }

type leaseOption func(*config.Terms)

func (o leaseOption) manager(c *settings)     { o(&c.Terms) }
func (o leaseOption) acquire(t *config.Terms) { o(t) }

type acquireOption func(*config.Terms)

func (o acquireOption) acquire(t *config.Terms) { o(t) }

type managerOption func(*settings)

func (o managerOption) manager(c *settings) { o(c) }

// WithTTL sets how long a lease outlives a holder that has died, and so the longest wait
// for its successor. Default 10 s, bounds 100 ms … 24 h, whole milliseconds, as Redis
// counts them. A live holder renews the lease every third of the TTL. In Lease.Renew it gives a
// lease that is held another TTL.
func WithTTL(d time.Duration) TTLOption {
	return ttlOption{func(t *config.Terms) { t.TTL = d }}
}

// WithMaxHold ends a lease at this age (LostMaxHold), however well it renews: against a
// holder that hangs forever. Default 0, without a limit; otherwise at least 100 ms. A
// lease with a limit is never passed on inside the process.
func WithMaxHold(d time.Duration) LeaseOption {
	return leaseOption(func(t *config.Terms) { t.MaxHold = d })
}

// WithMinHold keeps the name taken until the lease has this age, even if it is released
// earlier. So if several hosts start a short job at about the same time without waiting
// (TryAcquire, or WithWait(0)), only one of them runs it. (ShedLock calls it lockAtLeastFor.)
// Default 0, at most 24 h, whole milliseconds.
//
// The lease itself ends at the release, as always. Close keeps the name taken as well; after a
// crash the keys live as long as the TTL says. The time must not be above WithMaxHold, or
// WithRestartGuard less the window of WithFailover: a node that restarts forgets the name after
// that. The lease is never passed on inside the process. Detach ends the minimum, as does a
// Downgrade that fails.
func WithMinHold(d time.Duration) LeaseOption {
	return leaseOption(func(t *config.Terms) { t.MinHold = d })
}

// WithWait bounds how long Acquire, AcquireAll, Do, DoAll and each campaign of Lead wait for a
// name that is taken or for nodes that are missing. After that they return ErrHeld or
// ErrNoQuorum. It bounds nothing else, whereas the deadline of a context would also cut the
// work of Do short. 0 asks once, as TryAcquire does. Default no bound. A negative time is
// ErrInvalid, and so is one above 0 for TryAcquire.
func WithWait(d time.Duration) AcquireOption {
	return acquireOption(func(t *config.Terms) { t.Call.Set, t.Call.Most = true, d })
}

// WithFailFast lets Acquire, Do and each campaign of Lead return ErrNoQuorum (a *QuorumError)
// as soon as an attempt gets no answer that counts from a majority of the nodes. They still
// wait for a holder, as long as the context and WithWait allow. Without it they wait for the
// nodes, too. TryAcquire never waits for them.
func WithFailFast() AcquireOption {
	return acquireOption(func(t *config.Terms) { t.Call.FailFast = true })
}

// WithLockDelay keeps a name taken for this much longer than its lease was valid, so that
// the holder's requests in flight can finish: after the holder died, and after every loss
// in a process that continues or calls Close. A release is not delayed. Where the keys are
// gone, as after LostMissing, nothing keeps the name. Default 0, at most 24 h together with
// the TTL. (Burrows, "The Chubby lock service", section 2.4.)
func WithLockDelay(d time.Duration) LeaseOption {
	return leaseOption(func(t *config.Terms) { t.LockDelay = d })
}

// WithHolder stores a label with the lock, for people: HeldError and Inspect show it. At
// most 256 bytes of UTF-8. Default none.
func WithHolder(label string) LeaseOption {
	return leaseOption(func(t *config.Terms) { t.Label = label })
}

// WithoutRenewal leaves renewing to Lease.Renew. A loss is still reported in time.
func WithoutRenewal() LeaseOption {
	return leaseOption(func(t *config.Terms) { t.Manual = true })
}

// WithPrefix sets the prefix of the keys of all locks. Default "quorumlock:"; "" is allowed, and 512 bytes at most. A
// lock's key is the prefix and the name, so that this client and other Redlock clients on the same key exclude each
// other. All users of a name need the same prefix. A brace is allowed as part of a whole hash tag.
func WithPrefix(s string) Option {
	return managerOption(func(c *settings) { c.Prefix = s })
}

// WithoutFencing turns tokens off: Lease.Token is 0, and the nodes keep no register. A lock
// is SET NX PX and a compare-and-delete in effect. Waiters still queue.
func WithoutFencing() Option {
	return managerOption(func(c *settings) { c.Unfenced = true })
}

// WithNodeTimeout sets how long a node may take to answer before it counts as failed. Default a
// tenth of the TTL, at least 20 ms and at most 500 ms, or at most 2.5 round trips to the nodes if
// that is longer, up to a second.
//
// It is at least 5 ms, and short enough for a round of renewal to fit into the TTL. Give it two
// round trips or more: a connection carries one batch at a time, so a request may wait for the
// answer to the one before it.
func WithNodeTimeout(d time.Duration) Option {
	return managerOption(func(c *settings) { c.NodeTimeout = d; c.NodeTimeoutSet = true })
}

// WithDriftFactor sets how much the clock rates of client and nodes may differ. It shortens
// a lease's validity by that fraction of the TTL. Default 0.01; above 0, at most 0.1, or 0.02
// with a Sentinel or ClusterSlot.
func WithDriftFactor(f float64) Option {
	return managerOption(func(c *settings) { c.Drift = f })
}

// WithRetryBackoff sets how long Acquire, Do and Lead wait before the next attempt when no wake-up
// arrives. Default exponential with jitter, 10 ms to 500 ms. backoff.Stop ends the call with the
// last attempt's error.
//
// Each call that must wait calls f once, AcquireAll for each name, and asks the result before each
// wait; nil means the default, and so does a function that has not returned within 50 ms. A panic
// continues in the caller's goroutine. A waiter in the nodes' queues asks less often: it waits the backoff (at
// least 50 ms) times its place, up to 5 s. A backoff above 5 s counts unmultiplied, up to 20 s.
// A wait ends soon after the holder's keys.
func WithRetryBackoff(f func() backoff.BackOff) Option {
	return managerOption(func(c *settings) { c.Retry, c.RetrySet = f, true })
}

// WithRestartGuard keeps a node that may have lost its data from granting locks for maxTTL: after a
// restart, a FLUSHALL, a failover of a Sentinel or ClusterSlot, and at first use (see
// WithTrustEmptyNodes). Without it, a node that restarts empty can give away a lease that is held.
// Default off.
//
// No lease may be longer than maxTTL, lock delay included. All clients of a node must give the same
// value, in whole milliseconds, 100 ms … 48 h. The guard does not see an eviction, so a node that may
// evict does not vote. Behind an address from Addrs it sees most failovers, but not all: see
// docs/managed.md.
func WithRestartGuard(maxTTL time.Duration) Option {
	return managerOption(func(c *settings) { c.Guard = maxTTL; c.Guarded = true })
}

// WithTrustEmptyNodes lets the restart guard trust a database without any key, for a first
// deployment: otherwise nothing is granted for maxTTL. Remove the option after the first
// deployment, because a Manager that starts later would trust a node that has lost everything. A
// running Manager does not trust a node whose marker it has seen. New refuses the option together
// with a Sentinel or ClusterSlot.
func WithTrustEmptyNodes() Option {
	return managerOption(func(c *settings) { c.Trust = true })
}

// WithGuardRollout lets clients without WithRestartGuard keep working alongside this one, while you
// roll the guard out to a running fleet. Set it in the first deployment with the guard, and remove
// it in the next. Default off; New refuses it without WithRestartGuard.
//
// During the rollout each client warns of every node, and no client is fully protected: clients
// without the guard can be granted a lease that a node has forgotten. The first client without this
// option ends the rollout for all. From then on nodes refuse clients without the guard, with an
// error that names the missing option.
func WithGuardRollout() Option {
	return managerOption(func(c *settings) { c.Rollout = true })
}

// WithFailover sets how long leases continue while a majority of the Sentinels or seeds does not
// answer. Nodes from Sentinel and ClusterSlot need it, and New returns an InvalidError without it.
// 2 s … 24 h, no default; 5 s suits most.
//
// WithRestartGuard must be at least TTL + lock delay + window, the same on all clients. For the
// address of a managed service the window only raises that minimum. docs/managed.md says what a
// failover costs, and why this is safe.
func WithFailover(window time.Duration) Option {
	return managerOption(func(c *settings) { c.Failover, c.FailoverSet = window, true })
}

// WithStartupWait lets New wait up to d for a majority of the nodes, for a deployment in which the
// program may start before its Redis does: nodes that refuse connections, do not answer, have no
// address in the name service yet, or load their data. New does not wait for nodes that an operator
// must repair: it still fails at once if the others are not a majority. Default 0: New fails as
// soon as every node has answered or failed, within a second or so. A negative d is ErrInvalid. The
// context of New bounds the wait as well.
func WithStartupWait(d time.Duration) Option {
	return managerOption(func(c *settings) { c.StartupWait = d })
}

// WithObserveEvery sets how often Observe asks the nodes. Default 1 s, bounds 50 ms … 1 min.
func WithObserveEvery(d time.Duration) Option {
	return managerOption(func(c *settings) { c.ObserveEvery = d })
}

// WithLogger sets where the Manager logs: node changes, doubtful settings, losses of leases, unconfirmed
// releases, and leases that seem to be forgotten, at Warn; a node that grants locks again, at Info; the
// first connection to a node, at Debug. Default slog.Default(); nil is ignored. A logger of
// slog.DiscardHandler turns it off.
//
// The handler runs in one goroutine with the hold spans and the metrics. A handler that hangs
// delays only these, and no call or lease; the Manager drops and counts what that goroutine cannot
// take. It survives a panic of the handler.
func WithLogger(l *slog.Logger) Option {
	return managerOption(func(c *settings) {
		if l != nil {
			c.Log = l
		}
	})
}

// settings are the options of a Manager, checked.
type settings struct {
	config.Config
	telemetry providers
}

// newSettings applies defaults, then options, then checks the result.
func newSettings(nodes []rueidis.ClientOption, opts []Option) (*settings, error) {
	s := withOptions(len(nodes), opts)
	return s, invalid(s.Complete(nodes))
}

// withOptions applies defaults, then options.
func withOptions(nodes int, opts []Option) *settings {
	s := &settings{Config: config.Default(nodes)}
	s.Log = slog.Default()
	for _, o := range opts {
		if o != nil {
			o.manager(s)
		}
	}
	return s
}

// lease returns the terms of a lease with these options, and what its call asks for.
func (s *settings) lease(opts []AcquireOption) (*config.Terms, config.Call, error) {
	if len(opts) == 0 {
		return &s.Terms, config.Call{}, nil
	}
	t := s.Terms
	for _, o := range opts {
		if o != nil {
			o.acquire(&t)
		}
	}
	terms, call, problem := s.Lease(t)
	return terms, call, invalid(problem)
}

// renewed returns the terms of a lease that is held after these options, nil without an option.
func (s *settings) renewed(t *config.Terms, opts []RenewOption) (*config.Terms, error) {
	if opts = slices.DeleteFunc(slices.Clone(opts), func(o RenewOption) bool { return o == nil }); len(opts) == 0 {
		return nil, nil
	}
	changed := *t
	for _, o := range opts {
		o.renew(&changed)
	}
	terms, problem := s.Renewed(t, changed.TTL)
	return terms, invalid(problem)
}

// checkName refuses a name that is not a legal key.
func checkName(name string) error { return invalid(config.CheckName(name)) }

// invalid returns the error of a setting that cannot be used, nil for none.
func invalid(p *config.Problem) error {
	if p == nil {
		return nil
	}
	return &InvalidError{What: p.What, Value: p.Value, Bound: p.Bound, Fix: p.Fix}
}

// WithMeterProvider makes metrics with this provider. Default none; nil is ignored. New makes
// the instruments; a goroutine of the Manager's uses them, so they may be some milliseconds
// behind. If they are slow, values of histograms are dropped, and the log counts them; changes
// of the other metrics are not. A panic of theirs is logged.
func WithMeterProvider(mp metric.MeterProvider) Option {
	return managerOption(func(c *settings) {
		if mp != nil {
			c.telemetry.meters = mp
		}
	})
}

// WithNameAttribute puts names on metrics: f returns the attribute quorumlock.name for the
// metrics of a lease. f should collapse variable parts ("invoice/4711" to "invoice/*"), because
// each text makes time series of its own. "" leaves the attribute out. Each acquisition calls f
// once, concurrently with others, before it asks for anything: an f that hangs or panics stops
// only that call. Default none; spans always show the whole name.
func WithNameAttribute(f func(name string) string) Option {
	return managerOption(func(c *settings) { c.telemetry.nameOf = f })
}

// providers are the providers of the options; nil for none.
type providers struct {
	tracers trace.TracerProvider
	meters  metric.MeterProvider
	nameOf  func(name string) string
}
