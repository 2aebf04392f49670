package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// Otherwise the largest request so far would stay in memory.
func TestABufferDoesNotStayAsLargeAsTheLargestRequest(t *testing.T) {
	const owner = "0123456789abcdef0123456789abcdef"
	renewals := NewBatch(Extend, MaxLocks, clock.Steady(time.Hour))
	codes := make([]byte, MaxLocks)
	for i := range codes {
		codes[i] = '1'
		Entry{Lock: "l", Value: Compose(owner, 1, "0 - -")}.Extend(renewals, "1000")
	}
	var d Reader
	var r Reply
	d.Read(renewals, Answers{codes: string(codes)}, &r)
	assert.Len(t, r.Answers, MaxLocks)
	d.Trim()
	assert.Zero(t, cap(d.codes))
}

// A node counts readers for which the lock waits, too, and shows some values, the last to end first.
func TestThoseForWhomALockWaitsAreNoReaders(t *testing.T) {
	reserved := Nobody + reservedMark
	assert.Equal(t, &Readers{Count: 5, Values: []string{"second", "first"}}, readReaders(5, []string{reserved, "first", "", reserved, "second"}))
	assert.True(t, (&Reply{TTL: 1, Readers: readReaders(1, []string{reserved})}).Free())
	assert.False(t, (&Reply{TTL: 1, Readers: readReaders(2, []string{reserved, "first"})}).Free())
	labelled := Compose(Nobody, 0, "0 - web w ")
	assert.False(t, (&Reply{TTL: 1, Readers: readReaders(1, []string{labelled})}).Free(), "a label that ends like the mark")
}
