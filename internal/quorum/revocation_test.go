package quorum

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
)

const s = time.Second

// The lease ends with the longest vote of a marked node, and each mark lives until then.
func TestARevokedLeaseIsOverWhenItsLastVoteIs(t *testing.T) {
	r := NewRevocation(3, s, 9*s, 0.01, false)
	life := r.Life()
	assert.Equal(t, 10*s+Drift(10*s, 0.01), life)
	r.Begin(clock.Validity(100 * s))
	r.Marked(clock.Validity(100*s), 0, 9*s, false)
	_, known := r.Until()
	assert.False(t, known, "one of three")
	assert.False(t, r.Repeat())
	r.Marked(clock.Validity(101*s), 2, 0, false)
	at, known := r.Until()
	assert.True(t, known)
	assert.Equal(t, clock.Validity(100*s+life), at)
	assert.False(t, r.Repeat())
	r.Marked(clock.Validity(101*s), 2, 0, true)
	assert.Equal(t, 2, r.Count())
}

func TestAMarkWhoseAnswerIsLateDoesNotCount(t *testing.T) {
	r := NewRevocation(1, s, 9*s, 0.01, false)
	r.Begin(clock.Validity(100 * s))
	r.Marked(clock.Validity(101*s+1), 0, s, false)
	_, known := r.Until()
	assert.False(t, known)
	assert.True(t, r.Repeat(), "the mark is there")
	r.Begin(clock.Validity(102 * s))
	r.Marked(clock.Validity(102*s), 0, 9*s, true)
	_, known = r.Until()
	assert.True(t, known)
}

// The holder has renewed the lock before the mark. Another node in its place is enough.
func TestAMarkOnALockThatLivesLongerDoesNotCount(t *testing.T) {
	r := NewRevocation(3, s, 2*s, 0.01, false)
	life := r.Life()
	r.Begin(0)
	r.Marked(0, 0, 2*s, false)
	r.Marked(0, 1, 2*s+1, false)
	_, known := r.Until()
	assert.False(t, known)
	assert.True(t, r.Repeat())
	r.Marked(0, 2, s, false)
	at, known := r.Until()
	assert.True(t, known)
	assert.Equal(t, clock.Validity(life), at, "of a round that has begun at 0")
}

// The round after it knows how long the marks live, and makes none that outlives them.
func TestTheMarksOfARoundBoundTheNext(t *testing.T) {
	r := NewRevocation(3, s, 2*s, 0.01, false)
	before := r.Life()
	r.Begin(0)
	r.Marked(0, 0, 2*s, false)
	r.Marked(0, 1, 9*s, false)
	r.Begin(clock.Validity(s))
	life := r.Life()
	assert.Greater(t, life, max(before, 9*s))
	assert.Less(t, life, 9*s+10*time.Millisecond)
	r.Marked(clock.Validity(s), 0, before, true)
	r.Marked(clock.Validity(s), 2, s, false)
	_, known := r.Until()
	assert.False(t, known, "the third node may have renewed the lock until now")
	r.Marked(clock.Validity(s), 1, 9*s, true)
	at, known := r.Until()
	assert.True(t, known)
	assert.Equal(t, clock.Validity(s+life), at)
}

// One mark isn't a majority, however long the lock lives there.
func TestARoundWithoutAMajorityIsNotRepeated(t *testing.T) {
	r := NewRevocation(3, s, 2*s, 0.01, false)
	r.Begin(0)
	r.Marked(0, 1, 9*s, false)
	assert.False(t, r.Repeat())
}

// The marks that are there bound all votes. With the window of each call they would last forever.
func TestARevocationThatIsRepeatedKeepsTheLockNoLonger(t *testing.T) {
	r := NewRevocation(3, s, 9*s, 0.01, true)
	r.Begin(clock.Validity(100 * s))
	life := r.Life()
	assert.Less(t, life, 9*s+10*time.Millisecond)
	r.Marked(clock.Validity(101*s), 0, 9*s, true)
	r.Marked(clock.Validity(101*s), 1, 8*s, true)
	at, known := r.Until()
	assert.True(t, known)
	assert.Equal(t, clock.Validity(100*s+life), at)
}
