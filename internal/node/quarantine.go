package node

import "time"

// quarantine is a time in which the node's votes do not count.
type quarantine struct {
	until  time.Time // on the monotonic clock, because others may jump ahead
	reason error     // nil without a quarantine
}

// minDrift is the least fraction by which a quarantine is prolonged.
const minDrift = 0.01

// extend makes the quarantine last for d at least.
func (q *quarantine) extend(d time.Duration, drift float64, reason error) {
	// The node's clock may run slower than ours, by the bound.
	d += time.Duration(float64(d) * max(drift, minDrift))
	if end := time.Now().Add(d); end.After(q.until) {
		q.until, q.reason = end, reason
	}
}

// over reports whether a quarantine has ended, and forgets it then.
func (q *quarantine) over() bool {
	if q.reason == nil || time.Until(q.until) > 0 {
		return false
	}
	*q = quarantine{}
	return true
}
