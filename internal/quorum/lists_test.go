package quorum

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// disjoint reports whether a majority of one list and a majority of the other need not share a node, by trying all of
// them.
func disjoint(a, b, from, of Set) bool {
	for q := a & from; ; q = (q - 1) & a & from {
		if q.Len() >= Size(a.Len()) && (b&of&^q).Len() >= Size(b.Len()) {
			return true
		}
		if q == 0 {
			return false
		}
	}
}

func TestListsMayBeUsedBesideEachOtherIfTheirMajoritiesMeet(t *testing.T) {
	const nodes = 6
	for a := Set(1); a < 1<<nodes; a++ {
		for b := Set(1); b < 1<<nodes; b++ {
			want := !disjoint(a, b, a, b)
			if got := Beside(a.Len(), b.Len(), (a | b).Len()); got != want {
				t.Fatalf("%b beside %b: %v, want %v", a, b, got, want)
			}
		}
	}
	for n := 1; n < MaxNodes; n++ {
		if !Beside(n, n, n) || !Beside(n, n+1, n+1) || !Beside(n+1, n, n+1) {
			t.Errorf("%d nodes beside themselves and one more", n)
		}
		if n%2 == 1 && (Beside(n, n, n+1) || Beside(n, n+2, n+2)) {
			t.Errorf("%d nodes: one is replaced, or two are added, in one step", n)
		}
	}
}

// Times of the walk. An entry outlives what may rely on it: the age of a registration, and
// a lease.
const (
	walkLook  = 10 * time.Second
	walkAge   = 2 * walkLook
	walkLease = 15 * time.Second
	walkLife  = walkLease + 3*walkLook
)

// remembered is a list that a node of the walk remembers.
type remembered struct {
	size    int
	members Set // by the numbers of the world
	end     time.Duration
}

// listNode does what the operation list of the script does.
type listNode struct {
	down    bool
	entries []remembered
}

func (n *listNode) list(i int, size int, members Set, e Enlisting, now time.Duration) Listed {
	members = members.With(i)
	var kept []remembered
	var parts []int
	same := -1
	answer := Listed{Known: true}
	end := now + walkLife
	var inTheWay Set
	for _, other := range n.entries {
		switch both := (other.members | members).Len(); {
		case other.end <= now:
			continue
		case !Beside(size, other.size, both):
			if left := other.end - now; left > answer.Refused { // as the script, the list that ends last
				answer.Refused, inTheWay = left, other.members
			}
		case other.size == size && other.members == members:
			same = len(kept)
		case other.size == size && other.members&members == other.members:
			parts = append(parts, len(kept))
		}
		kept = append(kept, other)
	}
	adds := e.Adds && answer.Refused == 0
	if same >= 0 {
		parts = append(parts, same)
	}
	switch {
	case adds: // in place of its parts, and as long as the longest of them
		for _, i := range parts {
			end = max(end, kept[i].end)
		}
		kept = slices.DeleteFunc(kept, func(r remembered) bool { return r.size == size && r.members&members == r.members })
		kept = append(kept, remembered{size, members, end})
	case e.Keeps:
		for _, i := range parts {
			kept[i].end = max(kept[i].end, end)
		}
	}
	n.entries = kept
	answer.Stands = answer.Refused == 0 && (adds || e.Keeps && same >= 0)
	answer.Lacks = members &^ inTheWay // by the numbers of the world
	return answer
}

// listClient is a Manager of the walk.
type listClient struct {
	nodes []int // its list, by the numbers of the world
	lists *Lists
	ready bool          // every node of the list has answered or is down, as when New returns
	lease Set           // the nodes of its lease, by the numbers of the world; 0 for none
	end   time.Duration // of the lease, unless it is renewed
	met   Set           // nodes that it has been connected to since the lease was granted
	cut   Set           // nodes that it cannot reach
	slept time.Duration // until then the process stands still
}

// world translates nodes of the list into numbers of the world.
func (c *listClient) world(s Set) (w Set) {
	for i, n := range c.nodes {
		if s.Has(i) {
			w = w.With(n)
		}
	}
	return w
}

// own translates nodes of the world into numbers of the list.
func (c *listClient) own(w Set) (s Set) {
	for i, n := range c.nodes {
		if w.Has(n) {
			s = s.With(i)
		}
	}
	return s
}

func (c *listClient) up() (s Set) {
	for i := range c.nodes {
		if c.lists.nodes[i].up {
			s = s.With(i)
		}
	}
	return c.world(s)
}

// listWalk is one random history of clients and nodes.
type listWalk struct {
	t       *testing.T
	rng     *rand.Rand
	now     time.Duration
	nodes   []listNode
	clients []*listClient
	trace   []string
	grants  *[2]int // leases; those at the same time as another one
	lists   [][]int // of which each client has one
	kinds   int     // of steps: the more, the longer a client lives
}

func (w *listWalk) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%v ", w.now)+fmt.Sprintf(format, args...))
}

// reaches reports whether a client reaches node i of its list. Otherwise it notices.
func (w *listWalk) reaches(c *listClient, i int) bool {
	n := c.nodes[i]
	if !w.nodes[n].down && !c.cut.Has(n) {
		return true
	}
	c.lists.Gone(i)
	c.met = c.met.Without(n)
	return false
}

// greet asks nodes at one moment: each answer comes after the last question.
func (w *listWalk) greet(k int, c *listClient, nodes ...int) {
	entries, answers := map[int]Enlisting{}, map[int]Listed{}
	for _, i := range nodes {
		if w.reaches(c, i) {
			entries[i] = c.lists.Entry(i, clock.Steady(w.now))
		}
	}
	for i, e := range entries {
		answers[i] = w.nodes[c.nodes[i]].list(c.nodes[i], len(c.nodes), c.world(e.Members), e, w.now)
	}
	for _, i := range nodes {
		if e, ok := entries[i]; ok {
			a := answers[i]
			a.Lacks = c.own(a.Lacks)
			c.lists.Record(i, e, clock.Steady(w.now), clock.Steady(w.now), a)
			w.note("client %d %v asks node %d: %+v is %+v", k, c.nodes, c.nodes[i], e, answers[i])
		}
	}
}

// look greets every node, in any order, some of them at one moment.
func (w *listWalk) look(k int, c *listClient) {
	order := w.rng.Perm(len(c.nodes))
	for len(order) > 0 {
		some := 1 + w.rng.IntN(len(order))
		w.greet(k, c, order[:some]...)
		order = order[some:]
		if w.rng.IntN(4) == 0 {
			w.acquire(k, c)
		}
	}
	c.ready = true
	for again := true; again; {
		again = false
		for i := range c.nodes {
			if c.lists.Stale(i, clock.Steady(w.now)) && w.reaches(c, i) {
				w.greet(k, c, i)
				again = true
			}
		}
		if w.rng.IntN(4) == 0 {
			w.acquire(k, c)
		}
	}
}

// votes returns the nodes whose votes count and which are not locked by another client.
func (w *listWalk) votes(c *listClient) (s Set) {
	for i, n := range c.nodes {
		if !w.reaches(c, i) || !c.lists.Votes(i, clock.Steady(w.now)) {
			continue
		}
		free := true
		for _, other := range w.clients {
			free = free && (other == c || !other.lease.Has(n) || other.end <= w.now)
		}
		if free {
			s = s.With(n)
		}
	}
	return s
}

// acquire grants a lease on votes of a majority, which locks these nodes. The judge
// compares it with the other leases: nodes exclude each other's, so only lists can fail.
func (w *listWalk) acquire(k int, c *listClient) {
	if !c.ready {
		return
	}
	c.lists.Use()
	votes := w.votes(c)
	if votes.Len() < Size(len(c.nodes)) {
		return
	}
	c.lease, c.end, c.met = votes, w.now+walkLease, c.up()
	w.grants[0]++
	w.note("client %d has a lease on %b", k, votes)
	for j, other := range w.clients {
		if other == c || other.lease == 0 || other.end <= w.now {
			continue
		}
		w.grants[1]++ // in two parts of a network
		if both := other.met & c.met; both != 0 {
			w.t.Fatalf("clients %d and %d hold the lease, and both know %b:\n%s", k, j, both, strings.Join(w.trace, "\n"))
		}
	}
}

// step lets time pass. Clients that live look at their nodes every ten seconds, and renew
// their leases.
func (w *listWalk) step() {
	w.now += time.Duration(w.rng.IntN(4000)) * time.Millisecond
	k := w.rng.IntN(len(w.clients))
	c := w.clients[k]
	if c.slept > w.now {
		return
	}
	switch w.rng.IntN(w.kinds) {
	case 0: // another process, with any list
		w.clients[k] = w.newClient()
		w.note("client %d is another, with %v", k, w.clients[k].nodes)
	case 1:
		n := &w.nodes[w.rng.IntN(len(w.nodes))]
		n.down = !n.down && w.rng.IntN(3) == 0
	case 2:
		c.lease = 0
	case 3, 4, 5:
		w.acquire(k, c)
	case 6: // one node is dialled again
		w.greet(k, c, w.rng.IntN(len(c.nodes)))
	case 7:
		c.cut ^= Set(0).With(w.rng.IntN(len(w.nodes)))
	case 8:
		c.cut = 0
	case 9:
		if w.rng.IntN(4) == 0 {
			c.slept = w.now + time.Duration(w.rng.Int64N(int64(2*walkLife)))
		}
	default:
		w.look(k, c)
	}
	for k, c := range w.clients {
		if c.slept <= w.now {
			w.tend(k, c)
		}
	}
}

// tend is what a client does by itself: it looks at its nodes, and renews its lease.
func (w *listWalk) tend(k int, c *listClient) {
	due, slept := false, c.slept != 0
	c.slept = 0
	if slept && w.rng.IntN(2) == 0 {
		w.acquire(k, c) // the first of its goroutines that continues
	}
	for i := range c.nodes {
		if l := &c.lists.nodes[i]; w.reaches(c, i) && c.ready && (!l.up || clock.Steady(clock.Steady(w.now).Sub(l.at)) > clock.Steady(walkLook)) {
			due = true
		}
	}
	if due {
		w.look(k, c)
	}
	if c.lease == 0 || c.end <= w.now {
		return
	}
	reached := Set(0)
	for i, n := range c.nodes {
		if c.lease.Has(n) && w.reaches(c, i) {
			reached = reached.With(n)
		}
	}
	if reached.Len() >= Size(len(c.nodes)) {
		c.end = w.now + walkLease // renewals are not withheld
	}
}

func (w *listWalk) newClient() *listClient {
	nodes := w.lists[w.rng.IntN(len(w.lists))]
	return &listClient{nodes: nodes, lists: NewLists(len(nodes), walkAge)}
}

// The leases of two lists share a node if the lists exclude each other and both clients
// know one node.
func TestListsKeepTheirLawsOnRandomWalks(t *testing.T) {
	for _, c := range []struct {
		seeds        uint64
		steps, kinds int
		lists        [][]int
	}{
		{3000, 60, 14, [][]int{{0, 1, 2}, {0, 1, 3}, {0, 1, 2, 3}, {0, 1, 2, 3, 4}, {1, 2, 3}, {2, 3, 4}, {0}, {0, 1}}},
		{1500, 400, 60, [][]int{{0, 1, 2}, {0, 1, 3}}}, // leases that outlive what is not prolonged
	} {
		var grants [2]int
		for seed := range c.seeds {
			w := &listWalk{t: t, rng: rand.New(rand.NewPCG(seed, 1)), nodes: make([]listNode, 5), grants: &grants, lists: c.lists, kinds: c.kinds}
			for range 3 {
				w.clients = append(w.clients, w.newClient())
			}
			w.note("seed %d", seed)
			for range c.steps {
				w.step()
			}
		}
		t.Logf("leases %d, of these beside another one without a common node %d", grants[0], grants[1])
		if grants[0] < 10_000 || grants[1] < 10 {
			t.Errorf("the walks grant too little to show anything: %v", grants)
		}
	}
}

func TestListsAreApartByTheServersThatAreKnown(t *testing.T) {
	abc := []string{"a", "b", "c"}
	for _, c := range []struct {
		m      int
		others []string
		apart  bool
	}{
		{3, abc, false}, {3, []string{"c", "a"}, false}, {3, []string{"c", "d"}, true}, {3, []string{"c"}, false},
		{3, []string{"c", "d", "e"}, true}, {4, []string{"a", "b", "c", "d"}, false}, {1, []string{"a"}, true}, {5, []string{"a", "b", "c", "d", "e"}, true},
		{5, []string{"a", "b", "d", "e", "f"}, true},
	} {
		if Apart(3, abc, c.m, c.others) != c.apart {
			t.Errorf("%v of %d: want %v", c.others, c.m, c.apart)
		}
	}
}

func TestARivalIsAListThatIsProlonged(t *testing.T) {
	var r Rivals
	at := func(seconds int) clock.Steady { return clock.Steady(time.Duration(seconds) * time.Second) }
	ends := func(pairs map[string]int) map[string]clock.Steady {
		all := map[string]clock.Steady{}
		for text, end := range pairs {
			all[text] = at(end)
		}
		return all
	}
	for _, step := range []struct {
		shown map[string]int
		want  string
	}{
		{map[string]int{"b": 30}, ""},
		{map[string]int{"b": 30}, ""},
		{map[string]int{"b": 34, "a": 30}, ""}, // prolonged by a client that has not seen a restart yet
		{map[string]int{"b": 44, "a": 30}, "b"},
		{map[string]int{"b": 44, "a": 40}, "a"},
		{map[string]int{"b": 44}, "b"},
		{nil, ""},
		{map[string]int{"b": 90}, ""}, // it begins anew
	} {
		if got := r.Look(ends(step.shown)); got != step.want {
			t.Errorf("%v: %q, want %q", step.shown, got, step.want)
		}
	}
}
