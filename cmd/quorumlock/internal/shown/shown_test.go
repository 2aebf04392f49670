package shown

import (
	"encoding/json"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTextIsPrintableAndWithoutCredentials(t *testing.T) {
	for text, want := range map[string]string{
		"job/ä 1":      "job/ä 1",
		"a\x1b[31mb\n": `a\x1b[31mb\n`,
		"\u009b31m":    `\u009b31m`,
		"\xff\x80":     `\xff\x80`,
		"\ufffd":       "\ufffd",
		"\u202egpj":    `\u202egpj`, // from right to left
		`"a\b"`:        `"a\b"`,
		"see redis://user:p@ss/x@host:6379/0, and a@b": "see redis://***@host:6379/0, and a@b",
		"me@host pid 3: sh":                            "me@host pid 3: sh",
	} {
		assert.Equal(t, want, Text(text))
	}
}

func TestJSONKeepsItsValueAndIsPrintable(t *testing.T) {
	text, err := json.Marshal(map[string]string{"a": "\x1b[31m \u009b \u202e \U000e0001 ä", "b": "\xff"})
	require.NoError(t, err)
	escaped := JSON(text)
	for _, r := range string(escaped) {
		assert.True(t, unicode.IsPrint(r), "%q", r)
	}
	var values map[string]string
	require.NoError(t, json.Unmarshal(escaped, &values))
	assert.Equal(t, map[string]string{"a": "\x1b[31m \u009b \u202e \U000e0001 ä", "b": "\ufffd"}, values)
	assert.Contains(t, string(escaped), `\udb40\udc01`)
}
