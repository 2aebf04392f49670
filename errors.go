package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/otel"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// The errors to compare with, by errors.Is.
var (
	// ErrHeld means that another holder has the name, or that other callers wait for it, so
	// the lease was not granted.
	ErrHeld = errors.New("quorumlock: lease held by another holder")
	// ErrNoQuorum means that too few nodes gave an answer that counts.
	ErrNoQuorum = errors.New("quorumlock: no quorum")
	// ErrLost means that the lease ended before it was released.
	ErrLost = errors.New("quorumlock: lease lost")
	// ErrReleased means that the lease was released.
	ErrReleased = errs.ErrReleased
	// ErrDetached means that the lease was detached for another process. It is an ErrReleased.
	ErrDetached = fmt.Errorf("%w by Detach: another process can resume it", ErrReleased)
	// ErrClosed means that the Manager is closed.
	ErrClosed = errors.New("quorumlock: manager closed")
	// ErrInvalid means that a name, an option, an argument or a node cannot be used.
	ErrInvalid = errors.New("quorumlock: invalid")
)

// errNilContext and errNilFunction refuse arguments that would panic far from their cause.
func errNilContext() error {
	return &InvalidError{What: "context", Bound: "must not be nil", Fix: "pass context.Background() where nothing ends the call"}
}

// withoutPrefix returns the text of an error of this package for use inside another text.
func withoutPrefix(err error) string { return strings.TrimPrefix(err.Error(), "quorumlock: ") }

func errNilFunction() error {
	return &InvalidError{What: "function", Bound: "must not be nil", Fix: "pass the work to run under the lease"}
}

// Holder identifies the holder of a lease, from what is stored with the lock. For a lock
// of another client, Owner is its value and the other fields are empty.
type Holder struct {
	Label       string    `json:"label"`        // set by WithHolder
	Owner       string    `json:"owner"`        // of another program's value: its first 32 bytes
	TraceParent string    `json:"trace_parent"` // the span in which the lease was acquired, in W3C format
	Since       time.Time `json:"since,omitzero"`
	// Asked says who has asked the holder to release the lease, and why, as "who: why"; Revoked says
	// the same of who has revoked it. Both are "" if no client has.
	Asked   string `json:"asked,omitempty"`
	Revoked string `json:"revoked,omitempty"`
	// Detached means that the lock is kept for the process that resumes it (Lease.Detach).
	Detached bool `json:"detached,omitempty"`
}

// HeldError says who holds the lease. It is ErrHeld.
type HeldError struct {
	Name   string
	Holder Holder // zero when the name is reserved for a waiter, or another program's key has no value
	// Readers is how many hold it together, each with a shared lease, and Holder is one of them; 0 if
	// Holder has it alone. Some of them may still be acquiring.
	Readers int
	// RetryAfter is the end of the holder's keys: the time until a majority of the nodes is
	// free, if the holder neither renews nor releases. A node that granted or failed counts as
	// free. A live holder renews every third of its TTL, so the lease may be held for much
	// longer; it may also be released earlier. There is no better estimate: the nodes do not
	// know how long the holder will work. To wait for the release, call Acquire, which the
	// nodes wake. 0 means unknown: another client's keys may never expire.
	RetryAfter time.Duration
	// Self means that this Manager holds the lease; with several readers, that Holder is this
	// Manager. A lease is not reentrant: a caller that holds a name and asks for it again waits for
	// its own release.
	Self bool

	barred bool // the caller wants to join the readers, and a writer came first and waits
	blank  bool // the key is another program's, and its value is empty
}

// Error names the lease, its holder and when to try again. The holder's label is another
// client's text, and an owner may be any program's value: both are quoted.
func (e *HeldError) Error() string {
	holder, unless := strconv.Quote(e.Holder.Label), " unless renewed"
	if e.Holder.Revoked != "" || e.Holder.Owner == wire.Nobody {
		unless = ""
	}
	switch {
	case e.blank:
		holder = "another program, whose key has an empty value"
	case e.Holder == Holder{}:
		return fmt.Sprintf("quorumlock: %q is reserved for a waiter%s", e.Name, e.until("reservation", ""))
	case e.Holder.Owner == wire.Nobody:
		holder = "readers whose leases were revoked"
	case e.Holder.Label == "":
		holder = "owner " + strconv.Quote(e.Holder.Owner)
	}
	if reader := e.Readers > 0 && e.Holder.Owner != wire.Nobody; reader && e.Holder.Label == "" {
		holder = "a reader with " + holder
	} else if reader {
		holder = "reader " + holder
	}
	if e.Self {
		holder += " (this Manager)"
	}
	if e.Readers > 1 {
		holder += " and " + plural(e.Readers-1, "other")
	}
	if e.barred {
		holder += ", and a writer waits for the name"
	}
	return fmt.Sprintf("quorumlock: %q is held by %s%s", e.Name, holder, e.until("lease", unless))
}

// until writes when a majority of the nodes is free.
func (e *HeldError) until(what, unless string) string {
	if e.RetryAfter <= 0 {
		return ""
	}
	return "; the " + what + " expires in " + errs.Readable(e.RetryAfter) + unless
}

// Unwrap returns ErrHeld.
func (e *HeldError) Unwrap() error { return ErrHeld }

// QuorumError says which nodes did not give the answer that was needed, and why. It is
// ErrNoQuorum; errors.As finds the errors of the nodes.
type QuorumError struct {
	Op, Name  string // Name is empty when the operation concerns no lease
	Need, Got int    // how many nodes it needs, and how many have given the answer that counts
	// Nodes has one error for each node without such an answer: also for a node whose answer
	// was not awaited, because the others had decided.
	Nodes []*NodeError
	// RetryAfter is how long it takes until a majority of the nodes can grant locks, if
	// quarantines are the only cause; 0 otherwise.
	RetryAfter time.Duration
	of         int // how many nodes there are; 0 if not known
}

// noQuorum returns the error of an operation in which got nodes gave the answer that counts.
// problems has the errors of the others, by node.
func noQuorum(e *ensemble.Ensemble, op, name string, got int, problems []error) *QuorumError {
	return &QuorumError{Op: op, Name: name, Need: e.Quorum(), Got: got, of: e.Size(), Nodes: nodeErrors(e, problems)}
}

// enough returns nil when a quorum gave good answers, and the error otherwise.
func enough(ctx context.Context, e *ensemble.Ensemble, op, name string, a *ensemble.Answers) error {
	if a.Got >= e.Quorum() {
		return nil
	}
	problems := make([]error, e.Size())
	for i := range problems {
		problems[i] = a.Err(i)
	}
	err := noQuorum(e, op, name, a.Got, problems)
	if !a.EndedBy(ctx) {
		return err
	}
	what := "stopped waiting for answers"
	if op == "release" {
		what += "; the release continues"
	}
	return errs.Ended(ctx, err, what)
}

// nodeErrors lists the errors of the nodes that have one.
func nodeErrors(e *ensemble.Ensemble, problems []error) (list []*NodeError) {
	for i, err := range problems {
		if err != nil {
			list = append(list, nodeError(e.First()+i, e.Nodes()[i].Addr(), err))
		}
	}
	return list
}

// Error names the operation, the count and every node's error.
func (e *QuorumError) Error() string {
	var b strings.Builder
	b.WriteString("quorumlock: " + e.Op)
	if e.Name != "" {
		fmt.Fprintf(&b, " %q", e.Name)
	}
	fmt.Fprintf(&b, ": %s %s, need %d", e.counted(), plural(e.Got, "node"), e.Need)
	if e.of > 0 {
		fmt.Fprintf(&b, " of %d", e.of)
	}
	writeNodes(&b, e.Nodes)
	if e.RetryAfter > 0 {
		b.WriteString("; a majority of the nodes can grant locks in " + errs.Readable(e.RetryAfter))
	}
	return b.String()
}

// counted describes what Got counts: a node may answer without granting or confirming.
func (e *QuorumError) counted() string {
	switch e.Op {
	case "acquire":
		return "granted by"
	case "renew", "verify":
		return "confirmed by"
	case "ready":
		return "locks can be granted on"
	case "observe":
		return "agreed by"
	case "list":
		return "scanned"
	default:
		return "reached"
	}
}

// quoted lists names in an error.
func quoted(names []string) string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = strconv.Quote(name)
	}
	return strings.Join(all, ", ")
}

// plural writes a number of things.
func plural(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strconv.Itoa(n) + " " + thing
}

// writeNodes appends the errors of nodes to a message.
func writeNodes(b *strings.Builder, nodes []*NodeError) {
	separator := ": "
	for _, n := range nodes {
		b.WriteString(separator + n.Error())
		separator = "; "
	}
}

// Unwrap returns ErrNoQuorum and the errors of the nodes.
func (e *QuorumError) Unwrap() []error { return withNodes(ErrNoQuorum, e.Nodes) }

func withNodes(err error, nodes []*NodeError) []error {
	errs := []error{err}
	for _, n := range nodes {
		errs = append(errs, n)
	}
	return errs
}

// NodeError is the error of one node.
type NodeError struct {
	Node int    // index in the list given to New
	Addr string // as given to New
	Err  error
	// Misconfigured means that an operator must fix the node or its options: missing rights, a
	// replica, a key of another type.
	Misconfigured bool
}

func nodeError(i int, addr string, err error) *NodeError {
	var config *wire.ConfigError
	return &NodeError{Node: i, Addr: addr, Err: err, Misconfigured: errors.As(err, &config)}
}

// Error names the node and its error.
func (e *NodeError) Error() string {
	return fmt.Sprintf("node %d (%s): %s", e.Node, e.Addr, oneLine(fmt.Sprint(e.Err)))
}

// oneLine escapes characters that could break a line or move a terminal's cursor: a server, or a program in its place,
// may put anything into the text of an error.
func oneLine(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) < 0 {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// Unwrap returns the error.
func (e *NodeError) Unwrap() error { return e.Err }

// LostError is ErrLost with all that is known about it.
type LostError struct{ Lost }

// Error names the lease, the reason and the evidence.
func (e *LostError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "quorumlock: lease %q (token %d) lost: %v", e.Name, e.Token, e.Reason)
	writeNodes(&b, e.Nodes)
	return b.String()
}

// Unwrap returns ErrLost and the errors of the nodes.
func (e *LostError) Unwrap() []error { return withNodes(ErrLost, e.Nodes) }

// InvalidError says what cannot be used, what its bound is and how to fix it. It is
// ErrInvalid.
type InvalidError struct {
	What  string // the option, argument or node
	Value string // as given; empty where it would add nothing
	Bound string // what it must satisfy
	Fix   string // what to do
	Err   error  // the node's own error, nil if there is none
}

// Error names the value, the bound and the fix.
func (e *InvalidError) Error() string {
	s := "quorumlock: " + e.What
	if e.Value != "" {
		s += " " + e.Value
	}
	s += ": " + e.Bound
	if e.Fix != "" {
		s += "; " + e.Fix
	}
	return oneLine(s)
}

// Unwrap returns ErrInvalid, and the node's own error if there is one.
func (e *InvalidError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrInvalid}
	}
	return []error{ErrInvalid, e.Err}
}

// FuncError is the error of a function that Do or Lead has run, if that error is one of this
// package's, such as the HeldError of another name. errors.Is and errors.As do not find this
// package's errors in it, because those would seem to be about the lease of Do or Lead. Both
// still find everything else that fn's error wraps.
type FuncError struct{ Err error }

// ofFunction returns an error of a user's function as Do and Lead return it.
func ofFunction(err error) error {
	if err == nil || !slices.ContainsFunc(sentinels, func(own error) bool { return errors.Is(err, own) }) {
		return err
	}
	return &FuncError{Err: err}
}

var sentinels = []error{ErrHeld, ErrNoQuorum, ErrLost, ErrReleased, ErrDetached, ErrClosed, ErrInvalid}

// Error returns the text of the function's error.
func (e *FuncError) Error() string { return e.Err.Error() }

// Is reports whether the function's error is target, and target is not an error of this package.
func (e *FuncError) Is(target error) bool {
	return !slices.Contains(sentinels, target) && errors.Is(e.Err, target)
}

// As is errors.As of the function's error, for targets that are not errors of this package.
func (e *FuncError) As(target any) bool {
	switch target.(type) {
	case **HeldError, **QuorumError, **NodeError, **LostError, **InvalidError:
		return false
	}
	return errors.As(e.Err, target)
}

// descriptions are the texts of a failed span's status, by outcome.
var descriptions = map[string]string{
	"timeout":   "the context's deadline passed before the call ended",
	"no_quorum": "too few nodes gave an answer that counts",
	"lost":      "the lease ended before it was released",
	"other":     "the call failed",
}

// errorType returns the error.type of an error, "" for an outcome that is not a failure.
func errorType(err error) string { return otel.Failure(outcome(err)) }

// outcome returns the name of a call's outcome.
func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, ErrHeld):
		return "held"
	case errors.Is(err, ErrNoQuorum):
		return "no_quorum"
	case errors.Is(err, ErrLost):
		return "lost"
	case errors.Is(err, ErrReleased):
		return "released"
	case errors.Is(err, ErrClosed):
		return "closed"
	default:
		return "other"
	}
}
