package report

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/quorumlock/quorumlock/benchmarks/stats"
)

// Number writes a figure with the given number of digits, and none from a thousand on, where
// commas separate the thousands. What was not measured is a dash.
func Number(v float64, digits int) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "–"
	}
	if math.Abs(v) >= 1000 {
		digits = 0
	}
	text := strconv.FormatFloat(v, 'f', digits, 64)
	sign, text, fraction := "", text, ""
	if strings.HasPrefix(text, "-") {
		sign, text = "-", text[1:]
	}
	if point := strings.IndexByte(text, '.'); point >= 0 {
		text, fraction = text[:point], text[point:]
	}
	for at := len(text) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return sign + text + fraction
}

// cell writes a median and its spread.
func cell(s stats.Summary, digits int) string {
	median, least, most := Number(s.Median, digits), Number(s.Min, digits), Number(s.Max, digits)
	if least == most {
		return median
	}
	return median + " (" + least + "–" + most + ")"
}

// cells returns the texts of a row, one for each column.
func (s *Section) cells(r *Row) []string {
	texts := make([]string, len(s.Columns))
	for i, c := range s.Columns {
		texts[i] = "–"
		if summary, ok := r.Values[c.Key]; ok {
			texts[i] = cell(summary, c.Digits)
		}
	}
	return texts
}

// Print writes a section as a table in plain text.
func (s *Section) Print(w io.Writer) error {
	titles := []string{"case", "contestant"}
	for _, c := range s.Columns {
		titles = append(titles, c.Title)
	}
	lines := [][]string{titles}
	for i := range s.Rows {
		row := &s.Rows[i]
		lines = append(lines, append([]string{row.Case, row.Contestant}, s.cells(row)...))
	}
	var b strings.Builder
	b.WriteString(s.Title + "\n" + Align(lines))
	for _, row := range s.Rows {
		for _, problem := range row.Errors {
			fmt.Fprintf(&b, "! %s, %s: %s\n", row.Case, row.Contestant, problem)
		}
	}
	b.WriteByte('\n')
	_, err := io.WriteString(w, b.String())
	return err
}

// Align returns lines of cells as a table in plain text.
func Align(lines [][]string) string {
	var b strings.Builder
	tabs := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, cells := range lines {
		_, _ = io.WriteString(tabs, strings.Join(cells, "\t")+"\n") // a Builder takes everything
	}
	_ = tabs.Flush()
	return b.String()
}

// Markdown returns a section for a document, with a link to its chart in dir. A section that no
// chart is meant for has sentences in place of a table, too.
func (s *Section) Markdown(dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n%s\n\n", s.Title, s.About)
	if s.drawn() {
		fmt.Fprintf(&b, "![%s](%s/%s.svg)\n\n", s.Title, dir, s.Workload)
	}
	if s.Chart == "" && len(s.Lines) == 0 {
		s.sentences(&b)
	} else {
		s.table(&b)
	}
	b.WriteByte('\n')
	for _, row := range s.Rows {
		for _, problem := range row.Errors {
			fmt.Fprintf(&b, "- %s, %s: a round failed: %s\n", row.Case, row.Contestant, oneLine(problem))
		}
	}
	b.WriteString(s.Run.sentence() + "\n")
	return b.String()
}

// sentences writes a line for each row, whose columns have titles that follow a number.
func (s *Section) sentences(b *strings.Builder) {
	for i := range s.Rows {
		texts := s.cells(&s.Rows[i])
		for j, c := range s.Columns {
			texts[j] += " " + c.Title
		}
		fmt.Fprintf(b, "- %s, %s: %s.\n", s.Rows[i].Case, s.Rows[i].Contestant, strings.Join(texts, ", "))
	}
}

func (s *Section) table(b *strings.Builder) {
	b.WriteString("| case | contestant |")
	for _, c := range s.Columns {
		b.WriteString(" " + c.Title + " |")
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", len(s.Columns)+2) + "\n")
	last := ""
	for i := range s.Rows {
		row := &s.Rows[i]
		name := row.Case
		if name == last {
			name = ""
		}
		last = row.Case
		fmt.Fprintf(b, "| %s | %s | %s |\n", name, row.Contestant, strings.Join(s.cells(row), " | "))
	}
}

// sentence says under which circumstances something was measured.
func (r *Run) sentence() string {
	commit := ""
	if r.Commit != "" {
		commit = " at " + r.Commit
	}
	rounds := "one round"
	if r.Rounds != 1 {
		rounds = "medians of " + strconv.Itoa(r.Rounds) + " interleaved rounds (smallest–largest)"
	}
	return fmt.Sprintf("`%s`%s, %s: %s. %s, %s, redis-server %s; %s. Other processes took %s %% of the machine, the hypervisor %s %%.",
		r.Command, commit, r.When.Format("2006-01-02"), rounds, r.Machine, r.Go, r.Redis, strings.Join(r.Libraries, ", "),
		Number(r.Others, 0), Number(r.Stolen, 0))
}

// oneLine returns a text that fits into a list.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
