package sim

// orphan is a release whose answer is missing.
type orphan struct {
	op            op
	update        ticketUpdate
	owner, ticket uint32
	enqueuedAt    int64
	line          uint32
}

// orphans are the latest releases of a client to each node whose fate is unknown. The
// client sends them again over a new connection.
type orphans struct {
	of   [maxNodes][4]orphan
	next [maxNodes]uint8
}

func (o *orphans) sent(i int, m *message) {
	o.of[i][o.next[i]] = orphan{
		op: m.op, update: m.update, owner: m.owner, ticket: m.ticket, enqueuedAt: m.enqueuedAt, line: m.line,
	}
	o.next[i] = (o.next[i] + 1) % uint8(len(o.of[i]))
}

func (o *orphans) answered(i int, m *message) {
	for k := range o.of[i] {
		if r := &o.of[i][k]; r.op == m.op && r.owner == m.owner && r.ticket == m.ticket {
			*r = orphan{}
		}
	}
}

// retryReleases repeats the releases that were lost with a broken connection. A retry
// must not bring a ticket back into a queue, because its wait has continued since.
func (c *client) retryReleases(i int) {
	line := c.lineTo(i)
	for k := range c.orphans.of[i] {
		r := &c.orphans.of[i][k]
		if r.op == 0 || r.line == line {
			continue
		}
		c.w.stats[ReleaseRetries]++
		m := message{op: r.op, owner: r.owner, ticket: r.ticket}
		if r.op.plain() == opRelease && (r.update != leaves || r.ticket == c.ticket) {
			m.ticket = 0
		}
		*r = orphan{}
		if c.w.handles.find(m.owner) == nil { // a detached lock stays if its drop was not among the latest
			c.w.judge.retried(c, i, m.owner)
		}
		if !c.w.bugs.has(NoRetries) {
			c.request(i, &m)
		}
	}
}
