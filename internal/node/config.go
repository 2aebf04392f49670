package node

import (
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// Config configures a Node.
type Config struct {
	Index  int                  // the node's index in the list
	First  int                  // how many nodes the Manager has in earlier lists
	Option rueidis.ClientOption // as the user gave it; Refuse must have found nothing
	Prefix string               // of all keys
	// Cluster asks which server owns the node's slot, along with other slots; nil if the node asks for itself.
	Cluster *Cluster
	// Clock returns an instant of the client's validity clock and of its steady one, both
	// of the same moment. Requests expire by the steady one.
	Clock func() (validity clock.Validity, steady clock.Steady)
	Drift float64 // bound on the difference of clock rates
	// Cap is how far a grant may move a fencing register ahead of the node's clock; 0
	// mints no tokens.
	Cap   time.Duration
	Only  bool          // there is no other node
	Guard time.Duration // longest lease for the restart guard; 0 for no guard
	// Window is how long renewals count after a majority last named the master of a group.
	// The guard covers it.
	Window time.Duration
	Trust  bool // an empty database needs no quarantine
	// Rollout lets clients without the guard vote, until a client with the guard has no
	// Rollout.
	Rollout bool
	// Lists compares the nodes of this client with the nodes of the others; nil for no comparison.
	Lists Lists
	// StepQuarantine is how long the node's votes do not count after its clock was
	// stepped forward: the longest lease that any client may hold on it.
	StepQuarantine time.Duration
	// Admit checks the node's Identity at every greeting. An error keeps the node from
	// voting until a later greeting succeeds; a warning does not. Called in the worker's
	// goroutine.
	Admit func(index int, id Identity) (warning, err error)
	// OnHealth is called after the first greeting, and on every change of the node's
	// health after it. Called in the worker's goroutine; it must not block.
	OnHealth func(index int, h Health)
	// OwnStep reports whether the node's clock made the step that was found at since (steady clock), and whether that
	// answer is final. Otherwise the clock of this process made the step, and all nodes seem to be stepped. The guard's
	// marker reports only a step of the node's clock to other clients. Nil means that no step is the node's own. Called
	// in the worker's goroutine; it must not block.
	OwnStep func(index int, since clock.Steady) (own, sure bool)
	// OnClockStep is called when a step of the node's clock is found; by is the most that
	// it can be. The reply that shows the step is delivered afterwards. Called in the
	// worker's goroutine; it must not block.
	OnClockStep func(index int, by time.Duration)
	// Manager names the channel on which the node wakes waiters; 16 hex digits. With ""
	// the node never subscribes.
	Manager string
	// OnWake receives what the node publishes to the Manager. Called in the subscriber's
	// goroutine; it must not block.
	OnWake func(index int, kind wire.WakeKind, ticket, lock string)
	// OnSubscribed is called when the node begins to wake waiters, for the first time or
	// again. Called in a goroutine of the connection, perhaps while OnWake runs.
	OnSubscribed func(index int)
}

// Lists compares the nodes of a Manager with the nodes of other clients. A node asks it what to register, and gives it
// the answer. Its methods are called in the workers' goroutines and must not block.
type Lists interface {
	// Entry returns what node i registers now.
	Entry(i int) wire.ListEntry
	// Listed records the answer to an entry that was sent at sent, on the steady clock. It
	// returns why the list is refused, nil if it is not.
	Listed(i int, e wire.ListEntry, sent clock.Steady, a wire.ListAnswer) error
	// Gone records that node i is not connected, or may not vote.
	Gone(i int)
	// Votes returns why the votes of node i do not count: ErrConnecting for a reason that passes in a moment, a
	// ConfigError for a refusal; nil if they count.
	Votes(i int) error
	// Bind records that the other clients of node i have the guard, and this one does not. Before the instant until,
	// none of its votes count on any node; err is the reason.
	Bind(i int, until clock.Steady, err *wire.ConfigError)
	// Stale reports whether node i must be asked again at once.
	Stale(i int) bool
	// Announcement returns what to announce on node i, which is the server with this run_id; nil if the client has not
	// asked for a lease.
	Announcement(i int, runID string) *wire.Announcement
	// Announced takes the lists that node i shows when this client announces own, and when each of them ends. It
	// returns a warning, nil for none.
	Announced(i int, own *wire.Announcement, all map[string]clock.Steady) error
}
