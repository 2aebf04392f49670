package node

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// connect dials, unless a connection is up, and greets. Afterwards the node is connected,
// or refused, or has the time of the next try.
func (n *Node) connect() {
	n.greeted, n.withheld = 0, nil
	n.debt.asked(n.now)
	withheld, err := n.greet()
	if wire.Away(err) {
		n.conns.hangUp() // the next connection goes to the master of that time
	}
	n.look()
	n.checkAt, n.pingAt = n.now+checkEvery, n.now+keepAlive
	if err != nil {
		n.unlist()
	}
	var refused *wire.ConfigError
	switch {
	case err == nil:
		n.debt.answered()
		n.refusal = nil
		n.redial.Reset()
		n.lanes.requeue(n.retryQueue)
		n.retryQueue = nil
		n.trim()
		switch {
		case withheld != nil:
			n.withheld, err = withheld, withheld
			n.checkAt = n.now + mendEvery
		case n.unguarded:
			n.checkAt = n.now + mendEvery
		case n.clockSuspect:
			n.checkAt = n.now + judgeEvery
		case n.unlisted() != nil && n.quarantine.reason == nil:
			n.checkAt = n.now + mendEvery
		}
	case errors.As(err, &refused):
		n.debt.answered()
		n.refusal = err
		n.redialAt = n.now + mendEvery
	default:
		n.refusal = nil
		n.redialAt = n.now + n.redial.NextBackOff()
	}
	n.expireRetries()
	if n.ctx.Err() == nil {
		n.report(err)
	}
}

// expireRetries answers the requests that have expired while they waited for a connection. A
// node may be down for days, and a release keeps what it undoes in memory.
func (n *Node) expireRetries() {
	var expired []entry
	n.retryQueue = slices.DeleteFunc(n.retryQueue, func(e entry) bool {
		if e.req.Expires > n.now {
			return false
		}
		expired = append(expired, e)
		return true
	})
	fail(n.cfg.Index, expired, wire.NotApplied, wire.ErrExpired)
}

// trim frees buffers that a burst has made large. It runs at every greeting only, so that
// buffers are reused between greetings.
func (n *Node) trim() {
	n.batch, n.transfers = nil, [2]transfer{}
	n.reader.Trim()
	n.retries.trim(time.Now())
	n.lanes.trim()
}

// greet prepares a connection for use. err is why no request may use the connection;
// withheld is why votes may not use it when other requests may.
func (n *Node) greet() (withheld, err error) {
	ctx, cancel := context.WithTimeout(n.ctx, greetMax)
	defer cancel()
	b := n.client.B()
	if n.conns.severed.Swap(false) { // rueidis notices at its next command, and dials at the one after that
		_ = n.client.Do(ctx, b.Ping().Build())
	}
	n.look()
	sent := n.now
	results := n.client.DoMulti(ctx,
		b.Time().Build(),
		b.Info().Section("server").Build(),
		b.Info().Section("replication").Build(),
		b.Info().Section("memory").Build(),
		b.ScriptLoad().Script(wire.Apply).Build())
	const script = 4
	n.look()
	if results[0].NonRedisError() == nil {
		n.debt.answered()
	}
	connection := n.conns.dialed.Load()

	// The kind of server is checked first: a Sentinel knows INFO, but not TIME.
	identity, unknown := identify(results[1:script])
	if unknown == nil {
		if err := n.suits(identity); err != nil {
			return nil, err
		}
	}
	// The first command also shows a failed dial, and a failed AUTH or SELECT of rueidis.
	reply, err := results[0].ToArray()
	if err != nil {
		return nil, refusal("greeting", timed(err, n.now-sent))
	}
	clock, ok := wire.Integers(reply)
	if !ok || len(clock) != 2 {
		return nil, refusal("greeting", nil)
	}
	n.meter.observe(clock[0]*1e6+clock[1], sent, n.now, n.stepped)
	message, err := results[script].ToMessage()
	if err == nil {
		n.digest, err = wire.StringOf(&message)
	}
	if err != nil {
		return nil, refusal("SCRIPT LOAD", timed(err, n.now-sent))
	}
	if n.identity = identity; unknown != nil {
		return nil, unknown
	}
	n.debt.asked(n.now)
	if withheld, err = n.admitted(ctx); err != nil {
		return nil, err
	}
	if n.conns.dialed.Load() != connection || n.conns.lost.Load() >= connection {
		return nil, wire.ErrReconnected
	}
	n.greeted = connection
	return withheld, nil
}

// admitted checks the node with the Manager, the restart guard, the lists of other clients
// and the script.
func (n *Node) admitted(ctx context.Context) (withheld, err error) {
	if n.cfg.Admit != nil {
		if n.warning, err = n.cfg.Admit(n.cfg.Index, n.identity); err != nil {
			return nil, err
		}
	}
	if n.cfg.Guard == 0 {
		return n.compare(ctx)
	}
	if withheld, err = n.guard(ctx); err != nil {
		return withheld, err
	}
	if withheld == nil && !n.unguarded {
		return nil, n.enlist(ctx)
	}
	n.unlist()
	_, err = n.run(ctx, "script", wire.NewRehearsal(n.markerKey))
	return withheld, err
}

// greetMax is how long a greeting may take.
const greetMax = 2 * maxDial

// notAfter returns the instant after which an operation of a greeting does nothing: a
// packet that is delayed must not write a marker or a list later.
func (n *Node) notAfter() time.Duration { return n.now + greetMax }

// run runs operations at a greeting, and returns the parts of their answers. Before that,
// the same call drops old registers: on a full server they make room for the guard's marker.
func (n *Node) run(ctx context.Context, what string, ops ...*wire.Request) ([][]rueidis.RedisMessage, error) {
	var entries []entry
	collects := n.cfg.Cap > 0
	if collects {
		entries = append(entries, entry{req: n.newForget()})
	}
	for _, op := range ops {
		entries = append(entries, entry{req: op})
	}
	_, sent := n.cfg.Clock()
	message, err := n.client.Do(ctx, n.command(wire.Micros(n.now), entries, len(entries))).ToMessage()
	if err != nil {
		_, now := n.cfg.Clock()
		return nil, wire.MissingRight(refusal(what, timed(err, now-sent)))
	}
	_, all, err := wire.Unpack(&message, len(entries))
	if err != nil {
		return nil, refusal(what, nil)
	}
	if collects {
		var r wire.Reply
		n.reader.Read(entries[0].req, all.Next(1), &r)
		n.forgetMore(&r) // an error is that of the registers: acquisitions report it
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
