package conformance

import (
	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var readCases = []testCase{
	{"read answers all and changes nothing", (*rig).reads},
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
		assert.Equal(r, wire.Compose(alice, t, metadata), got[0])
		assert.InDelta(r, 5000, got[1], 1000)
		assert.Equal(r, answer(t, 2), got[2:])
	})
}
