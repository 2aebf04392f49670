package node

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// greeter prepares a connection for use, and keeps the findings: which server it is, and why its votes may not count.
type greeter struct {
	*link
	script     script
	subscribed func() bool // waiters that queue here are woken
	// collect drops more old registers if the answer to a NewForget shows that there may be some.
	collect func(*wire.Reply)

	identity  Identity
	warning   error  // a problem that does not keep the node from voting
	marker    string // the restart guard's marker, "" before the first greeting
	named     bool   // the node has an identity for lists of nodes
	oneServer oneServer
	joined    uint64    // the newest connection whose trunk has given the node its scripts
	along     *exchange // a check whose answers came together with a batch's, nil for none
	early     early     // what the present greeting has asked together with INFO
}

// greet prepares a connection for use. err is why no request may use the connection; withheld is why votes may not use
// it when other requests may. A connection is sound if it has passed a greeting whose votes count. Then greet asks
// everything at once, because the renewals wait for each answer. Only the socket bounds an exchange: a process that is
// late itself must not give up an answer that it can read.
func (g *greeter) greet(sound bool) (withheld, err error) {
	if err := g.join(); err != nil {
		return nil, refusal("greeting", timed(err, maxDial))
	}
	x := g.along
	if x == nil || x.connection != g.conns.dialed.Load() {
		x = g.prepare(sound)
		x.results = g.client.DoMulti(context.Background(), x.commands...)
		_, x.received = g.cfg.Clock()
	}
	results, sent := g.answered(x), x.sent
	defer func() { g.along, g.early = nil, early{} }()
	const load = 4 // from here on: the scripts, if they are loaded, and CLUSTER NODES
	g.now = x.received
	if err := g.heard(x, results[0]); err != nil {
		return nil, err
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
	if err = g.whyReset(x, err); err != nil {
		return nil, refusal("connecting", timed(err, g.now.Sub(sent)))
	}
	clock, ok := wire.Integers(reply)
	if !ok || len(clock) != 2 {
		return nil, refusal("connecting", nil)
	}
	g.meter.observe(clock[0]*1e6+clock[1], sent, g.now, g.stepped)
	rest, unloaded, err := g.loaded(x, results[load:], connection)
	if err != nil {
		return nil, err
	}
	several, moved := g.oneServer.several(g.link, identity, connection)
	if g.identity = identity; cmp.Or(unknown, moved) != nil {
		return nil, cmp.Or(unknown, moved)
	}
	unlooked, err := g.looked(rest, x.asked, g.now.Sub(sent))
	if err != nil {
		return nil, err
	}
	g.debt.asked(g.now)
	if withheld, err = g.admitted(); err != nil {
		return nil, explained(err, unloaded)
	}
	g.announce()
	if g.conns.dialed.Load() != connection || g.conns.lost.Load() >= connection {
		return nil, vote.ErrReconnected
	}
	g.greeted = connection
	return cmp.Or(several, withheld, unloaded, unlooked), nil
}

// whyReset returns the error of an exchange, or that the server wants a password. From a client that has given none, Redis
// takes 16 KiB, which is less than the scripts. It ends the connection, and its answers are lost, unless HELLO has already
// asked for the password.
func (g *greeter) whyReset(x *exchange, err error) error {
	var reset *net.OpError
	ended := errors.Is(err, io.EOF) || errors.As(err, &reset) && reset.Op != "dial"
	if o := &g.cfg.Option; !ended || !x.loads || o.Password != "" || o.AuthCredentialsFn != nil {
		return err
	}
	if alone, refused := rueidis.IsRedisErr(g.client.Do(context.Background(), g.client.B().Time().Build()).Error()); refused {
		return alone
	}
	return err
}

// heard notes whether an answer came. The answer must come from the server that has answered INFO.
func (g *greeter) heard(x *exchange, first rueidis.RedisResult) error {
	if first.NonRedisError() != nil {
		return nil
	}
	g.debt.answered()
	if t, _ := g.trunk(); t != x.trunk {
		return vote.ErrReconnected
	}
	return nil
}

// join makes the greeting use a connection that has not been hung up. A node that shares a connection gets its share,
// with the scripts that were loaded over it. If they could not be loaded, the greeting tries again, and reports why.
func (g *greeter) join() error {
	t, err := g.trunk()
	connection := g.conns.dialed.Load()
	switch {
	case err != nil:
		return err
	case t == nil && g.conns.severed.Swap(false): // rueidis notices at its next command, and dials at the one after that
		_ = g.client.Do(context.Background(), g.client.B().Ping().Build())
	case t != nil && g.joined != connection:
		g.joined = connection
		if g.script.loaded(t.scripts) == nil {
			g.script.loadedOn = connection
		}
	}
	return nil
}

// infos returns the commands whose answers the function identify reads.
func infos(b rueidis.Builder) rueidis.Commands {
	return rueidis.Commands{
		b.Info().Section("server").Build(),
		b.Info().Section("replication").Build(),
		b.Info().Section("memory").Build(),
	}
}

// questions returns the first commands of a greeting. A connection that has loaded the scripts needs fewer.
func (g *greeter) questions(loads, info bool) rueidis.Commands {
	b := g.client.B()
	commands := rueidis.Commands{b.Time().Build()}
	if info {
		commands = append(commands, infos(b)...)
	}
	if loads {
		commands = append(commands, b.ScriptLoad().Script(wire.Apply).Build(), b.ScriptLoad().Script(wire.Lean).Build())
	}
	if g.group.Watches() {
		commands = append(commands, b.Arbitrary("CLUSTER", "NODES").Build())
	}
	return commands
}

// looked takes the answer to CLUSTER NODES, if the group's slot is watched. Without the right to this command, only
// votes are withheld.
func (g *greeter) looked(results []rueidis.RedisResult, asked clock.Validity, took time.Duration) (withheld, err error) {
	if len(results) == 0 {
		return nil, nil
	}
	text, err := results[0].ToString()
	if err == nil {
		g.group.Look(text, asked)
		return nil, nil
	}
	err = refusal("CLUSTER NODES", timed(err, took))
	if config := (*wire.ConfigError)(nil); errors.As(err, &config) {
		return err, nil
	}
	return nil, err
}

// loaded takes the digests of the scripts, if the exchange has loaded them, and returns the other results. A server
// that loses a script reports it to the call that needs it. A user who may no longer load the scripts continues with
// those on the server: only votes are withheld.
func (g *greeter) loaded(x *exchange, results []rueidis.RedisResult, connection uint64) (rest []rueidis.RedisResult, withheld, err error) {
	defer func() { g.script.lean.rests = false }()
	if !x.loads {
		return results, nil, nil
	}
	before := g.script.digest
	if err = g.script.loaded(results); err == nil {
		g.script.loadedOn = connection
		return results[2:], nil, nil
	}
	err = refusal("SCRIPT LOAD", timed(err, g.now.Sub(x.sent)))
	if config := (*wire.ConfigError)(nil); before != "" && errors.As(err, &config) {
		return results[2:], err, nil
	}
	return nil, nil, err
}

// explained returns why a greeting has failed. A missing script is one that could not be loaded.
func explained(err, unloaded error) error {
	if unloaded != nil && noScript(err) {
		return unloaded
	}
	return err
}

// admitted checks the node with the Manager, the restart guard, the lists of other clients and the script. An operation
// that the server refuses only withholds votes: a check must not end a lease by needing more than its renewals do.
func (g *greeter) admitted() (withheld, err error) {
	if g.cfg.Admit != nil {
		if g.warning, err = g.cfg.Admit(g.cfg.Index, g.identity); err != nil {
			return nil, err
		}
	}
	if g.cfg.Guard == 0 {
		return refused(g.compare())
	}
	if withheld, err = refused(g.guard()); err != nil {
		return nil, err
	}
	if g.group.Moving() { // no votes, and no scripts: a half-moved slot refuses most of them
		g.withdraw()
		g.unlist()
		return withheld, nil
	}
	unlisted, err := refused(nil, g.enlist(withheld == nil))
	if withheld == nil {
		withheld = unlisted
	}
	return withheld, err
}

// errRefused is the error of an operation that the server has refused in a script that it ran.
type errRefused struct{ error }

// Unwrap returns why.
func (e errRefused) Unwrap() error { return e.error }

// refused turns a refusal into a reason to withhold votes, unless another server is the master.
func refused(withheld, err error) (_, _ error) {
	var refusal errRefused
	if errors.As(err, &refusal) && !wire.Away(err) {
		return refusal.error, nil
	}
	return withheld, err
}

// notAfter returns the instant after which an operation of a greeting does nothing: a
// packet that is delayed must not write a marker or a list later.
func (g *greeter) notAfter() clock.Steady { return g.now.Add(greetMax) }

// refusal returns what an error of a greeting means: the node is down, or needs an
// operator.
func refusal(what string, err error) error {
	if err == nil {
		err = wire.ErrNotUnderstood
	}
	if config := noRedis(err); config != nil {
		return config
	}
	_, err = classify(err)
	var config *wire.ConfigError
	if errors.As(err, &config) {
		return &wire.ConfigError{Problem: what + ": " + config.Problem, Fix: config.Fix, List: config.List}
	}
	return err
}

// suits returns why a server cannot be this node, nil if it can. A server is away if another one is the master, or will
// be: it isn't the master of its group, or it is a replica at the address of a former master.
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
	switch {
	case id.Unchecked != nil:
		return nil // the guard withholds the votes
	case id.replica():
		return &wire.AwayError{Err: ErrNotMaster}
	case wire.TooOld(id.Version) != nil:
		return wire.TooOld(id.Version)
	case (kind == "slot") != (id.Mode == "cluster"):
		return &wire.ConfigError{
			Problem: "server runs in " + id.Mode + " mode",
			Fix:     "list the nodes of a cluster with ClusterSlot, and a master under Sentinels with Sentinel", List: true,
		}
	}
	return nil
}

// ErrNotMaster means that the server is, for now, not the master of its group.
var ErrNotMaster = errors.New("server is not the master of its group: this ends with the failover; if it lasts, check the roles of the servers")

// command makes the call for a part of a batch.
func (g *greeter) command(sent string, entries []entry, part *call) rueidis.Completed {
	return g.script.call(g.client, g.cfg.Index, g.head(sent), entries, part)
}

// askCommand makes the call for the questions of a greeting or a check. It carries the companions, which a read needs.
func (g *greeter) askCommand(sent clock.Steady, entries []entry) rueidis.Completed {
	return g.command(wire.Micros(sent), entries, &call{locks: len(entries), whole: true})
}

// head returns the part of a call that differs from call to call. sent is when it is sent.
func (g *greeter) head(sent string) head {
	marker := g.marker
	if g.mayVote() != nil {
		marker = quarantineMarker
	}
	return head{g.meter.text, sent, marker, g.subscribed()}
}

// others returns the decisions of other parts about the node's votes.
func (g *greeter) others() vote.Others {
	return vote.Others{Term: g.group.Votes(), Lists: g.unlisted()}
}

// mayVote returns why the node must not be asked for a vote now, nil if it may.
func (g *greeter) mayVote() error { return g.vote.May(g.mono(), g.others()) }
