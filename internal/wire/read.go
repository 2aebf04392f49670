package wire

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// Reader reads the answers to requests. Its buffer is reused: the Answers of a Reply are valid
// until the next Read.
type Reader struct {
	// Unguarded means that the client has no restart guard.
	Unguarded bool

	codes []int64
	wants []Want
}

// Trim frees the buffer, which a burst may have made large.
func (d *Reader) Trim() { d.codes, d.wants = nil, nil }

// Read fills r from the answers to the operations of req.
func (d *Reader) Read(req *Request, all Answers, r *Reply) {
	r.Status = Done
	var failure Status
	var err error
	switch req.Kind {
	case Acquire:
		err = d.readVote(all, r)
	case Extend, Heal:
		if failure, err = d.readMany(all, r); failure != 0 && req.Insists {
			r.Status = failure
		}
	case Raise:
		err = readRaise(all, r)
	case Mark:
		err = readMark(all, r)
	case Read:
		err = readState(all, r)
	case Scan:
		err = readPage(all, r)
	default:
		if failure, err = d.readMany(all, r); err == nil {
			if r.N = r.Answers[0]; failure != 0 {
				r.Status = failure // all of them are sent again, which changes nothing where they have succeeded
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
	var failed OperationError
	if !errors.As(err, &failed) {
		return Misconfigured, NotUnderstood(kind.String(), err)
	}
	status, err := Classify(failed)
	if kind == Scan {
		return status, missingScan(err)
	}
	return status, MissingRight(err)
}

// readVote reads the answer to an acquisition. MayRepeat means that the markers differ.
func (d *Reader) readVote(all Answers, r *Reply) (err error) {
	switch all.codes[0] {
	case '1':
		r.Status, r.Moved, r.Before = Granted, AsProposed, AsProposed
		return nil
	case '0':
		r.Status, r.Err = NotApplied, ErrLate
		return nil
	case '-':
		r.Status, r.Err = MayRepeat, ErrQuarantined
		if d.Unguarded {
			r.Err = ErrUnguarded
		}
		return nil
	}
	if len(all.details) == 1 && all.details[0].IsInt64() {
		r.Status = Granted
		if r.Before, err = integerOf(&all.details[0]); err == nil && r.Before <= 2 {
			err = ErrNotUnderstood // a small value has a character, or isn't a register
		}
		return err
	}
	p := partsOf(all)
	if len(p.rest) == 3 && p.rest[0].IsInt64() {
		r.Status = Granted
		r.Moved, r.Before, r.Waiters = p.integer(), p.integer(), p.integer()
		return p.end()
	}
	r.Status, r.FreeSlot = Taken, -1
	p.held(r)
	r.Position = p.integer()
	switch len(p.rest) {
	case 1:
		r.FreeSlot = p.integer()
	case 2:
		r.Readers = readReaders(p.integer(), []string{p.text()})
	}
	return p.end()
}

// AsProposed in Moved means the proposal itself. In Before it means that the answer does
// not include the value.
const AsProposed = -1

// held reads a lock's value, if there is a lock, and how long the lock lives.
func (p *parts) held(r *Reply) {
	if len(p.rest) > 0 && p.rest[0].IsNil() {
		p.rest = p.rest[1:]
	} else {
		r.Held = p.text()
	}
	r.TTL = lifeOf(p.integer())
}

// readReaders reads how many readers a lock has, and their values without reservations.
func readReaders(count int64, values []string) *Readers {
	r := &Readers{Count: count}
	for _, v := range values {
		if v != "" && (len(v) < OwnerLen || v[OwnerLen:] != reservedMark) { // a label may end like the mark
			r.Values = append(r.Values, v)
		}
	}
	slices.Reverse(r.Values)
	return r
}

// readState reads the answer to a Read.
func readState(all Answers, r *Reply) error {
	p := partsOf(all)
	p.held(r)
	r.Register, r.Waiters = p.integer(), p.integer()
	if len(p.rest) > 1 {
		r.Readers = readReaders(p.integer(), p.texts())
	}
	if len(p.rest) > 0 {
		r.Tickets = p.tickets()
	}
	return p.end()
}

// tickets returns the next part, a list of tickets, each with its place. It leaves out what is not a ticket.
func (p *parts) tickets() (all []Ticket) {
	texts := p.texts()
	if len(texts)%2 != 0 && p.err == nil {
		p.err = ErrNotUnderstood
	}
	for ; len(texts) > 1; texts = texts[2:] {
		if t, ok := parseTicket(texts[0], texts[1]); ok {
			all = append(all, t)
		}
	}
	return all
}

// readPage reads the answer to a Scan.
func readPage(all Answers, r *Reply) error {
	p := partsOf(all)
	r.Page = &Page{Cursor: p.text(), Keys: p.texts()}
	return p.end()
}

func readRaise(all Answers, r *Reply) error {
	p := partsOf(all)
	r.Before, r.Waiters = p.integer(), p.integer()
	return p.end()
}

// readMany reads one answer for each lock. A lock of another type is another owner's. An
// operation that failed otherwise is Unanswered, and the others still count. failure is
// what such a failure means: Failed if one means that, or else the last.
func (d *Reader) readMany(all Answers, r *Reply) (failure Status, err error) {
	d.codes, d.wants = d.codes[:0], d.wants[:0]
	for i := range len(all.codes) {
		code, known := numeral(all.codes[i])
		if !known && all.codes[i] != '*' {
			return 0, ErrNotUnderstood
		}
		if !known {
			var status Status
			if code, status, err = d.readDetail(i, &all.details[0], r); err != nil {
				return 0, err
			}
			if status != 0 && failure != Failed {
				failure = status
			}
			all.details = all.details[1:]
		}
		d.codes = append(d.codes, code)
	}
	r.Answers, r.Wants = d.codes, d.wants
	return failure, nil
}

// readDetail returns an answer that is a larger number, or a number with what others want, or the
// result of an operation that failed; then r gets the error, and status is what it means.
func (d *Reader) readDetail(lock int, message *rueidis.RedisMessage, r *Reply) (code int64, status Status, err error) {
	if message.IsInt64() {
		if code, err = integerOf(message); err == nil && code < 0 {
			err = ErrNotUnderstood // a negative answer has a character, or isn't the script's
		}
		return code, 0, err
	}
	rest, err := message.ToArray()
	if err == nil && len(rest) == 3 {
		code, err = d.readWant(lock, parts{rest: rest})
		return code, 0, err
	}
	if err == nil {
		err = operationFailure(rest)
	}
	var failed OperationError
	switch {
	case !errors.As(err, &failed):
		return 0, 0, errors.Join(ErrNotUnderstood, err)
	case strings.HasPrefix(failed.Error(), "WRONGTYPE"):
		return Another, 0, nil
	}
	status, err = Classify(failed)
	r.Err = MissingRight(err)
	return Unanswered, status, nil
}

// readWant reads the answer to the extension of a lock that others want.
func (d *Reader) readWant(lock int, p parts) (code int64, err error) {
	code = p.integer()
	w := Want{Lock: lock, Waiters: p.integer()}
	note := p.text()
	if code < Another || code > OursWithoutVote {
		return 0, ErrNotUnderstood
	}
	if w.Marked = note != ""; w.Marked {
		w.Note = readNote(note)
	}
	d.wants = append(d.wants, w)
	return code, p.end()
}

// readMark reads the answer to a Mark.
func readMark(all Answers, r *Reply) error {
	if code, known := numeral(all.codes[0]); known {
		r.N = code
		return nil
	}
	p := partsOf(all)
	r.N, r.TTL = p.integer(), lifeOf(p.integer())
	return p.end()
}

// lifeOf returns how long a key lives. Redis allows TTLs of up to 292 million years, which no
// Duration can hold. Half of the largest Duration leaves room to add to it.
func lifeOf(ms int64) time.Duration {
	return time.Duration(min(max(ms, -2), math.MaxInt64/2/int64(time.Millisecond))) * time.Millisecond
}

// Reading returns the value of one reader and the number of readers of a lock that readers have; "" and 0 for any other
// lock. A lock whose readers have not come yet is reserved for them.
func (r *Reply) Reading() (value string, readers int) {
	if r.Readers == nil || len(r.Readers.Values) == 0 {
		return "", 0
	}
	return r.Readers.Values[0], int(r.Readers.Count)
}

// Free reports whether no lease has the lock of a Read: at most it is reserved for a waiter.
func (r *Reply) Free() bool {
	return r.TTL == Absent || ParseValue(r.Held).Reserved || r.Readers != nil && len(r.Readers.Values) == 0
}
