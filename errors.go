package quorumlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/node"
)

// The errors to compare with, by errors.Is.
var (
	// ErrHeld: a quorum of nodes says that somebody else holds the lease.
	ErrHeld = errors.New("quorumlock: held by another")
	// ErrNoQuorum: too few nodes gave an answer that counts.
	ErrNoQuorum = errors.New("quorumlock: no quorum")
	// ErrLost: the lease ended before it was released.
	ErrLost = errors.New("quorumlock: lease lost")
	// ErrReleased: the lease was released.
	ErrReleased = errors.New("quorumlock: lease released")
	// ErrClosed: the Manager is closed.
	ErrClosed = errors.New("quorumlock: manager closed")
	// ErrInvalid: a name, an option or a node cannot be used.
	ErrInvalid = errors.New("quorumlock: invalid")
)

// HeldError says who holds the lease. It is ErrHeld.
type HeldError struct {
	Name   string
	Holder Holder // zero when nobody holds it: it is reserved for a waiter
	// RetryAfter is when a quorum could be free if the holder did nothing:
	// the quorum-th smallest remaining life of its keys. 0 if that is not
	// known: another client's keys may have no end.
	RetryAfter time.Duration
}

// Error names the lease, its holder and when to come back.
func (e *HeldError) Error() string {
	state, unless := "held by "+e.Holder.Label, " unless renewed"
	switch {
	case e.Holder == Holder{}:
		state, unless = "reserved for a waiter", ""
	case e.Holder.Label == "":
		state = "held by owner " + e.Holder.Owner
	}
	if e.RetryAfter <= 0 {
		return fmt.Sprintf("quorumlock: %q is %s", e.Name, state)
	}
	return fmt.Sprintf("quorumlock: %q is %s, for %v more%s", e.Name, state, e.RetryAfter, unless)
}

// Is reports whether target is ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// QuorumError says which nodes did not give the answer that was needed, and
// why. It is ErrNoQuorum; errors.As finds the errors of the nodes.
type QuorumError struct {
	Op, Name  string // Name is empty when the operation concerns no lease
	Need, Got int
	Nodes     []*NodeError // one for each node without a good answer
}

// Error names the operation, the count and every node's error.
func (e *QuorumError) Error() string {
	var b strings.Builder
	b.WriteString("quorumlock: " + e.Op)
	if e.Name != "" {
		fmt.Fprintf(&b, " %q", e.Name)
	}
	fmt.Fprintf(&b, ": %d of the %d nodes needed", e.Got, e.Need)
	writeNodes(&b, e.Nodes)
	return b.String()
}

// writeNodes appends the errors of nodes to a message.
func writeNodes(b *strings.Builder, nodes []*NodeError) {
	separator := ": "
	for _, n := range nodes {
		b.WriteString(separator + n.Error())
		separator = "; "
	}
}

// Is reports whether target is ErrNoQuorum.
func (e *QuorumError) Is(target error) bool { return target == ErrNoQuorum }

// Unwrap returns the errors of the nodes.
func (e *QuorumError) Unwrap() []error { return asErrors(e.Nodes) }

func asErrors(nodes []*NodeError) []error {
	errs := make([]error, len(nodes))
	for i, n := range nodes {
		errs[i] = n
	}
	return errs
}

// permanent reports whether so many nodes need mending that waiting is of no
// use.
func (e *QuorumError) permanent(nodes int) bool {
	broken := 0
	for _, n := range e.Nodes {
		if n.Misconfigured() {
			broken++
		}
	}
	return broken > nodes-e.Need
}

// NodeError is the error of one node.
type NodeError struct {
	Node int    // index in the list given to New
	Addr string // as given to New
	Err  error
}

// Error names the node and its error.
func (e *NodeError) Error() string { return fmt.Sprintf("node %d (%s): %v", e.Node, e.Addr, e.Err) }

// Unwrap returns the error.
func (e *NodeError) Unwrap() error { return e.Err }

// Misconfigured reports whether somebody has to mend the node or its options:
// missing rights, a replica, a key of another type. Waiting does not help.
func (e *NodeError) Misconfigured() bool {
	var config *node.ConfigError
	return errors.As(e.Err, &config)
}

// LostError is ErrLost with all that is known about it.
type LostError struct{ Lost }

// Error names the lease, the reason and the evidence.
func (e *LostError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "quorumlock: lease %q (token %d) lost: %v", e.Name, e.Token, e.Reason)
	writeNodes(&b, e.Nodes)
	return b.String()
}

// Is reports whether target is ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns the errors of the nodes.
func (e *LostError) Unwrap() []error { return asErrors(e.Nodes) }

// InvalidError says what cannot be used, what its bound is and how to mend
// it. It is ErrInvalid.
type InvalidError struct {
	What  string // the option, argument or node
	Value string // as given; empty when it would tell nothing
	Bound string // what it has to satisfy
	Fix   string // what to do
	Err   error  // the node's own error, if one told
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
	return s
}

// Is reports whether target is ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Unwrap returns the node's own error, nil if none told.
func (e *InvalidError) Unwrap() error { return e.Err }
