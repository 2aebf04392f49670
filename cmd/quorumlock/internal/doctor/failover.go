package doctor

import (
	"slices"
	"time"
)

// Failover has the observations of ProbeFailover at one endpoint.
type Failover struct {
	Before      Node
	NotWritable string        // why the first write failed: then nothing was observed
	Samples     []Sample      // in the order in which they ended
	Lasted      time.Duration // from the first write on
	Settle      time.Duration // a failover has ended when nothing has changed for this long
}

// Sample is one exchange over one connection: a write, and the answer to the INFO behind it. Instants count from the
// first write, by the clock of this machine.
type Sample struct {
	Conn    int  // number of the connection, in the order of connecting
	Held    bool // the probe writes over a newer connection, and keeps this one to compare
	Sent    time.Duration
	Ended   time.Duration // with the answer, or with the end of the wait for it
	Write   Write
	Refusal string // the first word of the server's error
	Number  int    // the number that was written
	Server  Server

	// Before has the newest numbers that the server knew before this write, the newest first. It is nil if the server
	// continued from the last number that it acknowledged over this connection.
	Before []int
}

// Write is the result of a write.
type Write int

// The outcomes of a write.
const (
	WriteNone     Write = iota // the connection was only asked for INFO
	WriteAccepted              // the server acknowledged it
	WriteRefused               // the server answered with an error
	WriteSilent                // no answer came in time
	WriteBroken                // the connection ended, or could not be made
)

// Server has the INFO of the server behind a connection, empty without an answer.
type Server struct{ RunID, ReplID, Role string }

// historyLen is how many of the numbers before a write a server returns.
const historyLen = 100

// Course is the course of a failover.
type Course struct {
	Seen          bool
	After         time.Duration // from the first write to the first sign of the failover
	RunIDChanged  bool
	ReplIDChanged bool

	// Refused is the time from the first write that failed to the first one that was
	// accepted again. Without a failover it is the longest such time.
	Refused  time.Duration
	Accepted bool           // writes were accepted in the end
	Failures map[string]int // why writes failed in that time, by a word for the reason

	Acknowledged int // writes
	Lost         int // acknowledged writes that the final server does not know

	Old        OldConnection
	OldRefusal string // the error of OldRefuses

	// Window is how long after the first answer of the new master the old one was sent
	// writes that it acknowledged: a lower bound of the failover window.
	Window     time.Duration
	TwoMasters bool // the old master acknowledged a write after the new one had
}

// OldConnection is the fate of the connection that was open before the failover.
type OldConnection string

// The fates of the old connection.
const (
	OldUnknown  OldConnection = ""
	OldEnded    OldConnection = "ended"
	OldSilent   OldConnection = "silent"    // it gave no answer in time, and was given up
	OldReadOnly OldConnection = "read_only" // it survived, and answers READONLY
	OldRefuses  OldConnection = "refuses"   // it survived, and answers another error
	OldAccepts  OldConnection = "accepts"   // the old server still accepts writes over it
	OldMoved    OldConnection = "moved"     // it survived, and leads to the new master
)

// Course returns the course of the failover. It depends only on the samples.
func (f Failover) Course() Course {
	c := Course{Failures: map[string]int{}}
	first, found := f.first()
	for _, s := range f.Samples {
		if s.Write == WriteAccepted {
			c.Acknowledged++
		}
	}
	if !found {
		return c
	}
	c.After, c.Seen = f.sign(first)
	lost, since := f.lost()
	if c.Lost = lost; !c.Seen && lost > 0 {
		c.Seen, c.After = true, since // nothing else shows it
	}
	for _, s := range f.Samples {
		if s.Server.Role != "slave" {
			c.RunIDChanged = c.RunIDChanged || differ(s.Server.RunID, first.RunID)
			c.ReplIDChanged = c.ReplIDChanged || differ(s.Server.ReplID, first.ReplID)
		}
	}
	gap := f.gap(c)
	c.Refused, c.Accepted = gap.end-gap.begin, gap.closed
	for i := gap.from; i < gap.to; i++ {
		if word := failure(f.Samples[i]); word != "" && !f.Samples[i].Held {
			c.Failures[word]++
		}
	}
	c.Window, c.TwoMasters = f.window(first)
	if c.Seen {
		begun := c.After
		if gap.from < gap.to {
			begun = min(begun, gap.begin)
		}
		c.Old, c.OldRefusal = f.old(first, begun)
	}
	return c
}

// differ reports whether two ids are known and differ.
func differ(a, b string) bool { return a != "" && b != "" && a != b }

// failure describes why a write failed, empty for a write that did not fail.
func failure(s Sample) string {
	switch s.Write {
	case WriteRefused:
		return s.Refusal
	case WriteSilent:
		return "no answer"
	case WriteBroken:
		return "connection ended"
	default:
		return ""
	}
}

// first returns the server that acknowledged the first write.
func (f Failover) first() (Server, bool) {
	for _, s := range f.Samples {
		if s.Write == WriteAccepted {
			return s.Server, true
		}
	}
	return Server{}, false
}

// sign returns when the first sign of a failover came: another master answered, or the server refuses writes because it
// is a replica. Failed writes alone are not a sign.
func (f Failover) sign(first Server) (at time.Duration, found bool) {
	for _, s := range f.Samples {
		slave := s.Server.Role == "slave"
		switch {
		case !slave && differ(s.Server.RunID, first.RunID), !slave && differ(s.Server.ReplID, first.ReplID),
			slave && s.Write == WriteAccepted,
			s.Write == WriteRefused && (s.Refusal == "READONLY" || s.Refusal == "MOVED"):
			return s.Ended, true
		}
	}
	return 0, false
}

// Settled reports whether a failover was seen, and nothing has changed for f.Settle before f.Lasted: one server
// accepted all writes, and no other server did over an old connection.
func (f Failover) Settled() bool {
	first, _ := f.first()
	final, found := f.final()
	at, seen := f.sign(first)
	since := f.Lasted - f.Settle
	if !found || !seen || at > since {
		return false
	}
	written := false
	for _, s := range slices.Backward(f.Samples) {
		switch {
		case s.Ended < since:
			return written
		case s.Held:
			if s.Write == WriteAccepted && differ(s.Server.RunID, final.RunID) {
				return false
			}
		case s.Server != final, s.Write != WriteNone && s.Write != WriteAccepted:
			return false
		case s.Write == WriteAccepted:
			written = true
		}
	}
	return written
}

// A gap is a time without an accepted write: samples from to to-1.
type gap struct {
	from, to   int
	begin, end time.Duration
	closed     bool // a write was accepted in the end
}

// gap returns the gap of the failover, or the longest gap without a failover. Gaps that are less than f.Settle apart
// count as one.
func (f Failover) gap(c Course) gap {
	var gaps []gap
	open := false
	for i, s := range f.Samples {
		if s.Held || s.Write == WriteNone {
			continue
		}
		accepted := s.Write == WriteAccepted && s.Server.Role != "slave"
		switch {
		case !accepted && !open:
			if n := len(gaps); n > 0 && s.Sent-gaps[n-1].end < f.Settle {
				gaps[n-1].closed = false
			} else {
				gaps = append(gaps, gap{from: i, begin: s.Sent})
			}
			open = true
		case accepted && open:
			last := &gaps[len(gaps)-1]
			last.to, last.end, last.closed = i, s.Ended, true
			open = false
		}
	}
	if open {
		last := &gaps[len(gaps)-1]
		last.to, last.end = len(f.Samples), f.Lasted
	}
	longest := gap{closed: true}
	for _, g := range gaps {
		near := g.begin <= c.After+f.Settle && g.end >= c.After-f.Settle
		if (near || !c.Seen) && g.end-g.begin > longest.end-longest.begin {
			longest = g
		}
	}
	return longest
}

// window returns for how long the old master acknowledged writes after the new one had answered. Only a write before
// the new master's last answer counts: if the old one is promoted again after the new one has died, that is another
// term.
func (f Failover) window(first Server) (window time.Duration, twoMasters bool) {
	var answered, accepted, last time.Duration = -1, -1, -1 // of the new master
	for _, s := range f.Samples {
		if s.Server.Role == "slave" || !differ(s.Server.RunID, first.RunID) {
			continue
		}
		last = s.Ended
		if answered < 0 {
			answered = s.Ended
		}
		if accepted < 0 && s.Write == WriteAccepted {
			accepted = s.Ended
		}
	}
	if answered < 0 {
		return 0, false
	}
	for _, s := range f.Samples {
		if s.Write != WriteAccepted || s.Server.RunID != first.RunID || s.Sent > last {
			continue
		}
		window = max(window, s.Sent-answered)
		twoMasters = twoMasters || accepted >= 0 && s.Sent > accepted
	}
	return window, twoMasters
}

// old returns the fate of the connection that the writer used before the failover.
func (f Failover) old(first Server, begun time.Duration) (OldConnection, string) {
	conn := -1
	for _, s := range f.Samples {
		if s.Write == WriteAccepted && s.Server.RunID == first.RunID && (s.Sent < begun || conn < 0) && !s.Held {
			conn = s.Conn
		}
	}
	var last Sample
	readOnly := false
	for _, s := range f.Samples {
		if s.Conn == conn && s.Write != WriteNone {
			last = s
			readOnly = readOnly || s.Ended >= begun && s.Write == WriteRefused && s.Refusal == "READONLY"
		}
	}
	if readOnly && last.Write != WriteAccepted {
		return OldReadOnly, "" // whatever ended it later
	}
	switch last.Write {
	case WriteBroken:
		return OldEnded, ""
	case WriteSilent:
		return OldSilent, ""
	case WriteRefused:
		return OldRefuses, last.Refusal
	case WriteAccepted:
		if differ(last.Server.RunID, first.RunID) {
			return OldMoved, ""
		}
		if final, _ := f.final(); differ(final.RunID, first.RunID) {
			return OldAccepts, ""
		}
	}
	return OldUnknown, ""
}

// final returns the server that accepted the last write.
func (f Failover) final() (Server, bool) {
	for _, s := range slices.Backward(f.Samples) {
		if s.Write == WriteAccepted && !s.Held {
			return s.Server, true
		}
	}
	return Server{}, false
}

// lost counts the acknowledged writes that the final server does not know. Each is looked for once, in the numbers that
// the server knew at its first later write. A number that is missing there is not found later either, because
// replication replaces the whole value.
func (f Failover) lost() (count int, since time.Duration) {
	final, found := f.final()
	if !found {
		return 0, 0
	}
	histories := map[int]*history{} // by connection
	next := 0
	for _, s := range f.Samples {
		if s.Write != WriteAccepted || s.Server.RunID != final.RunID {
			continue
		}
		h := histories[s.Conn]
		if h == nil || s.Before != nil {
			h = newHistory(s.Before)
			histories[s.Conn] = h
		}
		for ; next < len(f.Samples) && f.Samples[next].Ended <= s.Sent; next++ {
			if written := f.Samples[next]; written.Write == WriteAccepted && !h.has(written.Number) {
				if count++; count == 1 {
					since = s.Sent
				}
			}
		}
		h.numbers[s.Number] = true
	}
	return count, since
}

// history is the set of numbers that a server knows.
type history struct {
	numbers map[int]bool
	older   int // numbers up to this one may have been forgotten, so they count as known
}

// newHistory takes the newest numbers that a server knows. Two connections may have written their numbers in another
// order, so only the newer half is complete.
func newHistory(newest []int) *history {
	h := &history{numbers: map[int]bool{}}
	for _, n := range newest {
		h.numbers[n] = true
	}
	if len(newest) >= historyLen {
		h.older = slices.Min(newest[:historyLen/2])
	}
	return h
}

func (h *history) has(n int) bool { return n <= h.older || h.numbers[n] }
