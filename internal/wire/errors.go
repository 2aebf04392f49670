package wire

import (
	"context"
	"errors"
	"time"
)

// Errors that do not come from the server. They arrive in Reply.Err.
var (
	ErrClosed      = errors.New("closed")
	ErrConnecting  = errors.New("not connected yet")
	ErrExpired     = errors.New("request not sent: it waited too long behind earlier requests to this node")
	ErrWithdrawn   = errors.New("request not sent: it was no longer needed")
	ErrLate        = errors.New("request arrived after its deadline, so the node refused it")
	ErrQuarantined = errors.New("in quarantine: the node is new, or may have lost locks in a restart, a failover, a flush or an eviction")
	ErrClockStep   = errors.New("in quarantine: the node's clock was stepped forward")
	// ErrMoving means that the keys of a slot are in two places. Nothing else causes such answers.
	ErrMoving = errors.New("the cluster is moving the keys of the slot to another server: requests work again when the move ends")
	// ErrUnguarded means that a client without the restart guard asks for votes of a node
	// on which others rely on the guard. Everything but votes continues.
	ErrUnguarded = errors.New("the other clients of this node use the restart guard, and this one does not")
)

// ConfigError is an answer or a property of a node that an operator must fix.
type ConfigError struct {
	Problem string // what is wrong, in the server's own words if it sent any
	Fix     string // what to do
	Moment  string // follows the fix, and changes from check to check: its changes are not reported
	Err     error  // an error of this package that identifies it, nil for most
	List    bool   // the client's list of nodes is wrong, and no repair of the node helps
}

// Error returns the problem and the fix.
func (e *ConfigError) Error() string { return e.Problem + ": " + e.Fix + e.Moment }

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// PasswordError returns the error of a server that asks for a password. Redis's own words are long,
// and name commands that no user of this library sends.
func PasswordError(server, credentials string) *ConfigError {
	return &ConfigError{Problem: server + " asks for a password (NOAUTH)", Fix: "set " + credentials}
}

// AwayError is the error of a server that is not, or no longer, the master.
type AwayError struct{ Err error }

// Error returns the text of Err.
func (e *AwayError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *AwayError) Unwrap() error { return e.Err }

// Away reports whether an error means that the node has another master now, or none.
func Away(err error) bool {
	if err == nil { // before elsewhere, which is allocated: this runs at each answer
		return false
	}
	var elsewhere *AwayError
	return errors.As(err, &elsewhere)
}

// Silence is the error of a call that got no answer within this time. It is never
// context.DeadlineExceeded: callers that check for that mean their own deadline.
type Silence time.Duration

// Error says how long the call has waited.
func (s Silence) Error() string { return "no answer within " + time.Duration(s).String() }

// Opaque hides that one of our deadlines ended the call: callers that check for
// context.DeadlineExceeded mean their own deadline.
func Opaque(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New(err.Error())
	}
	return err
}
