package election

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// This file has the evidence for decisions: preferences, health, observed reigns and asks.

// preferences are the values of the last window.
type preferences struct {
	window time.Duration
	values []preference // the oldest first
}

type preference struct {
	at    time.Duration
	value int
}

func (p *preferences) add(now time.Duration, value int) {
	p.values = append(p.values, preference{now, value})
}

// trim forgets values that are older than the window. So a Preference that blocks for longer has no value.
func (p *preferences) trim(now time.Duration) {
	for len(p.values) > 0 && now-p.values[0].at > p.window {
		p.values = p.values[1:]
	}
}

// least returns the smallest value of the window, false for none. A candidate reports it in its asks.
func (p *preferences) least() (least int, ok bool) {
	for i, v := range p.values {
		if i == 0 || v.value < least {
			least = v.value
		}
	}
	return least, len(p.values) > 0
}

// greatest returns the largest value of the window, false for none. An ask is compared with it, so a value that swings
// by more than the margin within the window moves no leader.
func (p *preferences) greatest() (greatest int, ok bool) {
	for i, v := range p.values {
		if i == 0 || v.value > greatest {
			greatest = v.value
		}
	}
	return greatest, len(p.values) > 0
}

// inARow is how many results of Health in a row change a candidate's health.
const inARow = 3

// health is the health of a candidate, by the results of Health. The first result decides; before it, the candidate is
// not healthy.
type health struct {
	every time.Duration
	ok    bool
	known bool // there was a result
	row   int  // results in a row that say the opposite

	running bool
	began   time.Duration // of the running check, or of its latest overdue part
	late    bool          // the running check has missed its deadline, so its result does not count
}

func (h *health) begin(now time.Duration) { h.running, h.began, h.late = true, now, false }

func (h *health) end(now time.Duration, ok bool) {
	h.overdue(now)
	if h.running && !h.late {
		h.result(ok)
	}
	h.running = false
}

// overdue counts an error when a check has missed its deadline, and another one a deadline later: a Health that
// never returns is not healthy. It counts one at a time, because a process that was stopped is late itself.
func (h *health) overdue(now time.Duration) {
	if h.running && now-h.began >= h.every {
		h.began, h.late = now, true
		h.result(false)
	}
}

func (h *health) result(ok bool) {
	switch {
	case !h.known:
		h.known, h.ok = true, ok
	case ok == h.ok:
		h.row = 0
	default:
		if h.row++; h.row == inARow {
			h.ok, h.row = ok, 0
		}
	}
}

// sight is one observation of the name.
type sight struct {
	known, held bool
	owner       string // of the lease
}

// reigns counts the reigns that were short. A leader yields after its minimal reign, doubled for each short
// one: a favourite that crashes after each win changes the leader less and less often.
type reigns struct {
	short     time.Duration // a reign below this is short
	forgotten time.Duration // after this long without one, the count begins again
	most      int

	watched   bool          // there was a sight
	owner     string        // of the present reign, "" for none
	began     time.Duration // when it was first seen
	whole     bool          // its beginning was seen
	count     int           // of short reigns, at most most
	lastShort time.Duration
}

// see takes an observation. An unknown holder changes nothing: the same reign may continue.
func (r *reigns) see(s sight, now time.Duration) {
	if !s.known {
		return
	}
	if !s.held {
		s.owner = ""
	}
	if s.owner != r.owner {
		if r.owner != "" && r.whole && now-r.began < r.short {
			r.doubt(now)
		}
		r.owner, r.began, r.whole = s.owner, now, r.watched
	}
	r.watched = true
}

// doubt counts a short reign. Short reigns that follow each other within r.short count as one: a deployment restarts
// each candidate, and a reign may be noticed twice.
func (r *reigns) doubt(now time.Duration) {
	if now-r.lastShort < r.short {
		return
	}
	r.count, r.lastShort = min(r.doubts(now)+1, r.most), now
}

// doubts returns how often the minimal reign is doubled now.
func (r *reigns) doubts(now time.Duration) int {
	if now-r.lastShort > r.forgotten {
		return 0
	}
	return r.count
}

// ask is a text by which a candidate asks a holder for its lease: "election1 VALUE NUMBER ID". The number is random,
// because a holder sees an equal text only once. The ID is for people.
type ask struct {
	asked  bool
	value  int
	number uint64
	id     string
	at     time.Duration // when it arrived
}

// dialect begins the text of an ask, with the version of its form.
const dialect = "election1"

// String returns the text.
func (a ask) String() string { return fmt.Sprintf("%s %d %d %s", dialect, a.value, a.number, a.id) }

// same reports whether a and b are one ask.
func (a ask) same(b ask) bool {
	return a.asked == b.asked && a.value == b.value && a.number == b.number && a.id == b.id
}

// parseAsk parses the text of an ask. It returns false for other texts, which people write.
func parseAsk(text string) (a ask, ok bool) {
	words := strings.Split(text, " ")
	if len(words) != 4 || words[0] != dialect {
		return ask{}, false
	}
	value, err := strconv.Atoi(words[1])
	if err != nil {
		return ask{}, false
	}
	number, err := strconv.ParseUint(words[2], 10, 64)
	if err != nil {
		return ask{}, false
	}
	return ask{asked: true, value: value, number: number, id: words[3]}, true
}
