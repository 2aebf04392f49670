package quorumlock

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/hold"
)

// A test of the package's API cannot see the order, because all steps follow at once.
func TestTheEndSetsErrThenClosesWarningsThenContextThenDoneThenReportsTheLoss(t *testing.T) {
	w := &watch{
		done: make(chan struct{}), lost: make(chan Lost, 1),
		renewed: make(chan Renewed, 1), atRisk: make(chan AtRisk, 1), wanted: make(chan Wanted, 1),
	}
	l := &Lease{watch: w}
	warned := make(chan error)
	go func() {
		<-w.renewed
		warned <- l.err // without the mutex, which the end holds: the race detector sees an Err that is set later
	}()
	cancelled := false
	w.cancel = func(cause error) {
		cancelled = true
		assert.Equal(t, ErrReleased, cause)
		assert.Equal(t, ErrReleased, <-warned)
		assert.Equal(t, ErrReleased, l.err)
		_, open := <-w.renewed
		assert.False(t, open)
		_, open = <-w.atRisk
		assert.False(t, open)
		_, open = <-w.wanted
		assert.False(t, open)
		select {
		case <-w.done:
			assert.Fail(t, "done before the context")
		case <-w.lost:
			assert.Fail(t, "the loss before the context")
		default:
		}
	}
	l.ended(&hold.Event{What: hold.Released | hold.Asking})
	assert.True(t, cancelled)
	<-w.done
	select {
	case <-w.lost:
		assert.Fail(t, "the loss before the answers of the nodes")
	default:
	}
	l.settle(&LostError{Lost{Token: 7}}) // they deny the lease
	assert.ErrorIs(t, l.Err(), ErrLost)
	assert.EqualValues(t, 7, (<-w.lost).Token)
	_, open := <-w.lost
	assert.False(t, open)
}

// This is three quarters of the memory that a held lease needs.
func TestALeaseAndItsLockFitTheSizeClassOf512Bytes(t *testing.T) {
	assert.LessOrEqual(t, int(reflect.TypeFor[leaseAndLock]().Size()), 512,
		"one byte more takes 576 of each held lease: what few leases need belongs behind a pointer that is nil for the others, as quorum.Machine's change")
}
