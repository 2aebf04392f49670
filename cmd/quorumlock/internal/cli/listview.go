package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/cmd/quorumlock/internal/shown"
)

// view shows looks, one after the other.
type view interface {
	show(context.Context, look) error
	end()
}

// view returns a table for people, redrawn at a terminal, or lines for everything else.
func (l *lister) view(follow bool) view {
	_, _, terminal := size(l.stdout)
	switch {
	case !follow && l.connection.json:
		return &objects{lister: l}
	case !l.connection.json && (terminal || !follow):
		return &screen{lister: l, redraw: terminal && follow}
	}
	return &changes{lister: l, before: map[string]quorumlock.Status{}}
}

// objects prints each lock as an object of JSON.
type objects struct{ *lister }

func (o *objects) show(_ context.Context, l look) error {
	for _, s := range l.locks {
		if err := o.printJSON(lockJSON(s, o.connection.quorum())); err != nil {
			return err
		}
	}
	if l.cut {
		o.note("there are more than %d: give a longer PREFIX, or a larger --limit", o.limit)
	}
	return nil
}

func (o *objects) end() {}

// screen is a table that is redrawn in place.
type screen struct {
	*lister
	redraw bool
	begun  bool
}

func (s *screen) show(_ context.Context, l look) error {
	columns, rows, _ := size(s.stdout)
	if !s.redraw {
		rows = 0
	}
	lines := s.draw(l, columns, rows)
	if !s.redraw {
		writeAll(s.stdout, strings.Join(lines, "\n")+"\n")
		return nil
	}
	var b strings.Builder
	if !s.begun {
		s.begun = true
		b.WriteString("\x1b[?25l\x1b[2J") // no cursor, an empty screen
	}
	b.WriteString("\x1b[H")
	for _, line := range lines {
		b.WriteString(line + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	writeAll(s.stdout, b.String())
	return nil
}

func (s *screen) end() {
	if s.begun {
		writeAll(s.stdout, "\x1b[?25h")
	}
}

// draw returns the lines of a look, as many as fit; 0 columns or rows mean no limit.
func (s *screen) draw(l look, columns, rows int) []string {
	style := s.style()
	t := &table{width: columns}
	if len(l.locks) > 0 {
		t.row("NAME", "HOLDER", "HELD FOR", "EXPIRES IN", "VOTES", "WAITING")
	}
	for _, lock := range l.locks {
		t.row(lock.Name, who(lock), age(lock, l.at), left(lock.Held, lock.TTL), fmt.Sprintf("%d/%d", lock.Votes, len(lock.Nodes)), strconv.Itoa(lock.Waiters))
	}
	body := t.lines()
	head := fmt.Sprintf("%s  %s, prefix %s", l.at.Format(time.TimeOnly), counted(len(l.locks), l.cut), s.connection.prefix+s.prefix)
	lines := []string{style.bold(cut(shown.Text(head), columns)), ""}
	if l.err != nil {
		lines = append(lines, style.red(cut(shown.Text(oneLine(l.err)), columns)))
	}
	for i, line := range body {
		if room := rows - len(lines) - 2; rows > 0 && room < 1 && i < len(body)-1 {
			lines = append(lines, fmt.Sprintf("and %d more: give a longer PREFIX", len(body)-i))
			break
		}
		if i > 0 && !l.locks[i-1].Held {
			line = style.yellow(line)
		}
		lines = append(lines, line)
	}
	return lines
}

func counted(n int, more bool) string {
	text := strconv.Itoa(n) + " locks"
	if n == 1 {
		text = "1 lock"
	}
	if more {
		text += " and more"
	}
	return text
}

// who names the holder that a majority names.
func who(s quorumlock.Status) string {
	switch {
	case s.Held:
		return cell(s.Holder, s.Readers)
	case s.Votes > 0:
		return "no majority agrees"
	}
	return "reserved for a waiter"
}

func age(s quorumlock.Status, now time.Time) string {
	at := begun(s)
	if !s.Held || at.IsZero() {
		return "-"
	}
	return short(max(now.Sub(at), 0).Round(time.Second))
}

// changes prints a line for every change since the previous look.
type changes struct {
	*lister
	before     map[string]quorumlock.Status
	complained string
}

// change is one line of JSON. Its keys are stable.
type change struct {
	At    string `json:"at"`    // RFC 3339, when list found it
	Event string `json:"event"` // held, passed_on, no_majority, votes, waiters, readers or free
	statusJSON
}

func (c *changes) show(ctx context.Context, l look) error {
	now := map[string]quorumlock.Status{}
	for _, s := range l.locks {
		now[s.Name] = s
		if event := changed(c.before[s.Name], s); event != "" {
			if err := c.print(l.at, event, s); err != nil {
				return err
			}
		}
	}
	for name, s := range c.before {
		if _, still := now[name]; still {
			continue
		}
		if l.cut || l.err != nil { // perhaps it was not found
			if state, err := c.manager.Inspect(ctx, name); err != nil || state.Votes > 0 || state.Waiters > 0 {
				now[name] = s
				continue
			}
		}
		if err := c.print(l.at, "free", quorumlock.Status{Name: name, Known: true, AsOf: l.at}); err != nil {
			return err
		}
	}
	c.before = now
	complaint := textOf(l.err)
	if l.cut {
		complaint = fmt.Sprintf("more than %d locks: give a longer PREFIX, or a larger --limit", c.limit)
	}
	if complaint != "" && complaint != c.complained {
		c.note("%s", complaint)
	}
	c.complained = complaint
	return nil
}

func (c *changes) end() {}

// changed names the most important change of a lock, empty for none.
func changed(a, b quorumlock.Status) string {
	switch {
	case b.Held && !a.Held:
		return "held"
	case b.Held && !sameHolder(a, b):
		return "passed_on"
	case !b.Held && (a.Held || a.Name == ""):
		return "no_majority"
	case a.Votes != b.Votes:
		return "votes"
	case a.Waiters != b.Waiters:
		return "waiters"
	case a.Readers != b.Readers:
		return "readers"
	}
	return ""
}

func (c *changes) print(at time.Time, event string, s quorumlock.Status) error {
	if c.connection.json {
		return c.printJSON(change{At: stamp(at), Event: event, statusJSON: lockJSON(s, c.connection.quorum())})
	}
	if event == "free" {
		c.line("%s %-11s %s", stamp(at), event, s.Name)
		return nil
	}
	c.line("%s %-11s %s by %s, votes %d/%d, TTL %s, waiters %d", stamp(at), event, s.Name, who(s), s.Votes, len(s.Nodes), left(s.Held, s.TTL), s.Waiters)
	return nil
}
