package differential

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/sim"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// verdict is the result of a list.
type verdict struct {
	differs string // what differs, and after which step; "" for nothing
	at      int    // that step
	unclear bool   // a key ended about when a step ran: the list is of no use from there on
	took    int64  // the longest step so far, ms
	seen    map[string]int
}

// play runs a list on a server and by the simulation's script.
func play(client rueidis.Client, prefix string, m mode, list []step) (v verdict, err error) {
	s, err := connect(client, prefix, m)
	defer s.unsubscribe()
	if err != nil {
		return v, err
	}
	setting := sim.Setting{TTL: ttl, Grace: grace, Ahead: ahead}
	if m == permits {
		setting.Permits = limits
	}
	script := sim.NewScript(setting)
	v.seen = map[string]int{}
	started, err := s.time()
	if err != nil {
		return v, err
	}
	started -= started % 2
	for i := range list {
		v.at = i
		one := list[i]
		if one.ends {
			script.Listens(one.Client, false)
			if err := s.ends(one.Client); err != nil {
				return v, err
			}
		}
		time.Sleep(one.wait)
		now, err := calm(s, script, v.took)
		if err != nil {
			return v, err
		}
		one.resolve(script, started, now)
		if done, err := v.compare(s, script, &one); done || err != nil {
			return v, err
		}
	}
	return v, nil
}

// calm waits until nothing expires for 40 ms, the time of a step on a busy machine, and returns the node's clock, µs.
// Until Redis 7.2, PX counts from the instant of the SET, not from the script's TIME. If the server stops in between,
// a key expires later on it than in the simulation, by the time that the step took at most.
func calm(s *server, script *sim.Script, took int64) (now int64, err error) {
	for {
		if now, err = s.time(); err != nil {
			return 0, err
		}
		ms := now / 1000
		if !slices.ContainsFunc(script.Instants(), func(end int64) bool { return end >= ms-2-took && end <= ms+40 }) {
			return now, nil
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// resolve sets the instants and tokens of a step.
func (s *step) resolve(script *sim.Script, started, now int64) {
	past, future := now-int64(time.Second/time.Microsecond), now+int64(time.Minute/time.Microsecond)
	if s.NotAfter = future; s.late {
		s.NotAfter = past
	}
	if s.Held = past; s.held {
		s.Held = future
	}
	keys := script.State(time.Duration(now) * time.Microsecond)
	lot := keys.Lots[min(s.Slot, len(keys.Lots)-1)]
	if s.aims > 0 {
		s.aim(keys, lot)
	}
	s.Token = started + s.delta
	switch {
	case s.token == shown && lot.Shown > 0:
		s.Token = lot.Shown
	case s.token == register && lot.Register > 0:
		s.Token = lot.Register + s.delta
	}
}

// aim makes the operation use an owner or a ticket that the keys have.
func (s *step) aim(keys sim.State, lot sim.LotState) {
	switch s.Name {
	case "acquire", "lean", "wait", "permit", "share", "restore":
		return
	case "prolong", "align", "quit":
		if n := len(keys.Readers); n > 0 {
			if r := keys.Readers[s.aims%n]; !r.Woken {
				s.Owner = r.Owner
			} else if s.Ticket != 0 {
				s.Ticket, s.Place = r.Owner, placeOf(r.Owner)
			}
			return
		}
	case "pass":
		waiting := slices.Concat(keys.Rights, keys.Readers)
		if lot.Form == "reserved" {
			waiting = append(waiting, sim.Member{Owner: lot.Owner, Woken: true})
		}
		waiting = slices.DeleteFunc(waiting, func(r sim.Member) bool { return !r.Woken })
		if n := len(waiting); n > 0 {
			s.Ticket = waiting[s.aims%n].Owner
		}
		return
	}
	if s.Name == "revoke" && lot.Form == "readers" {
		s.Owner = 0 // all of them
	}
	if lot.Owner == 0 || lot.Form == "reserved" {
		return
	}
	if s.Owner = lot.Owner; s.Name == "resume" {
		s.Owner, s.From = s.Owner+1, lot.Owner
	}
}

// compare runs a step on both. It reports whether the list ends with it.
func (v *verdict) compare(s *server, script *sim.Script, one *step) (done bool, err error) {
	now, answer, messages, err := s.run(&one.Operation, one.lean)
	if err != nil {
		return true, fmt.Errorf("%v: %w", one, err)
	}
	then, keys, err := s.state()
	if err != nil {
		return true, fmt.Errorf("%v: %w", one, err)
	}
	v.took = max(v.took, (then-now)/1000+1)
	for _, end := range script.Instants() {
		if v.unclear = v.unclear || end >= now/1000-2 && end <= then/1000+2; v.unclear {
			return true, nil
		}
	}
	// The lean script does not report when it has read the clock.
	if v.unclear = (one.lean || one.Name == "lean") && one.Token > now+ahead.Microseconds() && one.Token <= then+ahead.Microseconds(); v.unclear {
		return true, nil
	}
	wall := time.Duration(now) * time.Microsecond
	if one.Name == "ask" { // changes nothing that the simulation has
		v.seen["ask"]++
	} else {
		served, err := outcome(&one.Operation, answer)
		if err != nil {
			return true, err
		}
		v.seen[one.Name+": "+served.Answer]++
		model, sent, found := script.Run(&one.Operation, wall)
		if found != nil {
			v.differs = fmt.Sprintf("the oracles of the simulation: %v", found)
		} else if !same(served, model, (then-now)/1000) {
			v.differs = fmt.Sprintf("the server has answered %+v (%v), and the simulation %+v", served, answer, model)
		} else if got, want := text(script, messages), text(script, sent); got != want {
			v.differs = fmt.Sprintf("the server has sent %s, and the simulation %s", got, want)
		}
	}
	model := script.State(time.Duration(then) * time.Microsecond)
	if v.unclear = narrow(keys, model); v.unclear {
		return true, nil
	}
	if v.differs == "" && fmt.Sprint(keys) != fmt.Sprint(model) {
		v.differs = fmt.Sprintf("the server's keys are     %+v\nand those of the simulation %+v", keys, model)
	}
	return v.differs != "", nil
}

// narrow reports whether one millisecond decided that a reader has prolonged the lock: the Lua prolongs it if it would
// otherwise last less than 2 ms longer than the reader.
func narrow(keys, model sim.State) bool {
	a, b := keys.Lots[0], model.Lots[0]
	if a.Form != "readers" || b.Form != "readers" || a.Ends == b.Ends {
		return false
	}
	return slices.ContainsFunc(model.Readers, func(r sim.Member) bool { return min(a.Ends, b.Ends)-r.Ends <= 4 })
}

// text lists messages in its own order. It omits messages to processes that have ended, and the question whether a
// writer lives, which the simulation asks without a message. The slot that a message names does not matter: the server
// finds one by an index, which may learn later than the keys that a slot is free.
func text(script *sim.Script, all []sim.Message) string {
	var lines []string
	for _, m := range all {
		if !script.Lives(int(m.Ticket-1000)/100) || m.Kind == "p" {
			continue
		}
		lines = append(lines, fmt.Sprintf("{%s %d, a slot: %v}", m.Kind, m.Ticket, m.Slot >= 0))
	}
	slices.Sort(lines)
	return strings.Join(lines, " ")
}

var (
	seed   = flag.Uint64("seed", 1, "seed of the first list")
	lists  = flag.Int("lists", 0, "how many lists of each kind; 0 for as many as make test plays")
	during = flag.Duration("during", 0, "how long to play lists, a quarter of it for each kind, whatever their number")
)

const steps = 40

// outcomes are the possible outcomes of operations.
const outcomes = `acquire: granted
acquire: taken
acquire: late
acquire: marker changed
lean: made
lean: not made
lean: behind
anew: granted
anew: taken
anew: late
anew: marker changed
align: done
align: not done
back: done
back: not done
detach: done
detach: late
detach: not done
drop: done
drop: not done
extend: confirmed
extend: confirmed without token
extend: confirmed without vote
extend: missing
extend: taken
heal: confirmed
heal: late
heal: taken
leave: done
leave: not done
pass: done
pass: not done
permit: granted
permit: taken
permit: late
permit: marker changed
prolong: confirmed
prolong: confirmed without vote
prolong: missing
prolong: taken
quit: done
quit: not done
raise: done
raise: not done
release: done
release: not done
restore: confirmed
restore: late
restore: taken
resume: granted
resume: taken
resume: late
resume: marker changed
revoke: done
revoke: late
revoke: not done
share: granted
share: taken
share: late
share: marker changed
wait: granted
wait: taken
wait: late
wait: marker changed`

// together is how many lists run at once.
const together = 100

func count(usual int) int {
	if *lists > 0 {
		return *lists
	}
	return usual
}

func TestTheSimulationsScriptIsTheLuaOfAServer(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	compare(t, rueidis.ClientOption{InitAddress: []string{server.Addr()}}, count(200))
}

// In virtual time each list takes only the time of its script.
func TestTheSimulationsScriptIsTheLuaOfANodeInTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		compare(t, quorumlocktest.Start(t, 1).Options()[0], count(60))
	})
}

// compare plays this number of lists of each kind.
func compare(t *testing.T, option rueidis.ClientOption, number int) {
	option.DisableCache = true
	client, err := rueidis.NewClient(option)
	require.NoError(t, err)
	defer client.Close()
	seen, played, unclear, all := map[string]int{}, 0, 0, 0
	for _, m := range []mode{writers, readers, permits, lone} {
		var mu sync.Mutex
		var players sync.WaitGroup
		next, until, shown := *seed, time.Now().Add(*during/4), func() {}
		for range together {
			players.Go(func() {
				for {
					mu.Lock()
					k := next
					next++
					mu.Unlock()
					if k >= *seed+uint64(number) && !time.Now().Before(until) || t.Failed() {
						return
					}
					list := drawn(m, k)
					v, err := play(client, fmt.Sprintf("%v%d:", m, k), m, list)
					mu.Lock()
					for what, n := range v.seen {
						seen[what] += n
						all += n
					}
					if played++; v.unclear {
						unclear++
					}
					if (err != nil || v.differs != "") && !t.Failed() {
						t.Errorf("%v, seed %d, step %d, %v: %v\n%s", m, k, v.at, list[v.at], err, v.differs)
						shown = func() { t.Log("the least list that shows it:\n" + shrink(client, m, list, v)) }
					}
					mu.Unlock()
				}
			})
		}
		players.Wait()
		if shown(); t.Failed() {
			return
		}
	}
	var lines []string
	for what, n := range seen {
		lines = append(lines, fmt.Sprintf("%6d %s", n, what))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[7:], b[7:]) })
	t.Logf("%d steps in %d lists; %d lists ended early\n%s", all, played, unclear, strings.Join(lines, "\n"))
	assert.LessOrEqual(t, unclear, played/3, "a third of the lists: a machine that is that slow shows little")
	for what := range strings.SplitSeq(outcomes, "\n") {
		assert.Positive(t, seen[what], "no operation came to this: %s", what)
	}
}

func drawn(m mode, seed uint64) []step { return draw(rand.New(rand.NewPCG(seed, uint64(m))), m, steps) }

// shrink removes steps from a list as long as the rest still fails, and describes the rest.
func shrink(client rueidis.Client, m mode, list []step, v verdict) string {
	if v.differs == "" {
		return "none"
	}
	list, round := slices.Clone(list[:v.at+1]), 0
	for size := len(list) / 2; size > 0; {
		shorter, found := shorten(client, fmt.Sprintf("shrunk %v %d ", m, round), m, list, size)
		if round++; found.differs == "" {
			size = min(size/2, len(list)/2)
			continue
		}
		list, v = shorter[:found.at+1], found
	}
	var b strings.Builder
	for i, s := range list {
		fmt.Fprintf(&b, "%3d %v\n", i, s)
	}
	return b.String() + v.differs
}

// shorten tries all lists that lack this number of steps in a row, in parallel.
func shorten(client rueidis.Client, prefix string, m mode, list []step, size int) (shorter []step, v verdict) {
	var mu sync.Mutex
	var tries sync.WaitGroup
	for i := 0; i+size < len(list); i++ {
		tries.Go(func() {
			without := slices.Concat(list[:i], list[i+size:])
			w, err := play(client, fmt.Sprintf("%s%d:", prefix, i), m, without)
			mu.Lock()
			defer mu.Unlock()
			if err == nil && w.differs != "" && (v.differs == "" || w.at < v.at) {
				shorter, v = without, w
			}
		})
	}
	tries.Wait()
	return shorter, v
}
