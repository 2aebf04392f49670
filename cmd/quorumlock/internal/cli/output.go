package cli

import (
	"encoding/json"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quorumlock/quorumlock/cmd/quorumlock/internal/shown"
)

// width is the width of text for people.
const width = 80

// columns returns the maximum width of tables: the width of the terminal, or 0 for no bound if a program reads the
// output.
func (p *program) columns() int {
	columns, _, _ := size(p.stdout)
	return columns
}

// style is whether to colour the output.
type style bool

// style returns the style of stdout: coloured on a terminal, unless the user refuses colours.
func (p *program) style() style {
	_, no := os.LookupEnv("NO_COLOR")
	_, _, terminal := size(p.stdout)
	return style(terminal && !no && !p.connection.noColor && os.Getenv("TERM") != "dumb")
}

func (s style) paint(code, text string) string {
	if !s {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) red(text string) string    { return s.paint("31", text) }
func (s style) yellow(text string) string { return s.paint("33", text) }
func (s style) green(text string) string  { return s.paint("32", text) }
func (s style) bold(text string) string   { return s.paint("1", text) }

// table aligns columns to the left, two spaces apart. A line that would be longer
// than the width, if there is one, loses the end of its longest cell.
type table struct {
	width int // 0 for any
	rows  [][]string
}

func (t *table) row(cells ...string) {
	for i := range cells {
		cells[i] = shown.Text(cells[i])
	}
	t.rows = append(t.rows, cells)
}

// lines returns the rows, aligned.
func (t *table) lines() []string {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	t.shrink(widths)
	lines := make([]string, len(t.rows))
	for n, row := range t.rows {
		var b strings.Builder
		for i, cell := range row {
			cell = cut(cell, widths[i])
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			}
		}
		lines[n] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// shrink narrows the widest column until the line fits.
func (t *table) shrink(widths []int) {
	const least = 8
	total := 2 * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for ; t.width > 0 && total > t.width; total-- {
		widest := 0
		for i, w := range widths {
			if w > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= least {
			return
		}
		widths[widest]--
	}
}

func (t *table) String() string { return strings.Join(t.lines(), "\n") + "\n" }

// cut shortens a text to the given number of characters, if that is above 0.
func cut(s string, most int) string {
	if most <= 0 || utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// wrap breaks a text into lines of the width, all of them behind an indent.
func wrap(indent, text string) string {
	var b strings.Builder
	line := indent
	for _, word := range strings.Fields(text) {
		word = shown.Text(word)
		switch {
		case line == indent:
			line += word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			b.WriteString(line + "\n")
			line = indent + word
		default:
			line += " " + word
		}
	}
	return b.String() + line + "\n"
}

// printJSON prints one value on one line.
func (p *program) printJSON(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	writeAll(p.stdout, string(shown.JSON(text))+"\n")
	return nil
}

// short rounds a duration for a person.
func short(d time.Duration) string {
	switch a := d.Abs(); {
	case a >= time.Minute:
		return d.Round(time.Second).String()
	case a >= time.Second:
		return d.Round(100 * time.Millisecond).String()
	case a >= 10*time.Millisecond:
		return d.Round(time.Millisecond).String()
	default:
		return d.Round(10 * time.Microsecond).String()
	}
}

// ms is a duration in a JSON field.
func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
