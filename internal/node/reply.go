package node

import (
	"errors"
	"math"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Status says what a Reply means.
type Status uint8

const (
	// Done means that the operation ran; the values of the reply are its answer.
	Done Status = iota + 1
	// Granted means that the lock is ours; Moved and Before describe the register.
	Granted
	// Taken means that another owner has the lock; Held is its value and TTL how long it
	// lives. Only this answer means contention.
	Taken
	// NotApplied means that the request was not applied: the node was down, in quarantine or
	// closed, or the request expired in its queue.
	NotApplied
	// Unknown means that the request may have been applied; its answer was lost.
	Unknown
	// Failed means that the node answered with an error that may pass (LOADING, BUSY, OOM
	// …).
	Failed
	// Misconfigured means that the node answered with an error that an operator must fix
	// (NOPERM, WRONGTYPE …).
	Misconfigured
	// mayRepeat means the same as NotApplied, and that the request may be sent again at
	// once.
	mayRepeat

	// Statuses is the number of values of Status, including 0 for none.
	Statuses = int(mayRepeat) + 1
)

// String returns the status as a telemetry attribute.
func (s Status) String() string {
	return [...]string{
		"none", "done", "granted", "taken", "unsent", "unknown", "failed", "misconfigured", "unsent",
	}[s]
}

// Answers of Extend, Heal, Release and Pass about one lock. For Heal, Missing
// means that the request came too late to create the lock.
const (
	Ours             = 1
	OursWithoutToken = 2  // Extend: the node does not show the lease's token
	HandedOn         = 2  // Release, Pass: the lock is now reserved for a waiter
	Missing          = 0  // there is no lock; Extend: or it is reserved for a waiter
	Another          = -1 // another owner has the lock
	Unanswered       = -2 // the operation failed; Reply.Err says how
)

// Reply is the result of a Request on one node.
type Reply struct {
	Status  Status
	Sent    time.Duration // an instant before the request was sent, on the validity clock
	Moved   int64         // Granted: the value to which this request moved the register; 0 if the register was ahead
	Before  int64         // Granted, Raise: the register's value before; Raise: −1 for a refusal
	Waiters int64         // Granted, Raise, Read: tickets in the queue
	N       int64         // Release, Pass on one lock: the answer
	Answers []int64       // Extend, Heal, Release on several locks: one for each; valid during Receive only
	Held    string        // Taken, Read: the lock's value, "" for none
	TTL     time.Duration // Taken, Read: how long the lock lives; negative for no end or no lock
	// Position is how many tickets are before ours in the queue; −1 if ours is not in it.
	Position int64 // Taken
	Register int64 // Read
	Err      error // for NotApplied and all below
}

// Receiver receives the replies to posted requests. Receive is called in the worker's
// goroutine, or in that of a caller of Post. So it must not block, and Post must not be
// called with a lock held that Receive takes. The reply is valid during the call.
type Receiver interface {
	Receive(node int, req *Request, reply *Reply)
}

// Errors that do not come from the server. They arrive in Reply.Err.
var (
	ErrClosed      = errors.New("closed")
	ErrConnecting  = errors.New("not connected yet")
	ErrExpired     = errors.New("not sent in time")
	ErrWithdrawn   = errors.New("withdrawn before it was sent")
	ErrLate        = errors.New("refused by the node as too late")
	ErrQuarantined = errors.New("in quarantine: the node was restarted, failed over, flushed, able to evict, or never used before")
	ErrClockStep   = errors.New("in quarantine: the node's clock was stepped forward")
	ErrReconnected = errors.New("connection changed on the way")
	// ErrUnguarded means that a client without the restart guard asks for votes of a node
	// on which others rely on the guard. Everything but votes goes on.
	ErrUnguarded = errors.New("the other clients of this node use the restart guard, and this one does not")
)

// ConfigError is an answer or a property of a node that an operator must fix.
type ConfigError struct {
	Problem string // what is wrong, in the server's own words if it sent any
	Fix     string // what to do
	Err     error  // an error of this package to tell it by, nil for most
}

// Error returns the problem and the fix.
func (e *ConfigError) Error() string { return e.Problem + ": " + e.Fix }

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// errReply means that a reply does not have the parts that the script answers.
var errReply = errors.New("unexpected shape of a reply")

func notUnderstood(what string, err error) error {
	return &ConfigError{Problem: "reply to " + what + " not understood: " + err.Error(), Fix: defaultFix}
}

// read fills r from the answers to the operations of req.
func (n *Node) read(req *Request, all answers, r *Reply) {
	r.Status = Done
	var err error
	switch req.Kind {
	case Acquire:
		err = n.readVote(all, r)
	case Extend, Heal:
		_, err = n.readMany(all, r)
	case Raise:
		err = readRaise(all, r)
	case Read:
		err = readState(all, r)
	default:
		var failure Status
		if failure, err = n.readMany(all, r); err == nil {
			if r.N = r.Answers[0]; r.N == Unanswered {
				r.Status = failure
			}
		}
	}
	if err != nil {
		r.Status, r.Err = misread(req.Kind, err)
	}
}

// numeral returns the number that a character of an answer stands for, and false if it
// stands for none.
func numeral(code byte) (int64, bool) {
	switch code {
	case '0', '1', '2':
		return int64(code - '0'), true
	case '-':
		return -1, true
	}
	return 0, false
}

// misread returns what an error in the place of an answer means.
func misread(kind Kind, err error) (Status, error) {
	var failed operationError
	if !errors.As(err, &failed) {
		return Misconfigured, notUnderstood(kind.String(), err)
	}
	status, err := classify(failed)
	return status, missingRight(err)
}

// operationError is the error of one operation, as the script reports it.
type operationError string

// Error returns the server's text.
func (e operationError) Error() string { return string(e) }

// operationFailure returns the error in the answer of an operation, nil if there is none.
func operationFailure(parts []rueidis.RedisMessage) error {
	if len(parts) != 1 {
		return nil
	}
	text, err := stringOf(&parts[0])
	if err != nil {
		return err
	}
	return operationError(strings.TrimPrefix(text, "ERR "))
}

// readVote reads the answer to an acquisition.
func (n *Node) readVote(all answers, r *Reply) error {
	switch all.codes[0] {
	case '1':
		r.Status, r.Moved, r.Before = Granted, AsProposed, AsProposed
		return nil
	case '0':
		r.Status, r.Err = NotApplied, ErrLate
		return nil
	case '-':
		r.Status, r.Err = mayRepeat, ErrQuarantined
		if n.cfg.Guard == 0 {
			r.Err = ErrUnguarded
		}
		n.regreet()
		return nil
	}
	parts, err := detail(all)
	if err != nil {
		return err
	}
	switch {
	case len(parts) != 3:
		return errReply
	case parts[0].IsInt64():
		r.Status = Granted
		if r.Moved, err = integerOf(&parts[0]); err == nil {
			r.Before, err = integerOf(&parts[1])
		}
		if err == nil {
			r.Waiters, err = integerOf(&parts[2])
		}
		return err
	default:
		r.Status = Taken
		if r.Position, err = integerOf(&parts[2]); err == nil {
			err = readHeld(parts, r)
		}
		return err
	}
}

// AsProposed in Moved means the proposal itself. In Before it means that the answer does
// not include the value.
const AsProposed = -1

// readHeld reads a lock's value and how long the lock lives.
func readHeld(parts []rueidis.RedisMessage, r *Reply) (err error) {
	if !parts[0].IsNil() {
		if r.Held, err = stringOf(&parts[0]); err != nil {
			return err
		}
	}
	ms, err := integerOf(&parts[1])
	// Redis allows TTLs of up to 292 million years, which no Duration can hold. Half of
	// the largest Duration leaves room to add to it.
	r.TTL = time.Duration(min(max(ms, -2), math.MaxInt64/2/int64(time.Millisecond))) * time.Millisecond
	return err
}

// detail returns the parts of the only answer, which is not a number.
func detail(all answers) ([]rueidis.RedisMessage, error) {
	if len(all.details) != 1 {
		return nil, errReply
	}
	parts, err := all.details[0].ToArray()
	if err != nil {
		return nil, err
	}
	return parts, operationFailure(parts)
}

// readState reads the answer to a Read.
func readState(all answers, r *Reply) error {
	parts, err := detail(all)
	if err != nil {
		return err
	}
	if len(parts) != 4 {
		return errReply
	}
	if r.Register, err = integerOf(&parts[2]); err != nil {
		return err
	}
	if r.Waiters, err = integerOf(&parts[3]); err != nil {
		return err
	}
	return readHeld(parts, r)
}

func readRaise(all answers, r *Reply) error {
	parts, err := detail(all)
	if err != nil {
		return err
	}
	if len(parts) != 2 {
		return errReply
	}
	if r.Before, err = integerOf(&parts[0]); err != nil {
		return err
	}
	r.Waiters, err = integerOf(&parts[1])
	return err
}

// readMany reads one answer for each lock. A lock of another type is another owner's. An
// operation that failed otherwise is Unanswered, and the others still count. failure is
// what the last such failure means.
func (n *Node) readMany(all answers, r *Reply) (failure Status, err error) {
	n.codes = n.codes[:0]
	for i := range len(all.codes) {
		code, known := numeral(all.codes[i])
		if !known && all.codes[i] != '*' {
			return 0, errReply
		}
		if !known {
			var status Status
			if code, status, err = numberOrFailure(&all.details[0], r); err != nil {
				return 0, err
			}
			if status != 0 {
				failure = status
			}
			all.details = all.details[1:]
		}
		n.codes = append(n.codes, code)
	}
	r.Answers = n.codes
	return failure, nil
}

// numberOrFailure returns an answer that is a larger number, or the result of an
// operation that failed; then r gets the error, and status is what it means.
func numberOrFailure(message *rueidis.RedisMessage, r *Reply) (code int64, status Status, err error) {
	if message.IsInt64() {
		code, err = integerOf(message)
		return code, 0, err
	}
	parts, err := message.ToArray()
	if err == nil {
		err = operationFailure(parts)
	}
	var failed operationError
	switch {
	case !errors.As(err, &failed):
		return 0, 0, errors.Join(errReply, err)
	case strings.HasPrefix(failed.Error(), "WRONGTYPE"):
		return Another, 0, nil
	}
	status, err = classify(failed)
	r.Err = missingRight(err)
	return Unanswered, status, nil
}

// integerOf returns a reply that is an integer, or an error.
func integerOf(message *rueidis.RedisMessage) (int64, error) {
	if err := message.Error(); err != nil {
		return 0, err
	}
	return message.ToInt64()
}

// stringOf returns a reply that is a string, or an error. ToString of rueidis also
// accepts RESP3's numbers and booleans as strings.
func stringOf(message *rueidis.RedisMessage) (string, error) {
	if err := message.Error(); err != nil {
		return "", err
	}
	if !message.IsString() {
		return "", errReply
	}
	return message.ToString()
}
