package report

import (
	"math"
	"strings"
)

// Sizes of a bar chart in pixels.
const (
	barHeight   = 14
	rowHeight   = 22
	groupHeight = 34 // the name of a case, above its bars
	titleHeight = 56
)

// A scale turns figures into parts of its length.
type scale struct {
	least, most float64 // least is 0 unless logarithmic
	log         bool
}

func (s scale) part(v float64) float64 {
	part := v / s.most
	if s.log {
		part = 0
		if v > s.least {
			part = math.Log(v/s.least) / math.Log(s.most/s.least)
		}
	}
	return min(max(part, 0), 1)
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
	return scale{least: math.Pow(10, math.Floor(math.Log10(least))), most: most, log: true}
}

// bars is a bar chart under construction. On a logarithmic scale the length of a bar means nothing, so there it is a
// dot on a grid.
type bars struct {
	canvas
	*Section
	column         Column
	scale          scale
	left, width, y float64 // of the plot; y of the next row
}

// SVG draws the chart of a section: line charts or panels if it has them, and otherwise a group of bars for
// each case, with the spread of the rounds as a line across the end of each bar.
func (s *Section) SVG() string {
	switch {
	case len(s.Lines) > 0:
		return s.lineCharts()
	case s.Multiples:
		return s.smallMultiples()
	}
	b := &bars{Section: s, column: s.column(s.Chart), scale: s.scaleOf(), y: titleHeight}
	values := 0.0
	for i := range s.Rows {
		b.left = max(b.left, margin+widthOf(b.label(&s.Rows[i]))+8)
		values = max(values, widthOf(b.value(&s.Rows[i])))
	}
	b.width = chartWidth - b.left - values - margin - 12
	under := b.column.Title + better(b.column.Title) + "; the thin line: from the smallest to the largest round"
	if b.scale.log {
		under += "; logarithmic"
		b.ticks(func(x float64, label string) { b.text(x, b.y+16, "middle", "quiet", label) })
		b.y += 16
	}
	for i := range s.Rows {
		row := &s.Rows[i]
		if i == 0 || row.Case != s.Rows[i-1].Case {
			b.group(i)
		}
		b.row(row)
	}
	return b.svg(s.Title, under, s.About+" The table below the picture has the medians.", b.y+margin-4)
}

// better says which figures are the good ones.
func better(unit string) string {
	switch {
	case strings.Contains(unit, "/s"):
		return " (more is better)"
	case strings.Contains(unit, "µs"):
		return " (less is better)"
	case strings.Contains(unit, "fair share"):
		return " (1 is fair)"
	}
	return ""
}

// label returns whose figure a row has. It may be the figure of a library next to the contestant.
func (b *bars) label(row *Row) string {
	if b.column.Library != "" {
		return b.column.Library + " next to " + row.Contestant
	}
	return row.Contestant
}

func (b *bars) value(row *Row) string {
	if summary, ok := row.Values[b.Chart]; ok {
		return cell(summary, b.column.Digits)
	}
	return "not measured"
}

// ticks calls draw with the powers of ten.
func (b *bars) ticks(draw func(x float64, label string)) {
	for v := b.scale.least; v <= b.scale.most; v *= 10 {
		draw(b.left+b.width*b.scale.part(v), Number(v, 0))
	}
}

// group writes the name of the case that begins at a row, and draws the axis of its rows.
func (b *bars) group(first int) {
	b.text(margin, b.y+groupHeight-10, "start", "case", b.Rows[first].Case)
	b.y += groupHeight
	end := b.y
	for i := first; i < len(b.Rows) && b.Rows[i].Case == b.Rows[first].Case; i++ {
		end += rowHeight
	}
	grid := func(x float64, _ string) { b.line("grid", x, b.y-2, x, end-4) }
	if b.scale.log {
		b.ticks(grid)
	} else {
		grid(b.left, "")
	}
}

// row draws one contestant.
func (b *bars) row(row *Row) {
	middle := b.y + barHeight/2
	b.text(b.left-8, middle+4, "end", "", b.label(row))
	end := b.width + 4 // of a dot that is at the right end
	if summary, ok := row.Values[b.Chart]; ok {
		length := b.width * b.scale.part(summary.Median)
		owner := row.Contestant
		if b.column.Library != "" {
			owner = b.column.Library
		}
		b.printf(`<g class="%s">`, library(owner))
		if b.scale.log {
			b.printf(`<circle class="mark" cx="%.1f" cy="%.1f" r="5"/></g>`+"\n", b.left+length, middle)
		} else {
			b.printf(`<rect class="mark" x="%.1f" y="%.1f" width="%.1f" height="%d"/></g>`+"\n", b.left, b.y, length, barHeight)
			end = b.width * b.scale.part(summary.Max)
		}
		b.spread(b.left, b.width, b.scale, summary, middle)
	}
	b.text(b.left+end+8, middle+4, "start", "quiet", b.value(row))
	b.y += rowHeight
}
