package node

import (
	"errors"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// Health is the last known fitness of a node to vote.
type Health struct {
	Err         error     // why it cannot; nil when it may, or will after the quarantine
	Withheld    bool      // Err keeps it only from voting: it is connected
	Quarantined time.Time // when its votes count again; zero if they count now
	Reason      error     // of the quarantine; nil without one
	Warning     error     // a problem that does not keep it from voting; nil for none
	Identity    Identity
	Master      string // of a failover group: the address of the server in Identity
}

// QuarantineLeft returns how much longer the node's votes do not count.
func (h Health) QuarantineLeft() time.Duration {
	return max(time.Until(h.Quarantined), 0)
}

// Votes reports whether the node can vote. When its quarantine ends, it is greeted once more first, so the end of that
// time is not enough.
func (h Health) Votes() bool { return h.Err == nil && h.Reason == nil }

// up reports whether the node was connected at the last report.
func (h Health) up() bool { return h.Err == nil || h.Withheld }

// text returns the text of an error, "" for nil, without the part that changes from check to check.
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
