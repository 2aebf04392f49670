package sim

import (
	"fmt"
	"strings"
)

// Counter names one count of a run.
type Counter uint8

// The counters, in the order in which Stats prints them.
const (
	Runs Counter = iota
	Events
	Attempts
	Grants
	LeanVotes
	LeanDeclined
	LeanNoVotes
	Raises
	Passes
	PassesRefused
	Checks
	CallersGone
	TicketsCarried
	LeftFree
	Reservations
	WakeUps
	WokenAttempts
	PassedOn
	QueuesCleared
	QueuesLeft
	StartedOver
	ReservationsTaken
	WaitsGivenUp
	AskedOnce
	VotesKept
	ServedInOrder
	Renewals
	Missed
	Heals
	ProofResets
	Releases
	ReleaseRetries
	Expired
	Revoked
	Suspended
	Overlaps
	Abandoned
	Messages
	Lost
	Late
	Repeated
	TooLate
	LateAnswers
	Pauses
	Crashes
	Quits
	Cuts
	Distances
	Downs
	Stalls
	Freezes
	Queued
	Wipes
	Truncations
	Flushes
	Trims
	Quarantines
	NotAsked
	Silences
	MarkerChanges
	Steps
	ClientSteps
	CommonSteps
	StepsFound
	Failovers
	Splits
	GroupFreezes
	Flaps
	Blinds
	HangUps
	LaterTerms
	Unconfirmed
	Settlings
	Outlasted
	Unguarded
	Sightings
	Vacancies
	Unsighted
	Marks
	Revocations
	MoreRounds
	Detached
	DetachesFailed
	Resumes
	GivenBack
	ReadersGranted
	ReadersTogether
	ReadersBarred
	ReadersAdmitted
	Downgrades
	DowngradesFailed
	PermitsGranted
	PermitsTogether
	LetIn
	SlotsKept
	AskedElsewhere
	LostAtRelease
	HalfMoves
	KeysGone
	MovesMet
	MovesSeen
	TTLChanges
	counters
)

var counterNames = [counters]string{
	"runs", "events", "attempts", "grants", "lean votes", "lean acquisitions left to the usual script", "lean locks that were no vote", "raises", "local passes", "passes of a lost hold refused", "checks of a hold", "callers gone", "tickets carried by a release", "locks left free",
	"reservations", "wake-ups", "attempts after a wake-up", "reservations passed on", "queues cleared", "queues left", "waits that missed a reservation and started over", "reservations taken by a lease",
	"waits given up", "calls that asked once", "attempts that kept their votes", "waiters served in order",
	"renewals", "missed rounds", "heals", "resets", "releases", "release retries",
	"expired leases", "revoked leases", "suspended leases", "overlaps", "grants too late to use",
	"messages", "lost messages", "late messages", "repeated messages", "requests refused as late",
	"answers after the node timeout",
	"pauses", "crashes", "clients closed", "cuts", "distances", "nodes down", "stalls", "freezes inside a script",
	"requests queued at a busy node", "wiped nodes", "nodes that find an old state", "flushes", "trims",
	"quarantines", "votes not asked for", "silent nodes left out", "votes refused by the marker",
	"clock steps", "client clock steps", "common clock steps", "steps found",
	"failovers", "splits", "failovers of a frozen master", "flaps to an own marker", "clients that cannot ask", "connections hung up", "later terms met",
	"votes of an unconfirmed term", "terms that were too new to use", "renewals of a term that is not confirmed for the window", "greetings without the guard",
	"holders seen by an observer", "polls in which nobody was seen", "polls that decided nothing",
	"locks marked by an operator", "leases taken away", "rounds of marks that were repeated",
	"leases detached", "detached leases that too few nodes kept", "leases resumed", "detached leases given back",
	"leases that read", "readers that joined others", "readers that a waiting writer barred", "readers that were woken",
	"writers that went on as readers", "writers that wanted to, in vain",
	"permits", "permits beside others", "waiters let in", "free slots kept for others", "attempts for another slot",
	"leases found lost at their release",
	"half moves", "half moves taken back without the key", "requests that a half-moved slot refused", "looks at a half-moved slot",
	"changes of a TTL",
}

// String returns the name of the counter.
func (c Counter) String() string { return counterNames[c] }

// Stats are the counts of one run or of many.
type Stats [counters]int

// Add adds the counts of other.
func (s *Stats) Add(other *Stats) {
	for i := range s {
		s[i] += other[i]
	}
}

// String returns the counts in one line.
func (s *Stats) String() string {
	words := make([]string, len(s))
	for i, n := range s {
		words[i] = fmt.Sprintf("%d %v", n, Counter(i))
	}
	return strings.Join(words, ", ")
}
