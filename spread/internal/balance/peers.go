package balance

import (
	"maps"
	"math/rand/v2"
	"time"
)

// peer is the record of another member that was asked and gave nothing.
type peer struct {
	missed int           // waits in a row in which it gave nothing
	batch  int           // the last of them
	until  time.Duration // it is not asked before
	rest   time.Duration // how long it was not asked the last time
}

// missed counts a wait at whose end the holder still has the name. It returns whether the holder will not be asked for
// some time.
func (m *Member) missed(now time.Duration, id string, batch int) (deaf bool) {
	p := m.peers[id]
	if p == nil {
		p = &peer{}
		m.peers[id] = p
	}
	if p.batch == batch {
		return false // asks of one round are one wait
	}
	p.batch = batch
	if p.missed++; p.missed >= m.rules.DeafAfter {
		deaf = true
		p.missed = 0
		p.rest = min(max(2*p.rest, m.rules.DeafFor), 8*m.rules.DeafFor)
		p.until = now + p.rest
	}
	// IDs of former runs must not add up for months.
	maps.DeleteFunc(m.peers, func(other string, p *peer) bool { return other != id && now-p.until > 32*m.rules.DeafFor })
	return deaf
}

// holding is another member and the names that the last looks show for it.
type holding struct {
	id      string
	names   []string
	unasked int // how many names have no waiter; they come first
}

// draw takes one of the names at random, if possible one that no other member waits for: of two members that ask for
// the same name, one gets nothing.
func (h *holding) draw(chance *rand.Rand) (name string) {
	i, last := chance.IntN(max(h.unasked, 1)), len(h.names)-1
	if h.unasked == 0 {
		i = chance.IntN(len(h.names))
	} else {
		h.unasked--
		h.names[i], h.names[h.unasked] = h.names[h.unasked], h.names[i]
		i = h.unasked
	}
	name = h.names[i]
	h.names[i], h.names = h.names[last], h.names[:last]
	return name
}

// holdings returns the other members that may be asked, in the order of the list.
func (m *Member) holdings(now time.Duration) (all []*holding) {
	byID := map[string]*holding{}
	for _, name := range m.names {
		s := m.seen[name]
		if s == nil || m.jobs[name] != nil || s.Free || s.Marked || s.Holder == "" || s.Holder == m.id {
			continue
		}
		if p := m.peers[s.Holder]; p != nil && now < p.until {
			continue
		}
		h := byID[s.Holder]
		if h == nil {
			h = &holding{id: s.Holder}
			byID[h.id] = h
			all = append(all, h)
		}
		h.names = append(h.names, name)
		if s.Waiters == 0 {
			last := len(h.names) - 1
			h.names[last], h.names[h.unasked] = h.names[h.unasked], h.names[last]
			h.unasked++
		}
	}
	return all
}

// richest returns the holding with most names that no member waits for, of the holdings with at least so many names.
// Chance breaks a tie. A name with a waiter goes to that waiter first. It returns nil if there is none.
func (m *Member) richest(all []*holding, least int) (most *holding) {
	ties := 0
	for _, h := range all {
		switch {
		case len(h.names) < least:
		case most == nil || h.unasked > most.unasked:
			most, ties = h, 1
		case h.unasked == most.unasked:
			if ties++; m.chance.IntN(ties) == 0 {
				most = h
			}
		}
	}
	return most
}

// richer reports whether another member has enough names to give one away.
func (m *Member) richer(now time.Duration) bool {
	return m.richest(m.holdings(now), m.Share()+2) != nil
}

// ask asks for up to want names, each from the member that has most at that point.
func (m *Member) ask(now time.Duration, want int) (commands []Command) {
	if want == 0 {
		return nil
	}
	m.batch++
	all := m.holdings(now)
	for range want {
		p := m.Share()
		h := m.richest(all, p+2)
		if h == nil {
			break
		}
		name := h.draw(m.chance)
		j := m.start(now, name, Asking)
		j.from, j.batch, j.until = h.id, m.batch, now+m.rules.Wait
		commands = append(commands, Command{Kind: Ask, Name: name, Text: askText(p, m.chance.Uint32(), m.id)})
	}
	return commands
}
