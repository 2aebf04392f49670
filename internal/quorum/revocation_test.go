package quorum

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

const s = time.Second

// The lease is over when the longest vote of a marked node is, and each mark lives until then.
func TestARevokedLeaseIsOverWhenItsLastVoteIs(t *testing.T) {
	r := NewRevocation(3, s, 9*s, 0.01, false)
	life := r.Life()
	assert.Equal(t, 10*s+Drift(10*s, 0.01), life)
	r.Begin(100 * s)
	r.Marked(100*s, 0, 9*s)
	_, known := r.Until()
	assert.False(t, known, "one of three")
	assert.False(t, r.Repeat())
	r.Marked(101*s, 2, 0)
	at, known := r.Until()
	assert.True(t, known)
	assert.Equal(t, 100*s+life, at)
	assert.Equal(t, 2, r.Count())
	r.Marked(101*s, 2, 0)
	assert.Equal(t, 2, r.Count())
}

func TestAMarkWhoseAnswerIsLateDoesNotCount(t *testing.T) {
	r := NewRevocation(1, s, 9*s, 0.01, false)
	r.Begin(100 * s)
	r.Marked(101*s+1, 0, s)
	_, known := r.Until()
	assert.False(t, known)
}

// The holder has renewed the lock before the mark: the marks of the round do not outlive that vote, so
// another round makes longer ones.
func TestARoundInWhichALockLivesLongerIsRepeated(t *testing.T) {
	r := NewRevocation(3, s, 2*s, 0.01, false)
	before := r.Life()
	r.Begin(0)
	r.Marked(0, 0, 2*s)
	r.Marked(0, 1, 2*s+1)
	_, known := r.Until()
	assert.False(t, known)
	assert.True(t, r.Repeat())
	r.Begin(s)
	life := r.Life()
	assert.GreaterOrEqual(t, life, before+s, "the marks of the first round may show their whole life")
	r.Marked(s, 0, before)
	r.Marked(s, 1, 2*s)
	at, known := r.Until()
	assert.True(t, known)
	assert.Equal(t, s+life, at)
	assert.False(t, r.Repeat())
}

// One mark is no majority, however long the lock lives there.
func TestARoundWithoutAMajorityIsNotRepeated(t *testing.T) {
	r := NewRevocation(3, s, 2*s, 0.01, false)
	r.Begin(0)
	r.Marked(0, 1, 9*s)
	assert.False(t, r.Repeat())
}

// The marks that are there bound all votes. With the window of each call they would last for ever.
func TestARevocationThatIsRepeatedKeepsTheLockNoLonger(t *testing.T) {
	r := NewRevocation(3, s, 9*s, 0.01, true)
	r.Begin(100 * s)
	life := r.Life()
	assert.Less(t, life, 9*s+10*time.Millisecond)
	r.Marked(101*s, 0, 9*s)
	r.Marked(101*s, 1, 8*s)
	at, known := r.Until()
	assert.True(t, known)
	assert.Equal(t, 100*s+life, at)
}
