package sim

import "fmt"

// Stats count what happened in a run, or in many.
type Stats struct {
	Runs, Events                           int
	Attempts, Grants, WriteBacks           int
	Renewals, Missed, Heals                int
	Releases, Expired, Revoked, Overlaps   int
	Messages, Lost, Late, Repeated         int
	Pauses, Crashes, Downs, Stalls, Wipes  int
	Cuts                                   int
	Quarantined, Steps, Refused, Abandoned int
}

// Add adds the counts of other.
func (s *Stats) Add(other *Stats) {
	s.Runs += other.Runs
	s.Events += other.Events
	s.Attempts += other.Attempts
	s.Grants += other.Grants
	s.WriteBacks += other.WriteBacks
	s.Renewals += other.Renewals
	s.Missed += other.Missed
	s.Heals += other.Heals
	s.Releases += other.Releases
	s.Expired += other.Expired
	s.Revoked += other.Revoked
	s.Overlaps += other.Overlaps
	s.Messages += other.Messages
	s.Lost += other.Lost
	s.Late += other.Late
	s.Repeated += other.Repeated
	s.Pauses += other.Pauses
	s.Crashes += other.Crashes
	s.Downs += other.Downs
	s.Stalls += other.Stalls
	s.Wipes += other.Wipes
	s.Cuts += other.Cuts
	s.Quarantined += other.Quarantined
	s.Steps += other.Steps
	s.Refused += other.Refused
	s.Abandoned += other.Abandoned
}

// String tells the counts in one line.
func (s *Stats) String() string {
	return fmt.Sprintf("%d runs, %d events; %d attempts, %d grants, %d write-backs; "+
		"%d renewals, %d rounds missed, %d heals; %d released, %d expired, %d revoked, %d overlaps; "+
		"faults: of %d messages %d lost, %d late, %d repeated, %d refused as late; "+
		"%d pauses, %d crashes, %d nodes down, %d stalls, %d cuts, %d wiped, %d votes in quarantine, %d clock steps",
		s.Runs, s.Events, s.Attempts, s.Grants, s.WriteBacks,
		s.Renewals, s.Missed, s.Heals, s.Releases, s.Expired, s.Revoked, s.Overlaps,
		s.Messages, s.Lost, s.Late, s.Repeated, s.Refused,
		s.Pauses, s.Crashes, s.Downs, s.Stalls, s.Cuts, s.Wipes, s.Quarantined, s.Steps)
}

// Result is what came of a run.
type Result struct {
	Params
	Stats
	Violation *Violation // the first; nil if there was none
}

// Runner plays runs one after the other, in the same memory.
type Runner struct{ w *world }

// NewRunner returns a runner. It is not safe for concurrent use.
func NewRunner() *Runner { return &Runner{newWorld()} }

// Run plays one run.
func (r *Runner) Run(p Params) Result { return r.w.run(p) }
