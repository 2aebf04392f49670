package node

import (
	"errors"
	"time"
)

// Health is the last known fitness of a node to vote.
type Health struct {
	Err         error     // why it cannot; nil when it may, or will after the quarantine
	Withheld    bool      // Err keeps it only from voting: it is connected
	Quarantined time.Time // when its votes count again; zero for now
	Reason      error     // of the quarantine; nil without one
	Warning     error     // a problem that does not keep it from voting; nil for none
	Identity    Identity
	Master      string // of a failover group: the address of the server in Identity
}

// QuarantineLeft returns how much longer the node's votes do not count.
func (h Health) QuarantineLeft() time.Duration {
	return max(time.Until(h.Quarantined), 0)
}

// up reports whether the node is connected, as far as is known.
func (h Health) up() bool { return h.Err == nil || h.Withheld }

// Health returns what is known of the node now.
func (n *Node) Health() Health { return *n.health.Load() }

// report publishes the health of the node, and calls OnHealth if it has changed.
func (n *Node) report(err error) {
	now := &Health{
		Err: err, Withheld: n.withheld != nil,
		Quarantined: n.quarantine, Reason: n.quarantineReason, Warning: n.warning, Identity: n.identity,
		Master: n.Master(),
	}
	if reason := n.termError(); err == nil && reason != nil {
		now.Err, now.Withheld = reason, true
	}
	if reason := n.subscription(); reason != nil {
		now.Warning = errors.Join(n.warning, reason)
	}
	before := n.health.Swap(now)
	if n.cfg.OnHealth != nil && (text(before.Err) != text(now.Err) || text(before.Reason) != text(now.Reason) ||
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
