package web

import (
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// How many characters of an external text are shown: in a table, and where it stands alone.
const (
	inTable = 160
	alone   = 2000
)

// credentials matches the credentials in a URL. A password may hold every character except a space.
var credentials = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)\S*@`)

// shown returns an external text for a page, on one line. It escapes what does not print as Go does, such as a control
// character or an override of the direction, removes the credentials of URLs, and leaves out the rest after most
// characters. The result is not HTML: the page shows it as text.
func shown(s string, most int) string {
	s = credentials.ReplaceAllString(s, "$1***@") // before the cut, which may take the @
	var b strings.Builder
	n := 0
	for at := 0; at < len(s); n++ {
		if n == most {
			b.WriteString("… (" + strconv.Itoa(len(s)) + " bytes)")
			break
		}
		r, size := utf8.DecodeRuneInString(s[at:])
		if r == utf8.RuneError && size == 1 || !unicode.IsPrint(r) {
			quoted := strconv.Quote(s[at : at+size])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(s[at : at+size])
		}
		at += size
	}
	return b.String()
}

// problem returns the text of an error, "" for nil.
func problem(err error, most int) string {
	if err == nil {
		return ""
	}
	return shown(strings.TrimPrefix(err.Error(), "quorumlock: "), most)
}
