package report_test

import (
	"encoding/xml"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/benchmarks/report"
	"github.com/quorumlock/quorumlock/benchmarks/stats"
)

// A drawing is what a chart consists of.
type drawing struct {
	bars   []float64 // their lengths
	owners []string  // their libraries
	dots   []float64 // the left of dots
	texts  []string
	lines  int // of spreads
}

// draw parses a chart, which must be well-formed.
func draw(t *testing.T, svg string) (d drawing) {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(svg))
	within, owner := "", ""
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return d
		}
		require.NoError(t, err, svg)
		switch token := token.(type) {
		case xml.StartElement:
			within = token.Name.Local
			attributes := make(map[string]string)
			for _, a := range token.Attr {
				attributes[a.Name.Local] = a.Value
			}
			switch {
			case within == "rect":
				length, err := strconv.ParseFloat(attributes["width"], 64)
				require.NoError(t, err)
				if attributes["class"] == "mark" {
					d.bars, d.owners = append(d.bars, length), append(d.owners, owner)
				}
			case within == "circle":
				at, err := strconv.ParseFloat(attributes["cx"], 64)
				require.NoError(t, err)
				d.dots = append(d.dots, at)
			case within == "g":
				owner = attributes["class"]
			case within == "line" && attributes["class"] == "spread":
				d.lines++
			}
		case xml.CharData:
			if within == "text" && strings.TrimSpace(string(token)) != "" {
				d.texts = append(d.texts, string(token))
			}
		case xml.EndElement:
			within = ""
		}
	}
}

func TestABarIsAsLongAsItsFigure(t *testing.T) {
	s := section("speed")
	d := draw(t, s.SVG())
	require.Len(t, d.bars, 3)
	assert.InDelta(t, 2, d.bars[0]/d.bars[1], 0.01, "22,000 and 11,000")
	assert.InDelta(t, 11, d.bars[0]/d.bars[2], 0.2, "22,000 and 2,000")
	assert.Equal(t, []string{"fast", "slow", "fast"}, d.owners, "each library has its colour")
	assert.Equal(t, 3, d.lines, "only one bar has a spread: a line and its two ends")
}

func TestAChartNamesEverything(t *testing.T) {
	s := section("speed")
	d := draw(t, s.SVG())
	for _, text := range []string{
		"How <fast>", "ops/s (more is better); the thin line: from the smallest to the largest round", "N=1", "N=3", "fast", "slow", "broken", "22,000 (20,000–24,000)", "11,000", "not measured",
	} {
		assert.Contains(t, d.texts, text)
	}
}

func TestOnALogarithmicScaleEqualRatiosAreEqualLengths(t *testing.T) {
	s := section("speed")
	s.Log = true
	s.Rows = nil
	for _, value := range []float64{10, 100, 1000} {
		s.Rows = append(s.Rows, report.Row{Case: "N=1", Contestant: "c", Values: map[string]stats.Summary{"ops": stats.Summarise([]float64{value})}})
	}
	d := draw(t, s.SVG())
	require.Len(t, d.dots, 3)
	assert.InDelta(t, d.dots[1]-d.dots[0], d.dots[2]-d.dots[1], 0.3)
	assert.Greater(t, d.dots[1], d.dots[0])
	for _, power := range []string{"10", "100", "1,000"} {
		assert.Contains(t, d.texts, power, "the grid")
	}
}

func TestAChartOfNothingIsStillAChart(t *testing.T) {
	for _, values := range []map[string]stats.Summary{nil, {"ops": stats.Summarise([]float64{0, 0})}} {
		for _, log := range []bool{false, true} {
			s := section("speed")
			s.Log = log
			s.Rows = []report.Row{{Case: "N=1", Contestant: "c", Values: values}}
			for _, length := range draw(t, s.SVG()).bars {
				assert.Zero(t, length)
			}
		}
	}
}

func TestWhatGrowsHasALineChart(t *testing.T) {
	s := section("speed")
	s.Lines = []string{"ops", "cpu"}
	s.Rows = nil
	for _, name := range []string{"1 nodes", "3 nodes", "7 nodes", "round trip 0s", "round trip 20ms", "1000 leases", "100000 leases"} {
		s.Rows = append(s.Rows, report.Row{Case: name, Contestant: "quorumlock", Values: map[string]stats.Summary{"ops": stats.Summarise([]float64{3, 4})}})
	}
	svg := s.SVG()
	d := draw(t, svg)
	assert.Empty(t, d.bars)
	assert.Len(t, d.dots, len(s.Rows))
	assert.InDelta(t, 3, (d.dots[2]-d.dots[0])/(d.dots[1]-d.dots[0]), 0.1, "1, 3 and 7 nodes")
	assert.Equal(t, 3, strings.Count(svg, "<polyline class=\"curve\""), "one for each number that grows")
	for _, text := range []string{"nodes", "round trip, ms", "20", "leases (logarithmic)", "100k", "µs"} {
		assert.Contains(t, d.texts, text)
	}
}

func TestALineChartOfZeroAloneHasNumbersOnly(t *testing.T) {
	s := section("speed")
	s.Lines = []string{"ops"}
	for _, values := range []map[string]stats.Summary{nil, {"ops": stats.Summarise([]float64{0})}} {
		s.Rows = []report.Row{{Case: "round trip 0s", Contestant: "quorumlock", Values: values}}
		assert.NotContains(t, s.SVG(), "NaN")
	}
}

func TestEachNumberOfServersHasAPanelWithTheSameOrderOfContestants(t *testing.T) {
	s := section("speed")
	s.Multiples, s.Rows = true, nil
	add := func(name, contestant string, ops float64) {
		s.Rows = append(s.Rows, report.Row{Case: name, Contestant: contestant, Values: map[string]stats.Summary{"ops": stats.Summarise([]float64{ops})}})
	}
	add("64 callers, N=1", "quorumlock", 250)
	add("64 callers, N=1", "redsync", 100)
	add("64 callers, N=3", "redsync", 5)
	add("64 callers, N=3", "quorumlock", 10)
	add("512 callers, N=1", "quorumlock", 300)
	add("512 callers, N=1", "quorumlock, readers", 150)
	s.Rows = append(s.Rows, report.Row{Case: "512 callers, N=3", Contestant: "redsync"})

	svg := s.SVG()
	d := draw(t, svg)
	text := strings.Join(d.texts, "|")
	assert.Contains(t, text, "64 callers|512 callers|", "the legend")
	assert.Contains(t, text, "|N=1|quorumlock|250|300|redsync|100|quorumlock|readers|150|0|150|300|N=3|quorumlock|10|redsync|5|not measured|0|5|10")
	legend, bars := d.bars[:2], d.bars[2:]
	assert.InDelta(t, legend[0], legend[1], 0)
	require.Len(t, bars, 6)
	assert.InDelta(t, 250.0/300, bars[0]/bars[1], 0.01)
	assert.InDelta(t, bars[1], bars[4], 0, "300 of the first scale, 10 of the second")
	assert.Equal(t, []string{"quorumlock", "quorumlock", "redsync", "quorumlock", "quorumlock", "redsync"}, d.owners[2:])
	assert.Equal(t, 1+2+2, strings.Count(svg, `opacity="0.6"`), "64 callers are pale: in the legend and in each panel")
}
