package quorum

import (
	"slices"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// Beside reports whether two lists, of n and m nodes and together of that many, may be used side by side: whether every
// majority of one shares a node with every majority of the other.
func Beside(n, m, together int) bool { return Size(n)+Size(m) > together }

// Apart reports whether two lists, of n and m nodes, may not be used side by side, as far as their nodes are known: ids
// that differ are different nodes.
func Apart(n int, ids []string, m int, others []string) bool {
	together := len(ids)
	for _, id := range others {
		if !slices.Contains(ids, id) {
			together++
		}
	}
	return !Beside(n, m, together)
}

// Rivals decides which of the lists that a node shows, and that exclude this client's, are worth a warning.
type Rivals struct {
	first map[string]clock.Steady // by text, its end when it was first seen
}

// rivalFor is how much longer a list must stand than when it was first seen: a living client prolongs its list. A list
// that clients have left behind is not prolonged, and neither is a list from before a node came back as another
// process, once both clients have seen that.
const rivalFor = 5 * time.Second

// Look takes the ends of all lists that the node shows now. It returns the first one, by text, that is worth a warning,
// "" for none.
func (r *Rivals) Look(ends map[string]clock.Steady) (lasting string) {
	first := make(map[string]clock.Steady, len(ends))
	for text, end := range ends {
		first[text] = end
		if before, seen := r.first[text]; seen {
			first[text] = before
		}
		if end.Sub(first[text]) >= rivalFor && (lasting == "" || text < lasting) {
			lasting = text
		}
	}
	r.first = first
	return lasting
}

// Listed is what a node has answered about the list of a Manager.
type Listed struct {
	// Known means that the node has an identity. Renamed means that it had another one
	// before, by which the other nodes still know it.
	Known, Renamed bool
	// Refused is how long a list of other clients is in the way; 0 if none is. Lacks are the nodes of the Manager that
	// the other list does not have.
	Refused time.Duration
	Lacks   Set
	// Stands means that the node has the list registered.
	Stands bool
}

// Enlisting is what a Manager asks a node to register.
type Enlisting struct {
	Members Set // nodes with an identity; the node adds itself
	// Adds means that the list is added if it is admitted; Keeps that the list, or a part of it, is prolonged if it
	// stands: leases that were granted before may rely on it.
	Adds, Keeps bool
}

// Lists decides which nodes' votes count for a Manager, by the lists of nodes that it and
// other clients have registered on the nodes.
//
// A vote counts only while each connected node has a registered list that includes the voting node. So of two Managers
// whose lists exclude each other, the later one is refused by a node that both are connected to. A refusal anywhere
// withholds all votes: the other nodes may be those that only one of the two uses. But a Manager that does without the
// nodes which the other list lacks is not refused: it registers the rest, and only their votes count. That needs a
// majority of its list, and no lease of it that may rely on a registration with the nodes left out.
type Lists struct {
	nodes []listed
	known Set // nodes with an identity
	// used means that the Manager may have been granted a lease. Until then a refusal that
	// withholds all votes makes it give up what it has registered elsewhere, so that a mistake
	// in a new client does not stay in the way of the others.
	used bool
	// relied are the nodes whose votes have counted since then.
	relied Set
	age    time.Duration // after which a registration does not count
}

type listed struct {
	up      bool
	has     Set          // what the node has registered for this Manager
	at      clock.Steady // when that was sent
	refused clock.Steady // the end of a refusal
	lacks   Set          // until then the votes of these do not count
}

// NewLists returns the lists of a Manager with n nodes, before the first answer. A
// registration that is older than age does not count.
func NewLists(n int, age time.Duration) *Lists {
	return &Lists{nodes: make([]listed, n), age: age}
}

// Entry returns what to ask node i to register.
func (l *Lists) Entry(i int, now clock.Steady) Enlisting {
	if _, refused := l.Refused(now); refused {
		return Enlisting{Members: l.known, Adds: !l.refusedBut(i, now), Keeps: l.used}
	}
	return Enlisting{Members: l.known &^ l.lacked(now), Adds: true, Keeps: true}
}

// lacked returns the nodes that a list in the way does not have.
func (l *Lists) lacked(now clock.Steady) (s Set) {
	for j := range l.nodes {
		if l.nodes[j].refused > now {
			s |= l.nodes[j].lacks
		}
	}
	return s
}

// refusedBut reports whether a node other than i refuses the list.
func (l *Lists) refusedBut(i int, now clock.Steady) bool {
	for j := range l.nodes {
		if j != i && l.nodes[j].refused > now {
			return true
		}
	}
	return false
}

// Record records the answer of node i to what it was asked at sent.
func (l *Lists) Record(i int, e Enlisting, sent, now clock.Steady, a Listed) {
	n := &l.nodes[i]
	whole := n.refused <= now || e.Members.With(i)&n.lacks != 0 // it asked for more than the nodes of both lists
	stood, at := n.has, n.at
	n.up, n.at, n.has = true, sent, 0
	if a.Renamed {
		stood = 0
		for j := range l.nodes {
			l.nodes[j].has, l.nodes[j].lacks = l.nodes[j].has.Without(i), l.nodes[j].lacks.Without(i)
		}
	}
	if !a.Known {
		l.known, n.refused = l.known.Without(i), 0
		return
	}
	l.known = l.known.With(i)
	lacks := a.Lacks
	if e.Members.With(i)&lacks == 0 { // to leave these out does not help
		lacks = All(len(l.nodes))
	}
	switch {
	case a.Refused > 0 && whole:
		n.refused, n.lacks = now.Add(a.Refused), lacks
	case a.Refused > 0: // by a third list
		n.refused, n.lacks = max(n.refused, now.Add(a.Refused)), n.lacks|lacks
	case whole:
		n.refused = 0
	}
	switch {
	case a.Refused > 0: // a refusal ends no registration
		n.has, n.at = stood&^n.lacks, at
	case a.Stands:
		n.has = e.Members.With(i)
	}
}

// Use records that the Manager asks for a lease.
func (l *Lists) Use() { l.used = true }

// Used reports whether the Manager has asked for a lease.
func (l *Lists) Used() bool { return l.used }

// Gone records that node i is not connected, or does not vote for another reason. Its last refusal stands until it
// ends. It returns whether the node took part before.
func (l *Lists) Gone(i int) (was bool) {
	was = l.nodes[i].up
	l.nodes[i].up, l.nodes[i].has = false, 0
	return was
}

// without returns the nodes that a list in the way does not have. The Manager does without them, or has no votes.
func (l *Lists) without(now clock.Steady) (lacked Set, ok bool) {
	lacked = l.lacked(now)
	return lacked, lacked&l.relied == 0 && len(l.nodes)-lacked.Len() >= Size(len(l.nodes))
}

// Refused returns a node that refuses the list, if that withholds all votes.
func (l *Lists) Refused(now clock.Steady) (i int, ok bool) {
	if _, ok := l.without(now); ok {
		return 0, false
	}
	for i := range l.nodes {
		if l.nodes[i].refused > now {
			return i, true
		}
	}
	return 0, false
}

// Lacked returns a node that refuses the list because of node i.
func (l *Lists) Lacked(i int, now clock.Steady) (by int, ok bool) {
	for j := range l.nodes {
		if l.nodes[j].refused > now && l.nodes[j].lacks.Has(i) {
			return j, true
		}
	}
	return 0, false
}

// Votes reports whether the votes of node i count. The Manager does not do without that node any more.
func (l *Lists) Votes(i int, now clock.Steady) bool {
	if lacked, ok := l.without(now); !ok || lacked.Has(i) || !l.nodes[i].up || !l.known.Has(i) {
		return false
	}
	for j := range l.nodes {
		n := &l.nodes[j]
		if n.up && l.known.Has(j) && (!n.has.Has(i) || now.Sub(n.at) > l.age) {
			return false
		}
	}
	if l.used {
		l.relied = l.relied.With(i)
	}
	return true
}

// Stale reports whether node i should be asked again now, because it lacks a node that
// the Manager has met since.
func (l *Lists) Stale(i int, now clock.Steady) bool {
	n, names := &l.nodes[i], l.known&^l.lacked(now)
	_, refused := l.Refused(now)
	return n.up && l.known.Has(i) && !refused && n.has != names|n.has
}

// Settled reports whether no node should be asked again now.
func (l *Lists) Settled(now clock.Steady) bool {
	for i := range l.nodes {
		if l.Stale(i, now) {
			return false
		}
	}
	return true
}
