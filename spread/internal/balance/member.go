package balance

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// State says what a member does with a name.
type State int

// The states of a job.
const (
	Taking  State = iota // it tries to get the free name
	Asking               // it waits for the name, and asks the holder if that would keep it
	Running              // the function runs under a valid lease
	Ending               // the function must return; then the lease is released
	Lost                 // the lease is lost, and the function has not returned yet
	states
)

// job is a name for which the member has a goroutine. Until it ends, the member looks at the name only in Asking.
type job struct {
	name  string
	state State
	since time.Duration // of the state
	// While Asking:
	from  string        // the ID of the holder
	freed bool          // the holder was about to release the name, and was not asked
	batch int           // asks of one round have one number
	until time.Duration // the end of the wait
	// While Running:
	text    string        // the last ask
	arrived time.Duration // when it was first seen
}

// Command is something that the member must do.
type Command struct {
	Kind Kind
	Name string
	Text string // of Ask: what to tell the holder
}

// Kind is a kind of command.
type Kind int

// The kinds of commands.
const (
	Take  Kind = iota // acquire the name without a wait, and run its function
	Ask               // queue for the name, tell its holder the text after Rules.AskAfter, and run its function
	Await             // queue for the name, whose holder is about to release it, and run its function
	Leave             // end the wait for the name that was asked for
	Deaf              // report that a holder gives nothing; Name is its ID
)

// Answer is what a holder does when its name is wanted.
type Answer int

// The answers.
const (
	Ignore  Answer = iota
	Consent        // end the function; the name goes to the waiter
	Remark         // tell the others that the name is about to be free: ask for the own name with Mark
)

// Member is a member of a group. It is not safe for concurrent use. Instants are the time since any fixed one, and
// never go back.
type Member struct {
	rules  Rules
	id     string
	chance *rand.Rand

	names    []string // the list
	listed   map[string]bool
	relisted bool // the list has changed since the last tick

	jobs  map[string]*job
	count [states]int // jobs by state
	given int

	present bool
	since   time.Duration // the last change of present

	members int
	left    time.Duration // the last tick that counted fewer members than the one before
	shares  int           // how many names it had or had asked for after the last tick
	ticks   int

	seen   map[string]*sight        // the last look at each name
	again  map[string]time.Duration // names to look at again, and when
	round  *round                   // nil between rounds
	rounds int                      // since the last change
	due    time.Duration            // of the next round; never without one
	ended  time.Duration            // the last round
	gap    time.Duration            // between rounds
	batch  int                      // of asks
	sweep  int                      // the index of the next name
	peers  map[string]*peer
}

// never is later than every instant.
const never = time.Duration(1<<63 - 1)

// New returns a member without names.
func New(id string, rules Rules, chance *rand.Rand) *Member {
	return &Member{
		rules: rules, id: id, chance: chance, jobs: map[string]*job{}, listed: map[string]bool{}, seen: map[string]*sight{},
		again: map[string]time.Duration{}, peers: map[string]*peer{}, due: never, ended: -never / 2, left: -never / 2, gap: rules.Gap,
	}
}

// SetNames replaces the list. It returns the names whose functions and waits must end; with no names, when the member leaves,
// all of them.
func (m *Member) SetNames(now time.Duration, names []string) (end []string) {
	before := m.listed
	m.listed = make(map[string]bool, len(names))
	m.names = make([]string, 0, len(names))
	for _, name := range names {
		if !m.listed[name] {
			m.listed[name] = true
			m.names = append(m.names, name)
		}
		m.relisted = m.relisted || !before[name]
	}
	// The sweep goes through the names in this order: members that start together look at different ones.
	m.chance.Shuffle(len(m.names), func(i, k int) { m.names[i], m.names[k] = m.names[k], m.names[i] })
	for name := range before {
		if m.listed[name] {
			continue
		}
		m.relisted = true
		delete(m.seen, name)
		delete(m.again, name)
		if j := m.jobs[name]; j != nil && j.state != Lost && j.state != Ending {
			m.move(now, j, Ending)
			end = append(end, name)
		}
	}
	slices.Sort(end)
	return end
}

// move changes the state of a job.
func (m *Member) move(now time.Duration, j *job, to State) {
	m.count[j.state]--
	m.count[to]++
	j.state, j.since = to, now
}

// start adds a job.
func (m *Member) start(now time.Duration, name string, state State) *job {
	j := &job{name: name, state: state, since: now}
	m.jobs[name] = j
	m.count[state]++
	delete(m.again, name)
	delete(m.seen, name)
	return j
}

// Share returns how many names it has, and is about to have.
func (m *Member) Share() int { return m.count[Taking] + m.count[Asking] + m.count[Running] }

// bounds returns the least and the most names that a member should have.
func (m *Member) bounds() (lo, hi int) {
	n, all := len(m.names), max(m.members, 1)
	return n / all, (n + all - 1) / all
}

// Members returns how many members were last counted, and 0 before.
func (m *Member) Members() int { return m.members }

// Given returns how many names it has given away to members that asked.
func (m *Member) Given() int { return m.given }

// Presence tells the member whether its own presence is held.
func (m *Member) Presence(now time.Duration, held bool) {
	if m.present == held {
		return
	}
	m.present, m.since = held, now
	if !held {
		clear(m.seen) // a name that was free before may have been taken and be free again
	}
}

// settled reports whether the member may take names.
func (m *Member) settled(now time.Duration) bool { return m.present && now-m.since >= m.rules.Settle }

// Waits reports whether the member still waits for a name that it asks for.
func (m *Member) Waits(name string) bool {
	j := m.jobs[name]
	return j != nil && j.state == Asking
}

// Granted tells the member that a lease was granted. It returns false if the function must not begin.
func (m *Member) Granted(now time.Duration, name string) bool {
	j := m.jobs[name]
	if j == nil || j.state != Taking && j.state != Asking {
		return false
	}
	delete(m.peers, j.from) // the holder that was asked listens
	m.move(now, j, Running)
	return true
}

// Lost tells the member that the lease of a name is lost. Its function may still run.
func (m *Member) Lost(now time.Duration, name string) {
	if j := m.jobs[name]; j != nil {
		m.move(now, j, Lost)
	}
}

// Ended tells the member that the goroutine of a name has ended: its function has returned, or the name was not
// acquired.
func (m *Member) Ended(now time.Duration, name string) {
	j := m.jobs[name]
	if j == nil {
		return
	}
	m.count[j.state]--
	delete(m.jobs, name)
	if m.listed[name] {
		m.again[name] = now + m.rules.Gap // to see whether the waiter got it
	}
}

// Wanted tells the holder of a name how many wait for it, and the text of the last ask. While a function has not
// returned, the edge repeats the call Rules.MarkAfter after the end of its context, and then each Rules.MarkEvery.
func (m *Member) Wanted(now time.Duration, name string, waiters int, text string) Answer {
	j := m.jobs[name]
	switch {
	case j == nil:
		return Ignore
	case j.state == Ending && text != Mark && now-j.since >= m.rules.MarkAfter:
		return Remark
	case j.state != Running:
		return Ignore
	}
	p, ok := parseAsk(text)
	if !ok || strings.HasSuffix(text, " "+m.id) { // its own ask, which comes late: it already has the name
		return Ignore
	}
	if text != j.text {
		j.text, j.arrived = text, now
	}
	// An asker that has gone leaves its text behind, which counts for one wait.
	if waiters == 0 || now-j.arrived > m.rules.Wait || m.count[Running] < p+2 {
		return Ignore
	}
	m.move(now, j, Ending)
	m.given++
	return Consent
}
