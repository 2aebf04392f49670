package conformance

import (
	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var releaseCases = []testCase{
	{"release deletes what is ours and nothing else", (*rig).releases},
	{"release leaves another's lock alone", (*rig).releasesOnlyOurs},
}

func (r *rig) releases() {
	t := r.holds(alice)
	assert.Equal(r, []any{int64(1), int64(0)}, r.apply(r.release(alice), r.release(alice)))
	r.absent(r.lock)
	assert.Equal(r, t, r.register())
	for _, value := range []string{wire.Compose(alice, 0, metadata), alice + " ", alice + " w "} {
		r.admin("SET", r.lock, value)
		assert.Equal(r, int64(1), r.one(r.release(alice)), "%q", value)
		r.absent(r.lock)
	}
}

func (r *rig) releasesOnlyOurs() {
	for _, hint := range []bool{false, true} { // whether the script looks for a queue
		if hint {
			r.admin("SET", r.hint, "1")
		}
		r.unchanged(func() {
			assert.Equal(r, []any{int64(0), int64(0)}, r.apply(r.release(alice), r.leave(alice, 1)))
		})
		for _, value := range []string{"", "x", alice, alice + "x", wire.Compose(bob, 7, metadata), ticket(1)[:wire.TicketLen] + " w "} {
			r.admin("SET", r.lock, value, "PX", "100000")
			r.unchanged(func() {
				assert.Equal(r, []any{int64(-1), int64(-1)}, r.apply(r.release(alice), r.leave(alice, 1)), "%q", value)
			})
		}
		r.admin("DEL", r.lock)
	}
}
