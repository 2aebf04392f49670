package main

import (
	"errors"
	"fmt"
	"html"
	"os"
	"slices"
	"strings"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// The picture's layout, in pixels. The lanes of the two services mirror each other, so their bars of the
// lock face each other, and the arrows between them cross nothing.
const (
	width     = 680
	plotLeft  = 130 // the names of the services are left of it
	plotEnd   = width - 16
	barHeight = 26
	holderTop = 48
	between   = 56 // from the holder's bar of the lock to the waiter's
	gap       = 4
)

// The colours are as in the other pictures: green is the library at work.
const style = `<style>
text { font: 13px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 } .service { font-weight: 600 } .quiet { font-size: 12px; fill: #59636e }
.card { fill: #ffffff; stroke: #d1d9e0 } .axis { stroke: #818b98 }
.request { fill: #d1d9e0 } .acquire { fill: #e69f00 } .hold { fill: #009e73 } .on { fill: #000000 }
.arrow { fill: none; stroke: #1f2328; stroke-width: 1.6; marker-end: url(#head) } .head { fill: #1f2328 }
@media (prefers-color-scheme: dark) {
text, .head { fill: #f0f6fc } .quiet { fill: #9198a1 } .on { fill: #000000 }
.card { fill: #0d1117; stroke: #3d444d } .request { fill: #3d444d } .arrow { stroke: #f0f6fc }
}
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="head" d="M0,0 8,4 0,8z"/></marker></defs>
`

// picture is an SVG under construction.
type picture struct {
	strings.Builder
	began    time.Time
	perPixel time.Duration
}

// draw writes the first wait for another service to a file. If file is "", it draws nothing.
func draw(file string, spans []sdktrace.ReadOnlySpan) error {
	if file == "" {
		return nil
	}
	for _, v := range visits(spans) {
		if len(v.behind) > 0 && v.behind[0].service != v.service && v.hold != nil && v.behind[0].hold != nil && woken(v) {
			return os.WriteFile(file, []byte(render(v.behind[0], v)), 0o644)
		}
	}
	return errors.New("-svg " + file + ": no request waited for another service until a release woke it")
}

// woken reports whether a node woke the waiter.
func woken(v *visit) bool {
	return slices.ContainsFunc(v.acquire.Events(), func(e sdktrace.Event) bool { return e.Name == "woken" })
}

// render draws one story, from left to right: the holder has the lock, the waiter waits, the release wakes
// the waiter, and it works.
func render(holder, waiter *visit) string {
	p := &picture{began: holder.request.StartTime()}
	length := waiter.request.EndTime().Sub(p.began)
	p.perPixel = max(length/(plotEnd-plotLeft), 1)
	title := fmt.Sprintf("Why did %s take %s?", waiter.request.Name(), seconds(waiter.request))
	p.print(16, 28, "start", "title", title)

	lock := holderTop + barHeight + gap // the holder's bar of the lock; its request is above
	p.lane(holder, holderTop, lock)
	p.bar("hold", holder.hold, lock, holder.service+" holds the lock for "+seconds(holder.hold))
	p.bar("acquire", holder.acquire, lock, "")
	end := lock + barHeight
	top := end + between // the waiter's bar of the lock; its request is below
	p.lane(waiter, top+barHeight+gap, top)
	p.bar("acquire", waiter.acquire, top, fmt.Sprintf("%s waits for %.2f s", waiter.service, waiter.waited().Seconds()))
	p.bar("hold", waiter.hold, top, waiter.service+" works")

	from, to, wakes := p.x(waiter.acquire.StartTime())+2, p.x(holder.acquire.StartTime())+2, p.x(waiter.hold.StartTime())-1
	p.arrow(from, top-1, to, end+2)
	p.arrow(wakes, end+1, wakes, top-2)
	p.print(from+8, end+between/2+5, "start", "", "its span links to the holder")
	p.print(wakes-10, end+between/2+5, "end", "", "the release wakes "+waiter.service)

	bottom := top + 2*barHeight + gap + 12
	p.axis(length, bottom)
	p.legend(bottom + 50)
	about := fmt.Sprintf("Two requests over time. %[1]s holds the lock. %[2]s waits, and its span quorumlock.acquire links to the one of %[1]s. "+
		"The release wakes %[2]s, and %[2]s works.", holder.service, waiter.service)
	return p.svg(title, about, bottom+66)
}

// svg returns the finished picture.
func (p *picture) svg(title, about string, height int) string {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-labelledby="title desc">
<title id="title">%[3]s</title>
<desc id="desc">%[4]s</desc>
%[5]s<rect class="card" x="0.5" y="0.5" width="%[6]d" height="%[7]d" rx="6"/>
%[8]s</svg>
`, width, height, html.EscapeString(title), html.EscapeString(about), style, width-1, height-1, p.String())
}

// x returns the horizontal position of an instant.
func (p *picture) x(t time.Time) float64 {
	return plotLeft + float64(t.Sub(p.began))/float64(p.perPixel)
}

func (p *picture) printf(format string, args ...any) { fmt.Fprintf(&p.Builder, format, args...) }

func (p *picture) print(x float64, y int, anchor, class, text string) {
	p.printf("<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\" class=\"%s\">%s</text>\n", x, y, anchor, class, html.EscapeString(text))
}

// lane draws the names of a service and its trace, and the request's span.
func (p *picture) lane(v *visit, request, lock int) {
	top := min(request, lock)
	p.print(16, top+22, "start", "service", v.service)
	p.print(16, top+40, "start", "quiet", "trace "+v.trace().String()[:8]+"…")
	p.bar("request", v.request, request, v.request.Name())
}

// bar draws a span, and a text on it.
func (p *picture) bar(class string, s sdktrace.ReadOnlySpan, y int, text string) {
	x, end := p.x(s.StartTime()), p.x(s.EndTime())
	p.printf("<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" class=\"%s\"><title>%s %v, trace %s span %s</title></rect>\n",
		x, y, max(end-x, 4), barHeight, class, html.EscapeString(s.Name()), lengthOf(s), s.SpanContext().TraceID(), s.SpanContext().SpanID())
	if text == "" {
		return
	}
	ink := "on"
	if class == "request" {
		ink = ""
	}
	p.print(x+10, y+18, "start", ink, text)
}

func (p *picture) arrow(x1 float64, y1 int, x2 float64, y2 int) {
	p.printf("<path d=\"M%.1f,%d L%.1f,%d\" class=\"arrow\"/>\n", x1, y1, x2, y2)
}

// axis draws the time axis, which begins at the holder's request.
func (p *picture) axis(length time.Duration, y int) {
	p.printf("<path d=\"M%d,%d H%d\" class=\"axis\"/>\n", plotLeft, y, plotEnd)
	for at := time.Duration(0); at <= length; at += 500 * time.Millisecond {
		x := p.x(p.began.Add(at))
		p.printf("<path d=\"M%.1f,%d v5\" class=\"axis\"/>\n", x, y)
		p.print(x, y+20, "middle", "quiet", fmt.Sprintf("%.3g s", at.Seconds()))
	}
}

// legend names the spans of the colours.
func (p *picture) legend(y int) {
	x := float64(plotLeft)
	for _, entry := range []struct{ class, text string }{
		{"request", "the request's span"}, {"acquire", "quorumlock.acquire"}, {"hold", "quorumlock.hold"},
	} {
		p.printf("<rect x=\"%.1f\" y=\"%d\" width=\"14\" height=\"14\" class=\"%s\"/>\n", x, y-12, entry.class)
		p.print(x+22, y, "start", "quiet", entry.text)
		x += 180
	}
}

func seconds(s sdktrace.ReadOnlySpan) string {
	return fmt.Sprintf("%.2f s", s.EndTime().Sub(s.StartTime()).Seconds())
}
