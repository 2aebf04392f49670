package differential

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/sim"
	"github.com/quorumlock/quorumlock/internal/wire"
	"github.com/quorumlock/quorumlock/internal/wire/conformance"
)

// The cases of conformance define what the Lua must do. The simulation's script also runs each operation that they
// send, on the keys that the server has then.
func TestTheSimulationsScriptPassesTheCasesOfConformance(t *testing.T) {
	at := redistest.Start(t, 1)[0]
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{at.Addr()}, DisableCache: true})
	require.NoError(t, err)
	defer client.Close()
	s := &shadow{t: t, client: client, do: at.Do, compared: map[string]int{}, left: map[string]int{}}
	conformance.Run(t, func(testing.TB) conformance.Server {
		return conformance.Server{
			Option: rueidis.ClientOption{InitAddress: []string{at.Addr()}, DisableCache: true},
			Do:     s.run, Restart: at.Restart,
			Fill:  func() { at.MustDo("CONFIG", "SET", "maxmemory", "1") },
			Drain: func() { at.MustDo("CONFIG", "SET", "maxmemory", "0") },
		}
	})
	t.Logf("operations compared: %v\ncalls left out: %v", s.compared, s.left)
	all := 0
	for _, name := range slices.Concat(slices.Collect(maps.Keys(counts)), []string{"revoke", "detach"}) {
		all += s.compared[name]
		if name != "mark" { // revoke and detach
			assert.Positive(t, s.compared[name], "no case was compared that has the operation %s", name)
		}
	}
	assert.Greater(t, all, 800, "of some 940: the comparison leaves out what it compared before")
}

// shadow passes commands on to a server, and also runs the calls of the script by the simulation.
type shadow struct {
	t        *testing.T
	client   rueidis.Client
	do       func(args ...string) (any, error)
	scripts  map[string]*sim.Script // by lock
	compared map[string]int         // operations
	left     map[string]int         // calls that were not compared, by reason
}

// one is an operation of a call, and the script of its lock.
type one struct {
	sim.Operation
	server *server
	script *sim.Script
}

func (s *shadow) run(args ...string) (any, error) {
	if args[0] == "FLUSHALL" { // a case begins
		s.scripts = map[string]*sim.Script{}
	}
	if args[0] != "EVAL" || args[1] != wire.Apply {
		return s.do(args...)
	}
	ops, why := s.read(args)
	if why == nil {
		why = s.load(ops)
	}
	reply, err := s.do(args...)
	if why == nil {
		why = s.compare(ops, reply)
	}
	if why != nil {
		s.left[why.Error()]++
		return reply, err
	}
	for _, o := range ops {
		s.compared[o.Name]++
	}
	return reply, err
}

// counts are the numbers of arguments of each operation that the simulation has.
var counts = map[string]int{
	"acquire": 4, "anew": 4, "wait": 7, "permit": 8, "resume": 5, "share": 6, "extend": 2, "prolong": 2, "heal": 4, "restore": 4, "raise": 2,
	"release": 1, "drop": 1, "leave": 4, "quit": 4, "back": 2, "mark": 5,
}

// read reads the operations of a call. Like load and compare it returns why the simulation cannot run them.
func (s *shadow) read(args []string) (ops []one, err error) {
	n, _ := strconv.Atoi(args[2])
	keys, args := args[3:3+n], args[3+n:]
	sent, known, channel, ahead, flags, args := args[1], args[2], args[3], args[4], args[5], args[6:]
	if ahead != micros(conformance.Ahead.Microseconds()) {
		return nil, errors.New("without fencing")
	}
	if strings.Contains(flags, "1") {
		return nil, errors.New("the only node of a list")
	}
	if at, err := strconv.ParseInt(sent, 10, 64); err != nil || time.Since(time.UnixMicro(at)).Abs() > time.Second {
		return nil, errors.New("a call that was sent at another time")
	}
	found, err := s.do("GET", keys[3])
	if err != nil {
		return nil, errors.New("a marker of another type")
	}
	marker, _ := found.(string)
	if known != marker && (known == "" || marker == "") {
		return nil, errors.New("a client without the guard, or a node without its marker")
	}
	if !strings.Contains(flags, "k") {
		return nil, errors.New("without the companions of the locks")
	}
	for i := 5; i < len(keys); i += 4 {
		key := keys[i]
		count, ok := counts[args[0]]
		if !ok || len(args) <= count {
			return nil, errors.New("the simulation has no " + args[0])
		}
		o := one{Operation: sim.Operation{Name: args[0], OtherMarker: known != marker, Deaf: !strings.Contains(flags, "s")}}
		if err := o.parse(args[1 : 1+count]...); err != nil {
			return nil, err
		}
		args = args[1+count:]
		lock, m := key, readers
		if name, slot, ok := wire.SlotOf(key); ok {
			if lock, m, o.Slot = name, permits, slot; slot < 0 || slot >= limits || o.Limit > limits {
				return nil, errors.New("more slots than the simulation has")
			}
		}
		o.server = &server{client: s.client, prefix: strings.TrimSuffix(channel, wire.WakeChannel("", "")), mode: m, lock: lock, settings: keys[:5], one: conformance.Manager}
		if o.script = s.scripts[lock+m.String()]; o.script == nil {
			setting := sim.Setting{Grace: conformance.Grace, Ahead: conformance.Ahead}
			if m == permits {
				setting.Permits = limits
			}
			o.script = sim.NewScript(setting)
			s.scripts[lock+m.String()] = o.script
		}
		ops = append(ops, o)
	}
	return ops, nil
}

// parse reads the arguments of an operation.
func (o *one) parse(args ...string) error {
	p := parser{manager: conformance.Manager}
	number := func(i int) int64 { return p.decimal(args[i]) }
	wait := func(ticket, place, mode int) {
		if args[ticket] != "" {
			o.Ticket = o.asked(&p, args[ticket])
		}
		if args[place] != "" {
			o.Place = number(place)
		}
		if o.Lapsed = args[mode] == "l"; args[mode] != "" && !o.Lapsed {
			p.fail(errors.New("a mode that the simulation does not have"))
		}
	}
	end := func(ticket int) {
		if args[ticket] != "" {
			o.Ticket = o.asked(&p, args[ticket])
		}
		if o.Stays = args[ticket+1] != ""; o.Stays {
			o.Place = number(ticket + 1)
		}
		o.Yields, o.LeavesFree = o.Stays && args[ticket+2] == "y", args[ticket+2] == "f"
	}
	if o.Name == "quit" && strings.HasSuffix(args[0], " w ") {
		o.Name, args = "pass", args[1:]
	}
	switch o.Name {
	case "pass":
		if o.Ticket = o.asked(&p, args[0]); p.err != nil {
			return errors.New("a ticket that the simulation does not have")
		}
		return nil
	case "mark":
		o.Name = map[string]string{"x": "revoke", "d": "detach", "a": "ask"}[args[1]]
		o.Life, o.NotAfter = time.Duration(number(2))*time.Millisecond, number(3)
		if o.Name == "ask" || o.Name == "" {
			p.fail(errors.New("the simulation has no such mark"))
		}
	case "acquire", "anew", "wait", "permit", "resume", "heal", "restore", "share", "extend", "prolong":
		if o.TTL = time.Duration(number(1)) * time.Millisecond; o.TTL <= 0 {
			p.fail(errors.New("a lock that ends before it begins"))
		}
	}
	o.Owner = p.hex(args[0])
	switch o.Name {
	case "acquire", "anew", "wait", "permit", "resume":
		if o.NotAfter, o.Token = number(2), number(3); o.Token%2 != 0 {
			p.fail(errors.New("a token that no client asks for"))
		}
	case "share", "heal", "restore":
		o.NotAfter = number(2)
	case "raise":
		if o.Token = number(1); wire.ParseValue(args[0]).Token == 0 {
			o.Name = "align" // for a reader
		}
	case "extend":
		_, token, _ := strings.Cut(strings.TrimSpace(args[0]), " ")
		o.Token = p.decimal(token)
	}
	switch o.Name {
	case "wait":
		wait(4, 5, 6)
	case "permit":
		o.Limit = int(number(6))
		wait(4, 5, 7)
	case "resume":
		o.From = p.hex(args[4])
	case "back":
		o.From = p.hex(args[1])
	case "share":
		wait(3, 4, 5)
	case "heal", "restore":
		o.Held = number(3)
	case "leave", "quit":
		end(1)
	}
	if p.err != nil {
		return errors.New("arguments that no client sends: " + o.Name)
	}
	return nil
}

// asked returns the ticket of an operation.
func (o *one) asked(p *parser, text string) uint32 {
	if grace := text[min(len(text), wire.TicketLen):]; !strings.HasPrefix(grace, strconv.FormatInt(conformance.Grace.Milliseconds(), 10)) {
		p.fail(errors.New("a ticket with another grace"))
	}
	if _, limit, ok := strings.Cut(text, string(wire.PermitMark)); ok {
		o.Limit = int(p.decimal(limit))
	}
	return p.ticket(text)
}

// load sets the scripts' keys to the keys of the server, if the scripts can represent them.
func (s *shadow) load(ops []one) error {
	for _, o := range ops {
		o.script.Listens(0, s.listens(o.server))
		then, keys, err := o.server.state()
		if err != nil {
			return errors.New("keys that are not ours")
		}
		if probes, err := s.do("ZCOUNT", wire.ReadersKey(o.server.lock), "0", "0"); err != nil || probes != int64(0) {
			return errors.New("a writer was asked whether it lives")
		}
		if hint, err := s.do("EXISTS", o.server.settings[2]); len(keys.Queue) > 0 && (err != nil || hint != int64(1)) {
			return errors.New("a queue that no operation has made")
		}
		if keys.Base < 0 || slices.ContainsFunc(keys.Lots, func(l sim.LotState) bool { return l.Register < 0 }) {
			return errors.New("a register that is no token")
		}
		wall := time.Duration(then) * time.Microsecond
		if fmt.Sprint(o.script.State(wall)) == fmt.Sprint(keys) {
			continue
		}
		o.script.Load(keys)
		if fmt.Sprint(o.script.State(wall)) != fmt.Sprint(keys) {
			return errors.New("keys that the simulation cannot have")
		}
	}
	return nil
}

// listens reports whether the Manager of the cases is subscribed.
func (s *shadow) listens(of *server) bool {
	channels, err := s.do("PUBSUB", "CHANNELS", of.prefix+"*")
	require.NoError(s.t, err)
	return len(channels.([]any)) > 0
}

// compare runs the operations of a call by the simulation.
func (s *shadow) compare(ops []one, reply any) error {
	now, answers, err := conformance.Answers(reply)
	if err != nil || len(answers) != len(ops) {
		return errors.New("the call failed")
	}
	then, _, err := ops[0].server.state()
	if err != nil {
		return errors.New("keys that are not ours")
	}
	for _, o := range ops {
		if ends(o.script, now, then) {
			return errors.New("a key ends just then")
		}
	}
	for i, o := range ops {
		answer := answers[i]
		if parts, ok := answer.([]any); ok && (o.Name == "extend" || o.Name == "prolong") && len(parts) == 3 { // and the waiters for the lock
			answer = parts[0]
		}
		served, err := outcome(&o.Operation, answer)
		if err != nil {
			return errors.New("an operation failed")
		}
		model, _, _ := o.script.Run(&o.Operation, time.Duration(now)*time.Microsecond)
		served.Free = unknown // some cases spoil the index of the slots
		assert.True(s.t, same(served, model, (then-now)/1000), "%v: %+v: the server has answered %+v (%v), and the simulation %+v", s.t.Name(), o.Operation, served, answer, model)
	}
	for _, o := range ops {
		then, keys, err := o.server.state()
		if err != nil {
			return errors.New("keys that are not ours")
		}
		if ends(o.script, now, then) {
			return errors.New("a key ends just then")
		}
		model := o.script.State(time.Duration(then) * time.Microsecond)
		if !narrow(keys, model) {
			assert.Equal(s.t, fmt.Sprint(keys), fmt.Sprint(model), "the keys after %+v", o.Operation)
		}
	}
	return nil
}

// ends reports whether a key ends between two instants, µs, or next to them.
func ends(script *sim.Script, from, to int64) bool {
	return slices.ContainsFunc(script.Instants(), func(end int64) bool { return end >= from/1000-2 && end <= to/1000+2 })
}
