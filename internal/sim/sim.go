package sim

import "fmt"

// Stats count what happened in a run, or in many.
type Stats struct {
	Runs, Events                          int
	Attempts, Grants, WriteBacks          int
	Renewals, Missed, Heals               int
	Releases, Expired, Revoked, Overlaps  int
	Messages, Lost, Late, Repeated        int
	Pauses, Crashes, Quits, Cuts          int
	Downs, Stalls                         int
	Wipes, Truncations, Flushes           int
	Quarantines, Unasked, Strange         int
	Steps, StepsFound, Refused, Abandoned int
	Kept, Told, Called, PassedOn, GivenUp int
	LateVotes, InOrder                    int
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
	s.Quits += other.Quits
	s.Downs += other.Downs
	s.Stalls += other.Stalls
	s.Wipes += other.Wipes
	s.Truncations += other.Truncations
	s.Flushes += other.Flushes
	s.Cuts += other.Cuts
	s.Quarantines += other.Quarantines
	s.Unasked += other.Unasked
	s.Strange += other.Strange
	s.Steps += other.Steps
	s.StepsFound += other.StepsFound
	s.Refused += other.Refused
	s.Abandoned += other.Abandoned
	s.Kept += other.Kept
	s.Told += other.Told
	s.Called += other.Called
	s.PassedOn += other.PassedOn
	s.GivenUp += other.GivenUp
	s.LateVotes += other.LateVotes
	s.InOrder += other.InOrder
}

// String tells the counts in one line.
func (s *Stats) String() string {
	return fmt.Sprintf("%d runs, %d events; %d attempts, %d grants, %d write-backs; "+
		"%d times kept for whoever waits, %d told, %d attempts by it, %d passed on, %d late votes, %d waits given up, %d served in order; "+
		"%d renewals, %d rounds missed, %d heals; %d released, %d expired, %d revoked, %d overlaps; "+
		"faults: of %d messages %d lost, %d late, %d repeated, %d refused as late; "+
		"%d pauses, %d crashes, %d closed, %d cuts, %d nodes down, %d stalls, %d wiped, %d truncated, %d flushed; "+
		"%d quarantines, %d votes not asked for, %d refused by the marker; %d clock steps, %d found",
		s.Runs, s.Events, s.Attempts, s.Grants, s.WriteBacks,
		s.Kept, s.Told, s.Called, s.PassedOn, s.LateVotes, s.GivenUp, s.InOrder,
		s.Renewals, s.Missed, s.Heals, s.Releases, s.Expired, s.Revoked, s.Overlaps,
		s.Messages, s.Lost, s.Late, s.Repeated, s.Refused,
		s.Pauses, s.Crashes, s.Quits, s.Cuts, s.Downs, s.Stalls, s.Wipes, s.Truncations, s.Flushes,
		s.Quarantines, s.Unasked, s.Strange, s.Steps, s.StepsFound)
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
