package election

import (
	"cmp"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/quorumlock/quorumlock"
)

const (
	nextSuffix = "/next"
	mostName   = 512 // bytes of a name of a lease

	defaultTTL         = 10 * time.Second
	defaultMinReign    = 10 * time.Minute
	defaultHealthEvery = 5 * time.Second
	preferenceEvery    = 2 * time.Second
)

// settings are a checked Config.
type settings struct {
	plain bool // without Preference and Health: Lead and Observe alone
	rules rules
	log   *slog.Logger
}

// check returns the settings of a Config, with defaults.
func (c *Config) check() (settings, error) {
	if c.Preference == nil && c.Health == nil {
		if c.TTL != 0 {
			return settings{}, invalid("Config.TTL", c.TTL, "has no use without Preference and Health", "give quorumlock.WithTTL in Config.Acquire")
		}
		return settings{plain: true}, nil
	}
	s := settings{log: cmp.Or(c.Log, slog.Default()), rules: rules{
		ttl: cmp.Or(c.TTL, defaultTTL), margin: cmp.Or(c.Margin, 1), minReign: cmp.Or(c.MinReign, defaultMinReign),
		checks: c.Health != nil, every: cmp.Or(c.HealthEvery, defaultHealthEvery), leadAnyway: c.LeadAnyway,
		window: minute, mostDoubts: doubts,
	}}
	for _, kind := range c.kinds() {
		if kind != (quorumlock.Kind{}) {
			return s, invalid("Config.Acquire", "", "has Permits or Shared, and with Preference or Health one candidate leads alone", "leave them out, or Preference and Health")
		}
	}
	if len(c.Name)+len(nextSuffix) > mostName {
		return s, invalid("Config.Name", fmt.Sprintf("(%d bytes)", len(c.Name)),
			fmt.Sprintf("must have at most %d bytes, because with Preference or Health the lease NAME%s is used as well, and a name has at most %d", mostName-len(nextSuffix), nextSuffix, mostName), "use a short readable text")
	}
	return s, c.bounds(&s.rules)
}

// bounds checks numbers.
func (c *Config) bounds(r *rules) error {
	const leave = "leave it out for the default, or give a larger one"
	switch {
	case r.ttl < 100*time.Millisecond || r.ttl > 24*time.Hour || r.ttl%time.Millisecond != 0:
		return invalid("Config.TTL", r.ttl, "must be 100ms to 24h in whole milliseconds", "leave it out for 10s")
	case r.margin < 1:
		return invalid("Config.Margin", strconv.Itoa(c.Margin), "must be at least 1", leave)
	case r.minReign < 3*r.ttl:
		return invalid("Config.MinReign", r.minReign, fmt.Sprintf("must be at least 3 TTL, which is %v", 3*r.ttl), "give a larger one, or a shorter TTL")
	case r.minReign > 24*365*time.Hour:
		return invalid("Config.MinReign", r.minReign, "must be at most a year", "leave Preference out if no leader should yield")
	case r.every < 0:
		return invalid("Config.HealthEvery", c.HealthEvery, "must be above 0", leave)
	case c.LeadAnyway < 0:
		return invalid("Config.LeadAnyway", c.LeadAnyway, "must be 0 (never) or more", leave)
	case c.YieldWithin < 0:
		return invalid("Config.YieldWithin", c.YieldWithin, "must be 0 (at once) or more", leave)
	}
	return nil
}

// kinds returns the kinds of lease that the candidates acquire, for the observation.
func (c *Config) kinds() (kinds []quorumlock.Kind) {
	for _, o := range c.Acquire {
		if kind, ok := o.(quorumlock.Kind); ok {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

func invalid(what string, value any, bound, fix string) error {
	return &quorumlock.InvalidError{What: what, Value: fmt.Sprint(value), Bound: bound, Fix: fix}
}
