package wire

import (
	"errors"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Answers are the answers to one or more operations: one character for each, and the
// detail of each '*'.
type Answers struct {
	codes   string
	details []rueidis.RedisMessage
}

// AnswerOf returns an answer to one operation that consists of this character.
func AnswerOf(code string) Answers { return Answers{codes: code} }

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
	rest, err := message.ToArray()
	p := parts{rest, err}
	clock, all.codes = p.integer(), p.text()
	all.details = p.rest
	if p.err == nil && (len(all.codes) != operations || strings.Count(all.codes, "*") != len(all.details)) {
		p.err = ErrNotUnderstood
	}
	return clock, all, p.err
}

// Declined reports whether an operation was not run, because Apply needs the companions of its lock.
func (a *Answers) Declined() bool { return strings.Contains(a.codes, "?") }

// Declines reports whether the result of a script shows that an operation was not run, as Declined does.
func Declines(result rueidis.RedisResult) bool {
	parts, err := result.ToArray()
	if err != nil || len(parts) < 2 {
		return false
	}
	codes, err := parts[1].ToString()
	return err == nil && strings.Contains(codes, "?")
}

// Detail returns the parts of the only answer, which is not a number.
func (a *Answers) Detail() ([]rueidis.RedisMessage, error) {
	if len(a.details) != 1 {
		return nil, ErrNotUnderstood
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

// parts are the unread parts of an answer. After the first part that is missing or of the wrong type, all parts read as
// zero, and err is the reason.
type parts struct {
	rest []rueidis.RedisMessage
	err  error
}

// partsOf returns the parts of the only answer.
func partsOf(all Answers) parts {
	rest, err := all.Detail()
	return parts{rest, err}
}

// next returns the next part, as read returns it.
func next[T any](p *parts, read func(*rueidis.RedisMessage) (T, error)) (part T) {
	if p.err == nil && len(p.rest) == 0 {
		p.err = ErrNotUnderstood
	}
	if p.err == nil {
		part, p.err = read(&p.rest[0])
		p.rest = p.rest[1:]
	}
	return part
}

func (p *parts) integer() int64 { return next(p, integerOf) }

func (p *parts) text() string { return next(p, StringOf) }

// texts returns the next part, which is a list of texts.
func (p *parts) texts() (texts []string) {
	list := parts{rest: next(p, (*rueidis.RedisMessage).ToArray)}
	for p.err == nil && len(list.rest) > 0 {
		texts = append(texts, list.text())
		p.err = list.err
	}
	return texts
}

// maxRefused bounds the times that a node reports, in ms: a year.
const maxRefused = 365 * 24 * 3600 * 1000

// span returns the next part, a number of ms, within 0 and maxRefused.
func (p *parts) span() time.Duration {
	return time.Duration(min(max(p.integer(), 0), maxRefused)) * time.Millisecond
}

// end returns why the answer is not understood; an unread part is a reason, too.
func (p *parts) end() error {
	if p.err == nil && len(p.rest) > 0 {
		return ErrNotUnderstood
	}
	return p.err
}

// ErrNotUnderstood means that a reply does not have the parts that the script answers.
var ErrNotUnderstood = errors.New("unexpected reply")

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
		return "", ErrNotUnderstood
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
