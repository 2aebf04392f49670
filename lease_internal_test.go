package quorumlock

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// A test of the package's API cannot see the order, because all steps follow at once.
func TestTheEndClosesWarningsThenContextThenDoneThenReportsTheLoss(t *testing.T) {
	w := &watch{
		done: make(chan struct{}), lost: make(chan Lost, 1),
		renewed: make(chan Renewed, 1), atRisk: make(chan AtRisk, 1),
	}
	cancelled := false
	w.cancel = func(cause error) {
		cancelled = true
		assert.ErrorIs(t, cause, ErrLost)
		_, open := <-w.renewed
		assert.False(t, open)
		_, open = <-w.atRisk
		assert.False(t, open)
		select {
		case <-w.done:
			assert.Fail(t, "done before the context")
		case <-w.lost:
			assert.Fail(t, "the loss before the context")
		default:
		}
	}
	w.end(&LostError{Lost{Token: 7}})
	assert.True(t, cancelled)
	<-w.done
	assert.EqualValues(t, 7, (<-w.lost).Token)
	_, open := <-w.lost
	assert.False(t, open)
}
