package node

import (
	"sync/atomic"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// debt is the instant since which the node has owed an answer, on the steady clock; 0 if it owes none.
type debt struct{ since atomic.Int64 }

// asked records that the node owes an answer from now on, unless it already does.
func (d *debt) asked(now clock.Steady) { d.since.CompareAndSwap(0, int64(max(now, 1))) }

// answered records that the node owes nothing.
func (d *debt) answered() { d.since.Store(0) }

// age returns how long the node has owed an answer; 0 if it owes none.
func (d *debt) age(now clock.Steady) time.Duration {
	if since := d.since.Load(); since != 0 {
		return now.Sub(clock.Steady(since))
	}
	return 0
}
