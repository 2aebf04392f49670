package sim

import "time"

// direction of a link.
type direction uint8

const (
	requests direction = iota
	replies
	wakeUps // over another connection
	directions
)

// link is one direction between a client and a node.
type link struct {
	last  time.Duration // when its last message arrives
	fault time.Duration // when a message on it was last lost, late or repeated
	cut   time.Duration // no message passes before this instant
	far   time.Duration // until this instant each message takes longer, by the field by
	by    time.Duration
}

// transmit puts a message on its link after the delay after, or loses it.
func (w *world) transmit(m *message, after time.Duration) {
	w.stats[Messages]++
	c := &w.config
	way := requests
	switch {
	case m.op == opWake:
		way = wakeUps
	case m.reply:
		way = replies
	}
	l := &w.links[m.client][m.node][way]
	if w.quiet {
		w.deliver(l, m, after+w.upTo(c.latency))
		return
	}
	fate := w.rng.IntN(1000)
	if fate < c.loss || w.now < l.cut {
		w.stats[Lost]++
		l.fault = w.now
		return
	}
	w.deliver(l, m, after+w.delay(l))
	if w.rng.IntN(1000) < c.repeat && m.way == usualWay {
		w.stats[Repeated]++
		l.fault = w.now // a second copy can make a key where the first could not
		w.deliver(l, m, after+w.delay(l))
	}
}

func (w *world) delay(l *link) time.Duration {
	c := &w.config
	var far time.Duration
	if w.now < l.far {
		far, l.fault = l.by, w.now
	}
	if c.slow > 0 && w.rng.IntN(1000) < c.slow {
		w.stats[Late]++
		l.fault = w.now
		return w.upTo(1 + w.upTo(3*c.terms.TTL))
	}
	return far + w.upTo(c.latency)
}

func (w *world) deliver(l *link, m *message, delay time.Duration) {
	at := w.now + delay
	if !w.quiet && at > w.config.faults {
		at = w.config.faults + w.upTo(w.config.latency)
	}
	if w.config.fifo {
		if l.last > w.now+w.config.latency {
			l.fault = w.now // the message waits behind a late one
		}
		at = max(at, l.last)
		l.last = at
	}
	w.schedule(at, &event{kind: evArrival, client: -1, node: -1, message: *m})
}

// cut disconnects a client and a node, in one direction or both.
func (w *world) cut(e *event) {
	w.stats[Cuts]++
	w.trace("client %d and node %d are cut off for %v, one way: %v", e.client, e.node, e.duration, e.oneWay)
	first := direction(w.rng.IntN(2))
	for way := range directions {
		if l := &w.links[e.client][e.node][way]; min(way, replies) == first || !e.oneWay {
			l.cut = max(l.cut, w.now+e.duration)
		}
	}
}

// distance delays the messages between a client and a node for a long time, so that
// answers arrive after the node timeout.
func (w *world) distance(e *event) {
	w.stats[Distances]++
	by := w.config.terms.Timeout/2 + w.upTo(w.config.terms.Timeout)
	w.trace("client %d and node %d are %v further apart for %v", e.client, e.node, by, e.duration)
	for way := range directions {
		l := &w.links[e.client][e.node][way]
		l.far, l.by = max(l.far, w.now+e.duration), by
	}
}
