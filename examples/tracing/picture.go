package main

import (
	"fmt"
	"html"
	"os"
	"slices"
	"strings"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Sizes of the picture, in pixels.
const (
	width    = 800
	plotLeft = 270 // the labels are left of it
	plotEnd  = 690 // the durations are right of it
	rowStep  = 20
	barHigh  = 13
	top      = 64
)

// The colours are as in the other pictures: green is the library at work.
const style = `<title id="title">Requests of two services wait for one lock</title>
<desc id="desc">Four requests over time, each with its wait for the lock and the time it held it. Links lead from each waiter to the holders before it.</desc>
<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 }
.service { font-size: 13px; font-weight: 600 }
.small { font-size: 11px; fill: #59636e }
.card { fill: #ffffff; stroke: #d1d9e0 }
.tick { stroke: #d1d9e0 }
.band { fill: #eff2f5 }
.request { fill: #aeb6c0 }
.acquire { fill: #e69f00 }
.hold { fill: #009e73 }
.link { fill: none; stroke: #1f2328; stroke-width: 1.4; marker-end: url(#head) }
.head { fill: #1f2328 }
@media (prefers-color-scheme: dark) {
text, .head { fill: #f0f6fc }
.small { fill: #9198a1 }
.card { fill: #0d1117; stroke: #3d444d }
.tick { stroke: #3d444d }
.band { fill: #212830 }
.request { fill: #656c76 }
.link { stroke: #f0f6fc }
}
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="head" d="M0,0 8,4 0,8z"/></marker></defs>
`

// picture is an SVG under construction.
type picture struct {
	text     strings.Builder
	began    time.Time
	perPixel time.Duration
	y        int            // of the next row
	rows     map[*visit]int // y of each visit's acquire bar
}

// draw writes the spans of a round to a file. If file is "", it draws nothing.
func draw(file string, spans []sdktrace.ReadOnlySpan) error {
	if file == "" {
		return nil
	}
	all := visits(spans)
	if len(all) == 0 {
		return fmt.Errorf("-svg %s: there are no spans to draw", file)
	}
	return os.WriteFile(file, []byte(render(all)), 0o644)
}

func render(all []*visit) string {
	p := &picture{began: all[0].request.StartTime(), y: top, rows: map[*visit]int{}}
	var last time.Time
	for _, v := range all {
		for _, s := range []sdktrace.ReadOnlySpan{v.request, v.hold} {
			if s != nil && s.EndTime().After(last) {
				last = s.EndTime()
			}
		}
	}
	p.perPixel = max(last.Sub(p.began)/(plotEnd-plotLeft), 1)

	var services []string
	for _, v := range all {
		if !slices.Contains(services, v.service) {
			services = append(services, v.service)
		}
	}
	for _, service := range services {
		p.service(service)
		for _, v := range all {
			if v.service == service {
				p.visit(v)
			}
		}
	}
	rows := p.text.String()
	p.text.Reset()
	end := p.y
	p.axis(last.Sub(p.began), end)
	p.text.WriteString(rows)
	for _, v := range all {
		for _, holder := range v.behind {
			p.link(v, holder)
		}
	}
	p.legend(end + 26)
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title desc">
%s<rect class="card" x="0.5" y="0.5" width="%d" height="%d" rx="6"/>
%s</svg>
`, width, end+44, width, end+44, style, width-1, end+43, p.text.String())
}

// x returns the horizontal position of an instant.
func (p *picture) x(t time.Time) float64 {
	return plotLeft + float64(t.Sub(p.began))/float64(p.perPixel)
}

func (p *picture) print(x float64, y int, class, text string) {
	fmt.Fprintf(&p.text, "<text x=\"%.1f\" y=\"%d\" class=\"%s\">%s</text>\n", x, y, class, html.EscapeString(text))
}

// axis draws the time axis, which begins at the first request.
func (p *picture) axis(length time.Duration, end int) {
	p.print(12, 24, "title", "Requests of two services wait for the lock "+lock)
	step := 250 * time.Millisecond
	for length/step > 10 {
		step *= 2
	}
	for at := time.Duration(0); at <= length; at += step {
		x := p.x(p.began.Add(at))
		fmt.Fprintf(&p.text, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" class=\"tick\"/>\n", x, x, top-12, end)
		fmt.Fprintf(&p.text, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" class=\"small\">%.3g s</text>\n", x, top-17, at.Seconds())
	}
}

// service draws the heading of a service.
func (p *picture) service(name string) {
	fmt.Fprintf(&p.text, "<rect x=\"1\" y=\"%d\" width=\"%d\" height=\"20\" class=\"band\"/>\n", p.y, width-2)
	p.print(12, p.y+14, "service", "service "+name)
	p.y += 28
}

// visit draws a request: its span, its acquire span below, and its hold span.
func (p *picture) visit(v *visit) {
	p.print(12, p.y+11, "", v.request.Name())
	p.bar("request", v.request, "")
	p.print(24, p.y+11, "small", "trace "+v.trace().String()[:8]+"…  quorumlock.acquire")
	p.rows[v] = p.y
	text := ""
	if len(v.behind) > 0 {
		text = "waits " + round(v.waited())
	}
	p.bar("acquire", v.acquire, text)
	if v.hold != nil {
		p.print(24, p.y+11, "small", "trace "+v.hold.SpanContext().TraceID().String()[:8]+"…  quorumlock.hold")
		p.bar("hold", v.hold, "holds "+round(v.hold.EndTime().Sub(v.hold.StartTime())))
	}
	p.y += 10
}

// bar draws a span in its own row, and its text behind the plot, where no line crosses it.
func (p *picture) bar(class string, s sdktrace.ReadOnlySpan, text string) {
	x, end := p.x(s.StartTime()), p.x(s.EndTime())
	fmt.Fprintf(&p.text, "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" rx=\"2\" class=\"%s\"><title>%s %v, trace %s span %s</title></rect>\n",
		x, p.y, max(end-x, 3), barHigh, class, html.EscapeString(s.Name()), lengthOf(s), s.SpanContext().TraceID(), s.SpanContext().SpanID())
	if text != "" {
		p.print(plotEnd+10, p.y+11, "small", text)
	}
	p.y += rowStep
}

// link draws a link, from the instant at which the waiter began to wait behind the holder
// to the acquire span of the holder.
func (p *picture) link(waiter, holder *visit) {
	from, to := waiter.acquire.StartTime(), holder.acquire.EndTime()
	if from.Before(to) {
		from = to
	}
	x1, y1 := p.x(from)+2, p.rows[waiter]
	x2, y2 := max(p.x(to), p.x(holder.acquire.StartTime())+3)+1, p.rows[holder]+barHigh
	if y1 < y2 {
		y1, y2 = y1+barHigh, p.rows[holder]
	}
	bend := float64(y2-y1) / 2
	fmt.Fprintf(&p.text, "<path d=\"M%.1f,%d C%.1f,%.1f %.1f,%.1f %.1f,%d\" class=\"link\"><title>%s waits behind %s</title></path>\n",
		x1, y1, x1, float64(y1)+bend, x2, float64(y2)-bend, x2, y2, html.EscapeString(waiter.request.Name()), html.EscapeString(holder.request.Name()))
}

func (p *picture) legend(y int) {
	x := 24.0
	for _, entry := range []struct{ class, text string }{
		{"request", "a request's span"}, {"acquire", "quorumlock.acquire"}, {"hold", "quorumlock.hold"},
	} {
		fmt.Fprintf(&p.text, "<rect x=\"%.1f\" y=\"%d\" width=\"14\" height=\"%d\" rx=\"2\" class=\"%s\"/>\n", x, y-11, barHigh, entry.class)
		p.print(x+20, y, "", entry.text)
		x += 165
	}
	fmt.Fprintf(&p.text, "<path d=\"M%.1f,%d h26\" class=\"link\"/>\n", x, y-4)
	p.print(x+34, y, "", "link: the waiter's span to its holder's")
}

func round(d time.Duration) string { return d.Round(time.Millisecond).String() }
