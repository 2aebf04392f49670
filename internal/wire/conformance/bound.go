package conformance

import (
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var boundCases = []testCase{
	{"a marker binds clients without the guard while a lease of one with it may be alive", boundByUse},
	{"a marker that binds no client any more is opened by a rollout", boundNoMoreOpens},
	{"a marker that binds no client any more is replaced by the marker of a guard with another time", boundNoMoreChanges},
	{"a guard refuses the marker of clients that list the server as another kind of node", boundToOneKindOfNode},
}

// usedUntil registers the list of a client with the guard, which ends at this instant.
func usedUntil(r *rig, end int64) {
	r.Helper()
	r.admin("ZADD", wire.ListsKey(r.server.Prefix), micros(end), "1 3 b,c,self", "9007199254740991", "node self")
}

// free reports whether the node votes for a client without the guard, and checks that a look agrees. set makes the
// marker, given the time. free repeats this if the machine stood still, because a time in the marker may have passed.
func free(r *rig, set func(now int64)) bool {
	r.Helper()
	for range 100 {
		now := r.micros()
		set(now)
		left := r.one(r.lookAt()).([]any)[3].(int64)
		got := r.one(r.acquire(alice, r.micros()+2*hour))
		r.admin("DEL", r.lock)
		if r.micros()-now < second/2 {
			assert.Equal(r, got != int64(-1), left == 0, "%v, %d ms", got, left)
			return left == 0
		}
	}
	require.Fail(r, "the machine stands still all the time")
	return false
}

func boundByUse(r *rig) {
	type boundCase struct {
		marker string
		used   int64
		want   bool
	}
	cases := func(now int64) []boundCase {
		return []boundCase{
			{"run 1 60000 nonce", now - 1, true},
			{"run 1 60000 nonce", now + 60*second, false},
			{"run 0 60000 nonce", 0, true},
			{"run " + micros(now-29*second) + " 60000 nonce", 0, false}, // its clients look again by then
			{"run " + micros(now-31*second) + " 60000 nonce", 0, true},
			{"run " + micros(now+60*second) + " 60000 nonce", 0, false},
			{"run 1 60000 nonceopen", now + 60*second, true},
		}
	}
	for i, c := range cases(0) {
		got := free(r, func(now int64) {
			c = cases(now)[i]
			r.admin("SET", r.marker, c.marker)
			usedUntil(r, c.used)
		})
		assert.Equal(r, c.want, got, "%s, used until %d", c.marker, c.used)
	}
	free := func() bool { return free(r, func(int64) {}) }
	r.admin("SET", r.marker, "run 1 60000 nonce")
	r.admin("DEL", wire.ListsKey(r.server.Prefix))
	assert.True(r, free())
	r.admin("ZADD", wire.ListsKey(r.server.Prefix), micros(r.micros()+60*second), "1 3 b,c,self")
	assert.False(r, free(), "a node without an identity")
	assert.InDelta(r, 60_000, r.one(r.lookAt()).([]any)[3], 5000)
	r.admin("DEL", wire.ListsKey(r.server.Prefix))
	r.admin("SET", wire.ListsKey(r.server.Prefix), "theirs")
	assert.False(r, free(), "nothing is known of it")
	r.admin("SET", r.marker, "garbage")
	assert.Equal(r, int64(-1), r.one(r.acquire(alice, r.micros()+2*hour)))
}

func boundNoMoreOpens(r *rig) {
	r.admin("SET", r.marker, "run 1 60000 nonce")
	usedUntil(r, r.micros()+60*second)
	r.unchanged(func() { r.one(r.opened("run", "0")) })
	usedUntil(r, 1)
	stop, _, marker := r.quarantine(r.opened("run", "0"))
	assert.Equal(r, []any{int64(1), "run 1 60000 nonceopen"}, []any{stop, marker})
	assert.Equal(r, marker, r.admin("GET", r.marker))
	r.admin("SET", r.marker, "former 1 60000 nonce")
	_, _, marker = r.quarantine(r.opened("run", "0"))
	assert.True(r, strings.HasSuffix(marker, "open"), marker)
}

func boundNoMoreChanges(r *rig) {
	r.admin("SET", r.marker, "run 1 60000 nonce")
	usedUntil(r, r.micros()+60*second)
	r.unchanged(func() { r.one(r.guard("run", 90_000, "0", "0")) })
	usedUntil(r, 1)
	stop, longest, marker := r.quarantine(r.guard("run", 90_000, "0", "0"))
	assert.InDelta(r, r.micros()+90*second, stop, float64(5*second), "a lease of another time may be alive elsewhere")
	assert.EqualValues(r, 90_000, longest)
	assert.Equal(r, marker, r.admin("GET", r.marker))
	r.admin("SET", r.marker, "run.data.12 1 60000 nonce")
	r.unchanged(func() { r.one(r.guard("run.data.11", 90_000, "0", "0")) })

	for other, own := range map[string]string{"run.data.12": "run", "run": "run.data.12"} { // an address, and a failover group
		r.admin("SET", r.marker, other+" 1 60000 nonce")
		usedUntil(r, r.micros()+60*second)
		for _, force := range []string{"0", "1"} {
			r.unchanged(func() { r.one(r.guard(own, 60_000, "0", force)) })
		}
		usedUntil(r, 1)
		_, _, marker := r.quarantine(r.guard(own, 60_000, "0", "0"))
		assert.True(r, strings.HasPrefix(marker, own+" "), marker)
	}
}

func boundToOneKindOfNode(r *rig) {
	other := "run.data.12" // of a failover group
	if r.server.Group {
		other = "run"
	}
	r.admin("SET", r.marker, other+" 1 1000 nonce")
	usedUntil(r, r.micros()+60*second)
	var config *wire.ConfigError
	require.ErrorAs(r, r.connect(guarded(time.Second)).Health().Err, &config)
	assert.Contains(r, config.Error(), "the other clients list this server")
}
