package conformance

import (
	"strings"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var passCases = []testCase{
	{"pass hands a reservation on, and a free lock", (*rig).passesOn},
	{"pass never touches a lease", (*rig).passesNoLease},
}

func (r *rig) passesOn() {
	r.subscribe()
	t := r.reserves(1, 2, 3)
	assert.Equal(r, int64(wire.HandedOn), r.one(r.pass(1)))
	r.reserved(2, 3)
	r.queued(3)
	r.admin("DEL", r.lock)
	assert.Equal(r, int64(wire.Missing), r.one(r.pass(2)), "it was free")
	r.reserved(3)
	r.queued()
	assert.Equal(r, int64(1), r.one(r.pass(3)), "there is nobody else")
	r.absent(r.lock)
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(r.pass(3))) })
	assert.Equal(r, t, r.register())
	r.woken()
}

func (r *rig) passesNoLease() {
	r.subscribe()
	r.holdsAgainst(2)
	for _, value := range []string{
		wire.Compose(alice, 7, metadata), wire.Compose(name(1), 7, metadata), name(1) + " ", name(1) + " w", name(1), name(1) + " w  ",
		name(1) + " w x", name(2) + " w ", "", "x", strings.Repeat(name(1), 2000),
	} {
		r.admin("SET", r.lock, value)
		r.enqueues(bob, 1)
		assert.Equal(r, int64(-1), r.one(r.pass(1)), "%.80q", value)
		assert.Equal(r, value, r.admin("GET", r.lock))
		r.queued(2)
	}
	r.woken()
}
