package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// guard runs the restart guard and records the quarantine. If the guard cannot work, only
// votes are withheld: the guard protects votes, and leases that are held on the node
// stay. To refuse the node as a whole would lose every lease when somebody changes the
// policy of all nodes.
func (g *greeter) guard(ctx context.Context) (withheld, err error) {
	if g.unguarded = g.group.Unconfirmed() != nil; g.unguarded {
		return nil, nil // no vote counts now, and a client of an old term starts no quarantine
	}
	if err := g.unguardable(); err != nil {
		return err, nil
	}
	longest := g.cfg.Guard.Milliseconds()
	toAll, sure := false, true
	if g.clockSuspect && g.cfg.OwnStep != nil {
		toAll, sure = g.cfg.OwnStep(g.cfg.Index, g.suspectSince)
	}
	// A client that has seen this node's data does not take an empty database for a first
	// deployment.
	stop, agreed, marker, err := g.runGuard(ctx, longest, g.cfg.Trust && g.marker == "", toAll || g.evicted)
	if err == nil && g.marker != "" && !wire.SameData(marker, g.marker) && stop == 0 && agreed == longest {
		// The same holds when another client has just trusted the empty database: the
		// data that this client has seen is lost.
		stop, agreed, marker, err = g.runGuard(ctx, longest, false, true)
	}
	if err != nil {
		return nil, err
	}
	if g.group != nil && epochOf(marker) > epochOf(g.markerWord()) {
		return nil, &wire.AwayError{Err: ErrLaterTerm}
	}
	if agreed != longest {
		return &wire.ConfigError{
			Problem: fmt.Sprintf("the restart guard of this node stands at %d ms, not %d ms", agreed, longest),
			Fix:     "give every client the same WithRestartGuard; to change it, stop all clients and delete the marker key",
		}, nil
	}
	g.evicted = false
	g.look()
	if sure || g.now > g.suspectSince+judgeFor {
		g.clockSuspect = false
	}
	if strings.HasSuffix(marker, wire.OpenMark) {
		g.warn(errors.New("clients without the restart guard may vote here: they can be granted a lease that the node has forgotten; " +
			"when every client has the guard, leave WithGuardRollout out"))
	}
	if marker == g.marker {
		return nil, nil // our clock already counts its quarantine
	}
	g.marker = marker
	if left := g.quarantineLeft(stop); left > 0 {
		reason := g.quarantine.reason
		if reason == nil {
			reason = wire.ErrQuarantined
		}
		g.quarantine.extend(left, g.cfg.Drift, reason)
	}
	return nil, nil
}

// unguardable returns why the restart guard cannot protect votes on this server, nil if it
// can.
func (g *greeter) unguardable() error {
	if g.identity.Unchecked != nil {
		return &wire.ConfigError{
			Problem: "the restart guard cannot read INFO: " + g.identity.Unchecked.Error(),
			Fix:     "allow INFO to the user, or do without WithRestartGuard",
		}
	}
	if len(strings.Fields(g.identity.RunID)) != 1 || g.group != nil && len(strings.Fields(g.identity.ReplID)) != 1 { // it cannot be a word of the marker
		return &wire.ConfigError{
			Problem: fmt.Sprintf("the restart guard cannot see a restart: INFO says run_id %.64q, master_replid %.64q", g.identity.RunID, g.identity.ReplID),
			Fix:     "use a server that has one, or do without WithRestartGuard",
		}
	}
	if g.identity.Evicts() {
		g.evicted = true // until the policy is fixed, it may drop locks unnoticed
		return &wire.ConfigError{
			Problem: "the restart guard cannot see evictions (maxmemory-policy " + g.identity.Eviction + ")",
			Fix:     "set maxmemory-policy noeviction, or do without WithRestartGuard",
		}
	}
	return nil
}

// runGuard runs the restart guard on the node. stop is the end of the quarantine in µs of
// the node's clock, 0 for an empty database that is trusted.
func (g *greeter) runGuard(ctx context.Context, longest int64, trust, force bool) (stop, agreed int64, marker string, err error) {
	open := ""
	if g.cfg.Rollout {
		open = wire.OpenMark
	}
	replies, err := g.run(ctx, "restart guard", wire.NewGuard(g.script.markerKey, &wire.Guard{
		Word: g.markerWord(), Longest: longest, Trust: trust, Force: force, Nonce: rand.Text(), Open: open, NotAfter: g.notAfter(),
	}))
	if err != nil {
		return 0, 0, "", err
	}
	stop, agreed, marker, err = wire.ReadMarker(replies[0])
	if err == nil && marker == "" {
		err = wire.ErrLate
	}
	return stop, agreed, marker, err
}

// compare looks at what the clients with the guard have left on the node, for a client
// without it, and writes nothing.
func (g *greeter) compare(ctx context.Context) (withheld, err error) {
	ops := []*wire.Request{wire.NewRehearsal(g.script.markerKey), wire.NewLook(g.script.markerKey, g.notAfter())}
	var e wire.ListEntry
	if g.cfg.Lists != nil {
		var list *wire.Request
		list, e = g.listing()
		ops = append(ops, list)
	}
	sent := g.now
	replies, err := g.run(ctx, "script", ops...)
	if err != nil {
		return nil, err
	}
	_, agreed, marker, err := wire.ReadMarker(replies[1])
	if err != nil {
		return nil, err
	}
	if g.cfg.Lists != nil {
		a, err := wire.ReadListed(replies[2])
		if err != nil {
			return nil, err
		}
		if err := g.cfg.Lists.Listed(g.cfg.Index, e, sent, a); err != nil {
			g.warn(err)
		}
	}
	fix := "set WithRestartGuard to " + (time.Duration(agreed) * time.Millisecond).String() + " on this client as well"
	switch {
	case agreed == 0 || marker == "":
		return nil, nil
	case strings.HasSuffix(marker, wire.OpenMark):
		g.warn(&wire.ConfigError{Problem: wire.ErrUnguarded.Error(), Fix: fix + ", before WithGuardRollout is taken from them", Err: wire.ErrUnguarded})
		return nil, nil
	}
	return &wire.ConfigError{Problem: wire.ErrUnguarded.Error(), Fix: fix + "; WithGuardRollout on them admits it for the time of a rollout", Err: wire.ErrUnguarded}, nil
}

// warn adds a warning to those of the Manager. It runs at a greeting.
func (g *greeter) warn(warning error) {
	if g.warning != nil {
		warning = fmt.Errorf("%w; %w", g.warning, warning)
	}
	g.warning = warning
}

// quarantineLeft returns how long a quarantine lasts that ends at stop, in µs of the
// node's clock. The marker was written in the past. So if the end is further away than
// the longest lease, the node's clock was set back, and the longest lease counts.
func (g *greeter) quarantineLeft(stop int64) time.Duration {
	if stop <= 0 {
		return 0
	}
	now := (g.now + g.meter.offset.Low()).Microseconds()
	if left := stop - now; left < g.cfg.Guard.Microseconds() {
		return time.Duration(left) * time.Microsecond
	}
	return g.cfg.Guard
}

// termError returns why the term of a group gives no vote: no majority confirms it, or none did
// when the guard should have run on this connection. It returns nil if votes count.
func (g *greeter) termError() error {
	if err := g.group.Unconfirmed(); err != nil || !g.unguarded {
		return err
	}
	return master.ErrUnconfirmed
}

// markerWord returns the word that names the server, its data and the group's epoch in the
// guard's marker: each term of a group starts a quarantine of its own. A node that is one
// server is named by its run_id alone: its replication id may change when its first replica
// connects, which must not start a quarantine.
func (g *greeter) markerWord() string {
	if g.group == nil {
		return g.identity.RunID
	}
	return fmt.Sprintf("%s.%s.%d", g.identity.RunID, g.identity.ReplID, g.group.Used().Epoch)
}

// epochOf returns the epoch in a marker, or in the word that markerWord returns.
func epochOf(marker string) int64 {
	word, _, _ := strings.Cut(marker, " ")
	epoch, _ := strconv.ParseInt(word[strings.LastIndexByte(word, '.')+1:], 10, 64)
	return epoch
}

// ErrLaterTerm means that another client has met a later master of the group.
var ErrLaterTerm = errors.New("a later master of the group has been here: a failover ends this; if it lasts, the group has forgotten its epoch: " +
	"stop all clients, wait for the guard's time, and delete the marker key")

// stepped handles a step of the node's clock. After a step forward, keys have expired
// before their time, so the node's votes must not count: it may have lost locks. After a
// step backward keys live longer, which costs only time.
func (g *greeter) stepped(step clock.Step) {
	_, steady := g.cfg.Clock()
	if step.Forward() {
		g.quarantine.extend(g.cfg.StepQuarantine, g.cfg.Drift, wire.ErrClockStep)
		g.clockSuspect, g.suspectSince = g.cfg.Guard > 0, steady
		g.regreet()
	}
	if g.cfg.OnClockStep != nil {
		g.cfg.OnClockStep(g.cfg.Index, step.By)
	}
}
