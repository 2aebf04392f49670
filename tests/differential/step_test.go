package differential

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/sim"
)

// The settings that all operations of a list share.
const (
	ttl   = 900 * time.Millisecond
	grace = 150 * time.Millisecond
	ahead = 2 * time.Second
)

// The clients of a list. Each has its own owner values and tickets.
const (
	clients = 4
	owners  = 3
	tickets = 2
	limits  = 3 // permits
)

// mode is the subject of a list.
type mode uint8

const (
	writers mode = iota
	readers      // and writers
	permits
	lone // writers that never wait: the script for one operation declines while the prefix has a queue
)

func (m mode) String() string { return [...]string{"writers", "readers", "permits", "lone writers"}[m] }

// token is the choice of the token that an operation names.
type token uint8

const (
	fresh    token = iota // from the time of the list, and the delta
	shown                 // the lock's token
	register              // the register's value, and the delta
)

// step is one operation, and the events before it. Its numbers stay the same when other steps are removed from the
// list.
type step struct {
	sim.Operation
	wait  time.Duration
	ends  bool // the process of the client ends first
	lean  bool // by the script for one operation, if it can
	token token
	delta int64
	late  bool
	held  bool // heal: while the lost lock would live
	aims  int  // above 0: the operation is about an owner or a ticket that the keys show, if there is one
}

func (s step) String() string {
	var b strings.Builder
	if s.wait > 0 {
		fmt.Fprintf(&b, "after %v ", s.wait)
	}
	if s.ends {
		fmt.Fprintf(&b, "client %d ends; ", s.Client)
	}
	o := s.Operation
	fmt.Fprintf(&b, "%s owner %d", o.Name, o.Owner)
	for _, f := range []struct {
		name string
		on   bool
	}{
		{fmt.Sprintf("from %d", o.From), o.From != 0},
		{fmt.Sprintf("ticket %d at %d", o.Ticket, o.Place), o.Ticket != 0},
		{fmt.Sprintf("slot %d of %d", o.Slot, o.Limit), o.Limit != 0},
		{fmt.Sprintf("token %s%+d", [...]string{"", "shown", "register"}[s.token], s.delta), o.Name != "release"},
		{"late", s.late},
		{"held", s.held},
		{"lapsed", o.Lapsed},
		{"stays", o.Stays},
		{"yields", o.Yields},
		{"leaves free", o.LeavesFree},
		{"deaf", o.Deaf},
		{"knows another marker", o.OtherMarker},
		{"lean", s.lean},
	} {
		if f.on {
			b.WriteString(", " + f.name)
		}
	}
	return b.String()
}

// names are the operations of each mode, repeated by their frequency.
var names = map[mode][]string{
	writers: strings.Fields(`acquire acquire lean anew wait wait wait wait extend extend heal raise release release leave leave leave
		pass pass ask detach detach resume resume back drop revoke`),
	readers: strings.Fields(`acquire lean anew wait wait share share share share share share prolong prolong restore align quit quit quit
		extend heal raise release leave leave pass ask detach resume drop revoke`),
	permits: strings.Fields(`permit permit permit permit permit permit extend heal raise release leave leave leave pass pass revoke`),
	lone:    strings.Fields(`acquire acquire acquire lean lean anew extend heal raise release release`),
}

// draw draws a list.
func draw(r *rand.Rand, m mode, steps int) []step {
	all := make([]step, steps)
	for i := range all {
		all[i] = drawStep(r, m)
	}
	return all
}

func drawStep(r *rand.Rand, m mode) step {
	client := r.IntN(clients)
	s := step{token: token(r.IntN(3)), delta: []int64{0, 0, 2, -2, 200_000, 5_000_000}[r.IntN(6)]}
	s.Client, s.Name = client, names[m][r.IntN(len(names[m]))]
	s.Owner = owner(r, client)
	switch r.IntN(8) {
	case 0:
		s.wait = time.Duration(r.Int64N(int64(ttl)))
	case 1, 2:
		s.wait = time.Duration(r.Int64N(int64(grace)))
	}
	s.late, s.OtherMarker, s.ends, s.lean = r.IntN(16) == 0, r.IntN(16) == 0, r.IntN(40) == 0, r.IntN(4) == 0
	s.Deaf = r.IntN(20) == 0
	s.aims = max(0, r.IntN(16)-6)
	s.lean = s.lean || m == lone
	switch s.Name {
	case "wait", "share", "leave", "quit", "pass", "permit":
		s.ticket(r, m)
	}
	if s.Name == "extend" || s.Name == "prolong" {
		s.token, s.delta = shown, s.delta*int64(r.IntN(2))
	}
	switch s.Name {
	case "heal", "restore":
		s.held = r.IntN(2) == 0
	case "detach":
		s.Life = ttl/2 + time.Duration(r.IntN(4))*ttl/2
	case "revoke":
		s.Life = ttl / 4 * time.Duration(1+r.IntN(8))
	case "resume", "back":
		s.From = owner(r, r.IntN(clients))
	case "leave", "quit":
		if s.Ticket != 0 {
			s.Stays, s.Yields, s.LeavesFree = ending(r, m)
		}
	}
	if m == permits {
		s.Slot, s.Limit = r.IntN(limits), limits
		if client == 0 {
			s.Limit, s.Slot = limits-1, min(s.Slot, limits-2) // it has not learned of a change of the limit
		}
	}
	return s
}

func owner(r *rand.Rand, client int) uint32 { return uint32(10*(client+1) + r.IntN(owners)) }

// ticket draws a ticket. Each ticket keeps one place, and waits for one kind of lease.
func (s *step) ticket(r *rand.Rand, m mode) {
	reads := s.Name == "share" || s.Name == "quit"
	if (s.Name == "share" || s.Name == "quit" || s.Name == "permit" || s.Name == "leave") && r.IntN(4) == 0 {
		if s.Name != "leave" {
			return
		}
	}
	k := r.IntN(tickets)
	if m == readers && s.Name == "pass" {
		reads = r.IntN(2) == 0
	}
	s.Ticket = uint32(1000 + 100*s.Client + 2*k)
	if reads {
		s.Ticket++
	}
	s.Place = placeOf(s.Ticket)
	s.Lapsed = (s.Name == "wait" || s.Name == "share" || s.Name == "permit") && r.IntN(8) == 0
}

// placeOf returns when the call of a ticket began, µs: later tickets may have earlier places.
func placeOf(ticket uint32) int64 { return 1_700_000_000_000_000 + int64(ticket*7919%1009) }

// ending draws the fate of a release's ticket.
func ending(r *rand.Rand, m mode) (stays, yields, leavesFree bool) {
	switch r.IntN(5) {
	case 0:
		return true, false, false
	case 1:
		return true, true, false
	case 2:
		return r.IntN(2) == 0, false, m != permits
	}
	return false, false, false
}
