package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAHandleIsWhatItWas(t *testing.T) {
	for _, h := range []Handle{
		{Owner: strings.Repeat("0", OwnerLen)},
		{Prefix: "quorumlock:", Name: "a/ü", Owner: strings.Repeat("f", OwnerLen), Token: 1<<53 - 1, TraceParent: "00-x-y-01"},
	} {
		text := h.Text()
		got, ok := ParseHandle(text)
		assert.True(t, ok)
		assert.Equal(t, h, got)
		for i := range text {
			_, ok := ParseHandle(text[:i])
			assert.False(t, ok, "cut to %d", i)
		}
		_, ok = ParseHandle(text + "AA")
		assert.False(t, ok)
	}
	for _, text := range []string{"", "ql1.", "ql2.AAAA", "ql1.%%%", "job"} {
		_, ok := ParseHandle(text)
		assert.False(t, ok, text)
	}
}

func FuzzHandles(f *testing.F) {
	h := Handle{Prefix: "p:", Name: "job", Owner: strings.Repeat("a", OwnerLen), Token: 7}
	f.Add(h.Text())
	f.Add("ql1.AAAAAAAAAAAAAAAAAAAAAP____________8B")
	f.Fuzz(func(t *testing.T, text string) {
		h, ok := ParseHandle(text)
		if !ok {
			return
		}
		again, ok := ParseHandle(h.Text())
		assert.True(t, ok)
		assert.Equal(t, h, again)
	})
}
