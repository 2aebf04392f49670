package node

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// greeter prepares a connection for use, and knows what that has found: which server it is, and
// why its votes may not count.
type greeter struct {
	*link
	script     script
	subscribed func() bool // waiters that queue here are woken
	// collect drops more old registers if the answer to a NewForget shows that there may be some.
	collect func(*wire.Reply)

	refusal      error // why the node was not greeted, when it needs an operator
	withheld     error // why the greeted node may not vote; everything else goes on
	identity     Identity
	warning      error // a problem that does not keep the node from voting
	quarantine   quarantine
	marker       string // what the restart guard's marker says, "" before the first greeting
	unguarded    bool   // the last greeting ran no guard, because nobody confirmed the term
	clockSuspect bool   // a greeting may have to start a quarantine for all clients
	suspectSince time.Duration
	evicted      bool // under the guard, the node may have dropped locks
	named        bool // the node has an identity for lists of nodes
}

// greet prepares a connection for use. err is why no request may use the connection;
// withheld is why votes may not use it when other requests may.
func (g *greeter) greet() (withheld, err error) {
	ctx, cancel := context.WithTimeout(g.life, greetMax)
	defer cancel()
	b := g.client.B()
	if g.conns.severed.Swap(false) { // rueidis notices at its next command, and dials at the one after that
		_ = g.client.Do(ctx, b.Ping().Build())
	}
	g.look()
	sent := g.now
	results := g.client.DoMulti(ctx,
		b.Time().Build(),
		b.Info().Section("server").Build(),
		b.Info().Section("replication").Build(),
		b.Info().Section("memory").Build(),
		b.ScriptLoad().Script(wire.Apply).Build(),
		b.ScriptLoad().Script(wire.Lean).Build())
	const load = 4 // of the scripts
	g.look()
	if results[0].NonRedisError() == nil {
		g.debt.answered()
	}
	connection := g.conns.dialed.Load()

	// The kind of server is checked first: a Sentinel knows INFO, but not TIME.
	identity, unknown := identify(results[1:load])
	if unknown == nil {
		if err := g.suits(identity); err != nil {
			return nil, err
		}
	}
	// The first command also shows a failed dial, and a failed AUTH or SELECT of rueidis.
	reply, err := results[0].ToArray()
	if err != nil {
		return nil, refusal("greeting", timed(err, g.now-sent))
	}
	clock, ok := wire.Integers(reply)
	if !ok || len(clock) != 2 {
		return nil, refusal("greeting", nil)
	}
	g.meter.observe(clock[0]*1e6+clock[1], sent, g.now, g.stepped)
	if err := g.script.loaded(results[load:]); err != nil {
		return nil, refusal("SCRIPT LOAD", timed(err, g.now-sent))
	}
	if g.identity = identity; unknown != nil {
		return nil, unknown
	}
	g.debt.asked(g.now)
	if withheld, err = g.admitted(ctx); err != nil {
		return nil, err
	}
	if g.conns.dialed.Load() != connection || g.conns.lost.Load() >= connection {
		return nil, wire.ErrReconnected
	}
	g.greeted = connection
	return withheld, nil
}

// admitted checks the node with the Manager, the restart guard, the lists of other clients
// and the script.
func (g *greeter) admitted(ctx context.Context) (withheld, err error) {
	if g.cfg.Admit != nil {
		if g.warning, err = g.cfg.Admit(g.cfg.Index, g.identity); err != nil {
			return nil, err
		}
	}
	if g.cfg.Guard == 0 {
		return g.compare(ctx)
	}
	if withheld, err = g.guard(ctx); err != nil {
		return withheld, err
	}
	if withheld == nil && !g.unguarded {
		return nil, g.enlist(ctx)
	}
	g.unlist()
	_, err = g.run(ctx, "script", wire.NewRehearsal(g.script.markerKey))
	return withheld, err
}

// greetMax is how long a greeting may take.
const greetMax = 2 * maxDial

// notAfter returns the instant after which an operation of a greeting does nothing: a
// packet that is delayed must not write a marker or a list later.
func (g *greeter) notAfter() time.Duration { return g.now + greetMax }

// run runs operations at a greeting, and returns the parts of their answers. Before that,
// the same call drops old registers: on a full server they make room for the guard's marker.
func (g *greeter) run(ctx context.Context, what string, ops ...*wire.Request) ([][]rueidis.RedisMessage, error) {
	var entries []entry
	collects := g.cfg.Cap > 0
	if collects {
		entries = append(entries, entry{req: newForget(g.script.registersKey, g.now)})
	}
	for _, op := range ops {
		entries = append(entries, entry{req: op})
	}
	_, sent := g.cfg.Clock()
	message, err := g.client.Do(ctx, g.command(wire.Micros(g.now), entries, &call{locks: len(entries)})).ToMessage()
	if err != nil {
		_, now := g.cfg.Clock()
		return nil, wire.MissingRight(refusal(what, timed(err, now-sent)))
	}
	_, all, err := wire.Unpack(&message, len(entries))
	if err != nil {
		return nil, refusal(what, nil)
	}
	if collects {
		var r wire.Reply
		var reader wire.Reader
		reader.Read(entries[0].req, all.Next(1), &r)
		g.collect(&r) // an error is that of the registers: acquisitions report it
	}
	replies := make([][]rueidis.RedisMessage, len(ops))
	for i := range ops {
		one := all.Next(1)
		replies[i], err = one.Detail()
		var failed wire.OperationError
		switch {
		case errors.As(err, &failed):
			return nil, wire.MissingRight(refusal(what, failed))
		case err != nil:
			return nil, refusal(what, nil)
		}
	}
	return replies, nil
}

// refusal returns what an error of a greeting means: the node is down, or needs an
// operator.
func refusal(what string, err error) error {
	if err == nil {
		err = wire.ErrNotUnderstood
	}
	_, err = classify(err)
	var config *wire.ConfigError
	if errors.As(err, &config) {
		return &wire.ConfigError{Problem: what + ": " + config.Problem, Fix: config.Fix}
	}
	return err
}

// suits returns why a server cannot be this node, nil if it can. A server is away if another
// one is the master, or will be: if it is not the master of its group, or a replica at the
// address of a former master.
func (g *greeter) suits(id Identity) error {
	if g.group == nil {
		err := id.Check()
		if err != nil && id.replica() {
			if g.identity.RunID != "" {
				return &wire.AwayError{Err: errors.New(err.Error())}
			}
			g.conns.hangUp() // an address may lead to another server soon
		}
		return err
	}
	kind := g.group.Kind()
	switch major, _, _ := strings.Cut(id.Version, "."); {
	case id.Unchecked != nil:
		return nil // the guard withholds the votes
	case id.replica():
		return &wire.AwayError{Err: ErrNotMaster}
	case len(major) == 1 && major < "7" && major != "":
		return &wire.ConfigError{
			Problem: "server is version " + id.Version + ", and failovers of such servers are not tested",
			Fix:     "use Redis 7.0 or newer for a failover group",
		}
	case (kind == "slot") != (id.Mode == "cluster"):
		return &wire.ConfigError{
			Problem: "server runs in " + id.Mode + " mode",
			Fix:     "list the nodes of a cluster with ClusterSlot, and a master under Sentinels with Sentinel",
		}
	}
	return nil
}

// ErrNotMaster means that the server is, for now, not the master of its group.
var ErrNotMaster = errors.New("server is not the master of its group now: a failover ends this; if it lasts, look at the roles of the servers")

// command makes the call for a part of a batch.
func (g *greeter) command(sent string, entries []entry, part *call) rueidis.Completed {
	marker := g.marker
	if g.quarantine.reason != nil || g.withheld != nil || g.termError() != nil || g.unlisted() != nil {
		marker = quarantineMarker
	}
	return g.script.call(g.client, g.cfg.Index, head{g.meter.text, sent, marker, g.subscribed()}, entries, part)
}
