package conformance

import (
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var healCases = []testCase{
	{"heal brings back the lock alone, without a token", (*rig).heals},
	{"heal prolongs what is ours and leaves its token", (*rig).healsOurs},
	{"heal does nothing when late or when another has the lock", (*rig).healsOnlyOurs},
}

func (r *rig) heals() {
	assert.Equal(r, int64(1), r.one(r.heal(alice)))
	assert.Equal(r, wire.Compose(alice, 0, metadata), r.admin("GET", r.lock))
	r.left(keyLife, r.pttl(r.lock))
	assert.EqualValues(r, 1, r.admin("DBSIZE"))
}

func (r *rig) healsOurs() {
	t := r.holds(alice)
	for _, life := range []string{"20000", "100000"} {
		r.admin("PEXPIRE", r.lock, life)
		r.unchanged(func() { assert.Equal(r, int64(1), r.one(r.heal(alice))) })
		r.left(keyLife, r.pttl(r.lock))
	}
	assert.Equal(r, int64(1), r.one(r.extend(alice, t)))
}

func (r *rig) healsOnlyOurs() {
	late := r.heal(alice).with(argNotAfter, micros(r.micros()-1))
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(late)) })
	for _, value := range []string{"", "x", alice, bob + " 7 - -", wire.Compose(bob, 7, metadata)} {
		r.admin("SET", r.lock, value)
		r.unchanged(func() { assert.Equal(r, int64(-1), r.one(r.heal(alice)), "%q", value) })
	}
	r.admin("SET", r.lock, wire.Compose(alice, 7, metadata), "PX", "100000")
	assert.Equal(r, int64(0), r.one(late))
	assert.Greater(r, r.pttl(r.lock), int64(50_000))
	require.Equal(r, alice, r.value().Owner)
}
