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
	bars  []float64 // their lengths
	kinds []string
	texts []string
	lines int // of spreads
}

// draw parses a chart, which has to be well-formed.
func draw(t *testing.T, svg string) (d drawing) {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(svg))
	within := ""
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
				d.bars, d.kinds = append(d.bars, length), append(d.kinds, attributes["class"])
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
	assert.Equal(t, []string{"own", "peer", "own"}, d.kinds)
	assert.Equal(t, 3, d.lines, "only one bar has a spread: a line and its two ends")
}

func TestAChartNamesEverything(t *testing.T) {
	s := section("speed")
	d := draw(t, s.SVG())
	for _, text := range []string{
		"How <fast>", "ops/s", "N=1", "N=3", "fast", "slow", "broken", "22,000 (20,000–24,000)", "11,000", "not measured",
	} {
		assert.Contains(t, d.texts, text)
	}
}

func TestOnALogarithmicScaleEqualRatiosAreEqualLengths(t *testing.T) {
	s := section("speed")
	s.Log = true
	s.Rows = nil
	for _, value := range []float64{10, 100, 1000} {
		s.Rows = append(s.Rows, report.Row{Case: "N=1", Contestant: "c", Kind: "peer", Values: map[string]stats.Summary{"ops": stats.Summarise([]float64{value})}})
	}
	d := draw(t, s.SVG())
	require.Len(t, d.bars, 3)
	assert.Positive(t, d.bars[0])
	assert.InDelta(t, d.bars[1]-d.bars[0], d.bars[2]-d.bars[1], 0.3)
	assert.Contains(t, d.texts, "ops/s, logarithmic")
}

func TestAChartOfNothingIsStillAChart(t *testing.T) {
	for _, values := range []map[string]stats.Summary{nil, {"ops": stats.Summarise([]float64{0, 0})}} {
		for _, log := range []bool{false, true} {
			s := section("speed")
			s.Log = log
			s.Rows = []report.Row{{Case: "N=1", Contestant: "c", Kind: "peer", Values: values}}
			for _, length := range draw(t, s.SVG()).bars {
				assert.Zero(t, length)
			}
		}
	}
}
