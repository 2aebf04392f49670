package conformance

import (
	"slices"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

var leanCases = []testCase{
	{"the lean script answers and does the same as the usual one, or declines and does nothing", leanAgrees},
	{"an acquisition of the lean script whose register cannot be read leaves no lock behind", leanUndoes},
	{"a lean operation that is declined is done by the usual script", leanFallsBack},
}

// leanState is a state of a lock that one of the scripts distinguishes from others.
type leanState struct {
	name  string
	make  func(r *rig, t int64) // for an acquisition that proposes t
	known string                // the marker that the client knows
	// acquires and releases mean that the lean script does it: each operation that it declines costs a round trip.
	acquires, releases bool
}

const data = "run 0 60000 nonce" // a marker

var leanStates = []leanState{
	{name: "free", make: func(*rig, int64) {}, acquires: true},
	{name: "free, held before", make: func(r *rig, t int64) { r.setRegister(t - 5) }, acquires: true},
	{name: "free, a low base", make: func(r *rig, t int64) { r.admin("SET", r.base, micros(t-1)) }, acquires: true},
	{name: "free, with a marker", make: func(r *rig, _ int64) { r.admin("SET", r.marker, data) }, known: data, acquires: true},
	{name: "free, other data", make: func(r *rig, _ int64) { r.admin("SET", r.marker, data) }, known: "run 0 60000 another"},
	{name: "free, lost data", make: func(*rig, int64) {}, known: data},
	{name: "free, in quarantine", make: func(*rig, int64) {}, known: "quarantine"},
	{name: "free, a guard that the client lacks", make: func(r *rig, _ int64) { r.admin("SET", r.marker, data) }},
	{name: "free, a guard that is being rolled out", make: func(r *rig, _ int64) { r.admin("SET", r.marker, data+"open") }},
	{name: "free, the hint is set", make: func(r *rig, _ int64) { r.admin("SET", r.hint, "1") }},
	{name: "free, with a queue", make: func(r *rig, _ int64) { leanQueue(r) }},
	{name: "free, the register is at the proposal", make: func(r *rig, t int64) { r.setRegister(t) }},
	{name: "free, the register is ahead", make: func(r *rig, t int64) { r.setRegister(t + hour) }},
	{name: "free, the base is at the proposal", make: func(r *rig, t int64) { r.admin("SET", r.base, micros(t)) }},
	{name: "free, the base is a word", make: func(r *rig, _ int64) { r.admin("SET", r.base, "x") }},
	{name: "free, the base is not a number", make: func(r *rig, _ int64) { r.admin("SET", r.base, "nan") }},
	{name: "free, the base is infinite", make: func(r *rig, _ int64) { r.admin("SET", r.base, "inf") }},
	{name: "another's", make: func(r *rig, _ int64) { r.admin("SET", r.lock, wire.Compose(bob, 7, metadata), "PX", "60000") }},
	{name: "another's, of no form", make: func(r *rig, _ int64) { r.admin("SET", r.lock, "x") }},
	{name: "another's, empty", make: func(r *rig, _ int64) { r.admin("SET", r.lock, "") }},
	{name: "another's, a list", make: func(r *rig, _ int64) { r.admin("RPUSH", r.lock, "x") }},
	{name: "reserved", make: func(r *rig, _ int64) { r.admin("SET", r.lock, ticket(1)[:wire.TicketLen]+" w ", "PX", "60000") }},
	{name: "ours", make: func(r *rig, t int64) { leanOurs(r, t-5) }, releases: true},
	{name: "ours, healed", make: func(r *rig, _ int64) { leanOurs(r, 0) }, releases: true},
	{name: "ours, the hint is set", make: func(r *rig, _ int64) { r.admin("SET", r.hint, "1"); leanOurs(r, 0) }},
	{name: "ours, with a queue", make: func(r *rig, _ int64) { leanQueue(r); leanOurs(r, 0) }},
}

func leanOurs(r *rig, t int64) {
	r.admin("SET", r.lock, wire.Compose(alice, t, metadata), "PX", "60000")
}

func leanQueue(r *rig) {
	r.admin("SET", r.hint, "1")
	r.admin("ZADD", r.queue, enqueuedAt(1), ticket(1))
}

func leanAgrees(r *rig) {
	t := r.micros()
	for _, s := range leanStates {
		for _, o := range []struct {
			op
			common bool
		}{{r.acquire(alice, t), s.acquires}, {r.acquire(alice, t+hour), false}, {r.release(alice), s.releases}} {
			r.known = s.known
			r.admin("FLUSHALL")
			s.make(r, t)
			before := r.dump()
			got, unproven := lean(r, o.op)
			if got == Declined {
				assert.False(r, o.common, "%s: %v is Declined", s.name, o.args)
			}
			if got == Declined && !unproven {
				assert.Equal(r, before, r.dump(), "%s: %v", s.name, o.args)
				continue
			}
			after := r.dump()
			if unproven {
				after = leanAgain(r, o.op)
			}
			r.admin("FLUSHALL")
			s.make(r, t)
			want := r.one(o.op)
			if unproven {
				assert.Equal(r, leanEffect(r, r.dump()), leanEffect(r, after), "%s: %v", s.name, o.args)
				continue
			}
			assert.Equal(r, want, got, "%s: %v", s.name, o.args)
			assert.Equal(r, r.dump(), after, "%s: %v", s.name, o.args)
		}
	}
}

// leanAgain asks again for a lock that the lean way has made without a vote. The register has moved, so no answer may
// report a move.
func leanAgain(r *rig, o op) map[string]string {
	args := slices.Clone(o.args)
	args[0] = "anew"
	moved := r.register()
	switch got := r.one(op{o.key, args}).(type) {
	case int64:
		assert.EqualValues(r, -1, got, "a vote needs a register that moves")
		r.absent(r.lock)
	case []any:
		if len(got) == 3 && r.value().Owner == alice {
			assert.EqualValues(r, 0, got[0], "the register has moved before, for no vote")
		}
	}
	assert.GreaterOrEqual(r, r.register(), moved)
	return r.dump()
}

// leanEffect returns a dump without the registers, and with the owner of the lock only.
func leanEffect(r *rig, dump map[string]string) map[string]string {
	delete(dump, r.registers)
	if held, found := dump[r.lock]; found {
		dump[r.lock] = held[:min(len(held), wire.OwnerLen)]
	}
	return dump
}

// lean runs one operation in the lean way. unproven means that it has made a lock that isn't a vote.
func lean(r *rig, o op) (answer any, unproven bool) {
	r.Helper()
	if o.args[0] == "release" {
		reply, err := r.server.Do("EVAL", wire.Lean, "2", o.key, r.hint, o.args[0], o.args[1])
		if err != nil || reply != int64(1) {
			return Declined, false
		}
		return reply, false
	}
	reply, err := r.server.Do("EVAL", wire.Lean, "2", o.key, r.registers, o.args[0], o.args[1], micros(r.micros()/1000+60_000), o.args[4], r.capText)
	if err != nil || reply != int64(1) {
		return Declined, false
	}
	look := vote.Look{}
	known, ok := r.admin("MGET", r.base, r.hint, r.marker).([]any)
	require.True(r, ok)
	for i, text := range []*string{&look.Base, &look.Hint, &look.Marker} {
		*text, _ = known[i].(string)
	}
	if !look.Counts(o.args[4], r.known) {
		return Declined, true
	}
	return int64(1), false
}

func leanUndoes(r *rig) {
	r.admin("RPUSH", r.registers, "x")
	r.unchanged(func() {
		answer, _ := lean(r, r.acquire(alice, r.micros()))
		assert.Equal(r, Declined, answer)
	})
}

// leanFallsBack lets two nodes find what they have not met before: a register ahead, and a queue.
func leanFallsBack(r *rig) {
	t := r.micros()
	near := wire.NewRead(r.lock, r.soon(10*time.Second)) // a node that has just been greeted has measured no round trip
	n := r.connect()
	r.on(n, near)
	r.setRegister(t + hour)
	got := r.on(n, r.request(bob, t))
	assert.Equal(r, []int64{0, t + hour}, []int64{got.Moved, got.Before})
	leanQueue(r)
	n = r.connect()
	r.on(n, near)
	assert.EqualValues(r, wire.Ours, r.on(n, r.releasing(bob)).N)
	r.absent(r.lock, r.queue)
}
