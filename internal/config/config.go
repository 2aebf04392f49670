// Package config has the settings of a Manager and of its leases: their defaults, their bounds,
// and what follows from them. The options of the root fill a Config, Complete checks it, and it
// never changes afterwards.
//
// Nothing here starts a goroutine, waits, or has a mutex.
package config

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// Defaults and bounds: the options of the root say them in numbers.
const (
	DefaultTTL         = 10 * time.Second
	MinTTL             = 100 * time.Millisecond
	MaxTTL             = 24 * time.Hour
	DefaultPrefix      = "quorumlock:"
	DefaultDriftFactor = 0.01
	MaxDriftFactor     = 0.1
	MinNodeTimeout     = 5 * time.Millisecond
	MaxNameLen         = 512
	MaxLabelLen        = wire.MaxLabelLen
	MaxNodes           = 15

	DefaultObserveEvery = time.Second
	minObserveEvery     = 50 * time.Millisecond
	maxObserveEvery     = time.Minute
)

// A Problem is a setting that cannot be used.
type Problem struct{ What, Value, Bound, Fix string }

// Config is what a Manager was made with.
type Config struct {
	Prefix                  string
	Unfenced                bool
	Drift                   float64
	NodeTimeout             time.Duration
	NodeTimeoutSet          bool
	Retry                   func() backoff.BackOff // the user's; nil for the default
	RetrySet                bool
	Guard                   time.Duration
	Guarded, Trust, Rollout bool
	Failover                time.Duration
	FailoverSet             bool
	Log                     *slog.Logger // only the reporter's goroutine may call it
	StartupWait             time.Duration
	ObserveEvery            time.Duration
	Terms                   Terms // of leases without options of their own
	Nodes                   int
	Cluster                 bool // the nodes are the buckets of a whole cluster
}

// Default returns the settings of a Manager without options.
func Default(nodes int) Config {
	return Config{Prefix: DefaultPrefix, Drift: DefaultDriftFactor, ObserveEvery: DefaultObserveEvery, Nodes: nodes, Terms: defaultTerms}
}

// Complete checks the settings, and derives the rest. It returns the first problem, nil for none.
func (c *Config) Complete(nodes []rueidis.ClientOption) *Problem {
	if p := checkNodes(nodes); p != nil {
		return p
	}
	if p := c.check(); p != nil {
		return p
	}
	if p := c.checkGroups(nodes); p != nil {
		return p
	}
	return c.complete(&c.Terms)
}

// CompleteCluster is Complete for a whole cluster. node is one of its buckets: they differ in the tag.
func (c *Config) CompleteCluster(node *rueidis.ClientOption) *Problem {
	c.Cluster = true
	if strings.ContainsAny(c.Prefix, "{}") {
		return &Problem{What: "WithPrefix", Value: strconv.Quote(c.Prefix), Bound: "must not have a brace with NewCluster, which puts hash tags of its own before it",
			Fix: "leave the braces out; names with one {tag} are in one bucket"}
	}
	p := c.Complete([]rueidis.ClientOption{*node})
	if p != nil && p.What == "node" { // the caller has listed no nodes
		p.What, p.Value = "cluster", strings.TrimLeft(p.Value, "0: ")
	}
	return p
}

// RegisterCap is how far a grant may move a fencing register ahead of a node's clock. It
// bounds how far a wrong clock can push tokens into the future. 0 mints no tokens.
func (c *Config) RegisterCap() time.Duration {
	if c.Unfenced {
		return 0
	}
	longest := MaxTTL
	if c.Guarded {
		longest = c.Guard - c.Failover
	}
	return min(2*time.Second, longest/4)
}

// DefaultRetry returns the backoff of waiters for which the user gives none.
func DefaultRetry() backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(10*time.Millisecond), backoff.WithMaxInterval(500*time.Millisecond),
		backoff.WithMaxElapsedTime(0))
}

// check refuses options that no lease could live with.
func (c *Config) check() *Problem {
	switch {
	case len(c.Prefix) > MaxNameLen:
		return &Problem{What: "WithPrefix", Value: fmt.Sprint(len(c.Prefix), " bytes"),
			Bound: fmt.Sprintf("must be at most %d bytes", MaxNameLen), Fix: "choose a shorter prefix"}
	case !utf8.ValidString(c.Prefix):
		return &Problem{What: "WithPrefix", Value: strconv.Quote(c.Prefix), Bound: "must be valid UTF-8",
			Fix: "choose another prefix"}
	case !wire.PrefixShards(c.Prefix):
		return &Problem{What: "WithPrefix", Value: strconv.Quote(c.Prefix), Bound: "has a brace that does not form a hash tag",
			Fix: "write a whole tag, like {app}:, or no brace"}
	case !(c.Drift > 0 && c.Drift <= MaxDriftFactor):
		return &Problem{What: "WithDriftFactor", Value: fmt.Sprint(c.Drift),
			Bound: fmt.Sprintf("must be above 0 and at most %v", MaxDriftFactor), Fix: "0.01 covers any clock that works"}
	case c.NodeTimeoutSet && c.NodeTimeout < MinNodeTimeout:
		return &Problem{What: "WithNodeTimeout", Value: c.NodeTimeout.String(),
			Bound: fmt.Sprintf("must be at least %v", MinNodeTimeout), Fix: unit(c.NodeTimeout) + "leave it out for a default that fits the TTL"}
	case c.RetrySet && c.Retry == nil:
		return &Problem{What: "WithRetryBackoff", Bound: "needs a function", Fix: "leave it out for the default"}
	case c.Guarded && (c.Guard < MinTTL || c.Guard > 2*MaxTTL || c.Guard%time.Millisecond != 0):
		return &Problem{What: "WithRestartGuard", Value: c.Guard.String(),
			Bound: fmt.Sprintf("must be whole milliseconds from %v to %v", MinTTL, 2*MaxTTL), Fix: unit(c.Guard) + "give the longest TTL of any client"}
	case c.Trust && !c.Guarded:
		return &Problem{What: "WithTrustEmptyNodes", Bound: "needs WithRestartGuard",
			Fix: "add WithRestartGuard, or leave this option out"}
	case c.StartupWait < 0:
		return &Problem{What: "WithStartupWait", Value: c.StartupWait.String(), Bound: "must be 0 or more",
			Fix: "0 does not wait; a context bounds New as well"}
	case c.ObserveEvery < minObserveEvery || c.ObserveEvery > maxObserveEvery:
		return &Problem{What: "WithObserveEvery", Value: c.ObserveEvery.String(),
			Bound: fmt.Sprintf("must be within %v … %v", minObserveEvery, maxObserveEvery), Fix: unit(c.ObserveEvery) + "leave it out for 1s"}
	case c.Rollout && !c.Guarded:
		return &Problem{What: "WithGuardRollout", Bound: "needs WithRestartGuard",
			Fix: "add WithRestartGuard, or leave this option out"}
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

// CheckKeep returns what is wrong with the time for which a detached lease keeps its lock, nil for nothing. With the
// restart guard, no key may live longer than the guard allows.
func (c *Config) CheckKeep(keep time.Duration) *Problem {
	most := MaxTTL
	if c.Guarded {
		most = min(most, c.Guard-c.Failover)
	}
	if keep < MinTTL || keep > most {
		return &Problem{What: "keep", Value: keep.String(), Bound: "must be within " + MinTTL.String() + " … " + most.String(), Fix: "choose how long the other process may take to resume"}
	}
	return nil
}
