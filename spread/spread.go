// Package spread runs a function for each of N names, spread evenly over the processes of a group: shards of a queue,
// partitions, tenants. Each name is a lease, so that one process runs it at a time, and a name of a process that died
// goes to another one.
//
//	member := spread.New(m, spread.Config{Group: "orders", Names: shards, Func: consume})
//	err := member.Run(ctx) // until ctx ends
//
// # What it promises
//
// No two functions of a name run under valid leases; for what a lease promises see package quorumlock. A function that
// ignores the end of its context, or whose process was stopped, may overlap with its successor, whose fencing token is
// larger: pass the token on to what it writes to.
//
// With a TTL of 5 s or more and up to some hundred names ([ADR 65] has the figures):
//
//   - Even shares: within two TTL after a member has come or gone, or the list has changed, the members' numbers of names
//     differ by one at most. A function that does not return when its context ends delays that until it returns. A
//     client outside the group that holds names and gives none away makes it three TTL.
//   - Few moves: a member that joins takes its share and one name more at most. Names do not move while nothing changes.
//   - Short gaps: a name that moves has a runner again within milliseconds of the return of its function. A name of a
//     member that leaves waits for the next look of the others, each 0.75 s, and milliseconds if its function takes
//     longer than that to return. A name of a member that dies waits for the end of its lease.
//
// A member asks for 64 names at a time: one that joins a group with 10,000 names on ten members needs six TTL. Members
// whose lists differ run every name of any list.
//
// # How it works
//
// There is no leader and no table. A member counts the members, sees who holds which name, takes free names until it has
// its share, and asks the richest member for one of its names by [quorumlock.Manager.AskRelease]; that one gives it away
// while it has at least two more. [ADR 65] has the rules.
//
// The members of a group need the same nodes and prefix, and should have the same TTL and list. Who runs what is shown
// by [quorumlock.Manager.List] for the prefix "GROUP/": the label of a holder begins with the member's Label. The lock
// "GROUP/" itself is shared by the members.
//
// At rest, a member costs a node up to 2 reads a second, and each name the renewals of its lease. After a change, each member
// looks at all names: with M members and N names beyond 50,000 for M·N, use several groups. A Manager with
// [quorumlock.WithMaxHold] or [quorumlock.WithoutRenewal] loses each name after that time, and a member takes it again.
//
// [ADR 65]: https://github.com/quorumlock/quorumlock/blob/main/docs/adr/0065-members-take-what-is-free-and-ask-the-richest.md
package spread

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/spread/internal/balance"
)

// Config configures a Member.
type Config struct {
	// Group names the group: at most 128 bytes of UTF-8 without "/". The lock of a name is "GROUP/NAME".
	Group string
	// Names is the first list: at most 10,000 names of 1 to 383 bytes of UTF-8. Duplicates are dropped.
	Names []string
	// Func is the work for one name, and runs in a goroutine of its own. It must return when ctx ends: the lease is kept
	// until then. The cause of ctx says why it ends. If Func returns earlier, with or without an error, it is called again
	// under the same lease: after 1 s, doubled up to 1 min, and 1 s again after a run of 1 min. A panic ends the process.
	Func func(ctx context.Context, l *quorumlock.Lease, name string) error
	// TTL is the TTL of the leases: default 10 s, at least 3 s, the same in all members.
	TTL time.Duration
	// Label names the member for people, at most 128 bytes of UTF-8. Default host/pid. Equal labels do no harm.
	Label string
	// Log gets at Warn: an error of the nodes, once a minute; a name whose lease was lost; a Func that returned before its
	// context ended; a member that hands over no names when it is asked. At Debug: which names come and go. Default
	// slog.Default().
	Log *slog.Logger
}

// Member is a member of a group. It is safe for concurrent use.
type Member struct {
	m     *quorumlock.Manager
	cfg   Config
	wrong error // what is wrong with cfg
	id    string
	rules balance.Rules
	began time.Time // instants of the core count from here

	mu      sync.Mutex
	core    *balance.Member                    // guarded by mu
	started bool                               // guarded by mu
	ends    map[string]context.CancelCauseFunc // end a function, or a wait; guarded by mu
	own     map[string]*NameStatus             // names whose functions run; guarded by mu
	tally   Status                             // Failures and LastError; guarded by mu
	warned  time.Time                          // the last warning about the nodes; guarded by mu

	names sync.WaitGroup // the goroutines of names
}

// Status is the state of a member.
type Status struct {
	// ID is the label under which its leases are shown: Config.Label, "#" and a random number of this Member.
	ID string
	// Members is how many members were counted at the last look; 0 before.
	Members int
	// Names are the names whose functions run here, in their order.
	Names []NameStatus
	// GivenAway is how many names the member has given to others that asked, since Run began.
	GivenAway int
	// Failures is how often a function has returned before its context ended, and the nodes could not be asked, since Run
	// began. LastError is the last of these errors, at LastErrorAt; nil and zero before.
	Failures    int
	LastError   error
	LastErrorAt time.Time
}

// NameStatus is the state of a name that a member runs.
type NameStatus struct {
	Name   string
	Token  int64     // the fencing token of the lease
	Since  time.Time // of the lease
	Ending bool      // the function's context has ended
	// Failures is how often the function has returned early under this lease, and LastError says why.
	Failures  int
	LastError error
}

// New returns a member, which does nothing before Run. Run returns what is wrong with cfg.
func New(m *quorumlock.Manager, cfg Config) *Member {
	s := &Member{m: m, cfg: cfg, began: time.Now(), ends: map[string]context.CancelCauseFunc{}, own: map[string]*NameStatus{}}
	if s.cfg.TTL == 0 {
		s.cfg.TTL = 10 * time.Second
	}
	if s.cfg.Label == "" {
		host, _ := os.Hostname() // without it, the label is the process alone
		s.cfg.Label = fmt.Sprintf("%.100s/%d", host, os.Getpid())
	}
	if s.cfg.Log == nil {
		s.cfg.Log = slog.Default()
	}
	s.wrong = s.cfg.check(m)
	var number [4]byte
	_, _ = rand.Read(number[:]) // never fails
	s.id = s.cfg.Label + "#" + hex.EncodeToString(number[:])
	s.rules = balance.Default(s.cfg.TTL)
	s.core = balance.New(s.id, s.rules, mathrand.New(mathrand.NewPCG(mathrand.Uint64(), mathrand.Uint64())))
	if s.wrong == nil {
		s.core.SetNames(0, s.cfg.Names)
	}
	return s
}

// now is the instant of the core. It is read under mu, so that instants do not go back.
func (s *Member) now() time.Duration { return time.Since(s.began) }

// SetNames replaces the list, at any time, also before Run. Functions of names that are no longer listed end; new
// names are taken within seconds. A bad list is ErrInvalid (an *quorumlock.InvalidError), and changes nothing.
//
// Change the lists of all members at about the same time. Meanwhile, a name that only some of them list runs in one of
// these.
func (s *Member) SetNames(names []string) error {
	if err := checkNames(names); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range s.core.SetNames(s.now(), names) {
		s.end(name, errUnlisted)
	}
	return nil
}

// end ends the function or the wait of a name. The caller holds mu.
func (s *Member) end(name string, cause error) {
	if end := s.ends[name]; end != nil {
		end(cause)
	}
	if own := s.own[name]; own != nil {
		own.Ending = true
	}
}

// Status returns the state of the member, from memory.
func (s *Member) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.tally
	status.ID, status.Members, status.GivenAway = s.id, s.core.Members(), s.core.Given()
	for _, own := range s.own {
		status.Names = append(status.Names, *own)
	}
	slices.SortFunc(status.Names, func(a, b NameStatus) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return status
}
