package node

import (
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

// command builds the command of a request, with the arguments that only this
// node knows. The worker's.
func (n *Node) command(req *Request) rueidis.Completed {
	sha := n.client.B().Evalsha().Sha1(n.digests[req.Kind]).Numkeys(int64(len(req.Keys))).Key(req.Keys...)
	switch req.Kind {
	case Acquire:
		return sha.Arg(req.Args...).Arg(n.offsetArg(), n.floor).Build()
	case Heal:
		return sha.Arg(n.offsetArg()).Arg(req.Args...).Build()
	default:
		return sha.Arg(req.Args...).Build()
	}
}

func (n *Node) offsetArg() string { return n.clock.Load().arg }

// read fills r from the answer to req.
func (n *Node) read(req *Request, result rueidis.RedisResult, r *Reply, received time.Duration) {
	message, err := result.ToMessage()
	if err != nil {
		r.Status, r.Err = classify(err)
		return
	}
	r.Status = Done
	switch req.Kind {
	case Acquire:
		if message.IsInt64() {
			r.Status = Granted
			r.N, err = message.AsInt64()
			break
		}
		var parts []rueidis.RedisMessage
		if parts, err = message.ToArray(); err != nil {
			break
		}
		if len(parts) == 2 {
			r.Status = Taken
			err = readHolder(parts, r)
			break
		}
		// Too late by this node's clock: its answer says what that clock is,
		// so the next request has the right offset.
		var now int64
		if now, err = parts[0].AsInt64(); err == nil {
			n.observe(now, r.Sent, received)
			r.Status, r.Err = Unsent, ErrLate
		}
	case Extend, Heal:
		err = n.readMany(&message, r, received)
	case Read:
		var parts []rueidis.RedisMessage
		if parts, err = message.ToArray(); err == nil {
			err = readHolder(parts, r)
			if len(parts) > 2 && !parts[2].IsNil() {
				r.Fence, err = parts[2].AsInt64()
			}
		}
	default:
		r.N, err = message.AsInt64()
	}
	if err != nil {
		r.Status = Misconfigured
		r.Err = &ConfigError{Problem: "reply to " + req.Kind.String() + " not understood: " + err.Error(), Fix: defaultFix}
	}
}

// readHolder reads a lock's value and how long it lives.
func readHolder(parts []rueidis.RedisMessage, r *Reply) (err error) {
	if !parts[0].IsNil() {
		if r.Value, err = parts[0].ToString(); err != nil {
			return err
		}
	}
	ms, err := parts[1].AsInt64()
	r.TTL = time.Duration(ms) * time.Millisecond
	return err
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

// observe takes a reading of the node's clock, in µs since 1970, made between
// sent and received. It is kept when it is at least as sharp as the one before
// has become, or contradicts it: then a clock was stepped.
func (n *Node) observe(micros int64, sent, received time.Duration) {
	clock := time.Duration(micros) * time.Microsecond
	next := &offset{low: clock - received, width: received - sent, at: received}
	if old := n.clock.Load(); old != nil {
		slack := old.width + (received-old.at)/drift
		apart := next.low > old.low+slack || next.low+next.width < old.low-slack
		if !apart && next.width > slack {
			return
		}
		if !apart && next.low-old.low < time.Millisecond && old.low-next.low < time.Millisecond {
			// As good as before: keep the string, refresh nothing but the age.
			next.low, next.arg = old.low, old.arg
		}
	}
	if next.arg == "" {
		next.arg = strconv.FormatInt(next.low.Microseconds(), 10)
	}
	n.clock.Store(next)
}
