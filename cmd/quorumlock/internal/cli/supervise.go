package cli

import (
	"cmp"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/quorumlock/quorumlock"
)

// held is the part of a lease that the supervisor needs.
type held interface {
	Remaining() time.Duration
	Done() <-chan struct{}
	AtRisk() <-chan quorumlock.AtRisk
	Renewed() <-chan quorumlock.Renewed
	Wanted() <-chan quorumlock.Wanted
}

// leases are several leases that a command runs under. An event of one of them is an event of all.
type leases struct {
	taken
	atRisk  chan quorumlock.AtRisk  // capacity 1, nothing dropped while the leases are held, never closed
	renewed chan quorumlock.Renewed // the same
	wanted  chan quorumlock.Wanted  // the same
}

// heldBy returns leases for the supervisor. A single lease is returned unchanged.
func heldBy(all taken) held {
	if one := all.All(); len(one) == 1 {
		return one[0]
	}
	l := leases{all, make(chan quorumlock.AtRisk, 1), make(chan quorumlock.Renewed, 1), make(chan quorumlock.Wanted, 1)}
	for _, one := range all.All() {
		go forward(all, one.AtRisk(), l.atRisk)
		go forward(all, one.Renewed(), l.renewed)
		go forward(all, one.Wanted(), l.wanted)
	}
	return l
}

// forward passes on the events of one lease, until the leases end.
func forward[T any](all taken, from <-chan T, to chan<- T) {
	for e := range from {
		select {
		case to <- e:
		case <-all.Done():
		}
	}
}

// AtRisk delivers the warnings of each lease.
func (l leases) AtRisk() <-chan quorumlock.AtRisk { return l.atRisk }

// Renewed delivers the renewals of each lease.
func (l leases) Renewed() <-chan quorumlock.Renewed { return l.renewed }

// Wanted delivers who wants each lease.
func (l leases) Wanted() <-chan quorumlock.Wanted { return l.wanted }

// group is the part of a process group that the supervisor needs.
type group interface {
	End(syscall.Signal)    // TERM or KILL
	Pass(syscall.Signal)   // a signal that this process has received
	Done() <-chan struct{} // the command itself has ended
	Alive() bool           // some process of the group runs
	Resume()
}

// phase is how far the end of a group has progressed. It only moves forward.
type phase int

const (
	phaseRunning phase = iota + 1
	phaseTerminating
	phaseKilling
)

const (
	poll    = 5 * time.Millisecond   // between two checks whether a group is dead
	maxLook = 250 * time.Millisecond // between two checks of the lease, because a clock may jump
	giveUp  = 5 * time.Second        // after KILL: this user cannot kill what remains
)

// supervisor keeps a process group within a lease: the group is dead before the
// lease ends.
type supervisor struct {
	name    string
	what    string // before the name of a lease that isn't exclusive
	nodes   int
	lease   held
	group   group
	grace   time.Duration // left of the lease at TERM
	margin  time.Duration // left of the lease at KILL
	yields  bool          // the command is stopped when another client asks for the lease
	signals <-chan os.Signal
	note    func(format string, args ...any)

	phase  phase
	termAt time.Time
	killAt time.Time
	ended  bool            // the command itself has ended
	noted  bool            // that another client asks for the lease
	lost   bool            // the group was stopped because of the lease
	risky  map[string]bool // names with a standing warning
	causes string          // what was wrong with the nodes at the last warning
}

// run returns when no process of the group runs any more. It reports whether the
// group was stopped because the lease was lost or about to be.
func (s *supervisor) run() (lost bool) {
	s.phase, s.risky = phaseRunning, map[string]bool{}
	done, over := s.group.Done(), s.lease.Done()
	atRisk, renewed, wanted := s.lease.AtRisk(), s.lease.Renewed(), s.lease.Wanted()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-done:
			done, s.ended = nil, true
		case <-over:
			over = nil
		case e, ok := <-atRisk:
			if !ok {
				atRisk = nil
			}
			s.warn(e, ok)
		case e, ok := <-renewed:
			if !ok {
				renewed = nil
			}
			s.calm(e, ok)
		case e, ok := <-wanted:
			if !ok {
				wanted = nil
			}
			s.asked(e)
		case signal := <-s.signals:
			s.pass(signal)
		case <-timer.C:
		}
		if s.ended && !s.group.Alive() || s.hopeless() {
			return s.lost
		}
		timer.Reset(s.step())
	}
}

// step takes the due action, and returns when to check again.
func (s *supervisor) step() time.Duration {
	left := s.lease.Remaining()
	if s.phase == phaseRunning {
		s.lost = left <= max(s.grace, s.margin) && !s.ended
		if s.lost || s.ended { // processes that the command left behind end with it
			s.terminate(left)
		}
	}
	if s.phase == phaseTerminating && (left <= s.margin || time.Since(s.termAt) >= s.grace) {
		s.phase, s.killAt = phaseKilling, time.Now()
		s.lost = s.lost || left <= s.margin && !s.ended // also of a command that was asked to stop before
	}
	switch s.phase {
	case phaseKilling:
		s.group.End(syscall.SIGKILL)
		return poll
	case phaseTerminating:
		next := min(left-s.margin, s.grace-time.Since(s.termAt), maxLook)
		if s.ended {
			next = min(next, poll)
		}
		return max(next, 0)
	default:
		return min(max(left-max(s.grace, s.margin), 0), maxLook)
	}
}

// terminate asks the group to end. That is final: a command that was asked to stop is killed after the grace, even if
// the lease recovers.
func (s *supervisor) terminate(left time.Duration) {
	s.phase, s.termAt = phaseTerminating, time.Now()
	switch {
	case s.lost && left == 0: // revoked, for example; the error of the lease says why
		s.note("%s is lost: the command is stopped", s.name)
	case s.lost:
		s.note("%s is not renewed, %v left: the command is stopped%s", s.name, left.Round(time.Millisecond), s.causes)
	}
	if s.grace > 0 {
		s.group.End(syscall.SIGTERM)
	}
}

// hopeless reports that the rest of the group does not die by KILL, because it runs as another user. For the command
// itself it waits without a limit.
func (s *supervisor) hopeless() bool {
	if s.phase != phaseKilling || !s.ended || time.Since(s.killAt) < giveUp {
		return false
	}
	s.note("processes of the command still run after KILL, perhaps as another user: look for them with ps")
	return true
}

// pass sends a signal on to the group, except for the signals of job control.
func (s *supervisor) pass(signal os.Signal) {
	number, _ := signal.(syscall.Signal)
	switch number {
	case signalStop:
		s.note("a command that holds a lock is not suspended: it continues")
	case signalContinue:
		s.group.Resume()
	default:
		s.group.Pass(number)
	}
}

// asked notes once that another client has asked for the lease, and stops the command if it yields.
func (s *supervisor) asked(e quorumlock.Wanted) {
	if !e.Asked || s.noted {
		return
	}
	s.noted = true
	s.note("%s is asked for by %s", s.name, askedBy(e))
	if s.yields && s.phase == phaseRunning {
		s.terminate(s.lease.Remaining())
	}
}

// askedBy names the client that asks, and its reason.
func askedBy(e quorumlock.Wanted) string {
	text := cmp.Or(e.By, "another client")
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// warn notes once that a lease is at risk.
func (s *supervisor) warn(e quorumlock.AtRisk, ok bool) {
	if !ok {
		return
	}
	s.causes = causes(e.Nodes)
	if s.risky[e.Name] {
		return
	}
	s.risky[e.Name] = true
	s.note("%s%q is at risk: %d of %d nodes confirmed its renewal, %v left%s",
		s.what, e.Name, e.Confirmed, s.nodes, e.Remaining.Round(time.Millisecond), s.causes)
}

// causes lists the errors of nodes.
func causes(nodes []*quorumlock.NodeError) string {
	var b strings.Builder
	for _, n := range nodes {
		b.WriteString("; " + n.Error())
	}
	return b.String()
}

// calm notes that a warning has ended.
func (s *supervisor) calm(e quorumlock.Renewed, ok bool) {
	if ok && s.risky[e.Name] && (e.Margin > 0 || s.nodes == 1) { // a single node has no margin
		delete(s.risky, e.Name)
		s.causes = ""
		s.note("%s%q is safe again: %d nodes confirmed it, margin %d", s.what, e.Name, e.Confirmed, e.Margin)
	}
}
