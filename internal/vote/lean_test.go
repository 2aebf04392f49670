package vote_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/vote"
)

// The lean way counts what the usual script would have granted at once.
func TestWhichLeanAcquisitionIsAVote(t *testing.T) {
	const proposal = "1000"
	sound := vote.Look{Base: "999", Marker: "m"}
	for name, c := range map[string]struct {
		change func(*vote.Look)
		counts bool
	}{
		"sound":                       {func(*vote.Look) {}, true},
		"no base":                     {func(l *vote.Look) { l.Base = "" }, true},
		"the base is at the proposal": {func(l *vote.Look) { l.Base = "1000" }, false},
		"the base is above it":        {func(l *vote.Look) { l.Base = "1001" }, false},
		"the base is not a number":    {func(l *vote.Look) { l.Base = "nan" }, false},
		"a queue":                     {func(l *vote.Look) { l.Hint = "1" }, false},
		"another marker":              {func(l *vote.Look) { l.Marker = "n" }, false},
		"no marker":                   {func(l *vote.Look) { l.Marker = "" }, false},
	} {
		look := sound
		c.change(&look)
		assert.Equal(t, c.counts, look.Counts(proposal, "m"), name)
	}
	assert.False(t, sound.Counts("x", "m"), "a proposal that is not a number")
	assert.True(t, (&vote.Look{Base: "x", Marker: "m"}).Counts("0", "m"), "without fencing there are no registers")
	assert.False(t, (&vote.Look{Hint: "1"}).Counts("0", ""), "a queue counts without fencing as well")
}
