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
func (n *Node) guard(ctx context.Context) (withheld, err error) {
	if n.unguarded = n.group.Unconfirmed() != nil; n.unguarded {
		return nil, nil // no vote counts now, and a client of an old term starts no quarantine
	}
	if err := n.unguardable(); err != nil {
		return err, nil
	}
	longest := n.cfg.Guard.Milliseconds()
	toAll, sure := false, true
	if n.clockSuspect && n.cfg.OwnStep != nil {
		toAll, sure = n.cfg.OwnStep(n.cfg.Index, n.suspectSince)
	}
	// A client that has seen this node's data does not take an empty database for a first
	// deployment.
	stop, agreed, marker, err := n.runGuard(ctx, longest, n.cfg.Trust && n.marker == "", toAll || n.evicted)
	if err == nil && n.marker != "" && !wire.SameData(marker, n.marker) && stop == 0 && agreed == longest {
		// The same holds when another client has just trusted the empty database: the
		// data that this client has seen is lost.
		stop, agreed, marker, err = n.runGuard(ctx, longest, false, true)
	}
	if err != nil {
		return nil, err
	}
	if n.group != nil && epochOf(marker) > epochOf(n.markerWord()) {
		return nil, &wire.AwayError{Err: ErrLaterTerm}
	}
	if agreed != longest {
		return &wire.ConfigError{
			Problem: fmt.Sprintf("the restart guard of this node stands at %d ms, not %d ms", agreed, longest),
			Fix:     "give every client the same WithRestartGuard; to change it, stop all clients and delete the marker key",
		}, nil
	}
	n.evicted = false
	n.look()
	if sure || n.now > n.suspectSince+judgeFor {
		n.clockSuspect = false
	}
	if strings.HasSuffix(marker, wire.OpenMark) {
		n.warn(errors.New("clients without the restart guard may vote here: they can be granted a lease that the node has forgotten; " +
			"when every client has the guard, leave WithGuardRollout out"))
	}
	if marker == n.marker {
		return nil, nil // our clock already counts its quarantine
	}
	n.marker = marker
	if left := n.quarantineLeft(stop); left > 0 {
		reason := n.quarantine.reason
		if reason == nil {
			reason = wire.ErrQuarantined
		}
		n.quarantine.extend(left, n.cfg.Drift, reason)
	}
	return nil, nil
}

// unguardable returns why the restart guard cannot protect votes on this server, nil if it
// can.
func (n *Node) unguardable() error {
	if n.identity.Unchecked != nil {
		return &wire.ConfigError{
			Problem: "the restart guard cannot read INFO: " + n.identity.Unchecked.Error(),
			Fix:     "allow INFO to the user, or do without WithRestartGuard",
		}
	}
	if len(strings.Fields(n.identity.RunID)) != 1 || n.group != nil && len(strings.Fields(n.identity.ReplID)) != 1 { // it cannot be a word of the marker
		return &wire.ConfigError{
			Problem: fmt.Sprintf("the restart guard cannot see a restart: INFO says run_id %.64q, master_replid %.64q", n.identity.RunID, n.identity.ReplID),
			Fix:     "use a server that has one, or do without WithRestartGuard",
		}
	}
	if n.identity.Evicts() {
		n.evicted = true // until the policy is fixed, it may drop locks unnoticed
		return &wire.ConfigError{
			Problem: "the restart guard cannot see evictions (maxmemory-policy " + n.identity.Eviction + ")",
			Fix:     "set maxmemory-policy noeviction, or do without WithRestartGuard",
		}
	}
	return nil
}

// runGuard runs the restart guard on the node. stop is the end of the quarantine in µs of
// the node's clock, 0 for an empty database that is trusted.
func (n *Node) runGuard(ctx context.Context, longest int64, trust, force bool) (stop, agreed int64, marker string, err error) {
	open := ""
	if n.cfg.Rollout {
		open = wire.OpenMark
	}
	replies, err := n.run(ctx, "restart guard", wire.NewGuard(n.markerKey, &wire.Guard{
		Word: n.markerWord(), Longest: longest, Trust: trust, Force: force, Nonce: rand.Text(), Open: open, NotAfter: n.notAfter(),
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
func (n *Node) compare(ctx context.Context) (withheld, err error) {
	ops := []*wire.Request{wire.NewRehearsal(n.markerKey), wire.NewLook(n.markerKey, n.notAfter())}
	var e wire.ListEntry
	if n.cfg.Lists != nil {
		var list *wire.Request
		list, e = n.listing()
		ops = append(ops, list)
	}
	sent := n.now
	replies, err := n.run(ctx, "script", ops...)
	if err != nil {
		return nil, err
	}
	_, agreed, marker, err := wire.ReadMarker(replies[1])
	if err != nil {
		return nil, err
	}
	if n.cfg.Lists != nil {
		a, err := wire.ReadListed(replies[2])
		if err != nil {
			return nil, err
		}
		if err := n.cfg.Lists.Listed(n.cfg.Index, e, sent, a); err != nil {
			n.warn(err)
		}
	}
	fix := "set WithRestartGuard to " + (time.Duration(agreed) * time.Millisecond).String() + " on this client as well"
	switch {
	case agreed == 0 || marker == "":
		return nil, nil
	case strings.HasSuffix(marker, wire.OpenMark):
		n.warn(&wire.ConfigError{Problem: wire.ErrUnguarded.Error(), Fix: fix + ", before WithGuardRollout is taken from them", Err: wire.ErrUnguarded})
		return nil, nil
	}
	return &wire.ConfigError{Problem: wire.ErrUnguarded.Error(), Fix: fix + "; WithGuardRollout on them admits it for the time of a rollout", Err: wire.ErrUnguarded}, nil
}

// warn adds a warning to those of the Manager. It runs at a greeting.
func (n *Node) warn(warning error) {
	if n.warning != nil {
		warning = fmt.Errorf("%w; %w", n.warning, warning)
	}
	n.warning = warning
}

// quarantineLeft returns how long a quarantine lasts that ends at stop, in µs of the
// node's clock. The marker was written in the past. So if the end is further away than
// the longest lease, the node's clock was set back, and the longest lease counts.
func (n *Node) quarantineLeft(stop int64) time.Duration {
	if stop <= 0 {
		return 0
	}
	now := (n.now + n.meter.offset.Low()).Microseconds()
	if left := stop - now; left < n.cfg.Guard.Microseconds() {
		return time.Duration(left) * time.Microsecond
	}
	return n.cfg.Guard
}

// paused returns why votes do not count, nil if they do. It reports the end of a quarantine.
func (n *Node) paused() error {
	if n.quarantined() {
		return n.quarantine.reason
	}
	if err := n.termError(); err != nil {
		return err
	}
	return n.unlisted()
}

// termError returns why the term of a group gives no vote: no majority confirms it, or none did
// when the guard should have run on this connection. It returns nil if votes count.
func (n *Node) termError() error {
	if err := n.group.Unconfirmed(); err != nil || !n.unguarded {
		return err
	}
	return master.ErrUnconfirmed
}

// quarantined returns whether votes do not count now. It reports the end of a quarantine.
func (n *Node) quarantined() bool {
	if !n.quarantine.over() {
		return n.quarantine.reason != nil
	}
	if n.connected() {
		if n.cfg.Lists != nil && !n.named {
			n.checkAt = n.now // the node gets an identity now
		}
		n.report(n.withheld)
	} else {
		n.report(n.health.Load().Err)
	}
	return false
}

// markerWord returns the word that names the server, its data and the group's epoch in the
// guard's marker: each term of a group starts a quarantine of its own. A node that is one
// server is named by its run_id alone: its replication id may change when its first replica
// connects, which must not start a quarantine.
func (n *Node) markerWord() string {
	if n.group == nil {
		return n.identity.RunID
	}
	return fmt.Sprintf("%s.%s.%d", n.identity.RunID, n.identity.ReplID, n.group.Used().Epoch)
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
func (n *Node) stepped(step clock.Step) {
	_, steady := n.cfg.Clock()
	if step.Forward() {
		n.quarantine.extend(n.cfg.StepQuarantine, n.cfg.Drift, wire.ErrClockStep)
		n.clockSuspect, n.suspectSince = n.cfg.Guard > 0, steady
		n.regreet()
	}
	if n.cfg.OnClockStep != nil {
		n.cfg.OnClockStep(n.cfg.Index, step.By)
	}
}
