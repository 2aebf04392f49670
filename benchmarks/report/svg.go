package report

import (
	"fmt"
	"html"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/quorumlock/quorumlock/benchmarks/stats"
)

// Sizes of a chart in pixels.
const (
	chartWidth  = 800
	labelWidth  = 190 // for the contestants' names, left of the bars
	valueWidth  = 190 // for the figures, right of the longest bar
	barWidth    = chartWidth - labelWidth - valueWidth
	barHeight   = 16
	rowHeight   = 22
	groupHeight = 30 // the name of a case, above its bars
	titleHeight = 44
	bottom      = 12
	charWidth   = 7 // of the font size used, about
)

// chartStyle makes a chart readable on light and dark pages: no background, greys
// that can be read on both, and sharper ones for viewers that say which it is.
const chartStyle = `<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #6e7781 }
.title { font-size: 15px; font-weight: 600 } .case { font-weight: 600 }
.own { fill: #1f9d6b } .peer { fill: #8c959f } .limit { fill: none; stroke: #8c959f; stroke-dasharray: 3 2 }
.spread { stroke: #57606a; stroke-width: 1.2 } .axis { stroke: #8c959f; stroke-width: 1 }
@media (prefers-color-scheme: light) { text { fill: #1f2328 } .unit, .value { fill: #59636e } .spread { stroke: #1f2328 } }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .unit, .value { fill: #9198a1 } .peer { fill: #6e7681 } .spread { stroke: #e6edf3 } }
</style>
`

// A scale turns figures into lengths.
type scale struct {
	least, most float64 // least is 0 unless logarithmic
	log         bool
}

func (s scale) length(v float64) float64 {
	part := v / s.most
	if s.log {
		part = 0
		if v > s.least {
			part = math.Log(v/s.least) / math.Log(s.most/s.least)
		}
	}
	return barWidth * min(max(part, 0), 1)
}

// scaleOf returns a scale that all figures of the chart fit into.
func (s *Section) scaleOf() scale {
	least, most := math.Inf(1), 0.0
	for _, row := range s.Rows {
		summary, ok := row.Values[s.Chart]
		if !ok {
			continue
		}
		most = max(most, summary.Max)
		if summary.Min > 0 {
			least = min(least, summary.Min)
		}
	}
	if most <= 0 {
		return scale{most: 1}
	}
	if !s.Log || math.IsInf(least, 1) {
		return scale{most: most}
	}
	// A power of ten below, so that the smallest bar can be seen.
	return scale{least: math.Pow(10, math.Floor(math.Log10(least)-0.3)), most: most, log: true}
}

// SVG draws the chart of a section: a group of bars for each case, with the
// spread of the rounds as a line across the end of each bar.
func (s *Section) SVG() string {
	column, scale := s.column(s.Chart), s.scaleOf()
	var b strings.Builder
	y := titleHeight
	last := ""
	for i := range s.Rows {
		row := &s.Rows[i]
		if row.Case != last {
			last = row.Case
			fmt.Fprintf(&b, `<text class="case" x="%d" y="%d">%s</text>`+"\n", 8, y+groupHeight-10, html.EscapeString(row.Case))
			y += groupHeight
		}
		s.bar(&b, row, column, scale, y)
		y += rowHeight
	}
	unit := column.Title
	if scale.log {
		unit += ", logarithmic"
	}
	height := y + bottom
	head := fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n",
		chartWidth, height, chartWidth, height, html.EscapeString(s.Title+": "+unit))
	head += chartStyle
	head += fmt.Sprintf(`<text class="title" x="8" y="22">%s</text><text class="unit" x="8" y="40">%s</text>`+"\n",
		html.EscapeString(s.Title), html.EscapeString(unit))
	axis := fmt.Sprintf(`<line class="axis" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", labelWidth, titleHeight+groupHeight-4, labelWidth, y)
	return head + b.String() + axis + "</svg>\n"
}

// bar draws one contestant.
func (s *Section) bar(b *strings.Builder, row *Row, column Column, scale scale, y int) {
	const middle = barHeight / 2
	label := row.Contestant
	if most := (labelWidth - 16) / charWidth; utf8.RuneCountInString(label) > most {
		label = string([]rune(label)[:most-1]) + "…"
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`, labelWidth-8, y+middle+4, html.EscapeString(label))
	value, end := "not measured", 0.0
	if summary, ok := row.Values[s.Chart]; ok {
		value = cell(summary, column.Digits)
		end = scale.length(summary.Max)
		fmt.Fprintf(b, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d"/>`,
			html.EscapeString(row.Kind), labelWidth, y, scale.length(summary.Median), barHeight)
		b.WriteString(spread(summary, scale, y+middle))
	}
	fmt.Fprintf(b, `<text class="value" x="%.1f" y="%d">%s</text>`+"\n", labelWidth+end+6, y+middle+4, html.EscapeString(value))
}

// spread draws a line from the smallest to the largest round, if they differ.
func spread(s stats.Summary, scale scale, y int) string {
	from, to := scale.length(s.Min), scale.length(s.Max)
	if to-from < 1 {
		return ""
	}
	const tick = 3
	line := func(x1, x2 float64, y1, y2 int) string {
		return fmt.Sprintf(`<line class="spread" x1="%.1f" y1="%d" x2="%.1f" y2="%d"/>`, labelWidth+x1, y1, labelWidth+x2, y2)
	}
	return line(from, to, y, y) + line(from, from, y-tick, y+tick) + line(to, to, y-tick, y+tick)
}
