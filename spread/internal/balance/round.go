package balance

import (
	"slices"
	"time"
)

// Look is the nodes' answer about a name.
type Look struct {
	Name    string
	Free    bool          // no majority shows a holder
	Partial bool          // it is free, and a minority shows one
	Holder  string        // its ID; "" if the nodes do not agree on one
	Marked  bool          // the holder has said that the name is about to be free
	TTL     time.Duration // until it ends without a renewal; negative: forever, 0 if they do not agree
	Waiters int           // as counted; dead ones may be among them
}

// sight is the last look at a name.
type sight struct {
	Look
	at   time.Duration
	free time.Duration // when looks began to show it free
}

// round is a look at all names that the member does not have itself.
type round struct {
	left []string // in random order
	free bool     // one was free
	took bool     // one was taken, or is waited for
}

// Tick tells the member how many members were counted, itself included if its presence is held. It returns the names to
// look at now; Looked gets the answers. A tick without a majority of the nodes is left out.
func (m *Member) Tick(now time.Duration, counted int) (look []string) {
	m.ticks++
	if !m.present {
		counted++
	}
	m.change(now, counted)
	if !m.settled(now) {
		return nil
	}
	look, most := m.looksAgain(now), chunk(len(m.names))
	if len(look) >= most {
		m.chance.Shuffle(len(look), func(i, k int) { look[i], look[k] = look[k], look[i] })
		return look[:most]
	}
	if m.round == nil && now >= m.due {
		m.round, m.due = &round{left: m.without(m.names)}, never
		m.chance.Shuffle(len(m.round.left), func(i, k int) { m.round.left[i], m.round.left[k] = m.round.left[k], m.round.left[i] })
		if len(m.round.left) == 0 {
			m.round = nil
		}
	}
	switch {
	case m.round != nil:
		for _, name := range m.round.left {
			if len(look) == most {
				break
			}
			if _, due := m.again[name]; m.jobs[name] == nil && (!due || now < m.again[name]) { // else it is in look
				look = append(look, name)
			}
		}
	case m.ticks%m.sweepEvery() == 0 && len(m.names) > 0:
		m.sweep = (m.sweep + 1) % len(m.names)
		if name := m.names[m.sweep]; m.jobs[name] == nil && !slices.Contains(look, name) {
			look = append(look, name)
		}
	}
	return look
}

// sweepEvery returns the ticks between two looks of a sweep. A member that may take a name looks more often.
func (m *Member) sweepEvery() int {
	if _, hi := m.bounds(); m.Share() < hi {
		return m.rules.SweepEvery
	}
	return 3 * m.rules.SweepEvery
}

// without returns the names that have no job.
func (m *Member) without(names []string) (others []string) {
	for _, name := range names {
		if m.jobs[name] == nil {
			others = append(others, name)
		}
	}
	return others
}

// looksAgain returns the names that it waits for, and the names whose next look is due.
func (m *Member) looksAgain(now time.Duration) (look []string) {
	for name, j := range m.jobs {
		if j.state == Asking {
			look = append(look, name)
		}
	}
	for name, at := range m.again {
		if now >= at {
			look = append(look, name)
		}
	}
	slices.Sort(look) // a seed must repeat the order, and a map has none
	return look
}

// change notices that the members, the list or the member's share have changed, and plans a round.
func (m *Member) change(now time.Duration, counted int) {
	share := m.Share()
	changed := counted != m.members || m.relisted || share < m.shares
	if counted < m.members {
		m.left = now
	}
	m.members = counted
	lo, hi := m.bounds()
	if changed {
		m.rounds = 0
		if share < lo {
			m.gap = m.rules.Gap
		}
		if share < hi || m.relisted {
			m.plan(now)
		}
	}
	m.relisted, m.shares = false, share
}

// leaving reports whether names of a member that has left may be about to be free.
func (m *Member) leaving(now time.Duration) bool { return now-m.left < m.rules.Leaving }

// Pause returns how long the member waits for the next tick.
func (m *Member) Pause(now time.Duration) time.Duration {
	if m.leaving(now) {
		return m.rules.Tick / 4
	}
	return m.rules.Tick*19/20 + m.upTo(m.rules.Tick/10)
}

// upTo returns a random time.
func (m *Member) upTo(d time.Duration) time.Duration {
	return time.Duration(m.chance.Int64N(int64(d) + 1))
}

// plan plans a round: at once for names of a member that has left, and otherwise no sooner than the gap after the last one.
func (m *Member) plan(now time.Duration) {
	if now-m.ended > 2*m.rules.TTL {
		m.gap = m.rules.Gap
	}
	due := max(now, m.ended+m.gap)
	if m.leaving(now) {
		due = now
	}
	m.due = min(m.due, due)
}

// Looked tells the member the answers about the names of Tick. A name without the answer of a majority has failed: the
// next round looks at it again, and a wait for it ends. Others are left out, and are looked at again. It is called after
// each Tick, even if that returned no names.
func (m *Member) Looked(now time.Duration, looks []Look, failed ...string) (commands []Command) {
	seen := make(map[string]bool, len(looks))
	for _, name := range failed { // or they would be all that is looked at
		seen[name] = true
		delete(m.again, name)
		delete(m.seen, name) // its holder is not known any more
		if j := m.jobs[name]; j != nil && j.state == Asking {
			m.move(now, j, Ending)
			commands = append(commands, Command{Kind: Leave, Name: name})
		}
	}
	for _, l := range looks {
		seen[l.Name] = true
		delete(m.again, l.Name)
		if j := m.jobs[l.Name]; j != nil {
			commands = append(commands, m.waited(now, j, l)...)
			continue
		}
		if m.listed[l.Name] {
			commands = append(commands, m.saw(now, l)...)
		}
	}
	if m.round != nil {
		m.round.took = m.round.took || slices.ContainsFunc(commands, func(c Command) bool { return c.Kind == Take || c.Kind == Await })
		m.round.left = slices.DeleteFunc(m.round.left, func(name string) bool {
			return seen[name] || m.jobs[name] != nil || !m.listed[name]
		})
		if len(m.round.left) == 0 {
			commands = append(commands, m.finish(now)...)
		}
	} else if _, hi := m.bounds(); len(looks) > 0 && m.Share() < hi && m.richer(now) {
		m.plan(now)
	}
	m.shares = max(m.shares, m.Share()) // a fall is for the next tick to notice
	return commands
}

// waited decides whether a wait continues. It ends if another waiter got the name, or the holder does not give it away.
func (m *Member) waited(now time.Duration, j *job, l Look) (commands []Command) {
	if j.state != Asking {
		return nil
	}
	moved := !l.Free && l.Holder != "" && l.Holder != j.from && l.Holder != m.id
	// One of two that wait may find another name that is about to be free.
	crowded := j.freed && !l.Free && l.Waiters > 1 && m.chance.IntN(2) == 0
	switch {
	case moved || crowded:
	case now < j.until:
		return nil
	case l.Marked:
		j.until = now + m.rules.TTL
		return nil
	case m.since < j.since && m.missed(now, j.from, j.batch): // else the member itself was away
		commands = append(commands, Command{Kind: Deaf, Name: j.from})
	}
	m.move(now, j, Ending)
	return append(commands, Command{Kind: Leave, Name: j.name})
}

// saw takes the name if it is free and it is the member's turn, and waits for it if it is about to be free. Otherwise it
// remembers the look.
func (m *Member) saw(now time.Duration, l Look) []Command {
	s := m.seen[l.Name]
	if s == nil || !s.Free || now-s.at > m.rules.LookAgain+2*m.rules.Tick { // after so long it may not have been free
		s = &sight{free: now}
		m.seen[l.Name] = s
	}
	s.Look, s.at = l, now
	_, hi := m.bounds()
	if !l.Free {
		switch {
		case l.TTL >= 0 && l.TTL < m.rules.Dying:
			m.again[l.Name] = now + max(l.TTL, m.rules.Gap)
		case l.Marked && l.Waiters == 0 && m.Share() < hi:
			m.batch++
			j := m.start(now, l.Name, Asking)
			j.from, j.batch, j.until, j.freed = l.Holder, m.batch, now+m.rules.TTL, true
			return []Command{{Kind: Await, Name: l.Name}}
		case l.Marked: // it becomes free, or goes to a member that then has more
			m.again[l.Name] = now + m.rules.MarkEvery
		}
		return nil
	}
	age := now - s.free
	if l.Partial && age < m.rules.LookAgain { // it is being taken or given back, or one node missed that: then its key may stay for a day
		m.again[l.Name] = now + m.rules.Gap
		return nil
	} else if l.Partial {
		age -= m.rules.LookAgain
	}
	if m.round != nil {
		m.round.free = true
	}
	switch {
	case l.Waiters > 0 && age < m.rules.SecondLook:
		m.again[l.Name] = s.free + m.rules.SecondLook
	case m.Share() < hi || age >= m.rules.LookAgain:
		m.start(now, l.Name, Taking)
		return []Command{{Kind: Take, Name: l.Name}}
	default:
		// There is a look in between: another member may have taken it, and just have left.
		m.again[l.Name] = now + m.rules.LookAgain/2 + m.upTo(m.rules.LookAgain/4)
	}
	return nil
}

// finish ends a round: it asks for names, and plans the next round.
func (m *Member) finish(now time.Duration) (commands []Command) {
	r := m.round
	m.round, m.ended = nil, now
	lo, hi := m.bounds()
	if !r.free && !m.leaving(now) {
		want := max(lo-m.Share(), 0)
		if want == 0 && m.Share() < hi && m.rounds > 0 {
			want = 1
		}
		commands = m.ask(now, min(want, m.rules.AtOnce))
	}
	m.rounds++
	m.gap = min(2*m.gap, max(m.rules.TTL, m.rules.Gap))
	if r.took || len(commands) > 0 || m.leaving(now) {
		m.gap = m.rules.Gap
	}
	if p := m.Share(); p < lo || p < hi && (r.free || m.leaving(now) || m.richer(now)) {
		m.plan(now)
	}
	return commands
}
