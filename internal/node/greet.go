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
	Former   string // master_replid2: of the data set that it was a replica of until it was promoted
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

// Copied reports whether one of two nodes was a replica of the other once.
// They are two now, unless somebody makes them one again.
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

// connect dials, unless a connection stands, and greets. It leaves the node
// connected, refused, or with the time of the next try.
func (n *Node) connect() {
	n.greeted, n.withheld = 0, nil
	withheld, err := n.greet()
	n.checkAt = n.cfg.Now() + checkEvery
	var refused *ConfigError
	switch {
	case err == nil:
		n.refusal = nil
		n.redial.Reset()
		n.requeue(n.parked)
		n.parked = nil
		n.trim()
		switch {
		case withheld != nil:
			n.withheld, err = withheld, withheld
			n.checkAt = n.cfg.Now() + mendEvery
		case n.distrust:
			n.checkAt = n.cfg.Now() + judgeEvery
		}
	case errors.As(err, &refused):
		n.refusal = err
		n.redialAt = n.cfg.Now() + mendEvery
	default:
		n.refusal = nil
		n.redialAt = n.cfg.Now() + n.redial.NextBackOff()
	}
	if n.ctx.Err() == nil {
		n.report(err)
	}
}

// trim gives back what a burst has made the buffers grow to: at every greeting,
// so that reuse pays all the same.
func (n *Node) trim() {
	n.batch, n.commands, n.many = nil, nil, nil
	n.adrift.forget(time.Now())
	if len(n.adrift) == 0 {
		n.adrift = nil
	}
	if len(n.echoes) == 0 {
		n.echoes = nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queue) == 0 {
		n.queue = nil
	}
}

// report publishes the health of the node and tells of a change.
func (n *Node) report(err error) {
	now := &Health{
		Err: err, Withheld: n.withheld != nil,
		Quarantined: n.quarantine, Why: n.why, Warning: n.warning, Identity: n.identity,
	}
	if deaf := n.deafness(); deaf != nil {
		now.Warning = errors.Join(n.warning, deaf)
	}
	before := n.health.Swap(now)
	if n.cfg.Changed != nil && (text(before.Err) != text(err) || text(before.Why) != text(now.Why) ||
		text(before.Warning) != text(now.Warning)) {
		n.cfg.Changed(n.cfg.Index, *now)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// greet makes the connection fit for use. It returns why nothing may be sent
// over it, or, when all but votes may, why these are withheld.
func (n *Node) greet() (withheld, err error) {
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

	// What server this is comes first: a Sentinel knows INFO, but not TIME.
	identity, unknown := identify(results[1:loads])
	if unknown == nil {
		if err := identity.Check(); err != nil {
			return nil, err
		}
	}
	// The first command is also where a failed dial and a failed AUTH or SELECT of
	// rueidis show.
	reply, err := results[0].ToArray()
	if err != nil {
		return nil, refusal("greeting", err)
	}
	clock, ok := integers(reply)
	if !ok || len(clock) != 2 {
		return nil, refusal("greeting", nil)
	}
	n.observe(clock[0]*1e6+clock[1], sent, received)
	for k := range kinds {
		message, err := results[loads+k].ToMessage()
		if err == nil {
			n.digests[k], err = stringOf(&message)
		}
		if err != nil {
			return nil, refusal("SCRIPT LOAD", err)
		}
	}
	if n.identity = identity; unknown != nil {
		return nil, unknown
	}
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
	if err != nil {
		return nil, err
	}
	if n.dialed.Load() != connection || n.lost.Load() >= connection {
		return nil, ErrReconnected
	}
	n.greeted = connection
	return withheld, nil
}

// rehearse runs the script that changes nothing, so that a user who may not
// run scripts, or not on our keys, is found at the greeting and not by the
// first lease.
func (n *Node) rehearse(ctx context.Context) error {
	command := n.client.B().Evalsha().Sha1(n.digests[Read]).Numkeys(1).Key(n.markerKey).Build()
	if err := n.client.Do(ctx, command).Error(); err != nil {
		return missing(Read, refusal("script", err))
	}
	return nil
}

// guard runs the restart guard and notes the quarantine. When it cannot do its
// work, votes are withheld and nothing else is: it is votes that it answers for,
// and whoever holds a lease here keeps it. To refuse the node as a whole would
// take every lease away when somebody changes the policy of all nodes.
func (n *Node) guard(ctx context.Context) (withheld, err error) {
	if n.identity.Unchecked != nil {
		return &ConfigError{
			Problem: "the restart guard cannot read INFO: " + n.identity.Unchecked.Error(),
			Fix:     "allow INFO to the user, or do without WithRestartGuard",
		}, nil
	}
	if len(strings.Fields(n.identity.RunID)) != 1 { // no word of the marker
		return &ConfigError{
			Problem: fmt.Sprintf("the restart guard cannot tell a restart: INFO says run_id %.64q", n.identity.RunID),
			Fix:     "use a server that tells one, or do without WithRestartGuard",
		}, nil
	}
	if n.identity.Evicts() {
		n.evicted = true // what it has dropped until somebody mends it, nobody knows
		return &ConfigError{
			Problem: "the restart guard cannot see evictions (maxmemory-policy " + n.identity.Eviction + ")",
			Fix:     "set maxmemory-policy noeviction, or do without WithRestartGuard",
		}, nil
	}
	longest := n.cfg.Guard.Milliseconds()
	toAll, sure := false, true
	if n.distrust && n.cfg.Alone != nil {
		toAll, sure = n.cfg.Alone(n.cfg.Index, n.distrusted)
	}
	// Whoever has seen this node's data once does not take an empty database
	// for a first deployment.
	command := n.client.B().Evalsha().Sha1(n.digests[guard]).Numkeys(1).Key(n.markerKey).
		Arg(n.identity.RunID, strconv.FormatInt(longest, 10), flag(n.cfg.Trust && n.marker == ""), flag(toAll || n.evicted)).Build()
	reply, err := n.client.Do(ctx, command).ToArray()
	if err != nil {
		return nil, missing(guard, refusal("restart guard", err))
	}
	if len(reply) != 4 {
		return nil, refusal("restart guard", nil)
	}
	numbers, ok := integers(reply[:3])
	marker, err := stringOf(&reply[3])
	if !ok || err != nil || marker == "" { // "" stands for a node that was never greeted
		return nil, refusal("restart guard", nil)
	}
	now, ends, agreed := numbers[0], numbers[1], numbers[2]
	if agreed != longest {
		return &ConfigError{
			Problem: fmt.Sprintf("the restart guard of this node stands at %d ms, not %d ms", agreed, longest),
			Fix:     "give every client the same WithRestartGuard; to change it, stop all clients and delete the marker key",
		}, nil
	}
	n.evicted = false
	if sure || n.cfg.Now() > n.distrusted+judgeFor {
		n.distrust = false
	}
	if marker == n.marker {
		return nil, nil // its quarantine is being waited out, by our clock
	}
	n.marker, n.floor = marker, strconv.FormatInt(ends, 10)
	if ends > now {
		// Whoever wrote the marker did so in the past: more than the longest lease
		// from now is a node's clock that was set back.
		left := n.cfg.Guard
		if micros := ends - now; micros > 0 && micros < left.Microseconds() { // below 0 it was too far away to count
			left = time.Duration(micros) * time.Microsecond
		}
		why := n.why
		if why == nil {
			why = ErrQuarantined
		}
		n.quarantineFor(left, why)
	}
	return nil, nil
}

// integers returns the parts of a reply as such. AsIntSlice of rueidis takes what
// is no number for 0.
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
		text = strings.TrimPrefix(text, "txt:") // a verbatim string, in RESP3
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
