package conformance

import (
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var fullCases = []testCase{
	{"a full server that was restarted gets its marker all the same", guardOnAFullServer},
	{"a full server remembers lists all the same", listsOnAFullServer},
	{"a full server marks a lock, gives it back and shares its owner's all the same", replacesOnAFullServer},
	{"a full server refuses, renews and releases permits all the same, and grants none", permitsOnAFullServer},
}

// fill makes the server full until the case ends.
func fill(r *rig) {
	if r.server.Fill == nil {
		r.Skip("this server is never full")
	}
	r.server.Fill()
	r.Cleanup(r.server.Drain)
}

func guardOnAFullServer(r *rig) {
	fill(r)
	stop, _, marker := r.quarantine(r.guard("run", 60_000, "0", "0"))
	assert.Greater(r, stop, r.micros()+50*second)
	assert.Equal(r, marker, r.admin("GET", r.marker))
	assert.Equal(r, micros(stop), r.admin("GET", r.base))
}

func listsOnAFullServer(r *rig) {
	fill(r)
	require.Equal(r, registered, r.one(r.listed(3, "b", "c").with(argLife, "30000")))
	before := r.entries()["1 3 b,c,self"]
	require.Equal(r, registered, r.one(r.listed(3, "b", "c").with(argAdds, "0")))
	assert.Greater(r, r.entries()["1 3 b,c,self"], before)
}

// What replaces a value keeps what a client has. Each operation is a call of its own: behind a write, a server refuses
// nothing.
func replacesOnAFullServer(r *rig) {
	for what, c := range map[string]struct {
		o    op
		then string
	}{
		"asked":               {ask(r, alice, note), alice + " a "},
		"revoked":             {revoke(r, alice, "1", note), "x " + alice},
		"detached":            {detach(r, alice, keyTTL), "d " + alice},
		"given back":          {back(r, alice, bob), "d " + bob},
		"shared":              {share(r, alice), theirs},
		"renewed as a reader": {prolong(r, alice), theirs},
		"healed as a reader":  {restore(r, alice), theirs},
	} {
		r.admin("FLUSHALL")
		r.holds(alice)
		fill(r)
		got := r.one(c.o)
		r.server.Drain()
		assert.Regexp(r, "^"+c.then, r.admin("GET", r.lock), "%s: %v", what, got)
	}
	r.admin("FLUSHALL")
	r.one(share(r, alice))
	fill(r)
	r.one(ask(r, wire.Nobody, note))
	r.server.Drain()
	assert.True(r, r.value().Asked, "readers")
}

// permitsOnAFullServer asks for permits that the set shows or does not show, while waiters are in the queue.
func permitsOnAFullServer(r *rig) {
	r.subscribe()
	owners := full(r, 3)
	r.admin("SET", r.hint, "1") // without it, the SET alone decides
	for _, lost := range []bool{false, true} {
		if lost {
			r.admin("DEL", wire.SlotsKey(r.lock))
		}
		fill(r)
		for i := range owners {
			held := r.one(permit(r, carol, i, 3)).([]any)[0]
			require.IsType(r, "", held, "slot %d", i)
			assert.Equal(r, owners[i], wire.ParseValue(held.(string)).Owner)
		}
		assert.Equal(r, int64(1), r.one(r.extend(owners[0], 0).on(slot(r, 0)).with(1, owners[0]+" ")))
		r.server.Drain()
	}
	expires(r, owners[1], 1, 3)
	r.admin("ZADD", family(r)+"\xffq", "1", permitTicket(2, 3))
	fill(r)
	if _, err := r.server.Do("SET", r.server.Prefix+"any", ""); err == nil {
		return // it is full for clients only, and this case isn't a client
	}
	refused := r.one(permit(r, carol, 1, 3))
	require.IsType(r, failed(""), refused, "granted by a server that is full")
	assert.Contains(r, string(refused.(failed)), "OOM")
	r.absent(slot(r, 1))
	assert.Equal(r, int64(0), r.one(r.release(owners[1]).on(slot(r, 1))), "nothing to release")
	assert.Equal(r, int64(1), r.one(r.release(owners[0]).on(slot(r, 0))))
	for range 2 { // with the hint, and without
		other := wire.SlotKey(r.lock+"2", 0)
		refused = r.one(permit(r, carol, 0, 3).on(other))
		require.IsType(r, failed(""), refused, "a name whose slots the server has not met")
		assert.Contains(r, string(refused.(failed)), "OOM")
		r.absent(other)
		r.admin("DEL", r.hint)
	}
}
