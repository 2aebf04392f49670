package wire

import (
	"errors"
	"strings"

	"github.com/redis/rueidis"
)

// Answers are the answers to one or more operations: one character for each, and the
// detail of each '*'.
type Answers struct {
	codes   string
	details []rueidis.RedisMessage
}

// Next removes the answers to the first operations, and returns them.
func (a *Answers) Next(operations int) Answers {
	codes := a.codes[:operations]
	details := strings.Count(codes, "*")
	first := Answers{codes: codes, details: a.details[:details]}
	a.codes, a.details = a.codes[operations:], a.details[details:]
	return first
}

// Unpack splits the reply of the script into the node's clock, in µs, and the answers to that
// many operations.
func Unpack(message *rueidis.RedisMessage, operations int) (clock int64, all Answers, err error) {
	parts, err := message.ToArray()
	if err != nil {
		return 0, Answers{}, err
	}
	if len(parts) < 2 {
		return 0, Answers{}, errReply
	}
	if clock, err = integerOf(&parts[0]); err != nil {
		return 0, Answers{}, err
	}
	if all.codes, err = StringOf(&parts[1]); err != nil {
		return 0, Answers{}, err
	}
	all.details = parts[2:]
	if len(all.codes) != operations || strings.Count(all.codes, "*") != len(all.details) {
		return 0, Answers{}, errReply
	}
	return clock, all, nil
}

// Declined reports whether the script Lean has left its operation to Apply.
func (a *Answers) Declined() bool { return a.codes == "?" }

// Detail returns the parts of the only answer, which is not a number.
func (a *Answers) Detail() ([]rueidis.RedisMessage, error) {
	if len(a.details) != 1 {
		return nil, errReply
	}
	parts, err := a.details[0].ToArray()
	if err != nil {
		return nil, err
	}
	return parts, operationFailure(parts)
}

// OperationError is the error of one operation, as the script reports it.
type OperationError string

// Error returns the server's text.
func (e OperationError) Error() string { return string(e) }

// operationFailure returns the error in the answer of an operation, nil if there is none.
func operationFailure(parts []rueidis.RedisMessage) error {
	if len(parts) != 1 {
		return nil
	}
	text, err := StringOf(&parts[0])
	if err != nil {
		return err
	}
	return OperationError(strings.TrimPrefix(text, "ERR "))
}

// errReply means that a reply does not have the parts that the script answers.
var errReply = errors.New("unexpected shape of a reply")

// NotUnderstood returns the error about a reply of another shape than the script answers.
func NotUnderstood(what string, err error) error {
	return &ConfigError{Problem: "reply to " + what + " not understood: " + err.Error(), Fix: defaultFix}
}

// integerOf returns a reply that is an integer, or an error.
func integerOf(message *rueidis.RedisMessage) (int64, error) {
	if err := message.Error(); err != nil {
		return 0, err
	}
	return message.ToInt64()
}

// StringOf returns a reply that is a string, or an error. ToString of rueidis also
// accepts RESP3's numbers and booleans as strings.
func StringOf(message *rueidis.RedisMessage) (string, error) {
	if err := message.Error(); err != nil {
		return "", err
	}
	if !message.IsString() {
		return "", errReply
	}
	return message.ToString()
}

// Integers returns the parts of a reply as numbers. AsIntSlice of rueidis reads other texts
// as 0.
func Integers(parts []rueidis.RedisMessage) (numbers []int64, ok bool) {
	for i := range parts {
		n, err := parts[i].AsInt64()
		if err != nil {
			return nil, false
		}
		numbers = append(numbers, n)
	}
	return numbers, true
}
