package node

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// command builds the command of a request, with the arguments that only this
// node knows. The worker's.
func (n *Node) command(req *Request) rueidis.Completed {
	script := n.client.B().Evalsha().Sha1(n.digests[req.Kind])
	if req.Kind == Acquire && n.cfg.Guard > 0 {
		keys := [3]string{req.Keys[0], req.Keys[0], req.Keys[0]}
		copy(keys[:], req.Keys)
		return script.Numkeys(4).Key(keys[:]...).Key(n.markerKey).
			Arg(req.Args...).Arg(n.offsetArg(), n.floor, flag(n.listens.Load()), n.channels, n.marker).Build()
	}
	sha := script.Numkeys(int64(len(req.Keys))).Key(req.Keys...)
	switch req.Kind {
	case Acquire:
		return sha.Arg(req.Args...).Arg(n.offsetArg(), n.floor, flag(n.listens.Load()), n.channels).Build()
	case Release:
		return sha.Arg(req.Args...).Arg(n.channels).Build()
	case Heal:
		return sha.Arg(n.offsetArg()).Arg(req.Args...).Build()
	case Extend:
		return sha.Arg(n.nowArg()).Arg(req.Args...).Build()
	default:
		return sha.Arg(req.Args...).Build()
	}
}

func (n *Node) offsetArg() string { return n.clock.Load().arg }

// nowArg is the node's clock, µs; if anything, it is behind.
func (n *Node) nowArg() string {
	return strconv.FormatInt((n.cfg.Now() + n.clock.Load().low).Microseconds(), 10)
}

// read fills r from the answer to req.
func (n *Node) read(req *Request, result rueidis.RedisResult, r *Reply, received time.Duration) {
	message, err := result.ToMessage()
	if err != nil {
		r.Status, r.Err = classify(err)
		r.Err = missing(req.Kind, r.Err)
		return
	}
	r.Status = Done
	switch req.Kind {
	case Acquire:
		err = n.readVote(&message, r, received)
	case Extend, Heal:
		err = n.readMany(&message, r, received)
	case Read:
		var parts []rueidis.RedisMessage
		if parts, err = message.ToArray(); err == nil {
			err = readState(parts, r)
		}
	default:
		r.N, err = message.AsInt64()
	}
	if err != nil {
		r.Status = Misconfigured
		r.Err = &ConfigError{Problem: "reply to " + req.Kind.String() + " not understood: " + err.Error(), Fix: defaultFix}
	}
}

// readVote reads the answer to an acquisition.
func (n *Node) readVote(message *rueidis.RedisMessage, r *Reply, received time.Duration) error {
	if message.IsString() {
		return n.readGrant(message, r, received)
	}
	parts, err := message.ToArray()
	switch {
	case err != nil:
		return err
	case len(parts) == 0:
		r.Status, r.Err = Unsent, ErrQuarantined
		n.strange = true
		return nil
	case len(parts) == 1:
		// Too late by the node's clock. What that clock is, is noted here, so
		// the next request has the right offset.
		clock, err := parts[0].AsInt64()
		if err != nil {
			return err
		}
		n.observe(clock, r.Sent, received)
		r.Status, r.Err = Unsent, ErrLate
		return nil
	case len(parts) == 3 && parts[0].IsString():
		r.Status = Taken
		if r.Place, err = parts[2].AsInt64(); err != nil {
			return err
		}
		return readHolder(parts, r)
	default:
		return errStrange
	}
}

// readGrant reads "counter clock".
func (n *Node) readGrant(message *rueidis.RedisMessage, r *Reply, received time.Duration) error {
	text, err := message.ToString()
	if err != nil {
		return err
	}
	first, second, _ := strings.Cut(text, " ")
	counter, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return err
	}
	clock, err := strconv.ParseInt(second, 10, 64)
	if err != nil {
		return err
	}
	n.observe(clock, r.Sent, received)
	r.Status, r.N = Granted, counter
	return nil
}

// errStrange: the parts of a reply are not what the script answers.
var errStrange = errors.New("other parts than expected")

// stringOf returns a reply that is a string; any other is an error. ToString of
// rueidis takes RESP3's numbers and booleans for strings as well.
func stringOf(message *rueidis.RedisMessage) (string, error) {
	if err := message.Error(); err != nil {
		return "", err
	}
	if !message.IsString() {
		return "", errStrange
	}
	return message.ToString()
}

// readHolder reads a lock's value and how long it lives.
func readHolder(parts []rueidis.RedisMessage, r *Reply) (err error) {
	if len(parts) < 2 {
		return errStrange
	}
	if !parts[0].IsNil() {
		if r.Value, err = stringOf(&parts[0]); err != nil {
			return err
		}
	}
	ms, err := parts[1].AsInt64()
	// Redis takes lives that no duration can hold: 292 million years. Half of
	// what one can hold leaves room to add to it.
	r.TTL = time.Duration(min(max(ms, -2), math.MaxInt64/2/int64(time.Millisecond))) * time.Millisecond
	return err
}

// readState reads a lock's value, how long it lives, its counter, and how many wait.
func readState(parts []rueidis.RedisMessage, r *Reply) (err error) {
	if len(parts) != 4 {
		return errStrange
	}
	if !parts[2].IsNil() {
		if r.Fence, err = parts[2].AsInt64(); err != nil {
			return err
		}
	}
	if r.Queue, err = parts[3].AsInt64(); err != nil {
		return err
	}
	return readHolder(parts, r)
}

// readMany reads the node's clock and one answer for each lock.
func (n *Node) readMany(message *rueidis.RedisMessage, r *Reply, received time.Duration) error {
	parts, err := message.ToArray()
	if err != nil {
		return err
	}
	n.many = n.many[:0]
	for i := range parts {
		v, err := parts[i].AsInt64()
		if err != nil {
			return err
		}
		if i == 0 {
			n.observe(v, r.Sent, received)
			continue
		}
		n.many = append(n.many, v)
	}
	r.Many = n.many
	return nil
}

// offset is what is known of a node's clock against the client's. The node
// read its clock between sent and received, so the true offset lies in
// [low, low+width].
type offset struct {
	low, width time.Duration
	at         time.Duration
	arg        string // low in µs, as the scripts take it
}

// drift is how fast an old measurement grows stale: clock rates differ by less
// than 1 %.
const drift = 100

// stepMin is the smallest step of a node's clock that is told: half of the
// least guard that a lease of ordinary length has. What is smaller is covered
// by the guard.
const stepMin = 25 * time.Millisecond

// freshFor is how long an offset is good enough to be kept when a new one is no
// sharper: every grant brings one.
const freshFor = time.Second

// observe takes a reading of the node's clock, in µs since 1970, made between
// sent and received. It is kept when it contradicts the one before, because
// then a clock was stepped, when it is much sharper, and when the one before
// has become less sharp by its age.
func (n *Node) observe(micros int64, sent, received time.Duration) {
	defer n.measured.Store(int64(received)) // last: whoever sees it has heard of the step too
	clock := time.Duration(micros) * time.Microsecond
	next := offset{low: clock - received, width: received - sent, at: received}
	if old := n.clock.Load(); old != nil {
		slack := old.width + (received-old.at)/drift
		switch {
		case next.low > old.low+slack, next.low+next.width < old.low-slack:
			// By how much at the most: so much earlier may keys expire.
			n.stepped(next.low+next.width-old.low, received)
		case 2*next.width < old.width:
		case next.width > slack, received-old.at < freshFor:
			return
		case next.low-old.low < time.Millisecond && old.low-next.low < time.Millisecond:
			// As good as before: keep the string, refresh nothing but the age.
			next.low, next.arg = old.low, old.arg
		}
	}
	if next.arg == "" {
		next.arg = strconv.FormatInt(next.low.Microseconds(), 10)
	}
	kept := next // on the heap from here on, and not for those that return above
	n.clock.Store(&kept)
}

// stepped takes note of a clock that was stepped. Forward, and keys have
// expired before their time: what the node says of locks that it no longer has
// must not count. Backward, keys live longer, which costs no more than time.
func (n *Node) stepped(by, at time.Duration) {
	if by.Abs() < stepMin {
		return
	}
	if by > 0 {
		n.quarantineFor(n.cfg.Doubt, ErrStepped)
		n.distrust, n.distrusted = n.cfg.Guard > 0, at
		n.again()
	}
	if n.cfg.Stepped != nil {
		n.cfg.Stepped(n.cfg.Index, by, at)
	}
}
