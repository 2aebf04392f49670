package conformance

import (
	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var raiseCases = []testCase{
	{"raise moves the register of a lock that is ours, and only up", (*rig).raises},
	{"raise is refused to everybody else and makes no register", (*rig).raisesOnlyOurs},
}

func (r *rig) raises() {
	t := r.holds(alice)
	r.admin("PEXPIRE", r.lock, "100000")
	assert.Equal(r, answer(t, 0), r.one(r.raise(alice, t+3)))
	assert.Equal(r, t+3, r.register())
	assert.Equal(r, wire.Compose(alice, t+3, metadata), r.admin("GET", r.lock))
	assert.Greater(r, r.pttl(r.lock), int64(50_000), "the lock lives as long as before")
	r.unchanged(func() {
		for _, to := range []int64{t + 3, t, 1} {
			assert.Equal(r, answer(-1, 0), r.one(r.raise(alice, to)), "not up")
		}
	})
	assert.Equal(r, answer(t+3, 0), r.one(r.raise(alice, t+hour)), "no cap: the largest of some nodes is within it")
	assert.Equal(r, int64(1), r.one(r.extend(alice, t+hour)))

	r.one(r.release(alice))
	r.setRegister(t + 2*hour)
	r.one(r.acquire(bob, t))
	assert.Equal(r, answer(t+2*hour, 0), r.one(r.raise(bob, t+2*hour+1)), "a node that was ahead")
	assert.Equal(r, int64(1), r.one(r.extend(bob, t+2*hour+1)))
}

func (r *rig) raisesOnlyOurs() {
	r.unchanged(func() { assert.Equal(r, answer(-1, 0), r.one(r.raise(alice, r.micros()))) })
	t := r.holds(bob)
	r.unchanged(func() { assert.Equal(r, answer(-1, 0), r.one(r.raise(alice, t+hour))) })
	for _, value := range []string{"", alice, ticket(1)[:wire.TicketLen] + " w "} {
		r.admin("SET", r.lock, value)
		r.unchanged(func() {
			assert.Equal(r, answer(-1, 0), r.one(r.raise(alice, t+hour)), "%q", value)
		})
	}
}
