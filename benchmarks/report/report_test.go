package report_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/benchmarks/report"
	"github.com/quorumlock/quorumlock/benchmarks/stats"
)

// section returns one with two cases: in the first, "fast" reaches twice as much as "slow".
func section(workload string) report.Section {
	row := func(name, contestant string, rounds ...float64) report.Row {
		return report.Row{
			Case: name, Contestant: contestant,
			Values: map[string]stats.Summary{"ops": stats.Summarise(rounds)},
		}
	}
	return report.Section{
		Workload: workload, Title: "How <fast>", About: "What is measured.", Chart: "ops",
		Columns: []report.Column{{Key: "ops", Title: "ops/s"}, {Key: "cpu", Title: "µs", Digits: 1}},
		Run: report.Run{
			When: time.Date(2026, time.November, 22, 0, 0, 0, 0, time.UTC), Command: "make bench-peers", Machine: "2 cores, a processor",
			Go: "go1.26", Redis: "7.0.15", Libraries: []string{"redsync 4.17.0"}, Rounds: 3, Others: 12.4,
		},
		Rows: []report.Row{
			row("N=1", "fast", 20_000, 24_000, 22_000), row("N=1", "slow", 11_000),
			row("N=3", "fast", 2_000), {Case: "N=3", Contestant: "broken", Errors: []string{"no\nroute"}},
		},
	}
}

func TestNumbersAreWrittenForPeople(t *testing.T) {
	for _, c := range []struct {
		value  float64
		digits int
		want   string
	}{
		{0, 0, "0"}, {1.25, 1, "1.2"}, {999.94, 1, "999.9"}, {1000, 2, "1,000"}, {1234567.8, 1, "1,234,568"},
		{-1234, 0, "-1,234"}, {-123, 0, "-123"}, {math.NaN(), 1, "–"}, {math.Inf(1), 1, "–"},
	} {
		assert.Equal(t, c.want, report.Number(c.value, c.digits))
	}
}

func TestATableShowsMediansAndTextsTheirSpread(t *testing.T) {
	s := section("speed")
	text := s.Markdown("charts")
	assert.Contains(t, text, "![How <fast>](charts/speed.svg)")
	assert.Contains(t, text, "| ops/s | N=1 | N=3 |\n|---|---|---|\n| fast | 22,000 | 2,000 |\n| slow | 11,000 | – |\n| broken | – | – |\n",
		"a line for each contestant, with the figure of the chart")
	assert.Contains(t, text, "- N=3, broken: a round failed: no route\n")

	var plain strings.Builder
	require.NoError(t, s.Print(&plain))
	assert.Regexp(t, `(?m)^N=1 +fast +22,000 \(20,000–24,000\) +–$`, plain.String())
	assert.Contains(t, plain.String(), "! N=3, broken: no\nroute")
}

func TestEachNumberThatGrowsHasALine(t *testing.T) {
	s := section("growth")
	s.Chart, s.Lines, s.Rows = "", []string{"ops"}, append(s.Rows[:1:1], s.Rows[2], s.Rows[2])
	s.Rows[2].Case = "N=5"
	assert.Contains(t, s.Markdown("charts"), "| what grows | ops/s |\n|---|---|\n| N=: 1; 3; 5 | 22,000; 2,000; 2,000 |\n")
	for i := range s.Rows {
		s.Rows[i].Values = nil
	}
	assert.Contains(t, s.Markdown("charts"), "| N=: 1; 3; 5 | – |\n", "none was measured")
}

func TestSectionsShareTheLinesAboutTheirRun(t *testing.T) {
	const machine = "Measured on 2 cores, a processor, go1.26, redis-server 7.0.15; redsync 4.17.0.\n"
	results := report.Results{Sections: []report.Section{section("a"), section("b")}}
	assert.Equal(t, 1, strings.Count(results.Markdown("charts"), machine))
	const run = "Run: `make bench-peers`, 2026-11-22, 3 rounds; " +
		"other processes took 12 % of the machine, the hypervisor 0 %.\n"
	assert.Equal(t, 1, strings.Count(results.Markdown("charts"), run))
	results.Sections[1].Run.Machine, results.Sections[1].Run.Commit = "another one", "1a2b3c"
	assert.Contains(t, results.Markdown("charts"), "`make bench-peers` at 1a2b3c, ")
	assert.Contains(t, results.Markdown("charts"), machine)
	assert.Contains(t, results.Markdown("charts"), "Measured on another one, ")
}

func TestOnlyTheGeneratedPartIsReplaced(t *testing.T) {
	document := "# Title\n\nprose\n\n" + report.Begin + "\nold\n" + report.End + "\n\nmore prose\n"
	once, err := report.Replace(document, "new\n")
	require.NoError(t, err)
	assert.Equal(t, "# Title\n\nprose\n\n"+report.Begin+"\n\nnew\n\n"+report.End+"\n\nmore prose\n", once)
	twice, err := report.Replace(once, "new")
	require.NoError(t, err)
	assert.Equal(t, once, twice)
}

func TestADocumentWithoutItsMarkersIsLeftAlone(t *testing.T) {
	for _, document := range []string{
		"", "prose", report.Begin, report.End, report.End + report.Begin,
		report.Begin + report.Begin + report.End, report.Begin + report.End + report.End, report.End + report.Begin + report.End,
	} {
		_, err := report.Replace(document, "new")
		assert.Error(t, err, "%q", document)
	}
	path := filepath.Join(t.TempDir(), "benchmarks.md")
	require.NoError(t, os.WriteFile(path, []byte("prose"), 0o600))
	results := report.Results{Sections: []report.Section{section("speed")}}
	require.Error(t, results.Write(path, "charts"))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "prose", string(text))
}

func TestARunOfOneWorkloadLeavesTheResultsOfTheOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	results, err := report.Load(path)
	require.NoError(t, err, "a file that does not exist has no results")
	order := []string{"first", "second", "third"}
	results.Put(section("third"), order)
	results.Put(section("first"), order)
	require.NoError(t, results.Save(path))

	results, err = report.Load(path)
	require.NoError(t, err)
	again := section("third")
	again.Title = "Again"
	results.Put(again, order)
	results.Put(section("second"), order)
	var titles []string
	for _, s := range results.Sections {
		titles = append(titles, s.Workload+": "+s.Title)
	}
	assert.Equal(t, []string{"first: How <fast>", "second: How <fast>", "third: Again"}, titles)

	row := results.Find("first", "N=1", "fast")
	require.NotNil(t, row)
	assert.InDelta(t, 22_000, row.Median("ops"), 0)
	assert.True(t, math.IsNaN(row.Median("cpu")))
	assert.Nil(t, results.Find("first", "N=1", "nobody"))
}

func TestResultsThatCannotBeReadAreAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.json")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	_, err := report.Load(path)
	assert.ErrorContains(t, err, "results.json", "which would otherwise be overwritten")
}

func TestTheDocumentGetsAChartForEachSection(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "benchmarks.md")
	require.NoError(t, os.WriteFile(path, []byte(report.Begin+report.End), 0o600))
	results := report.Results{Sections: []report.Section{section("a"), section("b")}}
	require.NoError(t, results.Write(path, "charts"))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, name := range []string{"a", "b"} {
		assert.Contains(t, string(text), "(charts/"+name+".svg)")
		assert.FileExists(t, filepath.Join(dir, "charts", name+".svg"))
	}
}

func TestOneOrTwoFiguresAreSentences(t *testing.T) {
	s := section("speed")
	s.Chart, s.Columns = "", s.Columns[:1]
	text := s.Markdown("charts")
	assert.NotContains(t, text, ".svg")
	assert.NotContains(t, text, "| N=")
	assert.Contains(t, text, "- N=3, fast: ops/s: 2,000.\n")

	s = section("speed")
	s.Rows = s.Rows[:2]
	assert.NotContains(t, s.Markdown("charts"), ".svg", "a table is enough")
}
