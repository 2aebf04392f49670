package conformance

import (
	"strconv"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var forgetCases = []testCase{
	{"forget drops a number of old registers at most, and raises the base to them", (*rig).forgets},
	{"forget with nothing to forget changes nothing", (*rig).forgetsNothing},
	{"the base never goes back", (*rig).baseOnlyGrows},
}

func (r *rig) forgets() {
	now := r.micros()
	for i := range int64(7) {
		r.admin("ZADD", r.registers, micros(now-2*hour-i), "old "+strconv.FormatInt(i, 10))
	}
	r.admin("ZADD", r.registers, micros(now-hour/2), "young", micros(now+hour), "ahead")
	assert.Equal(r, int64(3), r.one(r.forget(3)), "the oldest")
	assert.Equal(r, micros(now-2*hour-4), r.admin("GET", r.base))
	assert.EqualValues(r, -1, r.pttl(r.base))
	assert.Equal(r, []any{int64(3), int64(1)}, r.apply(r.forget(3), r.forget(3)))
	assert.Equal(r, []any{"young", "ahead"}, r.admin("ZRANGE", r.registers, "0", "-1"))
	assert.Equal(r, micros(now-2*hour), r.admin("GET", r.base))
	assert.Equal(r, granted(0, now-2*hour), r.one(r.acquire(alice, now-2*hour)))
	r.admin("DEL", r.lock)
	r.admin("ZADD", r.registers, micros(now-2*hour+5), r.lock)
	assert.Equal(r, []any{int64(1), granted(0, now-2*hour+5)}, r.apply(r.forget(3), r.acquire(alice, now-2*hour+3)), "it counts at once")
}

func (r *rig) forgetsNothing() {
	r.admin("ZADD", r.registers, "5", "old")
	for _, garbage := range []string{"x", "inf", "nan", ""} {
		r.admin("SET", r.base, garbage)
		r.unchanged(func() {
			assert.Equal(r, int64(0), r.one(r.forget(3)), "a base that cannot be raised: %q", garbage)
		})
	}
	r.admin("DEL", r.registers, r.base)
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(r.forget(3))) })
	r.holds(alice)
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(r.forget(3))) })
}

func (r *rig) baseOnlyGrows() {
	now := r.micros()
	r.admin("SET", r.base, micros(now))
	r.admin("ZADD", r.registers, micros(now-2*hour), "old")
	assert.Equal(r, int64(1), r.one(r.forget(3)))
	assert.Equal(r, micros(now), r.admin("GET", r.base))
	r.one(r.guard("run", hour/1000, "0", "0"))
	before, err := strconv.ParseInt(r.admin("GET", r.base).(string), 10, 64)
	require.NoError(r, err)
	assert.InDelta(r, now+hour, before, float64(5*second))
	r.admin("SET", r.base, micros(now+9*hour))
	r.one(r.guard("another run", hour/1000, "0", "0"))
	assert.Equal(r, micros(now+9*hour), r.admin("GET", r.base))
}
