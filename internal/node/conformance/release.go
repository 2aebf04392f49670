package conformance

import (
	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/node"
)

var releaseCases = []testCase{
	{"release deletes what is ours and nothing else", (*rig).releases},
	{"release leaves another's lock alone", (*rig).releasesOnlyOurs},
	{"leave without a queue is a release", (*rig).leavesWithoutQueue},
	{"read answers all and changes nothing", (*rig).reads},
}

func (r *rig) releases() {
	t := r.holds(alice)
	assert.Equal(r, []any{int64(1), int64(0)}, r.apply(r.release(alice), r.release(alice)))
	r.absent(r.lock)
	assert.Equal(r, t, r.register())
	for _, value := range []string{node.Compose(alice, 0, metadata), alice + " ", alice + " w "} {
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
		for _, value := range []string{"", "x", alice, alice + "x", node.Compose(bob, 7, metadata), ticket(1)[:node.TicketLen] + " w "} {
			r.admin("SET", r.lock, value, "PX", "100000")
			r.unchanged(func() {
				assert.Equal(r, []any{int64(-1), int64(-1)}, r.apply(r.release(alice), r.leave(alice, 1)), "%q", value)
			})
		}
		r.admin("DEL", r.lock)
	}
}

func (r *rig) leavesWithoutQueue() {
	r.holds(alice)
	assert.Equal(r, int64(1), r.one(r.leave(alice, 1)))
	r.absent(r.lock, r.queue, r.hint)
	for _, mode := range []string{"y", "f"} {
		r.one(r.acquire(alice, r.micros()))
		assert.Equal(r, int64(1), r.one(r.leave(alice, 1).with(4, mode)), "mode %s", mode)
		r.absent(r.lock, r.queue, r.hint)
	}
}

func (r *rig) reads() {
	r.unchanged(func() { assert.Equal(r, answer(nil, -2, 0, 0), r.one(r.read())) })
	r.admin("SET", r.lock, "")
	assert.Equal(r, answer("", -1, 0, 0), r.one(r.read()))
	r.admin("DEL", r.lock)
	t := r.holds(alice)
	r.admin("ZADD", r.queue, "1", "a", "2", "b")
	r.unchanged(func() {
		got := r.one(r.read()).([]any)
		assert.Equal(r, node.Compose(alice, t, metadata), got[0])
		assert.InDelta(r, 5000, got[1], 1000)
		assert.Equal(r, answer(t, 2), got[2:])
	})
}
