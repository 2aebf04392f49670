package conformance

import (
	"strconv"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var batchCases = []testCase{
	{"the operations of a call run in their order, and each has its own answer", (*rig).runsInOrder},
	{"a key of another type costs the other operations of a call nothing", (*rig).runsAroundBadKeys},
	{"a key of another type costs no reader the place that an operation before has reserved", (*rig).keepsReservations},
	{"a queue of another type costs the other operations of a call nothing", (*rig).runsAroundBadQueues},
	{"arguments that make no sense cost the other operations nothing", (*rig).runsAroundNonsense},
	{"an operation that nobody knows fails the call", (*rig).refusesUnknownOperations},
	{"a full server refuses what needs memory, and releases and extends go through", (*rig).runsOnAFullServer},
	{"a call of the most operations is answered whole", (*rig).runsManyOperations},
}

func (r *rig) runsInOrder() {
	t := r.micros()
	other := wire.LockKey(r.server.Prefix, "other")
	got := r.apply(
		r.acquire(alice, t), r.extend(alice, t), r.acquire(alice, t).on(other), r.release(alice), r.release(alice),
		r.acquire(bob, t+1), r.release(alice), r.release(alice).on(other), r.raise(bob, t+9), r.extend(bob, t+1), r.extend(bob, t+9),
		r.release(bob), r.heal(carol), r.acquire(carol, t+20), r.acquire(bob, t+30).on(other), r.read(),
	)
	read := got[len(got)-1].([]any)
	assert.Equal(r, []any{wire.Compose(carol, 0, metadata), t + 9, int64(0)}, []any{read[0], read[2], read[3]})
	assert.Equal(r, []any{
		int64(1), int64(1), int64(1), int64(1), int64(0),
		int64(1), int64(-1), int64(1), answer(t+1, 0), int64(2), int64(1),
		int64(1), int64(1), granted(0, t+9), int64(1),
	}, got[:len(got)-1])
}

// around runs each of the operations between others that must not notice it.
func (r *rig) around(bad map[string]op) {
	r.Helper()
	good := wire.LockKey(r.server.Prefix, "good")
	t := r.micros()
	for name, o := range bad {
		r.admin("DEL", good, r.registers)
		got := r.apply(r.acquire(alice, t).on(good), o, o, r.extend(alice, t).on(good), r.release(alice).on(good), o, r.acquire(bob, t+1).on(good))
		assert.Equal(r, []any{int64(1), int64(1), int64(1), int64(1)}, []any{got[0], got[3], got[4], got[6]}, name)
		for _, i := range []int{1, 2, 5} {
			assert.IsType(r, failed(""), got[i], name)
		}
	}
}

func (r *rig) runsAroundBadKeys() {
	for _, hint := range []bool{false, true} {
		if hint {
			r.admin("SET", r.hint, "1")
		}
		r.admin("DEL", r.lock)
		r.admin("HSET", r.lock, "a", "b")
		bad := r.everyOperation(alice)
		r.around(bad)
		assert.Equal(r, "b", r.admin("HGET", r.lock, "a"))
	}
}

func (r *rig) keepsReservations() {
	other := wire.LockKey(r.server.Prefix, "other")
	r.admin("HSET", other, "a", "b")
	r.subscribe()
	t := r.holds(alice)
	r.one(shareFor(r, bob, 1))
	got := r.apply(r.release(alice), r.extend(alice, t).on(other))
	assert.Equal(r, int64(2), got[0])
	assert.IsType(r, failed(""), got[1])
	reads(r, name(1))
}

func (r *rig) runsAroundBadQueues() {
	r.admin("SET", r.hint, "1")
	r.admin("SET", r.queue, "x")
	bad := r.everyOperation(alice)
	for _, name := range []string{"extend", "heal", "mark", "resume", "back"} {
		delete(bad, name) // they look at no queue
	}
	delete(bad, "raise") // it refuses a lock that is not there
	r.around(bad)
	r.absent(r.lock)
	assert.Equal(r, "x", r.admin("GET", r.queue))
	r.admin("SET", r.lock, wire.Compose(alice, 0, metadata))
	r.fails(r.one(r.raise(alice, 5)))
	r.fails(r.one(r.release(alice)))
	r.absent(r.lock)
}

func (r *rig) runsAroundNonsense() {
	bad := map[string]op{}
	for _, o := range []op{
		r.acquire(alice, 1).with(argTTL, "x"), r.acquire(alice, 1).with(argNotAfter, ""), r.acquire(alice, 1).with(argTTL, "-9999999999999999"),
		r.acquire(alice, 1).with(4, "x"), r.wait(alice, 1).with(4, ""), r.heal(alice).with(argNotAfter, "x"),
		r.forget(1).with(1, "x"), r.forget(1).with(2, "x"), r.guard("run", 1, "0", "0").with(2, "x"),
	} {
		bad[o.args[0]+strconv.Itoa(len(bad))] = o
	}
	r.around(bad)
	r.absent(r.lock, r.marker)
}

func (r *rig) refusesUnknownOperations() {
	_, err := r.server.Do(r.command(r.micros(), op{r.lock, []string{"destroy"}})...)
	require.ErrorContains(r, err, "quorumlock: no operation destroy")
	_, err = r.server.Do(append(r.command(r.micros())[:2:2], "6", r.lock, r.base, r.hint, r.marker, r.lock, r.lock, "0", "0", "", "", "", "")...)
	require.ErrorContains(r, err, "quorumlock: no operation nil")
}

func (r *rig) runsOnAFullServer() {
	if r.server.Fill == nil {
		r.Skip("this server cannot be filled")
	}
	t := r.holds(alice)
	held, free := wire.LockKey(r.server.Prefix, "held"), wire.LockKey(r.server.Prefix, "free")
	r.one(r.acquire(alice, t).on(held))
	n := r.connect()
	r.server.Fill()
	defer r.server.Drain()
	asks := r.inOneBatch(n, func() {}, r.request(bob, t, func(a *wire.Acquisition) { a.Lock = free }))[0]
	assert.Equal(r, wire.Failed, asks.Status, "%v", asks.Err)
	require.ErrorContains(r, asks.Err, "OOM")
	renewals, value := wire.NewBatch(wire.Extend, 2, r.soon(time.Hour)), wire.Compose(alice, t, metadata)
	wire.Entry{Lock: r.lock, Value: value}.Extend(renewals, "60000")
	wire.Entry{Lock: free, Value: value}.Extend(renewals, "60000")
	got := r.inOneBatch(n, func() {}, renewals, r.releasing(alice),
		wire.Entry{Lock: held, Value: value}.Release(nil, wire.TicketUpdate{}, r.soon(time.Hour)))
	assert.Equal(r, []int64{wire.Ours, wire.Missing}, got[0].Answers, "%v", got[0].Err)
	assert.EqualValues(r, wire.Ours, got[1].N, "%v", got[1].Err)
	assert.EqualValues(r, wire.Ours, got[2].N, "%v", got[2].Err)
	r.absent(free, held, r.lock)

	// In a script that has already written something, Redis no longer refuses anything. So from here on, requests for a
	// lock run alone.
	r.server.Drain()
	r.one(r.acquire(alice, t).on(held))
	r.server.Fill()
	renewals = wire.NewBatch(wire.Extend, 1, r.soon(time.Hour))
	wire.Entry{Lock: held, Value: value}.Extend(renewals, "60000")
	got = r.inOneBatch(n, func() {}, renewals, r.request(bob, t, func(a *wire.Acquisition) { a.Lock = free }))
	assert.Equal(r, wire.Done, got[0].Status, "%v", got[0].Err)
	assert.Equal(r, wire.Failed, got[1].Status, "granted by a server that is full")
	r.absent(free)
}

func (r *rig) runsManyOperations() {
	t := r.micros()
	var ops []op
	for i := range wire.MaxLocks {
		ops = append(ops, r.acquire(alice, t+int64(i)).on(wire.LockKey(r.server.Prefix, strconv.Itoa(i))))
	}
	for i, got := range r.apply(ops...) {
		assert.Equal(r, int64(1), got, "lock %d", i)
	}
	assert.EqualValues(r, wire.MaxLocks, r.admin("ZCARD", r.registers))
}
