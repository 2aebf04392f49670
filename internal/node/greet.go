package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Identity is what a node reports about itself.
type Identity struct {
	RunID    string // of the server process; new on every start
	ReplID   string // of its data set: equal on a master and its replicas
	Former   string // master_replid2: of the data set that it replicated before its promotion
	Role     string
	Mode     string // standalone, cluster, sentinel
	Eviction string // maxmemory-policy
	Limited  bool   // maxmemory is set
	Version  string
	// Unchecked is why INFO could not be read, such as an ACL without INFO.
	Unchecked error
}

// Check returns why such a node cannot vote, nil if it can.
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

// Evicts reports whether the server may drop locks to make room. Every lock has a TTL, so
// every policy except noeviction may evict locks.
func (id Identity) Evicts() bool {
	return id.Limited && id.Eviction != "" && id.Eviction != "noeviction"
}

// Copied reports whether one of two nodes was a replica of the other in the past. They
// are independent now, unless an operator makes one a replica again.
func Copied(a, b Identity) bool {
	return a.Former != "" && a.Former == b.ReplID || b.Former != "" && b.Former == a.ReplID
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

// connect dials, unless a connection is up, and greets. Afterwards the node is connected,
// or refused, or has the time of the next try.
func (n *Node) connect() {
	n.greeted, n.withheld = 0, nil
	withheld, err := n.greet()
	n.look()
	n.checkAt, n.pingAt = n.now+checkEvery, n.now+keepAlive
	var refused *ConfigError
	switch {
	case err == nil:
		n.refusal = nil
		n.redial.Reset()
		n.requeue(n.retryQueue)
		n.retryQueue = nil
		n.trim()
		switch {
		case withheld != nil:
			n.withheld, err = withheld, withheld
			n.checkAt = n.now + mendEvery
		case n.clockSuspect:
			n.checkAt = n.now + judgeEvery
		}
	case errors.As(err, &refused):
		n.refusal = err
		n.redialAt = n.now + mendEvery
	default:
		n.refusal = nil
		n.redialAt = n.now + n.redial.NextBackOff()
	}
	if n.ctx.Err() == nil {
		n.report(err)
	}
}

// trim frees buffers that a burst has made large. It runs at every greeting only, so that
// buffers are reused between greetings.
func (n *Node) trim() {
	n.batch, n.transfers, n.codes = nil, [2]transfer{}, nil
	n.orphans.forget(time.Now())
	if len(n.orphans) == 0 {
		n.orphans = nil
	}
	if len(n.retries) == 0 {
		n.retries = nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.lanes.urgent) == 0 {
		n.lanes.urgent = nil
	}
	if len(n.lanes.acquire) == 0 {
		n.lanes.acquire = nil
	}
}

// report publishes the health of the node, and calls OnHealth if it has changed.
func (n *Node) report(err error) {
	now := &Health{
		Err: err, Withheld: n.withheld != nil,
		Quarantined: n.quarantine, Reason: n.quarantineReason, Warning: n.warning, Identity: n.identity,
	}
	if doubt := n.subscription(); doubt != nil {
		now.Warning = errors.Join(n.warning, doubt)
	}
	before := n.health.Swap(now)
	if n.cfg.OnHealth != nil && (text(before.Err) != text(err) || text(before.Reason) != text(now.Reason) ||
		text(before.Warning) != text(now.Warning)) {
		n.cfg.OnHealth(n.cfg.Index, *now)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// greet prepares a connection for use. err is why no request may use the connection;
// withheld is why votes may not use it when other requests may.
func (n *Node) greet() (withheld, err error) {
	ctx, cancel := context.WithTimeout(n.ctx, 2*maxDial)
	defer cancel()
	b := n.client.B()
	n.look()
	sent := n.now
	results := n.client.DoMulti(ctx,
		b.Time().Build(),
		b.Info().Section("server").Build(),
		b.Info().Section("replication").Build(),
		b.Info().Section("memory").Build(),
		b.ScriptLoad().Script(Apply).Build())
	const script = 4
	n.look()
	connection := n.dialed.Load()

	// The kind of server is checked first: a Sentinel knows INFO, but not TIME.
	identity, unknown := identify(results[1:script])
	if unknown == nil {
		if err := identity.Check(); err != nil {
			return nil, err
		}
	}
	// The first command also shows a failed dial, and a failed AUTH or SELECT of rueidis.
	reply, err := results[0].ToArray()
	if err != nil {
		return nil, refusal("greeting", err)
	}
	clock, ok := integers(reply)
	if !ok || len(clock) != 2 {
		return nil, refusal("greeting", nil)
	}
	n.observe(clock[0]*1e6+clock[1], sent, n.now)
	message, err := results[script].ToMessage()
	if err == nil {
		n.digest, err = stringOf(&message)
	}
	if err != nil {
		return nil, refusal("SCRIPT LOAD", err)
	}
	if n.identity = identity; unknown != nil {
		return nil, unknown
	}
	if withheld, err = n.admitted(ctx); err != nil {
		return nil, err
	}
	if n.dialed.Load() != connection || n.lost.Load() >= connection {
		return nil, ErrReconnected
	}
	n.greeted = connection
	return withheld, nil
}

// admitted checks the node with the Manager, the restart guard and the script.
func (n *Node) admitted(ctx context.Context) (withheld, err error) {
	if n.cfg.Admit != nil {
		if n.warning, err = n.cfg.Admit(n.cfg.Index, n.identity); err != nil {
			return nil, err
		}
	}
	if n.cfg.Guard > 0 {
		withheld, err = n.guard(ctx)
	}
	if err == nil {
		err = n.rehearse(ctx)
	}
	return withheld, err
}

// run runs one operation in a call of its own, at a greeting, and returns the parts of
// its answer.
func (n *Node) run(ctx context.Context, what string, args ...string) ([]rueidis.RedisMessage, error) {
	entries := []entry{{req: &Request{keys: []string{n.markerKey}, args: args}}}
	message, err := n.client.Do(ctx, n.command(micros(n.now), entries, 1)).ToMessage()
	if err != nil {
		return nil, missingRight(refusal(what, err))
	}
	_, all, err := unpack(&message, 1)
	if err != nil {
		return nil, refusal(what, nil)
	}
	parts, err := detail(all)
	var failed operationError
	switch {
	case errors.As(err, &failed):
		return nil, missingRight(refusal(what, failed))
	case err != nil:
		return nil, refusal(what, nil)
	}
	return parts, nil
}

// rehearse runs an operation that changes nothing. So a user without the right to run
// scripts, or to use our keys, is found at the greeting and not by the first lease.
func (n *Node) rehearse(ctx context.Context) error {
	_, err := n.run(ctx, "script", "read")
	return err
}

// guard runs the restart guard and records the quarantine. If the guard cannot work, only
// votes are withheld: the guard protects votes, and leases that are held on the node
// stay. To refuse the node as a whole would lose every lease when somebody changes the
// policy of all nodes.
func (n *Node) guard(ctx context.Context) (withheld, err error) {
	if n.identity.Unchecked != nil {
		return &ConfigError{
			Problem: "the restart guard cannot read INFO: " + n.identity.Unchecked.Error(),
			Fix:     "allow INFO to the user, or do without WithRestartGuard",
		}, nil
	}
	if len(strings.Fields(n.identity.RunID)) != 1 { // it cannot be a word of the marker
		return &ConfigError{
			Problem: fmt.Sprintf("the restart guard cannot see a restart: INFO says run_id %.64q", n.identity.RunID),
			Fix:     "use a server that has one, or do without WithRestartGuard",
		}, nil
	}
	if n.identity.Evicts() {
		n.evicted = true // until the policy is fixed, it may drop locks unnoticed
		return &ConfigError{
			Problem: "the restart guard cannot see evictions (maxmemory-policy " + n.identity.Eviction + ")",
			Fix:     "set maxmemory-policy noeviction, or do without WithRestartGuard",
		}, nil
	}
	longest := n.cfg.Guard.Milliseconds()
	toAll, sure := false, true
	if n.clockSuspect && n.cfg.OwnStep != nil {
		toAll, sure = n.cfg.OwnStep(n.cfg.Index, n.suspectSince)
	}
	// A client that has seen this node's data does not take an empty database for a first
	// deployment.
	stop, agreed, marker, err := n.runGuard(ctx, longest, n.cfg.Trust && n.marker == "", toAll || n.evicted)
	if err == nil && n.marker != "" && marker != n.marker && stop == 0 && agreed == longest {
		// The same holds when another client has just trusted the empty database: the
		// data that this client has seen is lost.
		stop, agreed, marker, err = n.runGuard(ctx, longest, false, true)
	}
	if err != nil {
		return nil, err
	}
	if agreed != longest {
		return &ConfigError{
			Problem: fmt.Sprintf("the restart guard of this node stands at %d ms, not %d ms", agreed, longest),
			Fix:     "give every client the same WithRestartGuard; to change it, stop all clients and delete the marker key",
		}, nil
	}
	n.evicted = false
	n.look()
	if sure || n.now > n.suspectSince+judgeFor {
		n.clockSuspect = false
	}
	if marker == n.marker {
		return nil, nil // our clock already counts its quarantine
	}
	n.marker = marker
	if left := n.quarantineLeft(stop); left > 0 {
		reason := n.quarantineReason
		if reason == nil {
			reason = ErrQuarantined
		}
		n.quarantineFor(left, reason)
	}
	return nil, nil
}

// runGuard runs the restart guard on the node. stop is the end of the quarantine in µs of
// the node's clock, 0 for an empty database that is trusted.
func (n *Node) runGuard(ctx context.Context, longest int64, trust, force bool) (stop, agreed int64, marker string, err error) {
	reply, err := n.run(ctx, "restart guard", "guard", n.identity.RunID, strconv.FormatInt(longest, 10),
		flag(trust), flag(force), rand.Text())
	if err != nil {
		return 0, 0, "", err
	}
	if len(reply) != 3 {
		return 0, 0, "", refusal("restart guard", nil)
	}
	numbers, ok := integers(reply[:2])
	marker, err = stringOf(&reply[2])
	if !ok || err != nil || marker == "" { // "" stands for a node that was never greeted
		return 0, 0, "", refusal("restart guard", nil)
	}
	return numbers[0], numbers[1], marker, nil
}

// quarantineLeft returns how long a quarantine lasts that ends at stop, in µs of the
// node's clock. The marker was written in the past. So if the end is further away than
// the longest lease, the node's clock was set back, and the longest lease counts.
func (n *Node) quarantineLeft(stop int64) time.Duration {
	if stop <= 0 {
		return 0
	}
	now := (n.now + n.offset.Low()).Microseconds()
	if left := stop - now; left < n.cfg.Guard.Microseconds() {
		return time.Duration(left) * time.Microsecond
	}
	return n.cfg.Guard
}

// integers returns the parts of a reply as numbers. AsIntSlice of rueidis reads other
// texts as 0.
func integers(parts []rueidis.RedisMessage) (numbers []int64, ok bool) {
	for i := range parts {
		n, err := parts[i].AsInt64()
		if err != nil {
			return nil, false
		}
		numbers = append(numbers, n)
	}
	return numbers, true
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

// refusal returns what an error of a greeting means: the node is down, or needs an
// operator.
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
		text = strings.TrimPrefix(text, "txt:") // of a verbatim string, in RESP3
		for line := range strings.Lines(text) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			switch key {
			case "run_id":
				id.RunID = value
			case "redis_version":
				id.Version = value
			case "redis_mode", "server_mode": // the latter is Valkey's
				id.Mode = value
			case "role":
				id.Role = value
			case "master_replid":
				id.ReplID = value
			case "master_replid2":
				if strings.Trim(value, "0") != "" {
					id.Former = value
				}
			case "maxmemory_policy":
				id.Eviction = value
			case "maxmemory":
				id.Limited = value != "0"
			}
		}
	}
	return id, nil
}
