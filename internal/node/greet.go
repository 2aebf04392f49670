package node

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Identity is what a node says of itself.
type Identity struct {
	RunID    string // of the server process; new on every start
	ReplID   string // of its data set: equal on a master and its replicas
	Role     string
	Mode     string // standalone, cluster, sentinel
	Eviction string // maxmemory-policy
	Limited  bool   // maxmemory is set
	Version  string
	// Unchecked says why the node could not be asked: an ACL without INFO.
	Unchecked error
}

// Check returns why a node like this cannot vote, nil if it can.
func (id Identity) Check() error {
	switch {
	case id.Unchecked != nil:
		return nil
	case id.Mode != "" && id.Mode != "standalone":
		return &ConfigError{
			Problem: "server runs in " + id.Mode + " mode",
			Fix:     "list standalone masters: in a cluster the votes are not independent",
		}
	case id.Role != "" && id.Role != "master":
		return &ConfigError{
			Problem: "server is a replica (role " + id.Role + ")",
			Fix:     "list the master only: a replica has no vote of its own",
		}
	}
	return nil
}

// Evicts reports whether the server may drop locks to make room: every lock
// has a TTL, so all policies but one may choose it.
func (id Identity) Evicts() bool {
	return id.Limited && id.Eviction != "" && id.Eviction != "noeviction"
}

// Same returns why two nodes are not independent, nil if they are.
func Same(a, b Identity) error {
	switch {
	case a.RunID != "" && a.RunID == b.RunID:
		return &ConfigError{
			Problem: "both addresses lead to the same server (run_id " + a.RunID + ")",
			Fix:     "list each server once: one server with two votes is no quorum",
		}
	case a.ReplID != "" && a.ReplID == b.ReplID:
		return &ConfigError{
			Problem: "one is a replica of the other (master_replid " + a.ReplID + ")",
			Fix:     "list independent masters: replicas share one vote",
		}
	}
	return nil
}

// connect dials and greets. It leaves the node connected, refused, or with the
// time of the next try.
func (n *Node) connect() {
	n.greeted = 0
	err := n.greet()
	var refused *ConfigError
	switch {
	case err == nil:
		n.refusal = nil
		n.redial.Reset()
		n.requeue(n.parked)
		n.parked = nil
	case errors.As(err, &refused):
		n.refusal = err
		n.redialAt = n.cfg.Now() + time.Second
	default:
		n.refusal = nil
		n.redialAt = n.cfg.Now() + n.redial.NextBackOff()
	}
	if n.ctx.Err() == nil {
		n.report(err, n.quarantine)
	}
}

// report publishes the health of the node and tells of a change.
func (n *Node) report(err error, quarantine time.Time) {
	before := n.health.Swap(&Health{Err: err, Quarantined: quarantine, Identity: n.identity})
	if n.cfg.Changed != nil && text(before.Err) != text(err) {
		n.cfg.Changed(n.cfg.Index, err)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// greet makes the connection fit for votes.
func (n *Node) greet() error {
	ctx, cancel := context.WithTimeout(n.ctx, 2*maxDial)
	defer cancel()
	b := n.client.B()
	commands := rueidis.Commands{
		b.Time().Build(),
		b.Info().Section("server").Build(),
		b.Info().Section("replication").Build(),
		b.Info().Section("memory").Build(),
	}
	const loads = 4
	for _, source := range scripts {
		commands = append(commands, b.ScriptLoad().Script(source).Build())
	}
	sent := n.cfg.Now()
	results := n.client.DoMulti(ctx, commands...)
	received := n.cfg.Now()
	connection := n.dialed.Load()

	clock, err := results[0].AsIntSlice()
	if err != nil || len(clock) != 2 {
		return refusal("TIME", err)
	}
	n.observe(clock[0]*1e6+clock[1], sent, received)
	for k := range kinds {
		if n.digests[k], err = results[loads+k].ToString(); err != nil {
			return refusal("SCRIPT LOAD", err)
		}
	}
	if n.identity, err = identify(results[1:loads]); err != nil {
		return err
	}
	if err := n.identity.Check(); err != nil {
		return err
	}
	if n.cfg.Admit != nil {
		if err := n.cfg.Admit(n.cfg.Index, n.identity); err != nil {
			return err
		}
	}
	if n.cfg.Guard > 0 {
		if err := n.guard(ctx); err != nil {
			return err
		}
	}
	if n.dialed.Load() != connection || n.lost.Load() >= connection {
		return ErrReconnected
	}
	n.greeted = connection
	return nil
}

// guard runs the restart guard and notes the quarantine.
func (n *Node) guard(ctx context.Context) error {
	if n.identity.Unchecked != nil {
		return &ConfigError{
			Problem: "the restart guard cannot read INFO: " + n.identity.Unchecked.Error(),
			Fix:     "allow INFO to the user, or do without WithRestartGuard",
		}
	}
	longest := n.cfg.Guard.Milliseconds()
	trust := "0"
	if n.cfg.Trust {
		trust = "1"
	}
	command := n.client.B().Evalsha().Sha1(n.digests[guard]).Numkeys(1).Key(GuardKey(n.cfg.Prefix)).
		Arg(n.identity.RunID, strconv.FormatInt(longest, 10), trust).Build()
	reply, err := n.client.Do(ctx, command).AsIntSlice()
	switch {
	case err != nil:
		return refusal("restart guard", err)
	case len(reply) == 3:
		return &ConfigError{
			Problem: fmt.Sprintf("the restart guard of this node stands at %d ms, not %d ms", reply[2], longest),
			Fix:     "give every client the same WithRestartGuard; to change it, stop all clients and delete the marker key",
		}
	case len(reply) != 2:
		return refusal("restart guard", errors.New("unexpected reply"))
	}
	n.quarantine = time.Time{}
	if left := time.Duration(reply[1]-reply[0]) * time.Microsecond; left > 0 {
		// One per cent more: the node's clock may run faster than ours.
		n.quarantine = time.Now().Add(left + left/drift)
	}
	n.floor = strconv.FormatInt(reply[1], 10)
	return nil
}

// refusal returns what an error of a greeting means: a node that is down, or
// one that somebody has to mend.
func refusal(what string, err error) error {
	if err == nil {
		err = errors.New("reply not understood")
	}
	_, err = classify(err)
	var config *ConfigError
	if errors.As(err, &config) {
		return &ConfigError{Problem: what + ": " + config.Problem, Fix: config.Fix}
	}
	return err
}

// identify reads INFO server, replication and memory.
func identify(infos []rueidis.RedisResult) (id Identity, err error) {
	for _, info := range infos {
		text, err := info.ToString()
		if err != nil {
			if status, err := classify(err); status != Misconfigured {
				return Identity{}, err
			}
			return Identity{Unchecked: err}, nil
		}
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			switch key {
			case "run_id":
				id.RunID = value
			case "redis_version":
				id.Version = value
			case "redis_mode":
				id.Mode = value
			case "role":
				id.Role = value
			case "master_replid":
				id.ReplID = value
			case "maxmemory_policy":
				id.Eviction = value
			case "maxmemory":
				id.Limited = value != "0"
			}
		}
	}
	return id, nil
}
