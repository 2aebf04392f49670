package differential

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/sim"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/internal/wire/conformance"
)

// server runs operations by the Lua, on the keys of one prefix.
type server struct {
	client   rueidis.Client
	prefix   string
	mode     mode
	lock     string
	settings []string // the first keys
	one      string   // the Manager of all tickets, as in the conformance cases; "" for several

	subscriber  rueidis.DedicatedClient
	unsubscribe func()
	messages    chan rueidis.PubSubMessage // holds more than one operation sends; nothing is dropped, and it is not closed
}

// connect prepares a prefix that no other list uses.
func connect(client rueidis.Client, prefix string, m mode) (*server, error) {
	s := &server{
		client: client, prefix: prefix, mode: m, lock: wire.LockKey(prefix, "l"),
		settings: []string{wire.RegistersKey(prefix), wire.BaseKey(prefix), wire.HintKey(prefix), wire.GuardKey(prefix), wire.ListsKey(prefix)},
		messages: make(chan rueidis.PubSubMessage, 4096),
	}
	s.subscriber, s.unsubscribe = client.Dedicate()
	s.subscriber.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) { s.messages <- m }})
	channels := []string{s.mark()}
	for c := range clients {
		channels = append(channels, s.channel(c))
	}
	err := s.subscriber.Do(background, client.B().Subscribe().Channel(channels...).Build()).Error()
	if err == nil {
		err = client.Do(background, client.B().Set().Key(s.settings[3]).Value(known).Build()).Error()
	}
	return s, err
}

var background = context.Background()

// known is the marker on the node.
const known = "marker"

func (s *server) mark() string { return s.prefix + "done" }

func (s *server) channel(client int) string { return wire.WakeChannel(s.prefix, manager(client)) }

// ends simulates the end of a client's process.
func (s *server) ends(client int) error {
	return s.subscriber.Do(background, s.client.B().Unsubscribe().Channel(s.channel(client)).Build()).Error()
}

func manager(client int) string { return fmt.Sprintf("%016x", client+1) }

func ownerText(owner uint32) string { return fmt.Sprintf("%032x", owner) }

// ticketText returns the ticket as it is in the queue.
func ticketText(ticket uint32, m mode, limit int) string {
	name := manager(int(ticket-1000)/100) + fmt.Sprintf("%016x", ticket) + strconv.Itoa(int(grace.Milliseconds()))
	switch {
	case m == permits:
		return name + string(wire.PermitMark) + strconv.Itoa(limit)
	case ticket%2 == 1:
		return name + string(wire.ReaderMark)
	}
	return name
}

const metadata = "1700000000000000 - label"

func micros(us int64) string { return strconv.FormatInt(us, 10) }

// keyOf returns the lock of an operation.
func (s *server) keyOf(o *sim.Operation) string {
	if s.mode == permits {
		return wire.SlotKey(s.lock, o.Slot)
	}
	return s.lock
}

// args returns the operation as arguments of the Lua.
func (s *server) args(o *sim.Operation) []string {
	owner, ms := ownerText(o.Owner), strconv.FormatInt(ttl.Milliseconds(), 10)
	value := wire.Compose(owner, o.Token, metadata)
	reads := wire.Compose(owner, 0, metadata)
	ticket, place, mode := "", "", ""
	if o.Ticket != 0 {
		ticket, place = ticketText(o.Ticket, s.mode, o.Limit), micros(o.Place)
	}
	if o.Lapsed {
		mode = "l"
	}
	settled := place
	if !o.Stays {
		settled = ""
	}
	end := map[bool]string{o.Yields: "y", o.LeavesFree: "f"}[true]
	acquire := []string{o.Name, value, ms, micros(o.NotAfter), micros(o.Token)}
	switch o.Name {
	case "acquire", "anew":
		return acquire
	case "wait":
		return append(acquire, ticket, place, mode)
	case "permit":
		return append(acquire, ticket, place, strconv.Itoa(o.Limit), mode)
	case "resume":
		return append(acquire, ownerText(o.From)+" ")
	case "share":
		return []string{o.Name, reads, ms, micros(o.NotAfter), ticket, place, mode}
	case "extend":
		return []string{o.Name, owner + " " + micros(o.Token) + " ", ms}
	case "prolong":
		return []string{o.Name, reads, ms}
	case "heal":
		return []string{o.Name, reads, ms, micros(o.NotAfter), micros(o.Held)}
	case "restore":
		return []string{o.Name, reads, ms, micros(o.NotAfter), micros(o.Held)}
	case "raise":
		return []string{o.Name, value, micros(o.Token)}
	case "align":
		return []string{"raise", reads, micros(o.Token)}
	case "release", "drop":
		return []string{o.Name, owner + " "}
	case "leave":
		return []string{o.Name, owner + " ", ticket, settled, end}
	case "quit":
		return []string{o.Name, reads, ticket, settled, end}
	case "pass":
		return []string{"quit", ticket[:wire.TicketLen] + " w ", ticket, "", ""}
	case "back":
		return []string{o.Name, owner + " ", ownerText(o.From) + " "}
	case "ask":
		return []string{"mark", owner + " ", "a", "0", micros(o.NotAfter), "note"}
	case "revoke":
		return []string{"mark", owner + " ", "x", strconv.FormatInt(o.Life.Milliseconds(), 10), micros(o.NotAfter), "note"}
	case "detach":
		return []string{"mark", owner + " ", "d", strconv.FormatInt(o.Life.Milliseconds(), 10), micros(o.NotAfter), ""}
	}
	panic("no operation " + o.Name)
}

// run runs an operation. It returns the node's clock, µs, the answer, and the messages.
func (s *server) run(o *sim.Operation, lean bool) (now int64, answer any, messages []sim.Message, err error) {
	knows := known
	if o.OtherMarker {
		knows = "other"
	}
	at, err := s.time()
	if err != nil {
		return 0, nil, nil, err
	}
	if o.Name == "lean" {
		made, err := s.makeLean(o, at)
		if err != nil {
			return 0, nil, nil, err
		}
		messages, err = s.received()
		return at, made, messages, err
	}
	if lean && (o.Name == "acquire" || o.Name == "release") && s.mode != permits {
		done, err := s.lean(o, at, knows)
		if err != nil {
			return 0, nil, nil, err
		}
		if done {
			messages, err = s.received()
			return at, int64(1), messages, err // a key that expires from here on makes the list unclear
		}
	}
	flags := "s"
	if o.Deaf {
		flags = ""
	}
	keys := append(slices.Clone(s.settings), s.keyOf(o))
	args := append([]string{"0", micros(at), knows, wire.WakeChannel(s.prefix, ""), micros(ahead.Microseconds()), flags}, s.args(o)...)
	answer = conformance.Declined
	if lean && (o.Name == "acquire" || o.Name == "release" || o.Name == "extend") && s.mode != permits {
		now, answer, err = s.eval(wire.Apply, keys, args) // without the companion keys
	}
	if err == nil && answer == conformance.Declined {
		queue, watch, set := wire.Companions(s.keyOf(o))
		args[5] += "k"
		now, answer, err = s.eval(wire.Apply, append(keys, queue, watch, set), args)
	}
	if err != nil {
		return 0, nil, nil, err
	}
	messages, err = s.received()
	return now, answer, messages, err
}

// lean runs an operation in the lean way, and reports whether that worked. It does not try where the lock would not be
// a vote: conformance covers that case.
func (s *server) lean(o *sim.Operation, at int64, knows string) (done bool, err error) {
	if o.Name == "release" {
		made, err := s.exec([]string{s.keyOf(o), s.settings[2]}, s.args(o))
		return made == 1, err
	}
	known, err := s.client.Do(background, s.client.B().Mget().Key(s.settings[1], s.settings[2], s.settings[3]).Build()).AsStrSlice()
	if err != nil {
		return false, err
	}
	look := vote.Look{Base: known[0], Hint: known[1], Marker: known[2]}
	if !look.Counts(micros(o.Token), knows) || at > o.NotAfter {
		return false, nil
	}
	made, err := s.makeLean(o, at)
	return made == 1, err
}

// makeLean runs the acquisition of the lean script.
func (s *server) makeLean(o *sim.Operation, at int64) (made int64, err error) {
	value := wire.Compose(ownerText(o.Owner), o.Token, metadata)
	args := []string{"acquire", value, micros(at/1000 + ttl.Milliseconds()), micros(o.Token), micros(ahead.Microseconds())}
	return s.exec([]string{s.keyOf(o), s.settings[0]}, args)
}

// exec runs the lean script.
func (s *server) exec(keys, args []string) (made int64, err error) {
	return rueidis.NewLuaScript(wire.Lean).Exec(background, s.client, keys, args).AsInt64()
}

// eval runs a script with one operation.
func (s *server) eval(script string, keys, args []string) (now int64, answer any, err error) {
	reply, err := rueidis.NewLuaScript(script).Exec(background, s.client, keys, args).ToAny()
	if err != nil {
		return 0, nil, err
	}
	now, answers, err := conformance.Answers(reply)
	if err == nil && len(answers) != 1 {
		err = fmt.Errorf("the script has answered %v", reply)
	}
	if err != nil {
		return 0, nil, err
	}
	return now, answers[0], nil
}

func (s *server) time() (int64, error) {
	parts, err := s.client.Do(background, s.client.B().Time().Build()).AsIntSlice()
	if err != nil {
		return 0, err
	}
	return parts[0]*1e6 + parts[1], nil
}

// received returns the messages since the last call.
func (s *server) received() (all []sim.Message, err error) {
	if err := s.client.Do(background, s.client.B().Publish().Channel(s.mark()).Message("").Build()).Error(); err != nil {
		return nil, err
	}
	for {
		select {
		case m := <-s.messages:
			if m.Channel == s.mark() {
				return all, nil
			}
			kind, key := m.Message[:1], m.Message[1+wire.TicketLen:] // queues are too short for ranks of two digits
			ticket, err := strconv.ParseUint(m.Message[1+wire.ManagerLen:1+wire.TicketLen], 16, 64)
			if err != nil {
				return nil, fmt.Errorf("message %q: %w", m.Message, err)
			}
			slot := -1
			if _, k, ok := wire.SlotOf(key); ok && k >= 0 {
				slot = k
			}
			all = append(all, sim.Message{Kind: kind, Ticket: uint32(ticket), Slot: slot})
		case <-time.After(20 * time.Second):
			return nil, fmt.Errorf("%d messages, and no end of them", len(all))
		}
	}
}

// rights is the offset that the set of the slots adds to the instants at which rights end.
const rights = 1_000_000_000_000_000

// show returns the keys of a name, with their expiry times.
const show = `
local time = redis.call('TIME')
local function all(key) return redis.call('ZRANGE', key, '0', '-1', 'WITHSCORES') end
local r = { time[1] * 1000000 + time[2], redis.call('GET', KEYS[2]), all(KEYS[3]), all(KEYS[4]), all(KEYS[5]) }
for i = 6, #KEYS do
  r[#r + 1] = { redis.call('GET', KEYS[i]), redis.call('PEXPIRETIME', KEYS[i]), redis.call('ZSCORE', KEYS[1], KEYS[i]) }
end
return r`

// state returns the keys, and the node's clock, µs.
func (s *server) state() (now int64, state sim.State, err error) {
	behind := s.lock
	if s.mode == permits {
		behind = wire.FamilyKey(s.lock)
	}
	keys := []string{s.settings[0], s.settings[1], wire.QueueKey(behind), wire.ReadersKey(s.lock), wire.SlotsKey(s.lock)}
	if s.mode == permits {
		for k := range limits {
			keys = append(keys, wire.SlotKey(s.lock, k))
		}
	} else {
		keys = append(keys, s.lock)
	}
	reply, err := rueidis.NewLuaScript(show).Exec(background, s.client, keys, nil).ToArray()
	if err != nil {
		return 0, state, err
	}
	p := parser{manager: s.one}
	now = p.number(reply[0])
	state.Base = p.number(reply[1])
	for _, lot := range reply[5:] {
		state.Lots = append(state.Lots, p.lot(lot))
	}
	for ticket, at := range p.pairs(reply[2]) {
		v := sim.Place{Ticket: p.ticket(ticket), At: at, Reads: strings.HasSuffix(ticket, string(wire.ReaderMark))}
		if _, limit, ok := strings.Cut(ticket, string(wire.PermitMark)); ok {
			v.Limit = int(p.decimal(limit))
		}
		state.Queue = append(state.Queue, v)
	}
	slices.SortFunc(state.Queue, func(a, b sim.Place) int { return int(a.At - b.At) })
	if strings.HasSuffix(state.Lots[0].Form, "readers") {
		for value, ends := range p.pairs(reply[3]) {
			if ends <= now/1000 {
				continue
			}
			r := sim.Member{Woken: strings.HasSuffix(value, " w "), Ends: ends}
			if r.Woken {
				r.Owner = p.ticket(value)
			} else {
				r.Owner = p.hex(value)
			}
			state.Readers = append(state.Readers, r)
		}
	}
	for value, ends := range p.pairs(reply[4]) {
		if ends -= rights; ends > now/1000 { // the others are slots
			state.Rights = append(state.Rights, sim.Member{Owner: p.ticket(value), Woken: true, Ends: ends})
		}
	}
	byOwner := func(a, b sim.Member) int { return int(a.Owner) - int(b.Owner) }
	slices.SortFunc(state.Readers, byOwner)
	slices.SortFunc(state.Rights, byOwner)
	return now, state, p.err
}

// parser keeps the first error.
type parser struct {
	err     error
	manager string // of all tickets, which are then above every owner; "" for several
}

func (p *parser) fail(err error) {
	if p.err == nil && err != nil {
		p.err = err
	}
}

func (p *parser) number(m rueidis.RedisMessage) int64 {
	if m.IsNil() {
		return 0
	}
	text, err := m.ToString()
	if err != nil {
		n, err := m.ToInt64()
		p.fail(err)
		return n
	}
	return p.decimal(text)
}

// hex parses the second half of 32 digits, which is specific to the ticket or owner.
func (p *parser) hex(text string) uint32 {
	if len(text) < 32 {
		p.fail(fmt.Errorf("%q is no owner and no ticket", text))
		return 0
	}
	n, err := strconv.ParseUint(text[16:32], 16, 64)
	p.fail(err)
	return uint32(n)
}

// form matches a ticket of the conformance cases, or its name.
var form = regexp.MustCompile(fmt.Sprintf(`^[0-9a-f]{32}(%d(s|p[0-9]+)?| w |)$`, conformance.Grace.Milliseconds()))

// ticket parses a ticket, or its name.
func (p *parser) ticket(text string) uint32 {
	if p.manager == "" {
		return p.hex(text)
	}
	if !form.MatchString(text) || !strings.HasPrefix(text, p.manager) {
		p.fail(fmt.Errorf("%q is no ticket of the one Manager", text))
	}
	return ticketsFrom + p.hex(text)
}

const ticketsFrom = 1000

func (p *parser) decimal(text string) int64 {
	n, err := strconv.ParseFloat(text, 64) // scores are below 2^53
	p.fail(err)
	return int64(n)
}

func (p *parser) pairs(m rueidis.RedisMessage) map[string]int64 {
	flat, err := m.AsStrSlice()
	p.fail(err)
	all := map[string]int64{}
	for i := 0; i+1 < len(flat); i += 2 {
		all[flat[i]] = p.decimal(flat[i+1])
	}
	return all
}

func (p *parser) lot(m rueidis.RedisMessage) (l sim.LotState) {
	parts, err := m.ToArray()
	p.fail(err)
	if err != nil {
		return l
	}
	l.Register = p.number(parts[2])
	if parts[0].IsNil() {
		return l
	}
	text, err := parts[0].ToString()
	p.fail(err)
	v := wire.ParseValue(text)
	if !v.Reserved && v.Since.IsZero() {
		p.fail(fmt.Errorf("%q is another program's", text))
		return l
	}
	l.Owner, l.Shown, l.Ends = p.hex(v.Owner), v.Token, p.number(parts[1])
	switch {
	case v.Reserved:
		l.Form, l.Owner = "reserved", p.ticket(v.Owner)
	case v.Shared:
		l.Form, l.Shown = "readers", 0
	case v.Revoked && v.Owner == wire.Nobody:
		l.Form = "revoked readers"
	case v.Revoked:
		l.Form = "revoked"
	case v.Detached:
		l.Form = "detached"
	default:
		l.Form = "lease"
	}
	return l
}
