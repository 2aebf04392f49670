package wire_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// The lean way counts what the usual script would have granted at once.
func TestWhichLeanAcquisitionIsAVote(t *testing.T) {
	const proposal = "1000"
	sound := wire.Look{Base: "999", Marker: "m"}
	for name, c := range map[string]struct {
		change func(*wire.Look)
		counts bool
	}{
		"sound":                       {func(*wire.Look) {}, true},
		"no base":                     {func(l *wire.Look) { l.Base = "" }, true},
		"the base is at the proposal": {func(l *wire.Look) { l.Base = "1000" }, false},
		"the base is above it":        {func(l *wire.Look) { l.Base = "1001" }, false},
		"the base is not a number":    {func(l *wire.Look) { l.Base = "nan" }, false},
		"a queue":                     {func(l *wire.Look) { l.Hint = "1" }, false},
		"another marker":              {func(l *wire.Look) { l.Marker = "n" }, false},
		"no marker":                   {func(l *wire.Look) { l.Marker = "" }, false},
	} {
		look := sound
		c.change(&look)
		assert.Equal(t, c.counts, look.Counts(proposal, "m"), name)
	}
	assert.False(t, sound.Counts("x", "m"), "a proposal that is not a number")
	assert.True(t, (&wire.Look{Base: "x", Marker: "m"}).Counts("0", "m"), "without fencing there are no registers")
	assert.False(t, (&wire.Look{Hint: "1"}).Counts("0", ""), "a queue counts without fencing as well")
}
