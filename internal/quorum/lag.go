package quorum

import "time"

// lagPeriod is how long at least a late wake is remembered, and half of how
// long at most.
const lagPeriod = 5 * time.Second

// Lag is how late wakes have been lately: the worst of the last one to two
// periods, because what makes them late, other work on the machine, comes and
// stays for seconds. The zero value remembers none.
type Lag struct {
	since         time.Duration // when the current period began
	worst, before time.Duration // of the current period and the one before
}

// Saw takes note of a wake that was late by so much.
func (l *Lag) Saw(now, late time.Duration) {
	switch age := now - l.since; {
	case age >= 2*lagPeriod:
		*l = Lag{since: now}
	case age >= lagPeriod:
		*l = Lag{since: l.since + lagPeriod, before: l.worst}
	}
	l.worst = max(l.worst, late)
}

// Expect returns how late the one who hears of a loss has to be expected to be:
// the wake that finds it, and after it his own.
func (l *Lag) Expect(now time.Duration) time.Duration {
	switch age := now - l.since; {
	case age >= 2*lagPeriod:
		return 0
	case age >= lagPeriod:
		return 2 * l.worst
	}
	return 2 * max(l.worst, l.before)
}
