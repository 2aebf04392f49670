package main

import (
	"bytes"
	"fmt"
	"html"
	"time"

	"github.com/quorumlock/quorumlock"
)

// mark is an entry of the picture: an event of a contender, or a note about the nodes.
type mark struct {
	at    time.Duration
	who   string // empty for a note
	text  string // of a note
	event quorumlock.Event
}

// The picture's layout, in pixels.
const (
	width, left0, right = 900, 70, 20
	noteHeight          = 20
	laneHeight, barSize = 64, 26
)

// picture draws marks along a time axis.
type picture struct {
	bytes.Buffer
	scale float64 // pixels per second
	lanes map[string]int
}

// draw returns an SVG of the holders of the lease over time, from the library's own
// events.
func draw(marks []mark) []byte {
	if len(marks) == 0 {
		return nil
	}
	end := marks[len(marks)-1].at + 200*time.Millisecond
	notes := 0
	for _, m := range marks {
		if m.who == "" {
			notes++
		}
	}
	top := noteHeight*notes + 16
	p := &picture{scale: (width - left0 - right) / end.Seconds(), lanes: map[string]int{"alice": top, "bob": top + laneHeight}}
	height := top + 2*laneHeight + 30
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui,sans-serif" font-size="13">`+"\n", width, height)
	p.printf(`<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	p.axis(end, top+2*laneHeight)
	p.notes(marks, top+2*laneHeight)
	for _, who := range []string{"alice", "bob"} {
		p.text(10, p.lanes[who]+barSize, "#222", "start", who)
		p.lane(who, marks, end)
	}
	p.gap(marks)
	p.WriteString("</svg>\n")
	return p.Bytes()
}

func (p *picture) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(p, format, args...) // Buffer documents that this never fails
}

func (p *picture) x(at time.Duration) float64 { return left0 + at.Seconds()*p.scale }

func (p *picture) text(x float64, y int, color, anchor, text string) {
	p.printf(`<text x="%.1f" y="%d" fill="%s" text-anchor="%s" stroke="#fff" stroke-width="4" paint-order="stroke">%s</text>`+"\n",
		x, y, color, anchor, html.EscapeString(text))
}

func (p *picture) line(x1 float64, y1 int, x2 float64, y2 int, style string) {
	p.printf(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" %s/>`+"\n", x1, y1, x2, y2, style)
}

func (p *picture) bar(who string, from, to time.Duration, color string) {
	p.printf(`<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n",
		p.x(from), p.lanes[who]+8, max(p.x(to)-p.x(from), 1), barSize, color)
}

func (p *picture) axis(end time.Duration, y int) {
	p.line(left0, y, width-right, y, `stroke="#999"`)
	for at := time.Duration(0); at <= end; at += time.Second {
		p.line(p.x(at), y, p.x(at), y+4, `stroke="#999"`)
		p.text(p.x(at), y+18, "#666", "middle", fmt.Sprintf("%.0f s", at.Seconds()))
	}
}

// notes writes each note on its own line, above the lines of the others.
func (p *picture) notes(marks []mark, bottom int) {
	for _, lines := range []bool{true, false} {
		y := 0
		for _, m := range marks {
			if m.who != "" {
				continue
			}
			y += noteHeight
			x, anchor, gap := p.x(m.at), "start", 6.0
			if x > width/2 {
				anchor, gap = "end", -6
			}
			if lines {
				p.line(x, y-10, x, bottom, `stroke="#888" stroke-dasharray="3 3"`)
			} else {
				p.text(x+gap, y, "#444", anchor, m.text)
			}
		}
	}
}

// lane draws the leases of a contender: green while it holds one, amber while the lease
// is at risk, a tick for each renewal, red at the report of the loss.
func (p *picture) lane(who string, marks []mark, end time.Duration) {
	holds, risky := false, false
	var since, riskSince time.Duration
	var ticks []time.Duration
	finish := func(at time.Duration) {
		if !holds {
			return
		}
		p.bar(who, since, at, "#8fce9b")
		if risky {
			p.bar(who, riskSince, at, "#f4c25b")
		}
		for _, tick := range ticks {
			p.line(p.x(tick), p.lanes[who]+8, p.x(tick), p.lanes[who]+8+barSize, `stroke="#2f7d3f"`)
		}
		holds, risky, ticks = false, false, nil
	}
	for _, m := range marks {
		if m.who != who {
			continue
		}
		switch e := m.event.(type) {
		case quorumlock.Acquired:
			holds, since = true, m.at
			x, anchor := p.x(m.at), "start"
			if x > width-200 {
				x, anchor = width-right, "end"
			}
			p.text(x, p.lanes[who]+barSize+22, "#2f7d3f", anchor, fmt.Sprintf("leads, token …%06d", e.Token%1_000_000))
		case quorumlock.Renewed:
			ticks = append(ticks, m.at)
			if risky {
				p.bar(who, since, m.at, "#8fce9b")
				p.bar(who, riskSince, m.at, "#f4c25b")
				since, risky = m.at, false
			}
		case quorumlock.AtRisk:
			if !risky {
				risky, riskSince = true, m.at
			}
		case quorumlock.Lost:
			finish(m.at)
			p.line(p.x(m.at), p.lanes[who]+2, p.x(m.at), p.lanes[who]+14+barSize, `stroke="#c0392b" stroke-width="3"`)
			p.text(p.x(m.at)-6, p.lanes[who]+barSize+22, "#c0392b", "end", "at risk, then lost")
		case quorumlock.Released:
			finish(m.at)
		}
	}
	finish(end)
}

// gap shows the time from the report of the loss to the grant of the other contender.
func (p *picture) gap(marks []mark) {
	var lost time.Duration
	for _, m := range marks {
		switch m.event.(type) {
		case quorumlock.Lost:
			lost = m.at
		case quorumlock.Acquired:
			if lost == 0 {
				continue
			}
			y := p.lanes["bob"] + 4
			p.line(p.x(lost), y, p.x(m.at), y, `stroke="#c0392b" stroke-width="2"`)
			p.text(p.x(lost)-6, y+4, "#c0392b", "end", fmt.Sprintf("reported %v before the other's grant", (m.at-lost).Round(time.Millisecond)))
			return
		}
	}
}
