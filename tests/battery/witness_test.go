//go:build linux

package battery

import (
	"bufio"
	"cmp"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The witness is a separate process to which all holders report, and the resource that they write to. It handles one
// event at a time.
//
// For each lock it keeps a fenced register. It accepts a writer's access if it has seen no higher token, and a reader's
// access if it has seen no higher token of a writer. A holder reads the register when it enters. A writer then writes
// the value that it read, plus one, and a reader reads once more.
//
// The witness compares the order of the tokens with the real order, by the instants that the holders report, and so
// finds wrong tokens. It counts, independently and at once:
//   - overlaps: two holds that were valid at one instant (see hold);
//   - token errors: two holds with one token that are not two readers, or a token below
//     the token of a grant that had returned before this acquire began;
//   - stale accesses that the register accepted: a holder that was certainly
//     granted the lock later had accessed it before;
//   - lost updates: a write that was accepted although it is not based on what
//     the register holds.
type witness struct {
	mu      sync.Mutex
	ledgers map[string]*ledger
	tally   witnessTally
	first   []string // the first few complaints
	log     *gob.Encoder
	out     *bufio.Writer
	logErr  error
}

// witnessTally has the counts of the witness.
type witnessTally struct {
	Grants, Holds                      int
	Accepted, Refused                  int // accesses to the registers
	Overlaps, TokenErrors, Stale, Lost int
	RefusedWhileValid                  int // or the register has changed under a reader
	Crossings                          int // entered before another holder had left; not an error by itself
	Registers                          map[string]int64
	Complaints                         []string
	Unfinished                         int // entered, and did not leave
	ReportError                        string
}

// ledger is the witness's record of a lock.
type ledger struct {
	inside map[*visit]struct{}
	// grants are in the order of their tokens; began is the latest Began up to each of them.
	grants []hold
	began  []instant
	spans  [2]spans // of writers, and of readers

	value int64
	// The highest token, and the latest Began, among the accepted accesses of writers, and of readers.
	highest [2]int64
	newest  [2]instant
}

// spans has the holds that were ever valid, in the order of Granted. ended is the latest Ended up to each of them.
type spans struct {
	holds []hold
	ended []instant
}

// visit is one holder between enter and exit.
type visit struct{ h hold }

// witnessLine is an entry of the witness's log: one of its fields is set.
type witnessLine struct {
	Hold   *hold
	Write  *registerWrite
	Sample *workerSample
}

// registerWrite is a write that the register has accepted.
type registerWrite struct {
	Lock        string
	Client      int
	Token       int64
	Base, Value int64
	At          instant
}

func newWitness(log io.Writer) *witness {
	out := bufio.NewWriter(log)
	return &witness{ledgers: map[string]*ledger{}, out: out, log: gob.NewEncoder(out)}
}

func (w *witness) ledger(lock string) *ledger {
	l := w.ledgers[lock]
	if l == nil {
		l = &ledger{inside: map[*visit]struct{}{}}
		w.ledgers[lock] = l
	}
	return l
}

func (w *witness) complain(format string, args ...any) {
	if len(w.first) < 20 {
		w.first = append(w.first, fmt.Sprintf(format, args...))
	}
}

func (w *witness) record(line witnessLine) {
	if err := w.log.Encode(line); err != nil && w.logErr == nil {
		w.logErr = err
	}
}

// enter records a grant, and reads the register for its holder.
func (w *witness) enter(h hold) (v *visit, accepted bool, value int64) {
	l := w.ledger(h.Lock)
	w.tally.Grants++
	if len(l.inside) > 0 {
		w.tally.Crossings++
	}
	v = &visit{h}
	l.inside[v] = struct{}{}

	byToken := func(g hold, token int64) int { return cmp.Compare(g.Token, token) }
	at, _ := slices.BinarySearchFunc(l.grants, h.Token, byToken)
	above, _ := slices.BinarySearchFunc(l.grants, h.Token+1, byToken)
	same := slices.IndexFunc(l.grants[at:above], func(g hold) bool { return !g.Shared || !h.Shared })
	switch {
	case same >= 0:
		w.tally.TokenErrors++
		w.complain("token given twice:\n\t%v\n\t%v", &l.grants[at+same], &h)
	case at > 0 && l.began[at-1] > h.Granted:
		w.tally.TokenErrors++
		w.complain("a token above that of a later grant: %v", &h)
	default:
		for i := above; i < len(l.grants); i++ { // few: those that overtook this holder's report
			if l.grants[i].Granted < h.Began {
				w.tally.TokenErrors++
				w.complain("a token below that of an earlier grant:\n\t%v\n\t%v", &l.grants[i], &h)
				break
			}
		}
	}
	l.grants = slices.Insert(l.grants, at, h)
	l.began = slices.Insert(l.began, at, 0)
	for i := at; i < len(l.grants); i++ {
		l.began[i] = l.grants[i].Began
		if i > 0 {
			l.began[i] = max(l.began[i], l.began[i-1])
		}
	}
	accepted = w.access(l, &h)
	return v, accepted, l.value
}

// access checks an access against the fence. Readers may come in any order of their tokens.
func (w *witness) access(l *ledger, h *hold) bool {
	highest, newest := l.highest[0], l.newest[0]
	if !h.Shared {
		highest, newest = max(highest, l.highest[1]), max(newest, l.newest[1])
	}
	if h.Token < highest {
		w.tally.Refused++
		return false
	}
	w.tally.Accepted++
	if h.Granted < newest {
		w.tally.Stale++
		w.complain("access accepted after one by a later grant: %v", h)
	}
	l.highest[h.kind()] = max(l.highest[h.kind()], h.Token)
	l.newest[h.kind()] = max(l.newest[h.kind()], h.Began)
	return true
}

// read reads the register, if the fence allows it.
func (w *witness) read(v *visit) (accepted bool, stands int64) {
	l := w.ledger(v.h.Lock)
	return w.access(l, &v.h), l.value
}

// write sets the register, if the fence allows it.
func (w *witness) write(v *visit, base, value int64) (accepted bool, stands int64) {
	l := w.ledger(v.h.Lock)
	if !w.access(l, &v.h) {
		return false, l.value
	}
	if base != l.value {
		w.tally.Lost++
		w.complain("update lost: %d written over %d by who had read %d: %v", value, l.value, base, &v.h)
	}
	l.value = value
	w.record(witnessLine{Write: &registerWrite{
		Lock: v.h.Lock, Client: v.h.Client, Token: v.h.Token, Base: base, Value: value, At: now(),
	}})
	return true, l.value
}

// exit records the end of a hold.
func (w *witness) exit(v *visit, h hold) {
	l := w.ledger(h.Lock)
	delete(l.inside, v)
	w.tally.Holds++
	w.record(witnessLine{Hold: &h})
	if h.Ended <= h.Granted {
		return
	}
	other := l.spans[0].beside(&h)
	if other == nil && !h.Shared {
		other = l.spans[1].beside(&h)
	}
	if other != nil {
		w.tally.Overlaps++
		w.complain("valid beside another:\n\t%v\n\t%v", other, &h)
	}
	l.spans[h.kind()].add(h)
}

// place returns where a hold belongs.
func (s *spans) place(h *hold) int {
	at, _ := slices.BinarySearchFunc(s.holds, h.Granted, func(g hold, granted instant) int {
		if g.Granted < granted {
			return -1
		}
		return 1
	})
	return at
}

// beside returns a hold that was valid at an instant at which h was, or nil.
func (s *spans) beside(h *hold) *hold {
	at := s.place(h)
	if at > 0 && s.ended[at-1] > h.Granted {
		for i := at - 1; ; i-- {
			if s.holds[i].Ended > h.Granted {
				return &s.holds[i]
			}
		}
	}
	if at < len(s.holds) && s.holds[at].Granted < h.Ended {
		return &s.holds[at]
	}
	return nil
}

func (s *spans) add(h hold) {
	at := s.place(&h)
	s.holds = slices.Insert(s.holds, at, h)
	s.ended = slices.Insert(s.ended, at, 0)
	for i := at; i < len(s.holds); i++ {
		s.ended[i] = s.holds[i].Ended
		if i > 0 {
			s.ended[i] = max(s.ended[i], s.ended[i-1])
		}
	}
}

// inside returns the clients that are between enter and exit, the newest grant first.
func (w *witness) inside() (clients []int) {
	var holds []hold
	for _, l := range w.ledgers {
		for v := range l.inside {
			holds = append(holds, v.h)
		}
	}
	slices.SortFunc(holds, func(a, b hold) int { return cmp.Compare(b.Granted, a.Granted) })
	for i := range holds {
		clients = append(clients, holds[i].Client)
	}
	return clients
}

func (w *witness) report() witnessTally {
	t := w.tally
	t.Registers, t.Complaints = map[string]int64{}, w.first
	for lock, l := range w.ledgers {
		t.Registers[lock] = l.value
		t.Unfinished += len(l.inside)
	}
	if err := errors.Join(w.logErr, w.out.Flush()); err != nil {
		t.ReportError = err.Error()
	}
	return t
}

// The calls to the witness. A connection belongs to one holder, which has one hold at a time.
type witnessCallKind int

const (
	callEnter witnessCallKind = iota + 1
	callWrite
	callRead
	callExit
	callDenied // a refusal, or a change under a reader, while the lease was valid
	callSample
	callInside
	callReport
)

type witnessCall struct {
	Kind        witnessCallKind
	Hold        hold
	Base, Value int64
	Sample      workerSample
}

type witnessReply struct {
	Accepted bool
	Value    int64
	Clients  []int
	Tally    witnessTally
}

// handle answers the calls of one connection, until it ends.
func (w *witness) handle(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	calls, replies := gob.NewDecoder(conn), gob.NewEncoder(conn)
	var v *visit
	for {
		var call witnessCall
		if calls.Decode(&call) != nil {
			return
		}
		var reply witnessReply
		w.mu.Lock()
		switch call.Kind {
		case callEnter:
			v, reply.Accepted, reply.Value = w.enter(call.Hold)
		case callWrite:
			reply.Accepted, reply.Value = w.write(v, call.Base, call.Value)
		case callRead:
			reply.Accepted, reply.Value = w.read(v)
		case callExit:
			w.exit(v, call.Hold)
		case callDenied:
			w.tally.RefusedWhileValid++
			w.complain("access refused, or the register changed under a reader, and the lease was valid afterwards: %v", &v.h)
		case callSample:
			w.record(witnessLine{Sample: &call.Sample})
		case callInside:
			reply.Clients = w.inside()
		case callReport:
			reply.Tally = w.report()
		}
		w.mu.Unlock()
		if replies.Encode(&reply) != nil {
			return
		}
	}
}

type witnessConfig struct{ Log string }

func init() { roles["witness"] = witnessRole }

// witnessRole listens until its input ends. Its first answer is its address.
func witnessRole() int {
	var config witnessConfig
	if err := roleConfig(&config); err != nil {
		return roleFailed(err)
	}
	log, err := os.Create(config.Log)
	if err != nil {
		return roleFailed(err)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return roleFailed(err)
	}
	w := newWitness(log)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go w.handle(conn)
		}
	}()
	if err := answer(listener.Addr().String()); err != nil {
		return roleFailed(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(w.logErr, w.out.Flush(), log.Close()); err != nil {
		return roleFailed(err)
	}
	return 0
}

// A witnessLink is a holder's connection to the witness. Its methods may be called
// concurrently.
type witnessLink struct {
	mu      sync.Mutex
	conn    net.Conn
	calls   *gob.Encoder
	replies *gob.Decoder
}

func dialWitness(addr string) (*witnessLink, error) {
	conn, err := net.Dial("tcp4", addr)
	if err != nil {
		return nil, err
	}
	return &witnessLink{conn: conn, calls: gob.NewEncoder(conn), replies: gob.NewDecoder(conn)}, nil
}

func (l *witnessLink) close() { _ = l.conn.Close() }

func (l *witnessLink) call(call witnessCall) (reply witnessReply, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.calls.Encode(&call); err != nil {
		return reply, fmt.Errorf("to the witness: %w", err)
	}
	if err := l.replies.Decode(&reply); err != nil {
		return reply, fmt.Errorf("from the witness: %w", err)
	}
	return reply, nil
}

// witnessed is a witness process, as the test sees it.
type witnessed struct {
	child *child
	addr  string
	log   string
	link  *witnessLink
}

func startWitness(t *testing.T) *witnessed {
	t.Helper()
	w := &witnessed{log: filepath.Join(t.TempDir(), "witness.gob")}
	w.child = spawn(t, "witness", witnessConfig{w.log})
	require.NoError(t, w.child.receive(&w.addr))
	var err error
	w.link, err = dialWitness(w.addr)
	require.NoError(t, err)
	t.Cleanup(w.link.close)
	return w
}

// finish ends the witness and returns its counts and its log.
func (w *witnessed) finish(t *testing.T) (tally witnessTally, holds []hold, writes []registerWrite, samples []workerSample) {
	t.Helper()
	reply, err := w.link.call(witnessCall{Kind: callReport})
	require.NoError(t, err)
	require.Empty(t, reply.Tally.ReportError)
	require.NoError(t, w.child.end())
	log, err := os.Open(w.log)
	require.NoError(t, err)
	defer func() { _ = log.Close() }()
	for lines := gob.NewDecoder(bufio.NewReader(log)); ; {
		var line witnessLine
		if err := lines.Decode(&line); errors.Is(err, io.EOF) {
			break
		} else {
			require.NoError(t, err)
		}
		switch {
		case line.Hold != nil:
			holds = append(holds, *line.Hold)
		case line.Write != nil:
			writes = append(writes, *line.Write)
		case line.Sample != nil:
			samples = append(samples, *line.Sample)
		}
	}
	return reply.Tally, holds, writes, samples
}

// lostUpdates checks the writes of each lock again, in the order in which the witness accepted them: each must follow
// from the one before.
func lostUpdates(writes []registerWrite) (lost int) {
	stands := map[string]int64{}
	for _, w := range writes {
		if w.Base != stands[w.Lock] || w.Value != w.Base+1 {
			lost++
		}
		stands[w.Lock] = w.Value
	}
	return lost
}

// The test makes each error once, next to a correct case that looks similar.
func TestTheWitnessFindsEveryKindOfError(t *testing.T) {
	grant := func(client int, token int64, began, granted, ended instant) hold {
		return hold{
			Lock: "job", Client: client, Token: token, Began: began, Granted: granted, Ended: ended, Reported: ended, End: released,
		}
	}
	run := func(calls func(w *witness)) witnessTally {
		w := newWitness(io.Discard)
		calls(w)
		return w.report()
	}
	enter := func(w *witness, h hold) *visit {
		v, _, _ := w.enter(h)
		return v
	}
	reader := func(h hold) hold { h.Shared = true; return h }
	t.Run("overlap", func(t *testing.T) {
		a, b := grant(1, 1, 0, 10, 20), grant(2, 2, 5, 20, 30)
		for _, late := range []instant{0, 1} {
			b.Granted = 20 - late
			for _, order := range [][]hold{{a, b}, {b, a}} {
				got := run(func(w *witness) {
					first, second := enter(w, a), enter(w, b) // a has not reported its end yet
					visits := map[int]*visit{1: first, 2: second}
					for _, h := range order {
						w.exit(visits[h.Client], h)
					}
				})
				assert.Equal(t, int(late), got.Overlaps, "%d, %v", late, order)
				assert.Equal(t, 1, got.Crossings)
			}
		}
	})
	t.Run("overlap of holders that report one after the other", func(t *testing.T) {
		a, b, c := grant(1, 1, 0, 10, 50), grant(2, 2, 5, 60, 70), grant(3, 3, 6, 40, 45)
		got := run(func(w *witness) {
			for _, h := range []hold{a, b, c} {
				w.exit(enter(w, h), h)
			}
		})
		assert.Equal(t, 1, got.Overlaps, "the third was valid inside the first")
	})
	t.Run("two readers may overlap, a reader and a writer not", func(t *testing.T) {
		a, b := grant(1, 1, 0, 10, 50), grant(2, 3, 5, 40, 70)
		for overlaps, pairs := range [][][2]hold{{{reader(a), reader(b)}}, {{reader(a), b}, {a, reader(b)}, {a, b}}} {
			for _, pair := range pairs {
				for _, order := range [][2]hold{pair, {pair[1], pair[0]}} {
					got := run(func(w *witness) {
						for _, h := range order {
							w.exit(enter(w, h), h)
						}
					})
					assert.Equal(t, overlaps, got.Overlaps, "%v", order)
				}
			}
		}
	})
	t.Run("a lease that had ended on arrival overlaps no other", func(t *testing.T) {
		a, b := grant(1, 1, 0, 10, 50), grant(2, 2, 5, 30, 20)
		got := run(func(w *witness) { w.exit(enter(w, b), b); w.exit(enter(w, a), a) })
		assert.Zero(t, got.Overlaps)
	})
	t.Run("tokens", func(t *testing.T) {
		for _, c := range []struct {
			what   string
			first  hold
			second hold
			errors int
		}{
			{"in order", grant(1, 1, 0, 10, 20), grant(2, 2, 11, 30, 40), 0},
			{"twice", grant(1, 1, 0, 10, 20), grant(2, 1, 11, 30, 40), 1},
			{"out of order", grant(1, 2, 0, 10, 20), grant(2, 1, 11, 30, 40), 1},
			{"out of order, reported the other way round", grant(2, 1, 11, 30, 40), grant(1, 2, 0, 10, 20), 1},
			{"of calls at the same time", grant(1, 2, 0, 10, 20), grant(2, 1, 9, 30, 40), 0},
			{"reported the other way round", grant(2, 2, 11, 30, 40), grant(1, 1, 0, 10, 20), 0},
			{"one of two readers", reader(grant(1, 1, 0, 10, 20)), reader(grant(2, 1, 11, 30, 40)), 0},
			{"one of a reader and a writer", reader(grant(1, 1, 0, 10, 20)), grant(2, 1, 11, 30, 40), 1},
			{"one of a writer and a reader", grant(1, 1, 0, 10, 20), reader(grant(2, 1, 11, 30, 40)), 1},
			{"of readers, out of order", reader(grant(1, 3, 0, 10, 20)), reader(grant(2, 1, 11, 30, 40)), 1},
			{"of a reader below that of the writer before", grant(1, 2, 0, 10, 20), reader(grant(2, 1, 11, 30, 40)), 1},
			{"of a reader above that of the next writer", grant(2, 2, 11, 30, 40), reader(grant(1, 3, 0, 10, 20)), 1},
		} {
			got := run(func(w *witness) { enter(w, c.first); enter(w, c.second) })
			assert.Equal(t, c.errors, got.TokenErrors, c.what)
		}
	})
	t.Run("stale writes", func(t *testing.T) {
		for _, c := range []struct {
			what                  string
			old, new              int64
			accepted              bool
			stale, lost, refusals int
		}{
			{"fenced", 1, 2, false, 0, 0, 2},
			{"with tokens out of order", 2, 1, true, 2, 0, 1},
			{"with one token twice", 1, 1, true, 2, 1, 0},
		} {
			// The old holder stood still between its grant and its first access.
			got := run(func(w *witness) {
				b, _, seen := w.enter(grant(2, c.new, 11, 30, 40))
				a, _, base := w.enter(grant(1, c.old, 0, 10, 20))
				w.write(b, seen, seen+1)
				accepted, _ := w.write(a, base, base+1)
				assert.Equal(t, c.accepted, accepted, c.what)
			})
			assert.Equal(t, c.stale, got.Stale, c.what)
			assert.Equal(t, c.lost, got.Lost, c.what)
			assert.Equal(t, c.refusals, got.Refused, c.what)
		}
	})
	t.Run("stale reads", func(t *testing.T) {
		old := reader(grant(1, 1, 0, 10, 20))
		for _, c := range []struct {
			what     string
			next     hold
			accepted bool
			stale    int
		}{
			{"fenced by a writer", grant(2, 2, 11, 30, 40), false, 0},
			{"behind a writer with the same token", grant(2, 1, 11, 30, 40), true, 1},
			{"behind a reader", reader(grant(2, 1, 11, 30, 40)), true, 0},
			{"behind a reader with a higher token, which a writer that failed has caused", reader(grant(2, 3, 11, 30, 40)), true, 0},
		} {
			got := run(func(w *witness) {
				a := enter(w, old)
				enter(w, c.next)
				accepted, _ := w.read(a)
				assert.Equal(t, c.accepted, accepted, c.what)
			})
			assert.Equal(t, c.stale, got.Stale, c.what)
		}
		got := run(func(w *witness) {
			writer := enter(w, grant(2, 2, 0, 10, 20))
			enter(w, reader(grant(1, 3, 21, 30, 40)))
			accepted, _ := w.write(writer, 0, 1)
			assert.False(t, accepted, "a writer is fenced by a later reader")
		})
		assert.Equal(t, 1, got.Refused)
	})
	t.Run("lost updates, once more", func(t *testing.T) {
		assert.Zero(t, lostUpdates([]registerWrite{
			{Lock: "a", Base: 0, Value: 1}, {Lock: "b", Base: 0, Value: 1}, {Lock: "a", Base: 1, Value: 2},
		}))
		assert.Equal(t, 1, lostUpdates([]registerWrite{{Base: 0, Value: 1}, {Base: 0, Value: 1}}))
	})
}
