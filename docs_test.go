package quorumlock_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
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
)

// A user who copies a program from the first page gets one that was compiled: it stands in an example.
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
	for _, s := range snippets {
		assert.Contains(t, compiled.String(), s[1])
	}
}

// The first page is short: options stand in the comments of the code, and the rest in docs.
func TestTheFirstPageIsShort(t *testing.T) {
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	assert.LessOrEqual(t, len(strings.Fields(string(page))), 800)
}

// Pictures have colours for light and dark pages, and a title and a description for screen readers.
// No text is cut off, and no line crosses a text.
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
			if !strings.Contains(string(picture), want) {
				t.Errorf("%s lacks %s", path, want)
			}
		}
		page, texts, lines := boxes(t, path, picture)
		for text, b := range texts {
			assert.True(t, b.left >= 0 && b.right <= page.right && b.top >= 0 && b.bottom <= page.bottom, "%s: %s is cut off", path, text)
			for _, l := range lines {
				crossed := l.left < b.right && l.right > b.left && l.top < b.bottom && l.bottom > b.top
				assert.False(t, crossed, "%s: a line crosses %s", path, text)
			}
		}
		return nil
	}))
	assert.Positive(t, pictures)
}

type box struct{ left, top, right, bottom float64 }

// boxes returns the size of a picture, and where its texts are, by about the width of
// their font, and its lines.
func boxes(t *testing.T, path string, picture []byte) (page box, texts map[string]box, lines []box) {
	t.Helper()
	const charWidth, charHeight = 6.2, 9
	texts = map[string]box{}
	for decoder := xml.NewDecoder(bytes.NewReader(picture)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return page, texts, lines
		}
		require.NoError(t, err, path)
		element, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		number, anchor := map[string]float64{}, 0.0
		for _, a := range element.Attr {
			number[a.Name.Local], _ = strconv.ParseFloat(a.Value, 64)
			switch {
			case a.Name.Local == "viewBox":
				var v box
				_, err := fmt.Sscan(a.Value, &v.left, &v.top, &v.right, &v.bottom)
				require.NoError(t, err, path)
				page.right, page.bottom = max(page.right, v.right), max(page.bottom, v.bottom)
			case a.Value == "middle":
				anchor = 0.5
			case a.Value == "end":
				anchor = 1
			}
		}
		switch element.Name.Local {
		case "line":
			x1, x2, y1, y2 := number["x1"], number["x2"], number["y1"], number["y2"]
			lines = append(lines, box{min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)})
		case "text":
			var text string
			require.NoError(t, decoder.DecodeElement(&text, &element), path)
			width := number["textLength"]
			if width == 0 {
				width = charWidth * float64(utf8.RuneCountInString(text))
			}
			left, bottom := number["x"]-anchor*width, number["y"]
			texts[fmt.Sprintf("%q at %v", text, number)] = box{left, max(bottom-charHeight, 0), left + width, bottom}
		}
	}
}

// pages are the documents, but for decisions, which say what was true then.
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

// A link leads to a file that is there, and to a heading that is in it.
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

// anchors are those that GitHub makes of the headings.
func anchors(text string) (all []string) {
	heading, dropped := regexp.MustCompile("(?m)^#+ (.*)$"), regexp.MustCompile("[^a-z0-9 _-]")
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		all = append(all, "#"+strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-"))
	}
	return all
}

// Words that no native engineer would use here, or that have a plainer one.
func TestTheDocumentsSpeakPlainly(t *testing.T) {
	strange := regexp.MustCompile(`(?i)\b(mend(s|ed)?|at the most|besides|whoever|is told|gives no vote|comes out|in vain)\b`)
	pages(t, func(path, text string) {
		if !strings.HasPrefix(path, filepath.Join("docs", "adr")) {
			assert.Empty(t, strange.FindAllString(text, -1), path)
		}
	})
}
