package report

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// The generated part of the document stands between these lines. The text before and after it is written by hand and
// stays.
const (
	Begin = "<!-- Begin of what make bench-peers writes: do not edit. -->"
	End   = "<!-- End of what make bench-peers writes. -->"
)

var errMarkers = errors.New("the document needs these two lines once each, in this order: " + Begin + " " + End)

// Replace returns the document with its generated part replaced.
func Replace(document, generated string) (string, error) {
	before, rest, ok := strings.Cut(document, Begin)
	if !ok {
		return "", errMarkers
	}
	_, after, ok := strings.Cut(rest, End)
	if !ok || strings.Contains(rest, Begin) || strings.Contains(after, End) || strings.Contains(before, End) {
		return "", errMarkers
	}
	return before + Begin + "\n\n" + strings.TrimSpace(generated) + "\n\n" + End + after, nil
}

// Markdown returns all sections, with links to their charts in dir. Sections that follow each other and were measured
// under the same conditions, or in one run, share the lines about these.
func (r *Results) Markdown(dir string) string {
	var b strings.Builder
	machine, run := "", ""
	for i := range r.Sections {
		s := &r.Sections[i]
		if now := s.Run.conditions(); now != machine {
			b.WriteString("Measured on " + now + "\n\n")
			machine = now
		}
		if now := s.Run.sentence(); now != run {
			b.WriteString("Run: " + now + "\n\n")
			run = now
		}
		b.WriteString(s.Markdown(dir) + "\n")
	}
	return b.String()
}

// Write rewrites the generated part of the document at path, and draws the charts into charts, a directory next to the
// document.
func (r *Results) Write(path, charts string) error {
	document, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := Replace(string(document), r.Markdown(charts))
	if err != nil {
		return err
	}
	dir := filepath.Join(filepath.Dir(path), charts)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i := range r.Sections {
		if !r.Sections[i].drawn() {
			continue
		}
		chart := filepath.Join(dir, r.Sections[i].Workload+".svg")
		if err := os.WriteFile(chart, []byte(r.Sections[i].SVG()), 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
