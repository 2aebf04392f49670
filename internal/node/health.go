package node

import (
	"errors"
	"strings"
	"sync/atomic"
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

// bulletin has the last Health that the worker has published.
type bulletin struct {
	index    int
	onHealth func(index int, h Health) // nil for nobody
	last     atomic.Pointer[Health]
}

// load returns the last Health.
func (b *bulletin) load() Health { return *b.last.Load() }

// publish publishes a Health, and calls onHealth if it has changed.
func (b *bulletin) publish(now *Health) {
	before := b.last.Swap(now)
	if b.onHealth != nil && (text(before.Err) != text(now.Err) || text(before.Reason) != text(now.Reason) ||
		text(before.Warning) != text(now.Warning)) {
		b.onHealth(b.index, *now)
	}
}

// text returns the text of an error, "" for nil, without what changes from check to check.
func text(err error) string {
	if err == nil {
		return ""
	}
	var config *wire.ConfigError
	if errors.As(err, &config) && config.Moment != "" {
		return strings.ReplaceAll(err.Error(), config.Moment, "")
	}
	return err.Error()
}
