package node

import (
	"errors"
	"fmt"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
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

// Silence returns for how long the node has owed an answer: to a batch, a PING or a
// greeting. A failed connection is no answer. It is 0 if nothing was asked since the last
// answer. now is of the steady clock.
func (n *Node) Silence(now time.Duration) time.Duration { return n.debt.age(now) }

// SilenceError returns the error of a request that is not sent because the node is silent.
func (n *Node) SilenceError(now time.Duration) error {
	owed := max(n.Silence(now), 0).Round(time.Millisecond)
	if h := n.Health(); !h.up() && !errors.Is(h.Err, wire.ErrConnecting) {
		return fmt.Errorf("no answer for %v: %w", owed, h.Err)
	}
	return fmt.Errorf("no answer for %v", owed)
}

// report publishes the health of the node, and calls OnHealth if it has changed.
func (n *Node) report(err error) {
	now := &Health{
		Err: err, Withheld: n.withheld != nil,
		Quarantined: n.quarantine.until, Reason: n.quarantine.reason, Warning: n.warning, Identity: n.identity,
		Master: n.Master(),
	}
	if reason := n.termError(); err == nil && reason != nil {
		now.Err, now.Withheld = reason, true
	}
	unlisted := n.unlisted()
	n.unlistedWas = text(unlisted)
	switch {
	case now.Err != nil || unlisted == nil:
	case errors.Is(unlisted, wire.ErrConnecting):
		if n.quarantine.reason == nil {
			return // the greeting is over when the other nodes know of this one: in a moment
		}
	default:
		now.Err, now.Withheld = unlisted, true
	}
	if reason := n.subscriber.warning(); reason != nil {
		now.Warning = reason
		if n.warning != nil {
			now.Warning = fmt.Errorf("%w; %w", n.warning, reason) // on one line, which errors.Join is not
		}
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
