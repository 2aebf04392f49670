package node

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// guard runs the restart guard and records the quarantine. If the guard cannot work, only votes are withheld: the guard
// protects votes, and leases that are held on the node stay. Refusing the node as a whole would lose every lease when
// an operator changes the policy of all nodes.
func (g *greeter) guard() (withheld, err error) {
	if g.vote.Unguarded = g.group.Unconfirmed() || g.group.Moving(); g.vote.Unguarded {
		return nil, nil // no vote counts now, and a client of an old term starts no quarantine
	}
	if err := g.unguardable(); err != nil {
		return err, nil
	}
	longest := g.cfg.Guard.Milliseconds()
	toAll, sure := false, true
	if since, suspect := g.vote.Suspected(); suspect && g.cfg.OwnStep != nil {
		toAll, sure = g.cfg.OwnStep(g.cfg.Index, since)
	}
	// A client that has seen this node's data does not take an empty database for a first
	// deployment.
	stop, agreed, marker, err := g.runGuard(g.cfg.Trust && g.marker == "", toAll || g.vote.Evicted || g.group.Moved())
	if err == nil && g.marker != "" && !wire.SameData(marker, g.marker) && stop == 0 && agreed == longest {
		// The same holds when another client has just trusted the empty database: the
		// data that this client has seen is lost.
		stop, agreed, marker, err = g.runGuard(false, true)
	}
	if err != nil {
		return nil, err
	}
	theirs, group := epochOf(marker)
	switch own, ours := epochOf(g.markerWord()); {
	case group != ours:
		return &wire.ConfigError{
			Problem: "the other clients list this server " + listedAs[group] + ", and this one " + listedAs[ours],
			Fix:     "list it the same way on every client; to change it, see https://github.com/quorumlock/quorumlock/blob/main/docs/runbook.md#move-to-a-failover-group",
		}, nil
	case g.group != nil && theirs > own:
		return nil, &wire.AwayError{Err: ErrLaterTerm}
	case agreed != longest:
		return &wire.ConfigError{
			Problem: fmt.Sprintf("the other clients of this node use a restart guard of %d ms, and this one uses %d ms", agreed, longest),
			Fix:     "give every client the same WithRestartGuard; to change it, see https://github.com/quorumlock/quorumlock/blob/main/docs/runbook.md#change-maxttl",
		}, nil
	}
	g.group.Marked()
	g.look()
	g.vote.Guarded(g.now, sure)
	if strings.HasSuffix(marker, wire.OpenMark) {
		g.warn(errors.New("WithGuardRollout admits clients without the restart guard: they can be granted a lock that is held, if this node has forgotten it; " +
			"when every client has the guard, remove WithGuardRollout"))
	}
	if marker == g.marker {
		return nil, nil // our clock already counts its quarantine
	}
	g.unlist() // it may have lost what it had registered
	g.marker = marker
	now := time.Duration(g.now) + g.meter.offset.Low() // on the node's clock
	g.vote.Marked(g.mono(), stop, now.Microseconds(), wire.ErrQuarantined)
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
		g.vote.Evicted = true // until the policy is fixed, it may drop locks unnoticed
		return &wire.ConfigError{
			Problem: "the restart guard cannot see evictions (maxmemory-policy " + g.identity.Eviction + ")",
			Fix:     "set maxmemory-policy noeviction, or do without WithRestartGuard",
		}
	}
	return nil
}

// runGuard runs the restart guard on the node. stop is the end of the quarantine in µs of
// the node's clock, 0 for an empty database that is trusted.
func (g *greeter) runGuard(trust, force bool) (stop, agreed int64, marker string, err error) {
	replies, _, err := g.run("restart guard", g.guarding(trust, force))
	if err != nil {
		return 0, 0, "", err
	}
	stop, agreed, marker, err = wire.ReadMarker(replies[0])
	if err == nil && marker == "" {
		err = wire.ErrLate
	}
	return stop, agreed, marker, err
}

// compare reads, for a client without the guard, what the clients with the guard have left on the node. It writes
// nothing.
func (g *greeter) compare() (withheld, err error) {
	replies, _, err := g.run("script", g.rehearsal(), g.looking())
	if err != nil {
		return nil, err
	}
	agreed, marker, binds, err := wire.ReadLook(replies[1])
	if err != nil {
		return nil, err
	}
	g.look()
	switch {
	case strings.HasSuffix(marker, wire.OpenMark):
		fix := "set WithRestartGuard to " + agreed.String() + " on this client as well, before WithGuardRollout is taken from them"
		g.warn(&wire.ConfigError{Problem: wire.ErrUnguarded.Error(), Fix: fix, Err: wire.ErrUnguarded})
		return nil, nil
	case binds == 0:
		return nil, nil
	}
	reason := wire.Unguarded(agreed, max(listLife(agreed, g.cfg.Drift)-binds, 0), binds)
	if g.cfg.Lists != nil { // a node that came back empty shows no marker
		g.cfg.Lists.Bind(g.cfg.Index, g.now.Add(time.Duration(float64(binds)*(1+max(g.cfg.Drift, vote.MinDrift)))), reason)
	}
	return reason, nil
}

// warn adds a warning to the Manager's warnings. It runs at a greeting.
func (g *greeter) warn(warning error) {
	if g.warning != nil {
		warning = fmt.Errorf("%w; %w", g.warning, warning)
	}
	g.warning = warning
}

// withdraw makes the marker name no server while keys are leaving the slot. If the move is taken back, no other client
// votes by this marker either, and the next one to connect starts a quarantine. withdraw sends one command, because the
// half-moved slot refuses a script that names a missing key. If it fails, this client at least writes a new marker.
func (g *greeter) withdraw() {
	if g.marker != "" {
		g.client.Do(context.Background(), g.client.B().Set().Key(g.script.markerKey).Value("moved."+g.marker).Build())
	}
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

// epochOf returns the epoch in a marker, or in the word that markerWord returns. Only words for groups have one.
func epochOf(marker string) (epoch int64, found bool) {
	word, _, _ := strings.Cut(marker, " ")
	point := strings.LastIndexByte(word, '.')
	epoch, err := strconv.ParseInt(word[point+1:], 10, 64)
	return epoch, point >= 0 && err == nil
}

var listedAs = map[bool]string{true: "as the master of a failover group", false: "by its address"}

// ErrLaterTerm means that another client has met a later master of the group.
var ErrLaterTerm = errors.New("another client has already used a later master of the group: this ends with the failover; if it lasts, the group has forgotten its epoch: " +
	"stop all clients, wait for the guard's time, and delete the marker key")

// stepped handles a step of the node's clock. After a step forward, keys have expired
// before their time, so the node's votes must not count: it may have lost locks. After a
// step backward keys live longer, which costs only time.
func (g *greeter) stepped(step clock.Step) {
	_, steady := g.cfg.Clock()
	if step.Forward() {
		g.vote.Stepped(g.mono(), steady, g.cfg.StepQuarantine, wire.ErrClockStep)
		g.regreet()
	}
	if g.cfg.OnClockStep != nil {
		g.cfg.OnClockStep(g.cfg.Index, step.By)
	}
}
