package quorumlock_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"html"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// Users copy programs from the first page, so each stands in an example and is compiled.
func TestSnippetsOfTheFirstPageAreCompiled(t *testing.T) {
	var compiled strings.Builder
	require.NoError(t, filepath.WalkDir("examples", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		compiled.Write(text)
		return err
	}))
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	snippets := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.NotEmpty(t, snippets)
	for _, s := range snippets { // of a function's body, without its indentation
		assert.Contains(t, strings.ReplaceAll(compiled.String(), "\n\t", "\n"), s[1])
	}
}

// Each call of the first page's table has an example, which pkg.go.dev shows next to it.
func TestEachCallOfTheFirstPageHasAnExample(t *testing.T) {
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	examples, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(page), "\n| call | for |\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	calls := 0
	for row := range strings.Lines(table) {
		for _, call := range regexp.MustCompile("`([A-Z][A-Za-z.]+)").FindAllStringSubmatch(strings.Split(row, "|")[1], -1) {
			calls++
			name := strings.TrimPrefix(call[1], "Lease.")
			assert.Regexp(t, `func Example(Manager_|Lease_)?`+name+`\(\)`, string(examples))
		}
	}
	assert.Greater(t, calls, 10)
}

// A test of adapters/goredis counts the connections on a server, and these pages name the number.
func TestThePagesNameTheConnectionsOfAManager(t *testing.T) {
	for _, page := range []string{"docs/reference.md", "docs/migrating.md", "adapters/goredis/doc.go"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		assert.Regexp(t, `one (connection )?(from each `+"`Manager` "+`)?to each node,? .{0,60}(one more|a second)`,
			strings.Join(strings.Fields(strings.ReplaceAll(string(text), "//", "")), " "), page)
	}
}

// Pictures have colours for light and dark pages, and a title and a description for screen readers. No text is cut off,
// and no line crosses a text. They use nothing that some renderers lack.
func TestPicturesAreForEveryReader(t *testing.T) {
	pictures := 0
	require.NoError(t, filepath.WalkDir("docs", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".svg" {
			return err
		}
		pictures++
		picture, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, want := range []string{
			`role="img"`, `aria-labelledby="title desc"`, `<title id="title">`, `<desc id="desc">`, "(prefers-color-scheme: dark)",
		} {
			assert.Contains(t, string(picture), want, path)
		}
		for _, unknown := range []string{"dominant-baseline", "white-space", "animation", "<script", "<foreignObject"} {
			assert.NotContains(t, string(picture), unknown, path)
		}
		for _, fault := range faults(t, path, picture) {
			t.Errorf("%s: %s", path, fault)
		}
		return nil
	}))
	assert.Positive(t, pictures)
}

func TestFaultsOfPicturesAreFound(t *testing.T) {
	const head = `<svg viewBox="0 0 200 100"><style>text { font: 12px serif } .title { font-size: 15px; font-weight: 600 } .mono { font: 14px monospace }</style>`
	for body, want := range map[string]string{
		`<text x="4" y="50">twenty characters ok</text>`:                                           "",
		`<text x="4" y="8">top</text>`:                                                             "cut off",
		`<text x="4" y="101">bottom</text>`:                                                        "cut off",
		`<text x="4" y="50" class="title">a title of 26 characters.</text>`:                        "cut off",
		`<text x="4" y="50" class="mono">24 characters <tspan>in all</tspan> &amp;co</text>`:       "cut off",
		`<text x="4" y="50">crossed</text><line x1="9" x2="9" y1="0" y2="90"/>`:                    "crosses",
		`<text x="4" y="50">crossed</text><polyline points="0,90 9,48 9,90"/>`:                     "crosses",
		`<text x="4" y="50">crossed</text><path d="M9,90 V60 h3 V45"/>`:                            "crosses",
		`<text x="20" y="50">beside a diagonal</text><polyline points="0,45 10,60 60,90 190,70"/>`: "",
	} {
		found := faults(t, body, []byte(head+body+"</svg>"))
		if want == "" {
			assert.Empty(t, found, body)
			continue
		}
		require.Len(t, found, 1, body)
		assert.Contains(t, found[0], want)
	}
}

// faults returns the texts of a picture that are cut off, and those that a line crosses.
func faults(t *testing.T, path string, picture []byte) (found []string) {
	t.Helper()
	d := drawing{fonts: fontsOf(picture), texts: map[string]box{}}
	for decoder := xml.NewDecoder(bytes.NewReader(picture)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, path)
		if element, ok := token.(xml.StartElement); ok {
			d.add(t, decoder, element)
		}
	}
	for text, b := range d.texts {
		if b.left < 0 || b.right > d.page.right || b.top < 0 || b.bottom > d.page.bottom {
			found = append(found, text+" is cut off")
		}
		for _, l := range d.lines {
			if l.crosses(b) {
				found = append(found, fmt.Sprintf("the line %v crosses %s", l, text))
				break
			}
		}
	}
	return found
}

type box struct{ left, top, right, bottom float64 }

// line is a straight line between two points.
type line struct{ x1, y1, x2, y2 float64 }

// crosses reports whether a part of the line is inside a box (the algorithm of Liang and Barsky).
func (l line) crosses(b box) bool {
	from, to := 0.0, 1.0
	for _, side := range [][2]float64{
		{l.x1 - l.x2, l.x1 - b.left}, {l.x2 - l.x1, b.right - l.x1}, {l.y1 - l.y2, l.y1 - b.top}, {l.y2 - l.y1, b.bottom - l.y1},
	} {
		switch step, room := side[0], side[1]; {
		case step == 0 && room <= 0:
			return false
		case step < 0:
			from = max(from, room/step)
		case step > 0:
			to = min(to, room/step)
		}
	}
	return from < to
}

// font is the font that a style sheet sets for a class, or for all texts.
type font struct {
	size        float64 // 0 if it is not set
	bold, fixed bool
}

// fontsOf returns the fonts of a picture, by selector: "text" or ".class".
func fontsOf(picture []byte) map[string]font {
	fonts := map[string]font{}
	size := regexp.MustCompile(`font(?:-size)?:\s*([\d.]+)px`)
	for _, rule := range regexp.MustCompile(`(text|\.\w+)\s*\{([^}]*)\}`).FindAllSubmatch(picture, -1) {
		f := fonts[string(rule[1])]
		if m := size.FindSubmatch(rule[2]); m != nil {
			f.size, _ = strconv.ParseFloat(string(m[1]), 64)
		}
		f.bold = f.bold || bytes.Contains(rule[2], []byte("font-weight: 600"))
		f.fixed = f.fixed || bytes.Contains(rule[2], []byte("monospace"))
		fonts[string(rule[1])] = f
	}
	return fonts
}

// drawing is a picture as the test sees it: its size, its texts with estimated widths, and its straight lines.
type drawing struct {
	fonts map[string]font
	page  box
	texts map[string]box
	lines []line
}

func (d *drawing) add(t *testing.T, decoder *xml.Decoder, element xml.StartElement) {
	t.Helper()
	attr, number := map[string]string{}, map[string]float64{}
	for _, a := range element.Attr {
		attr[a.Name.Local] = a.Value
		number[a.Name.Local], _ = strconv.ParseFloat(a.Value, 64)
	}
	switch element.Name.Local {
	case "svg":
		if attr["viewBox"] == "" {
			return
		}
		var v box
		_, err := fmt.Sscan(attr["viewBox"], &v.left, &v.top, &v.right, &v.bottom)
		require.NoError(t, err)
		d.page.right, d.page.bottom = max(d.page.right, v.right), max(d.page.bottom, v.bottom)
	case "line":
		d.lines = append(d.lines, line{number["x1"], number["y1"], number["x2"], number["y2"]})
	case "polyline":
		d.path("M" + attr["points"])
	case "path":
		d.path(attr["d"])
	case "text":
		var text struct {
			Inner string `xml:",innerxml"`
		}
		require.NoError(t, decoder.DecodeElement(&text, &element))
		if all := html.UnescapeString(regexp.MustCompile("<[^>]*>").ReplaceAllString(text.Inner, "")); all != "" {
			d.text(all, attr, number)
		}
	}
}

// text adds a text. Its width follows from the usual ratios of a character's width to the height of the font.
func (d *drawing) text(text string, attr map[string]string, number map[string]float64) {
	const charWidth, boldWidth, fixedWidth, charHeight = 0.517, 0.55, 0.602, 0.75
	f := font{size: 12}
	for _, selector := range append([]string{"text"}, strings.Fields(attr["class"])...) {
		own, ok := d.fonts[selector]
		if !ok {
			own = d.fonts["."+selector]
		}
		if own.size > 0 {
			f.size = own.size
		}
		f.bold, f.fixed = f.bold || own.bold, f.fixed || own.fixed
	}
	each := charWidth
	switch {
	case f.fixed:
		each = fixedWidth
	case f.bold:
		each = boldWidth
	}
	width := each * f.size * float64(utf8.RuneCountInString(text))
	b := box{left: number["x"], bottom: number["y"]}
	switch attr["text-anchor"] {
	case "middle":
		b.left -= width / 2
	case "end":
		b.left -= width
	}
	b.right, b.top = b.left+width, b.bottom-charHeight*f.size
	d.texts[fmt.Sprintf("%q at %v", text, number)] = b
}

// path adds the lines of a path, unless it has curves.
func (d *drawing) path(commands string) {
	if strings.Trim(commands, "MLHVmlhv0123456789.,- \n") != "" {
		return
	}
	var x, y float64
	for _, c := range regexp.MustCompile(`([A-Za-z])([^A-Za-z]*)`).FindAllStringSubmatch(commands, -1) {
		var numbers []float64
		for _, field := range strings.FieldsFunc(c[2], func(r rune) bool { return strings.ContainsRune(" ,\n", r) }) {
			n, _ := strconv.ParseFloat(field, 64)
			numbers = append(numbers, n)
		}
		pen := c[1] != "M" && c[1] != "m" // the first point of a move draws nothing
		for _, to := range points(c[1], numbers, x, y) {
			if pen {
				d.lines = append(d.lines, line{x, y, to[0], to[1]})
			}
			x, y, pen = to[0], to[1], true
		}
	}
}

// points returns the points to which a command of a path leads from a point.
func points(command string, numbers []float64, x, y float64) (to [][2]float64) {
	for len(numbers) > 0 {
		var base [2]float64
		if command == strings.ToLower(command) {
			base = [2]float64{x, y}
		}
		used := 1
		switch strings.ToUpper(command) {
		case "H":
			x = base[0] + numbers[0]
		case "V":
			y = base[1] + numbers[0]
		default:
			if len(numbers) == 1 {
				return to
			}
			x, y, used = base[0]+numbers[0], base[1]+numbers[1], 2
		}
		to, numbers = append(to, [2]float64{x, y}), numbers[used:]
	}
	return to
}

// pages calls read with each document, except for decisions, which describe the state of their time.
func pages(t *testing.T, read func(path, text string)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (path == "bin" || strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		text, err := os.ReadFile(path)
		read(path, string(text))
		return err
	}))
}

// A link leads to an existing file and to an existing heading in it.
func TestLinksOfTheDocumentsLeadSomewhere(t *testing.T) {
	code, link := regexp.MustCompile("(?s)```.*?```|`[^`\n]*`"), regexp.MustCompile(`\]\(([^)\s#]*)(#[^)\s]*)?\)`)
	pages(t, func(path, text string) {
		for _, found := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			target := path
			if found[1] != "" {
				target = filepath.Join(filepath.Dir(path), found[1])
			}
			_, err := os.Stat(target)
			require.NoError(t, err, "%s: %s", path, found[0])
			if found[2] != "" && filepath.Ext(target) == ".md" {
				to, err := os.ReadFile(target)
				require.NoError(t, err)
				assert.Contains(t, anchors(string(to)), found[2], "%s: %s", path, found[0])
			}
		}
	})
}

// One constant decides which servers may vote: the library refuses others, and doctor fails them.
func TestThePagesNameTheOldestServer(t *testing.T) {
	for page, text := range map[string]string{
		"README.md": "Redis " + wire.OldestServer + "+ or Valkey", "docs/setup.md": "Use Redis " + wire.OldestServer + " or later, or Valkey",
		"docs/managed.md":   "**Redis.** Version " + wire.OldestServer + " or newer.",
		"docs/reference.md": "locks need " + wire.OldestServer + " or later`", "options.go": "and Redis " + wire.OldestServer + " or newer",
	} {
		content, err := os.ReadFile(page)
		require.NoError(t, err)
		assert.Contains(t, strings.Join(strings.Fields(string(content)), " "), text, page)
	}
}

// Errors and comments name a page and a heading of it. Both exist.
func TestPagesThatTheCodeNamesAreThere(t *testing.T) {
	named := regexp.MustCompile(`\bdocs/[a-z/-]+\.md(#[a-z0-9-]+)?`)
	found := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" {
			return err
		}
		code, err := os.ReadFile(path)
		for _, name := range named.FindAllString(string(code), -1) {
			page, anchor, _ := strings.Cut(name, "#")
			text, missing := os.ReadFile(page)
			if !assert.NoError(t, missing, path) || anchor == "" {
				continue
			}
			found++
			assert.Contains(t, anchors(string(text)), "#"+anchor, "%s: %s", path, name)
		}
		return err
	}))
	assert.Positive(t, found)
}

// anchors returns the anchors that GitHub makes from the headings.
func anchors(text string) (all []string) {
	heading, dropped := regexp.MustCompile("(?m)^#+ (.*)$"), regexp.MustCompile("[^a-z0-9 _-]")
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		all = append(all, "#"+strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
	}
	return all
}
