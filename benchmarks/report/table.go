package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/quorumlock/quorumlock/benchmarks/stats"
)

// Number writes a figure with the given number of digits. From a thousand on it writes none, and commas separate the
// thousands. A figure that was not measured is a dash.
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

// Markdown returns a section for a document, with a link to its chart in dir. A section without a
// chart has sentences instead of a table.
func (s *Section) Markdown(dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### %s\n\n%s\n\n", s.Title, s.About)
	switch {
	case !s.drawn():
		s.sentences(&b)
	case len(s.Lines) > 0:
		fmt.Fprintf(&b, "![%s](%s/%s.svg)\n\n", s.Title, dir, s.Workload)
		s.growth(&b)
	default:
		fmt.Fprintf(&b, "![%s](%s/%s.svg)\n\n", s.Title, dir, s.Workload)
		s.table(&b)
	}
	for _, row := range s.Rows {
		for _, problem := range row.Errors {
			fmt.Fprintf(&b, "\n- %s, %s: a round failed: %s\n", row.Case, row.Contestant, oneLine(problem))
		}
	}
	return b.String()
}

// sentences writes the medians of each row, after the titles of their columns.
func (s *Section) sentences(b *strings.Builder) {
	for i := range s.Rows {
		row := &s.Rows[i]
		texts := make([]string, len(s.Columns))
		for j, c := range s.Columns {
			texts[j] = c.Title + ": " + Number(row.Median(c.Key), c.Digits)
		}
		fmt.Fprintf(b, "- %s, %s: %s.\n", row.Case, row.Contestant, strings.Join(texts, "; "))
	}
}

// table writes the medians of the charted figure, a line for each contestant and a column for each
// case. The chart has the spread of the rounds, and the results have the other figures.
func (s *Section) table(b *strings.Builder) {
	column := s.column(s.Chart)
	var cases, contestants []string
	medians := map[[2]string]string{}
	for i := range s.Rows {
		row := &s.Rows[i]
		if !slices.Contains(cases, row.Case) {
			cases = append(cases, row.Case)
		}
		if !slices.Contains(contestants, row.Contestant) {
			contestants = append(contestants, row.Contestant)
		}
		medians[[2]string{row.Contestant, row.Case}] = Number(row.Median(s.Chart), column.Digits)
	}
	fmt.Fprintf(b, "| %s | %s |\n%s\n", column.Title, strings.Join(cases, " | "), ruler(len(cases)+1))
	for _, contestant := range contestants {
		fmt.Fprintf(b, "| %s |", contestant)
		for _, name := range cases {
			fmt.Fprintf(b, " %s |", cmp.Or(medians[[2]string{contestant, name}], "–"))
		}
		b.WriteByte('\n')
	}
}

// ruler is the line below the titles of a table.
func ruler(columns int) string { return "|" + strings.Repeat("---|", columns) }

// growth writes the medians of the figures that line charts show, a line for each number that grows.
func (s *Section) growth(b *strings.Builder) {
	b.WriteString("| what grows |")
	for _, key := range s.Lines {
		b.WriteString(" " + s.column(key).Title + " |")
	}
	b.WriteString("\n" + ruler(len(s.Lines)+1) + "\n")
	for _, p := range s.panels() {
		at := make([]string, len(p.at))
		for i, number := range p.at {
			at[i] = Number(number, 0)
		}
		fmt.Fprintf(b, "| %s: %s |", p.what, strings.Join(at, "; "))
		for _, key := range s.Lines {
			medians := make([]string, len(p.rows))
			for i, row := range p.rows {
				medians[i] = Number(row.Median(key), s.column(key).Digits)
			}
			if !slices.ContainsFunc(medians, func(m string) bool { return m != "–" }) {
				medians = medians[:1] // none was measured
			}
			fmt.Fprintf(b, " %s |", strings.Join(medians, "; "))
		}
		b.WriteByte('\n')
	}
}

// sentence returns when and how a section was measured.
func (r *Run) sentence() string {
	text := fmt.Sprintf("`%s`", r.Command)
	if r.Commit != "" {
		text += " at " + r.Commit
	}
	text += fmt.Sprintf(", %s, %d rounds", r.When.Format("2006-01-02"), r.Rounds)
	if most := max(r.Others, r.Stolen); most >= 0.5 {
		text += fmt.Sprintf("; other processes took %s %% of the machine, the hypervisor %s %%", Number(r.Others, 0), Number(r.Stolen, 0))
	}
	return text + "."
}

// conditions returns the machine and the versions of a measurement.
func (r *Run) conditions() string {
	return fmt.Sprintf("%s, %s, redis-server %s; %s.", r.Machine, r.Go, r.Redis, strings.Join(r.Libraries, ", "))
}

// oneLine returns a text that fits into a list.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
