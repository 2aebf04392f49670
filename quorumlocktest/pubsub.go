package quorumlocktest

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/quorumlock/quorumlock/internal/master"
)

// The package does publish/subscribe itself. miniredis sends messages from goroutines of
// its own: messages and replies could overtake each other, and the goroutines outlive
// Close for a moment. Here a message is sent where Redis sends it: while PUBLISH runs,
// before its reply.

// subscriptions are the subscriptions of one session, by kind: "" for channels, "p" for patterns, "s"
// for shard channels. node.exec guards them.
type subscriptions map[string][]string

// subscribe answers SUBSCRIBE and its kin, with one push for each channel.
func (p *process) subscribe(s *session, cmd string, args []string) []byte {
	if s.peer == nil {
		return errorReply("ERR " + cmd + " needs a connection")
	}
	verb := strings.ToLower(cmd)
	kind := strings.TrimSuffix(strings.TrimSuffix(verb, "subscribe"), "un")
	leaving := strings.HasSuffix(verb, "unsubscribe")
	switch {
	case len(args) > 0:
	case !leaving:
		return errorReply("ERR wrong number of arguments for '" + verb + "' command")
	case len(s.subs[kind]) == 0:
		return s.push(verb, s.null(), s.subs.count(kind))
	default:
		args = slices.Clone(s.subs[kind])
	}
	var reply []byte
	for _, name := range args {
		has := slices.Contains(s.subs[kind], name)
		switch {
		case leaving && has:
			s.subs[kind] = slices.DeleteFunc(s.subs[kind], func(n string) bool { return n == name })
		case !leaving && !has:
			s.subs[kind] = append(s.subs[kind], name)
		}
		reply = append(reply, s.push(verb, bulk(name), s.subs.count(kind))...)
	}
	p.subscribers = slices.DeleteFunc(p.subscribers, func(other *session) bool { return other == s })
	if s.subs.any() {
		p.subscribers = append(p.subscribers, s)
	}
	return reply
}

// publish sends a message to all subscribers, and returns their number. The caller holds
// node.exec.
func (p *process) publish(shard bool, channel, message string) int {
	receivers := 0
	deliver := func(s *session, parts ...string) {
		frame := s.head(len(parts))
		for _, part := range parts {
			frame += bulk(part)
		}
		s.peer.WriteRaw(frame)
		s.peer.Flush()
		receivers++
	}
	for _, s := range p.subscribers {
		switch {
		case shard && slices.Contains(s.subs["s"], channel):
			deliver(s, "smessage", channel, message)
		case !shard && slices.Contains(s.subs[""], channel):
			deliver(s, "message", channel, message)
		}
	}
	for _, s := range p.subscribers {
		for _, pattern := range s.subs["p"] {
			if !shard && glob(pattern, channel) {
				deliver(s, "pmessage", pattern, channel, message)
			}
		}
	}
	return receivers
}

// unsubscribe ends the subscriptions to the shard channels of slots. The caller holds node.exec.
func (p *process) unsubscribe(slots []int) {
	for _, s := range slices.Clone(p.subscribers) {
		for _, channel := range slices.Clone(s.subs["s"]) {
			if slices.Contains(slots, master.Slot(channel)) {
				s.peer.WriteRaw(string(p.subscribe(s, "SUNSUBSCRIBE", []string{channel})))
				s.peer.Flush()
			}
		}
	}
}

// pubsub answers PUBSUB NUMSUB, NUMPAT and CHANNELS, and the same for shard channels. It returns nil for other
// subcommands, which miniredis refuses too.
func (p *process) pubsub(args []string) []byte {
	if len(args) == 0 {
		return nil
	}
	kind, sub := "", strings.ToUpper(args[0])
	if of, sharded := strings.CutPrefix(sub, "SHARD"); sharded {
		kind, sub = "s", of
	}
	counts := map[string]int{}
	patterns := map[string]bool{}
	for _, s := range p.subscribers {
		for _, channel := range s.subs[kind] {
			counts[channel]++
		}
		for _, pattern := range s.subs["p"] {
			patterns[pattern] = true
		}
	}
	switch {
	case sub == "NUMSUB":
		reply := fmt.Appendf(nil, "*%d\r\n", 2*len(args[1:]))
		for _, channel := range args[1:] {
			reply = fmt.Appendf(reply, "%s:%d\r\n", bulk(channel), counts[channel])
		}
		return reply
	case sub == "NUMPAT" && kind == "" && len(args) == 1:
		return fmt.Appendf(nil, ":%d\r\n", len(patterns))
	case sub == "CHANNELS" && len(args) <= 2:
		var names string
		n := 0
		for channel := range counts {
			if len(args) == 1 || glob(args[1], channel) {
				names += bulk(channel)
				n++
			}
		}
		return fmt.Appendf(nil, "*%d\r\n%s", n, names)
	}
	return nil
}

// restricted reports whether the connection may only manage its subscriptions. That is so
// if it has some, and its protocol does not separate pushes from replies.
func (s *session) restricted(cmd string) bool {
	return s.subs.any() && !s.shadow.Resp3 && cmd != "PING" && cmd != "QUIT" && !strings.HasSuffix(cmd, "SUBSCRIBE")
}

func (s *session) push(verb, name string, count int) []byte {
	return fmt.Appendf(nil, "%s%s%s:%d\r\n", s.head(3), bulk(verb), name, count)
}

// head returns the head of a push of n parts.
func (s *session) head(n int) string {
	if s.shadow.Resp3 {
		return fmt.Sprintf(">%d\r\n", n)
	}
	return fmt.Sprintf("*%d\r\n", n)
}

func (s *session) null() string {
	if s.shadow.Resp3 {
		return "_\r\n"
	}
	return "$-1\r\n"
}

func (s subscriptions) any() bool {
	return len(s[""])+len(s["p"])+len(s["s"]) > 0
}

// count returns the number in the reply to a change. Shard channels are counted
// separately.
func (s subscriptions) count(kind string) int {
	if kind == "s" {
		return len(s["s"])
	}
	return len(s[""]) + len(s["p"])
}

// glob matches like Redis: like path.Match, but a slash has no special meaning.
func glob(pattern, name string) bool {
	noSlash := strings.NewReplacer("/", "\x00")
	ok, err := path.Match(noSlash.Replace(pattern), noSlash.Replace(name))
	return ok && err == nil
}
