package quorum_test

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

// This file is dumbLease's view of a TTL that changes: it remembers each TTL that was ever asked for, and looks at all
// of them for each answer.

// dumbAsk is what the requests ask for from an instant on.
type dumbAsk struct {
	at    time.Duration
	terms quorum.Terms
}

func end(t quorum.Terms, sent time.Duration) time.Duration { return sent + t.TTL - t.Drift }

// asked returns what is asked for now.
func (d *dumbLease) asked() quorum.Terms { return d.asks[len(d.asks)-1].terms }

// of returns what the answered request asked for.
func (d *dumbLease) of(in quorum.Input) quorum.Terms {
	if in.Terms == nil {
		return d.asks[0].terms
	}
	return *in.Terms
}

// ask changes what is asked for.
func (d *dumbLease) ask(now time.Duration, t quorum.Terms) {
	for _, ends := range d.kept {
		for j := range ends {
			ends[j] = min(ends[j], end(t, now))
		}
	}
	d.asks = append(d.asks, dumbAsk{now, t})
	if t.TTL <= d.terms.TTL {
		d.terms, d.lag = t, min(d.lag, t.MaxLag)
	}
}

// confirm records how long a node has the key. Any of the requests that were sent later, or that may run later, may
// have shortened it.
func (d *dumbLease) confirm(in quorum.Input) {
	sent := time.Duration(in.At)
	until := min(end(d.of(in), sent), end(d.asked(), sent))
	for k := range len(d.asks) - 1 {
		if sent < d.asks[k+1].at && !d.forgotten(k) || d.runsAfter(k, in) {
			until = min(until, end(d.asks[k].terms, sent))
		}
	}
	d.kept[in.Node], d.had[in.Node] = append(d.kept[in.Node], until), true
}

// overtaken reports whether a request for less may run after the one that was answered.
func (d *dumbLease) overtaken(in quorum.Input) bool {
	for k := range len(d.asks) - 1 {
		if d.runsAfter(k, in) {
			return true
		}
	}
	return false
}

// runsAfter reports whether one of the requests for d.asks[k] may run after an answered request for more, because it
// went over an earlier connection. The last of them is sent half a minute after the change, or before the connection;
// and no node runs it when it is older than its TTL, by a clock that is a second off.
func (d *dumbLease) runsAfter(k int, in quorum.Input) bool {
	t, since := d.asks[k].terms, time.Duration(in.Since)
	lastSent := min(d.asks[k+1].at+30*time.Second, since)
	return t.TTL < d.of(in).TTL && since > d.since && time.Duration(in.At) < lastSent+t.TTL+t.Drift+time.Second && !d.forgotten(k)
}

// forgotten reports whether, at a later change, no request for d.asks[k] could still run.
func (d *dumbLease) forgotten(k int) bool {
	t := d.asks[k].terms
	for _, later := range d.asks[k+1:] {
		if later.at >= d.asks[k+1].at+31*time.Second+t.TTL+t.Drift {
			return true
		}
	}
	return false
}

// longest returns the longest TTL that it has asked for.
func (d *dumbLease) longest() (ttl time.Duration) {
	for _, a := range d.asks {
		ttl = max(ttl, a.terms.TTL)
	}
	return ttl
}
