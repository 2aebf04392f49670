package quorumlock

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cenkalti/backoff/v4"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// explained fails unless the error says what the user can do.
func explained(t *testing.T, err error) {
	t.Helper()
	var invalid *InvalidError
	if !errors.As(err, &invalid) || !errors.Is(err, ErrInvalid) {
		t.Fatalf("%v is no InvalidError", err)
	}
	if invalid.What == "" || invalid.Bound == "" || invalid.Fix == "" || !utf8.ValidString(err.Error()) || len(err.Error()) > 4096 {
		t.Errorf("an error without a remedy: %.200q", err.Error())
	}
}

// The name alone decides whether it is accepted, and its key gives the name back.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"", "job", "\xff", "日本", "{", "}{", "a\x00b", strings.Repeat("n", 512), strings.Repeat("n", 513), strings.Repeat("é", 257)} {
		f.Add(config.DefaultPrefix, name)
		f.Add("", name)
		f.Add("{app}:", name)
	}
	idle := idleManager(clock.New())
	f.Fuzz(func(t *testing.T, prefix, name string) {
		err := checkName(name)
		if legal := len(name) > 0 && len(name) <= config.MaxNameLen && utf8.ValidString(name); legal != (err == nil) {
			t.Fatalf("%q: %v", name, err)
		}
		if err != nil {
			explained(t, err)
			return
		}
		cfg, err := newSettings(Addrs("a:1"), []Option{WithPrefix(prefix)})
		if err != nil {
			explained(t, err)
			return
		}
		lock := wire.LockKey(cfg.Prefix, name)
		m := &Manager{cfg: cfg, prefixed: len(cfg.Prefix), clock: idle.clock, telemetry: idle.telemetry, events: idle.events}
		e := idle.shards[0].ensemble
		m.shards = []*shard{{m: m, ensemble: e, dog: hold.NewWatchdog(&hold.Config{Ensemble: e})}}
		l := idleLease(t, m, idleTerms(time.Hour), func(g *hold.Grant) { g.Entry.Lock = lock })
		if l.Name() != name {
			t.Errorf("%q is called %q", name, l.Name())
		}
		for _, key := range []string{
			wire.QueueKey(lock), wire.RegistersKey(cfg.Prefix), wire.BaseKey(cfg.Prefix), wire.HintKey(cfg.Prefix), wire.GuardKey(cfg.Prefix),
		} {
			if utf8.ValidString(key) {
				t.Errorf("the companion key %q could be the key of a lock", key)
			}
		}
	})
}

// Any options either work or are refused by name, without dialling. Options that work
// leave time to renew, to stop, and to work in between.
func FuzzOptions(f *testing.F) {
	const (
		setTTL = 1 << iota
		setMaxHold
		setLockDelay
		setNodeTimeout
		setDrift
		setGuard
		setTrust
		setPrefix
		setHolder
		setRetry
		noRetry
		unfenced
		manual
		setMinHold
		setWait
		setFailover
		setStartupWait
		failFast
		perLease // the lease options are passed to Acquire
	)
	const day, most = int64(24 * time.Hour), int64(math.MaxInt64)
	for _, d := range []int64{0, 1, -1, int64(config.MinTTL), int64(time.Second), int64(config.MaxTTL), 2 * day, most, most - most%1_000_000, math.MinInt64} {
		for _, set := range []uint32{0, setTTL, setMaxHold, setMinHold, setWait, setStartupWait, setWait | failFast, setLockDelay, setNodeTimeout, setGuard, setGuard | setTrust, setGuard | setFailover,
			perLease | setTTL, perLease | setMinHold, perLease | setLockDelay} {
			f.Add(set, "a:1,b:2,c:3", d, d, d, d, d, d, d, d, 0.01, "p:", "label")
		}
	}
	for _, drift := range []float64{0, -1, 0.1, 1, math.NaN(), math.Inf(1), math.SmallestNonzeroFloat64} {
		f.Add(uint32(setDrift), "a:1", int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), drift, "", "")
	}
	for _, text := range []string{"", "{", "{}", "{a}", "\xff", strings.Repeat("x", 300), strings.Repeat("x", 600)} {
		f.Add(uint32(setPrefix|setHolder), text, int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), 0.0, text, text)
	}
	for _, addrs := range []string{"", ",", "a", "a:1,A.:1", ":1", "[::1]:6379,::1", "unix:/x", strings.Repeat("a:1,", 20)} {
		f.Add(uint32(noRetry), addrs, int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), int64(0), 0.0, "", "")
	}
	f.Fuzz(func(t *testing.T, set uint32, addrs string, ttl, maxHold, minHold, wait, lockDelay, nodeTimeout, guard, window int64, drift float64, prefix, label string) {
		var opts []Option
		var leaseOpts []AcquireOption
		has := func(bit uint32) bool { return set&bit != 0 }
		lease := func(o LeaseOption) {
			if has(perLease) {
				leaseOpts = append(leaseOpts, o)
			} else {
				opts = append(opts, o)
			}
		}
		if has(setTTL) {
			lease(WithTTL(time.Duration(ttl)))
		}
		if has(setMaxHold) {
			lease(WithMaxHold(time.Duration(maxHold)))
		}
		if has(setMinHold) {
			lease(WithMinHold(time.Duration(minHold)))
		}
		if has(setWait) {
			leaseOpts = append(leaseOpts, WithWait(time.Duration(wait)))
		}
		if has(setLockDelay) {
			lease(WithLockDelay(time.Duration(lockDelay)))
		}
		if has(setHolder) {
			lease(WithHolder(label))
		}
		if has(manual) {
			lease(WithoutRenewal())
		}
		if has(setNodeTimeout) {
			opts = append(opts, WithNodeTimeout(time.Duration(nodeTimeout)))
		}
		if has(setDrift) {
			opts = append(opts, WithDriftFactor(drift))
		}
		if has(setGuard) {
			opts = append(opts, WithRestartGuard(time.Duration(guard)))
		}
		if has(setFailover) {
			opts = append(opts, WithFailover(time.Duration(window)))
		}
		if has(setStartupWait) {
			opts = append(opts, WithStartupWait(time.Duration(wait)))
		}
		if has(failFast) {
			leaseOpts = append(leaseOpts, WithFailFast())
		}
		if has(setTrust) {
			opts = append(opts, WithTrustEmptyNodes())
		}
		if has(setPrefix) {
			opts = append(opts, WithPrefix(prefix))
		}
		if has(setRetry) {
			opts = append(opts, WithRetryBackoff(func() backoff.BackOff { return nil }))
		}
		if has(noRetry) {
			opts = append(opts, WithRetryBackoff(nil))
		}
		if has(unfenced) {
			opts = append(opts, WithoutFencing())
		}
		opts = append(opts, nil, WithLogger(nil))

		addrs = strings.ToValidUTF8(addrs, "?") // an error repeats the address unchanged
		cfg, err := newSettings(Addrs(strings.Split(addrs, ",")...), opts)
		if err != nil {
			explained(t, err)
			return
		}
		terms, limit, err := cfg.lease(append(leaseOpts, nil))
		if err != nil {
			explained(t, err)
			return
		}
		if limit.Set && limit.Most < 0 {
			t.Errorf("a wait of %v", limit.Most)
		}
		works(t, cfg, terms)
	})
}

// works fails unless a lease can live on these terms.
func works(t *testing.T, c *settings, terms *config.Terms) {
	t.Helper()
	const now = 1000 * time.Hour // a process that has run for long
	m := quorum.NewMachine(&terms.Terms, make(quorum.Window[clock.Validity], terms.Nodes), clock.Validity(now), quorum.All(terms.Nodes), quorum.All(terms.Nodes))
	m.SetLag(time.Duration(quorum.Never))
	left := m.End().Add(-now) // the time left when the watchdog is as late as allowed
	switch {
	case terms.TTL < config.MinTTL || terms.TTL > config.MaxTTL || terms.LockDelay < 0 || terms.TTL+terms.LockDelay > config.MaxTTL:
		t.Errorf("a TTL of %v and a lock delay of %v", terms.TTL, terms.LockDelay)
	case !wholeMillis(terms.KeyTTL):
		t.Errorf("keys live %s ms", terms.KeyTTL)
	case terms.Timeout < config.MinNodeTimeout || terms.Timeout >= terms.TTL:
		t.Errorf("a node timeout of %v with a TTL of %v", terms.Timeout, terms.TTL)
	case left < clock.Validity(terms.MinUseful):
		t.Errorf("a fresh lease has %v left of its TTL %v (maximum hold %v): it is never granted", left, terms.TTL, terms.MaxHold)
	case left > clock.Validity(terms.TTL):
		t.Errorf("a lease is valid for %v of its TTL %v", left, terms.TTL)
	case terms.MaxHold == 0 && clock.Validity(terms.Interval*11/10+terms.Timeout) >= left:
		t.Errorf("a round every %v, which takes %v, and %v to the loss", terms.Interval, terms.Timeout, left)
	case c.Guarded && terms.TTL+terms.LockDelay > c.Guard:
		t.Errorf("keys that live %v under a restart guard of %v", terms.TTL+terms.LockDelay, c.Guard)
	case c.FailoverSet && (!c.Guarded || c.Failover <= 0 || terms.TTL+terms.LockDelay+c.Failover > c.Guard):
		t.Errorf("keys that live %v and a window of %v under a restart guard of %v", terms.TTL+terms.LockDelay, c.Failover, c.Guard)
	case c.Guarded && terms.MinHold+c.Failover > c.Guard:
		t.Errorf("a minimum hold of %v and a window of %v under a restart guard of %v", terms.MinHold, c.Failover, c.Guard)
	case terms.MinHold < 0 || terms.MinHold > config.MaxTTL:
		t.Errorf("a minimum hold of %v", terms.MinHold)
	case len(terms.Label) > config.MaxLabelLen || !utf8.ValidString(terms.Label) || !utf8.ValidString(c.Prefix):
		t.Errorf("a label or a prefix that no key can have: %q, %q", terms.Label, c.Prefix)
	}
}

// wholeMillis reports whether Redis accepts the text as a time to live: a positive number
// without a sign.
func wholeMillis(px string) bool {
	return px != "" && px[0] != '0' && strings.Trim(px, "0123456789") == ""
}
