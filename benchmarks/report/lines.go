package report

import (
	"cmp"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Sizes of the line charts in pixels.
const (
	panelWidth  = (chartWidth - 2*margin) / panelsInRow
	panelHeight = 190
	panelsInRow = 3
	plotLeft    = 44 // in the panel: the figures of the axis are left of it
	plotTop     = 34
	plotWidth   = panelWidth - plotLeft - 46
	plotHeight  = 116
)

// A panel is a chart of the cases in which one number grows.
type panel struct {
	what string
	at   []float64 // the number
	rows []*Row
}

var grows = regexp.MustCompile(`\d+(ms|s)?\b`)

// panels sorts the rows by what grows: "3 nodes" and "5 nodes", "round trip 1ms" and "round trip 20ms".
func (s *Section) panels() (all []panel) {
	for i := range s.Rows {
		row := &s.Rows[i]
		number := grows.FindString(row.Case)
		what := strings.TrimSpace(strings.Replace(row.Case, number, "", 1))
		at, err := strconv.ParseFloat(number, 64)
		if err != nil {
			long, _ := time.ParseDuration(number)
			at, what = float64(long.Milliseconds()), what+", ms"
		}
		if len(all) == 0 || all[len(all)-1].what != what {
			all = append(all, panel{what: what})
		}
		p := &all[len(all)-1]
		p.at, p.rows = append(p.at, at), append(p.rows, row)
	}
	return all
}

// lineCharts draws a small chart for each number that grows, and the legend after the last.
func (s *Section) lineCharts() string {
	var c canvas
	all := s.panels()
	place := func(i int) (x, y float64) {
		return float64(margin + i%panelsInRow*panelWidth), float64(titleHeight + i/panelsInRow*panelHeight)
	}
	for i := range all {
		x, y := place(i)
		all[i].draw(&c, s, x, y)
	}
	x, y := place(len(all))
	c.printf(`<g class="quorumlock">`)
	for i, key := range s.Lines {
		at := y + plotTop + float64(24*i)
		c.line(curve(i), x+12, at-4, x+40, at-4)
		c.text(x+48, at, "start", "", s.column(key).Title)
	}
	c.printf("</g>\n")
	under := "µs for one operation (less is better); the thin lines: from the smallest to the largest round; each chart has its own scale"
	rows := (len(all) + panelsInRow) / panelsInRow
	return c.svg(s.Title, under, s.About+" The table below the picture has the medians.", float64(titleHeight+rows*panelHeight))
}

// curve returns the class of a line.
func curve(i int) string {
	if i > 0 {
		return "curve dashed"
	}
	return "curve"
}

// draw draws a chart with its left upper corner at x, y.
func (p *panel) draw(c *canvas, s *Section, x, y float64) {
	across := scale{most: cmp.Or(p.at[len(p.at)-1], 1)} // with 0 alone it is at the left
	title := p.what
	if p.at[0] > 0 && across.most >= 100*p.at[0] {
		across.least, across.log = p.at[0], true
		title += " (logarithmic)"
	}
	up := scale{most: p.top(s)}
	c.text(x+plotLeft, y+plotTop-14, "start", "case", title)
	x, y = x+plotLeft, y+plotTop
	for _, part := range []float64{0, 0.5, 1} {
		at := y + plotHeight*(1-part)
		c.line("grid", x, at, x+plotWidth, at)
		c.text(x-6, at+4, "end", "quiet", Number(up.most*part, 0))
	}
	free, last := x, x+plotWidth-widthOf(short(across.most))/2
	for i, number := range p.at {
		at, half := x+plotWidth*across.part(number), widthOf(short(number))/2
		if i == 0 || i == len(p.at)-1 || at-half > free && at+half < last {
			c.text(at, y+plotHeight+18, "middle", "quiet", short(number))
			free = at + half + 4
		}
	}
	for i, key := range s.Lines {
		p.curve(c, s.column(key), curve(i), func(at, v float64) (float64, float64) {
			return x + plotWidth*across.part(at), y + plotHeight*(1-up.part(v))
		})
	}
}

// curve draws one figure, with its last value.
func (p *panel) curve(c *canvas, column Column, class string, place func(at, v float64) (x, y float64)) {
	var points []string
	var x, y float64
	value := ""
	c.printf(`<g class="quorumlock">`)
	for i, row := range p.rows {
		summary, ok := row.Values[column.Key]
		if !ok {
			continue
		}
		x, y = place(p.at[i], summary.Median)
		_, low := place(p.at[i], summary.Min)
		_, high := place(p.at[i], summary.Max)
		c.line("spread", x, low, x, high)
		c.printf(`<circle class="mark" cx="%.1f" cy="%.1f" r="3"/>`, x, y)
		points = append(points, strconv.FormatFloat(x, 'f', 1, 64)+","+strconv.FormatFloat(y, 'f', 1, 64))
		value = Number(summary.Median, column.Digits)
	}
	c.printf(`<polyline class="%s" points="%s"/></g>`+"\n", class, strings.Join(points, " "))
	c.text(x+8, y+4, "start", "", value)
}

// top returns a round number that no figure exceeds.
func (p *panel) top(s *Section) float64 {
	most := 0.0
	for _, row := range p.rows {
		for _, key := range s.Lines {
			most = max(most, row.Values[key].Max)
		}
	}
	return roundUp(most)
}

// roundUp returns a round number that is not below v.
func roundUp(v float64) float64 {
	ten := math.Pow(10, math.Floor(math.Log10(max(v, 1))))
	for _, round := range []float64{1, 2, 3, 4, 5, 6, 8} {
		if v <= round*ten {
			return round * ten
		}
	}
	return 10 * ten
}

// short writes a number in as few characters as it can.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'f', -1, 64) + "M"
	case v >= 1e3:
		return strconv.FormatFloat(v/1e3, 'f', -1, 64) + "k"
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}
