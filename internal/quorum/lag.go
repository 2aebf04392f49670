package quorum

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// lagPeriod is the shortest time for which a late timer is remembered. The longest
// is twice that.
const lagPeriod = 5 * time.Second

// Lag measures how late timers have fired recently: the worst delay of the last one
// to two periods. Other work on the machine delays timers, and it lasts for seconds.
// The zero value remembers no delay.
type Lag struct {
	since         clock.Validity // when the current period began
	worst, before time.Duration  // of the current period and the one before
}

// Saw records a timer that fired at now with the delay late.
func (l *Lag) Saw(now clock.Validity, late time.Duration) {
	switch age := now.Sub(l.since); {
	case age >= 2*lagPeriod:
		*l = Lag{since: now}
	case age >= lagPeriod:
		*l = Lag{since: l.since.Add(lagPeriod), before: l.worst}
	}
	l.worst = max(l.worst, late)
}

// Expect returns the expected delay before a reader observes a loss. It is twice the
// worst delay: the timer that finds the loss may be late, and then the reader's own.
func (l *Lag) Expect(now clock.Validity) time.Duration {
	switch age := now.Sub(l.since); {
	case age >= 2*lagPeriod:
		return 0
	case age >= lagPeriod:
		return 2 * l.worst
	}
	return 2 * max(l.worst, l.before)
}
