package report

import (
	"cmp"
	"fmt"
	"html"
	"strings"
	"unicode/utf8"

	"github.com/quorumlock/quorumlock/benchmarks/stats"
)

// Sizes of a picture in pixels.
const (
	chartWidth = 800
	margin     = 16
	charWidth  = 7 // of the font size used, about
)

// chartStyle has one colour for each library, the same in all pictures of the repository. Colour-blind
// readers can tell them apart, and they stand out on a light and on a dark card.
const chartStyle = `<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.title { font-size: 15px; font-weight: 600 } .case { font-weight: 600 } .quiet { fill: #59636e }
.card { fill: #ffffff; stroke: #d1d9e0 } .grid { stroke: #d1d9e0 } .spread { stroke: #1f2328; stroke-width: 1.2 }
.mark { fill: currentColor } .curve { fill: none; stroke: currentColor; stroke-width: 2 } .dashed { stroke-dasharray: 5 3 }
g { color: #7d8590 } .quorumlock { color: #009e73 } .redsync { color: #0072b2 } .redislock { color: #cc79a7 } .rueidislock { color: #d55e00 }
.raw .mark { fill: none; stroke: currentColor; stroke-dasharray: 3 2 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .quiet { fill: #9198a1 }
.card { fill: #0d1117; stroke: #3d444d } .grid { stroke: #3d444d } .spread { stroke: #f0f6fc }
}
</style>
`

// canvas is a picture under construction.
type canvas struct {
	strings.Builder
	width int // chartWidth, if 0
}

func (c *canvas) printf(format string, args ...any) { fmt.Fprintf(&c.Builder, format, args...) }

// text writes at x, which is where the text starts, its middle or its end.
func (c *canvas) text(x, y float64, anchor, class, text string) {
	c.printf(`<text x="%.1f" y="%.1f" text-anchor="%s" class="%s">%s</text>`+"\n", x, y, anchor, class, html.EscapeString(text))
}

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	c.printf(`<line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", class, x1, y1, x2, y2)
}

// spread draws a line from the smallest to the largest round, if they differ, on a scale with its zero at left.
func (c *canvas) spread(left, width float64, along scale, s stats.Summary, y float64) {
	from, to := left+width*along.part(s.Min), left+width*along.part(s.Max)
	if to-from < 1 {
		return
	}
	const tick = 3
	c.line("spread", from, y, to, y)
	c.line("spread", from, y-tick, from, y+tick)
	c.line("spread", to, y-tick, to, y+tick)
}

// svg returns the finished picture, with a heading.
func (c *canvas) svg(title, under, about string, height float64) string {
	var whole canvas
	width := cmp.Or(c.width, chartWidth)
	whole.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" role="img" aria-labelledby="title desc">`+"\n",
		width, height, width, height)
	whole.printf("<title id=\"title\">%s: %s</title>\n<desc id=\"desc\">%s</desc>\n%s",
		html.EscapeString(title), html.EscapeString(under), html.EscapeString(about), chartStyle)
	whole.printf(`<rect class="card" x="0.5" y="0.5" width="%d" height="%.0f" rx="6"/>`+"\n", width-1, height-1)
	whole.text(margin, 28, "start", "title", title)
	whole.text(margin, 47, "start", "quiet", under)
	return whole.String() + c.String() + "</svg>\n"
}

// widthOf returns about how wide a text is.
func widthOf(text string) float64 { return float64(charWidth * utf8.RuneCountInString(text)) }

// library returns the first word of a contestant's name, which decides the colour.
func library(contestant string) string {
	if end := strings.IndexAny(contestant, " ,/"); end >= 0 {
		contestant = contestant[:end]
	}
	return html.EscapeString(contestant)
}
