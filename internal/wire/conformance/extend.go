package conformance

import (
	"strconv"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var extendCases = []testCase{
	{"extend prolongs a lock that shows our owner and our token", (*rig).extends},
	{"extend answers when the token is another, of a healed lock or a node that was ahead", (*rig).extendsWithoutToken},
	{"extend never creates and never touches another's lock", (*rig).extendsOnlyOurs},
	{"extend does not bring back a lock that has expired since the call was sent", (*rig).extendsNothingExpired},
	{"extend refuses a life of zero, which would delete", (*rig).extendsZero},
	{"extend answers for each of many locks", (*rig).extendsMany},
}

func (r *rig) extends() {
	t := r.holds(alice)
	for _, life := range []string{"100000", "100"} {
		r.admin("PEXPIRE", r.lock, life)
		assert.Equal(r, int64(1), r.one(r.extend(alice, t)))
		r.left(keyLife, r.pttl(r.lock))
	}
	r.admin("PERSIST", r.lock)
	assert.Equal(r, int64(1), r.one(r.extend(alice, t)))
	r.left(keyLife, r.pttl(r.lock))
	assert.Equal(r, wire.Compose(alice, t, metadata), r.admin("GET", r.lock))

	const longest = 9_999_999_999_999_999 // the year 2286
	for _, t := range []int64{0, 1, 1 << 53, longest} {
		r.admin("SET", r.lock, wire.Compose(alice, t, metadata))
		assert.Equal(r, int64(1), r.one(r.extend(alice, t)), "%d", t)
	}
}

func (r *rig) extendsWithoutToken() {
	t := r.micros()
	for _, shown := range []int64{0, t - 1, t + 1, t / 10, t * 10} {
		r.admin("SET", r.lock, wire.Compose(alice, shown, metadata), "PX", "20000")
		assert.Equal(r, int64(2), r.one(r.extend(alice, t)), "%d", shown)
		r.left(keyLife, r.pttl(r.lock))
	}
	r.admin("DEL", r.lock)
	r.setRegister(t + hour)
	r.one(r.acquire(alice, t))
	assert.Equal(r, int64(2), r.one(r.extend(alice, t)), "the node was ahead")
	r.admin("DEL", r.lock)
	r.one(r.heal(alice))
	assert.Equal(r, int64(2), r.one(r.extend(alice, t)), "it was healed")
}

func (r *rig) extendsOnlyOurs() {
	r.unchanged(func() { assert.Equal(r, int64(0), r.one(r.extend(alice, 7))) })
	reserved := ticket(1)[:wire.TicketLen] + " w "
	for value, want := range map[string]int64{
		"": -1, "x": -1, alice: -1, alice + "x7 ": -1, bob + " 7 - -": -1, wire.Compose(bob, 7, metadata): -1,
		reserved: 0, reserved + " ": -1, alice + " w": 2, alice + " ": 2,
	} {
		r.admin("SET", r.lock, value, "PX", "100000")
		r.unchanged(func() { assert.Equal(r, want, r.one(r.extend(alice, 7)), "%q", value) })
		if want != 2 {
			assert.Greater(r, r.pttl(r.lock), int64(50_000), "%q", value)
		}
	}
	r.admin("SET", r.lock, reserved, "PX", "100000")
	assert.Equal(r, int64(0), r.one(r.extend(ticket(1)[:wire.TicketLen], 7)), "not by the name of the ticket")
	assert.Greater(r, r.pttl(r.lock), int64(50_000))
}

func (r *rig) extendsNothingExpired() {
	t := r.holds(alice)
	r.admin("PEXPIRE", r.lock, "100000")
	for ago, want := range map[int64]int64{25 * second: 1, 31 * second: 0} {
		r.admin("PEXPIRE", r.lock, "100000")
		assert.Equal(r, []any{want}, r.applySent(r.micros()-ago, r.extend(alice, t)))
		assert.Equal(r, want == 0, r.pttl(r.lock) > 50_000, "sent %d µs ago", ago)
	}
}

func (r *rig) extendsZero() {
	t := r.holds(alice)
	for _, life := range []string{"0", "-1", "-5000"} {
		r.unchanged(func() {
			assert.Equal(r, []any{int64(0)}, r.applySent(r.micros()-1000, r.extend(alice, t).with(argTTL, life)))
		})
	}
}

func (r *rig) extendsMany() {
	t := r.micros()
	want := []int64{1, -1, 0, 2}
	var ops []op
	for i := range wire.MaxLocks {
		lock := wire.LockKey(r.server.Prefix, strconv.Itoa(i))
		switch want[i%4] {
		case 1:
			r.admin("SET", lock, wire.Compose(alice, t, metadata))
		case -1:
			r.admin("SET", lock, "another")
		case 2:
			r.admin("SET", lock, wire.Compose(alice, 0, metadata))
		}
		ops = append(ops, r.extend(alice, t).on(lock))
	}
	for i, got := range r.apply(ops...) {
		assert.Equal(r, want[i%4], got, "lock %d", i)
	}
}
