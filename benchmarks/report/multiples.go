package report

import (
	"slices"
	"strings"
)

// Sizes of a chart with a panel for each number of servers, in pixels. It is as narrow as a phone, so
// the phone does not make its texts smaller.
const (
	narrowWidth = 400
	narrowLeft  = 150 // the labels are left of it
	narrowPlot  = 186 // the values are right of it
	thinBar     = 11
	thinRow     = 14
	lineHeight  = 18
	blockGap    = 7 // between contestants
)

// multiples is a chart with a panel for each number of servers.
type multiples struct {
	canvas
	*Section
	column      Column
	contestants []string // of all panels: the order is the same in each
	variants    []string // how the cases of a panel differ: "64 callers", "512 callers"
	y           float64
}

// split separates the case "64 callers, N=3" into the variant and the panel.
func split(name string) (variant, panel string) {
	at := max(strings.LastIndex(name, "N="), 0)
	return strings.TrimSuffix(name[:at], ", "), name[at:]
}

// add appends a text that is not there yet.
func add(all []string, text string) []string {
	if slices.Contains(all, text) {
		return all
	}
	return append(all, text)
}

// smallMultiples draws a panel for each number of servers, one below the other. A contestant has a bar for
// each variant.
func (s *Section) smallMultiples() string {
	m := &multiples{Section: s, column: s.column(s.Chart), canvas: canvas{width: narrowWidth}, y: titleHeight}
	var panels []string
	for i := range s.Rows {
		variant, panel := split(s.Rows[i].Case)
		panels, m.variants = add(panels, panel), add(m.variants, variant)
		m.contestants = add(m.contestants, s.Rows[i].Contestant)
	}
	m.legend()
	for _, panel := range panels {
		m.panel(panel)
	}
	return m.svg(s.Title, m.column.Title+better(m.column.Title), s.About+" The table below the picture has the medians.", m.y)
}

// legend explains the bars of a contestant.
func (m *multiples) legend() {
	const swatch = 28
	entry := func(text string) {
		m.text(margin+swatch+8, m.y+10, "start", "", text)
		m.y += lineHeight
	}
	for i, variant := range m.variants {
		m.bar("quorumlock", i, margin, m.y, swatch)
		entry(variant)
	}
	m.line("spread", margin, m.y+thinBar/2.0, margin+swatch, m.y+thinBar/2.0)
	entry("from the smallest to the largest round")
	m.text(margin, m.y+10, "start", "quiet", "N is the number of servers. Each panel has its own scale.")
	m.y += lineHeight
}

// bar draws a bar. All variants but the last are pale.
func (m *multiples) bar(class string, variant int, x, y, width float64) {
	pale := ""
	if variant < len(m.variants)-1 {
		pale = ` opacity="0.6"`
	}
	m.printf(`<g class="%s"><rect class="mark" x="%.1f" y="%.1f" width="%.1f" height="%d"%s/></g>`+"\n", class, x, y, width, thinBar, pale)
}

// panel draws the cases with this number of servers, and their scale below them.
func (m *multiples) panel(name string) {
	most := 0.0
	rows := map[string][]*Row{} // by contestant, and then by variant; nil is not measured
	for i := range m.Rows {
		row := &m.Rows[i]
		variant, panel := split(row.Case)
		if panel != name {
			continue
		}
		if rows[row.Contestant] == nil {
			rows[row.Contestant] = make([]*Row, len(m.variants))
		}
		rows[row.Contestant][slices.Index(m.variants, variant)] = row
		most = max(most, row.Values[m.Chart].Max)
	}
	up := scale{most: roundUp(most)}
	m.text(margin, m.y+22, "start", "case", name)
	m.y += 36
	top := m.y
	for _, contestant := range m.contestants {
		if rows[contestant] != nil {
			m.contestant(contestant, rows[contestant], up)
		}
	}
	m.line("grid", narrowLeft, top-2, narrowLeft, m.y)
	m.line("grid", narrowLeft, m.y, narrowLeft+narrowPlot, m.y)
	for _, part := range []float64{0, 0.5, 1} {
		x := narrowLeft + narrowPlot*part
		m.line("grid", x, m.y, x, m.y+4)
		m.text(x, m.y+18, "middle", "quiet", short(up.most*part))
	}
	m.y += 32
}

// contestant draws the name of a contestant, "quorumlock, no fencing" in two lines, and its bars.
func (m *multiples) contestant(name string, rows []*Row, up scale) {
	lines := strings.Split(name, ", ")
	bars := len(rows)
	for _, row := range rows {
		if row == nil {
			bars--
		}
	}
	height := float64(thinRow * max(len(lines), bars))
	y := m.y + (height-float64(thinRow*len(lines)))/2
	for _, line := range lines {
		m.text(narrowLeft-8, y+thinBar-1, "end", "", line)
		y += thinRow
	}
	y = m.y + (height-float64(thinRow*bars))/2
	for i, row := range rows {
		if row != nil {
			m.row(row, i, y, up)
			y += thinRow
		}
	}
	m.y += height + blockGap
}

// row draws the bar of one variant, and its value next to it.
func (m *multiples) row(row *Row, variant int, y float64, up scale) {
	end, value := 0.0, "not measured"
	if summary, ok := row.Values[m.Chart]; ok {
		m.bar(library(row.Contestant), variant, narrowLeft, y, narrowPlot*up.part(summary.Median))
		m.spread(narrowLeft, narrowPlot, up, summary, y+thinBar/2.0)
		end, value = narrowPlot*up.part(summary.Max), Number(summary.Median, m.column.Digits)
	}
	m.text(narrowLeft+end+6, y+thinBar-1, "start", "quiet", value)
}
