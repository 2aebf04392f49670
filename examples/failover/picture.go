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
	laneHeight, barSize = 68, 26
)

// The colours are as in the other pictures: green is the library at work.
const style = `<title id="title">A leader is cut off, and is notified before the other contender is granted the lease</title>
<desc id="desc">Two lanes over time. Alice holds the lease and renews it. A node dies and comes back. The network cuts alice off from a majority:
her lease is at risk, then lost. A moment after the report of the loss, bob holds the lease, with a larger token.</desc>
<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.who { font-weight: 600 } .quiet { fill: #59636e } .good { fill: #007a5a } .bad { fill: #c2410c }
.card { fill: #ffffff; stroke: #d1d9e0 } .axis { stroke: #818b98 } .note { stroke: #818b98; stroke-dasharray: 3 3 }
.held { fill: #009e73 } .risk { fill: #e69f00 } .renewal { stroke: #ffffff; stroke-width: 2 } .loss { stroke: #d55e00; stroke-width: 3 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .quiet { fill: #9198a1 } .good { fill: #3fb993 } .bad { fill: #f28c4b }
.card { fill: #0d1117; stroke: #3d444d } .renewal { stroke: #0d1117 }
}
</style>
`

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
	top := noteHeight*notes + 28
	p := &picture{scale: (width - left0 - right) / end.Seconds(), lanes: map[string]int{"alice": top, "bob": top + laneHeight}}
	height := top + 2*laneHeight + 40
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-labelledby="title desc">`+"\n%s", width, height, style)
	p.printf(`<rect class="card" x="0.5" y="0.5" width="%d" height="%d" rx="6"/>`+"\n", width-1, height-1)
	p.axis(end, top+2*laneHeight+4)
	p.notes(marks, top+6)
	for _, who := range []string{"alice", "bob"} {
		p.text(16, p.lanes[who]+barSize, "who", "start", who)
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

func (p *picture) text(x float64, y int, class, anchor, text string) {
	p.printf(`<text x="%.1f" y="%d" class="%s" text-anchor="%s">%s</text>`+"\n", x, y, class, anchor, html.EscapeString(text))
}

func (p *picture) line(x1 float64, y1 int, x2 float64, y2 int, class string) {
	p.printf(`<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" class="%s"/>`+"\n", x1, y1, x2, y2, class)
}

func (p *picture) bar(who string, from, to time.Duration, class string) {
	p.printf(`<rect x="%.1f" y="%d" width="%.1f" height="%d" class="%s"/>`+"\n",
		p.x(from), p.lanes[who]+8, max(p.x(to)-p.x(from), 1), barSize, class)
}

func (p *picture) axis(end time.Duration, y int) {
	p.line(left0, y, width-right, y, "axis")
	for at := time.Duration(0); at <= end; at += time.Second {
		p.line(p.x(at), y, p.x(at), y+4, "axis")
		p.text(p.x(at), y+20, "quiet", "middle", fmt.Sprintf("%.0f s", at.Seconds()))
	}
}

// notes writes each note on its own row, to the right of a line down to the lanes. A later note is
// further to the right and further down, so no line crosses a text.
func (p *picture) notes(marks []mark, bottom int) {
	y := 8
	for _, m := range marks {
		if m.who == "" {
			y += noteHeight
			p.line(p.x(m.at), y-10, p.x(m.at), bottom, "note")
			p.text(p.x(m.at)+6, y, "", "start", m.text)
		}
	}
}

// lane draws the leases of a contender: green while it holds one, amber while the lease
// is at risk, a gap for each renewal, and a thick line at the report of the loss.
func (p *picture) lane(who string, marks []mark, end time.Duration) {
	holds, risky := false, false
	var since, riskSince time.Duration
	var ticks []time.Duration
	finish := func(at time.Duration) {
		if !holds {
			return
		}
		p.bar(who, since, at, "held")
		if risky {
			p.bar(who, riskSince, at, "risk")
		}
		for _, tick := range ticks {
			p.line(p.x(tick), p.lanes[who]+8, p.x(tick), p.lanes[who]+8+barSize, "renewal")
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
			x, anchor, text := p.x(m.at), "start", fmt.Sprintf("leads, token …%08d", e.Token%100_000_000)
			if x > width-200 {
				x, anchor = width-right, "end"
			} else {
				text += fmt.Sprintf("; each gap is a renewal; TTL %v", ttl)
			}
			p.text(x, p.lanes[who]+barSize+24, "good", anchor, text)
		case quorumlock.Renewed:
			ticks = append(ticks, m.at)
			if risky {
				p.bar(who, since, m.at, "held")
				p.bar(who, riskSince, m.at, "risk")
				since, risky = m.at, false
			}
		case quorumlock.AtRisk:
			if !risky {
				risky, riskSince = true, m.at
			}
		case quorumlock.Lost:
			finish(m.at)
			p.line(p.x(m.at), p.lanes[who]+2, p.x(m.at), p.lanes[who]+14+barSize, "loss")
			p.text(p.x(m.at)-6, p.lanes[who]+barSize+24, "bad", "end", "at risk, then lost")
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
			y := p.lanes["bob"] + 8 + barSize/2
			p.line(p.x(lost), y, p.x(m.at), y, "loss")
			p.text(p.x(lost)-6, y+4, "bad", "end", fmt.Sprintf("alice's loss is reported %v before bob's grant", (m.at-lost).Round(time.Millisecond)))
			return
		}
	}
}
