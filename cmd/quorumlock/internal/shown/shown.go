// Package shown decides how text of other people is printed: names, holders, reasons and trace ids
// from the nodes, errors of servers, and what stands in flags. All output of the command passes it.
package shown

import (
	"regexp"
	"strconv"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// credentials are those in a URL. A password may hold every character except a space.
var credentials = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)\S*@`)

// Text returns a text for a terminal, on one line: what does not print is escaped as Go does
// it, such as \x1b, and a URL loses its credentials.
func Text(s string) string {
	s = credentials.ReplaceAllString(s, "$1***@")
	b := make([]byte, 0, len(s))
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && size == 1 || !unicode.IsPrint(r) {
			quoted := strconv.Quote(s[:size])
			b = append(b, quoted[1:len(quoted)-1]...)
		} else {
			b = append(b, s[:size]...)
		}
		s = s[size:]
	}
	return string(b)
}

// JSON returns marshalled JSON for a terminal: the same values, with escapes for all that does not
// print. Package json leaves U+009B as it is, which starts a sequence as Escape and [ do.
func JSON(text []byte) []byte {
	b := make([]byte, 0, len(text))
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if unicode.IsPrint(r) {
			b = append(b, text[:size]...)
		} else {
			for _, unit := range utf16.Encode([]rune{r}) {
				hex := strconv.FormatUint(uint64(unit)|1<<16, 16)
				b = append(b, `\u`+hex[1:]...)
			}
		}
		text = text[size:]
	}
	return b
}
