// Package shown prints foreign text safely: names, holders, reasons and trace ids from the nodes, errors of servers,
// and values of flags. All output of the command passes through it.
package shown

import (
	"regexp"
	"strconv"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// credentials matches the credentials in a URL. A password may have every character except a space.
var credentials = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)\S*@`)

// Text returns a text for a terminal, on one line. Characters that do not print are escaped as in Go, such as \x1b, and
// a URL loses its credentials.
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

// JSON returns marshalled JSON for a terminal: the same values, with escapes for everything that does not print.
// Package json leaves U+009B unchanged, which starts a sequence like Escape and [ do.
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
