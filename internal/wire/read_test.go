package wire

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Otherwise the largest request so far would stay in memory.
func TestABufferDoesNotStayAsLargeAsTheLargestRequest(t *testing.T) {
	const owner = "0123456789abcdef0123456789abcdef"
	renewals := NewRenewals(MaxLocks)
	codes := make([]byte, MaxLocks)
	for i := range codes {
		codes[i] = '1'
		renewals.Add("l", Compose(owner, 1, "0 - -"), "1000")
	}
	var d Reader
	var r Reply
	d.Read(renewals.Request(time.Hour), Answers{codes: string(codes)}, &r)
	assert.Len(t, r.Answers, MaxLocks)
	d.Trim()
	assert.Zero(t, cap(d.codes))
}
