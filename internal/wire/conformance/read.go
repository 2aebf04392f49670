package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

var readCases = []testCase{
	{"read answers all and changes nothing", (*rig).reads},
	{"read and extend count no ticket of a process that has died", countsTheLiving},
	{"read shows the first tickets of a queue and their places, if it is asked for them", showsTheFirst},
	{"a node reads the first tickets of a queue", readsTheFirst},
}

func (r *rig) reads() {
	r.unchanged(func() { assert.Equal(r, answer(nil, -2, 0, 0), r.one(r.read())) })
	r.admin("SET", r.lock, "")
	assert.Equal(r, answer("", -1, 0, 0), r.one(r.read()))
	r.admin("DEL", r.lock)
	t := r.holds(alice)
	r.subscribe()
	r.admin("ZADD", r.queue, "1", ticket(1), "2", ticket(2))
	r.unchanged(func() {
		got := r.one(r.read()).([]any)
		assert.Equal(r, wire.Compose(alice, t, metadata), got[0])
		r.left(keyLife, got[1])
		assert.Equal(r, answer(t, 2), got[2:])
	})
}

// countsTheLiving queues tickets of one process that listens and of others that do not: more than one script looks at.
func countsTheLiving(r *rig) {
	r.subscribe()
	r.flags = knows
	t := r.holds(alice)
	r.one(permit(r, alice, 0, 1))
	r.admin("SET", r.hint, "1")
	dead := func(n int) string { return fmt.Sprintf("%016x%016x%d", n/2, n, grace) }
	fill := func(queue string, before int) {
		args := []string{"ZADD", queue, "1", "no ticket", "5000", ticket(1), "5001", ticket(2)}
		for n := range before {
			args = append(args, strconv.Itoa(n+10), dead(n))
		}
		r.admin(append(args, "9000", dead(5000))...)
	}
	waiting := func(o op) any { return r.one(o).([]any)[3] }
	fill(r.queue, 100)
	fill(family(r)+"\xffq", 400)
	r.unchanged(func() {
		assert.EqualValues(r, 2, waiting(r.read()))
		assert.Equal(r, answer(1, 2, ""), r.one(r.extend(alice, t)))
		assert.EqualValues(r, 2, waiting(r.read().on(slot(r, 0))))
	})
	r.admin("DEL", r.queue)
	fill(r.queue, 1000)
	assert.EqualValues(r, 504, waiting(r.read()), "of the first 500")
	var all []op
	for i := range 4 {
		other := wire.LockKey(r.server.Prefix, strconv.Itoa(i))
		fill(wire.QueueKey(other), 490)
		all = append(all, r.read().on(other), r.read().on(other))
	}
	for i, want := range []int{2, 2, 494 - (1000 - 2*494), 494} {
		got := r.apply(all...)
		assert.EqualValues(r, want, got[2*i].([]any)[3], "queue %d", i)
		assert.EqualValues(r, want, got[2*i+1].([]any)[3], "queue %d again", i)
	}
}

// inspect is a read that also asks for the first tickets.
func (r *rig) inspect(first string) op { return r.read().with(2, first) }

// dead is the ticket of a process that does not listen.
func dead(n int) string { return strings.Repeat("e", wire.ManagerLen) + ticket(n)[wire.ManagerLen:] }

func showsTheFirst(r *rig) {
	r.subscribe()
	assert.Equal(r, answer(nil, -2, 0, 0), r.one(r.inspect("8")), "where none is queued, it answers as a read")
	t := r.holds(alice)
	r.admin("SET", r.hint, "1")
	r.admin("ZADD", r.queue, "0", dead(0), "9007199254740991", "no ticket", enqueuedAt(2), readerTicket(2), enqueuedAt(1), ticket(1), enqueuedAt(3), permitTicket(3, 12))
	all := answer(ticket(1), enqueuedAt(1), readerTicket(2), enqueuedAt(2), permitTicket(3, 12), enqueuedAt(3))
	r.unchanged(func() {
		for first, want := range map[string]any{"1": all[:2], "3": all, "8": all} {
			got := r.one(r.inspect(first)).([]any)
			assert.Equal(r, append(answer(t, 3), want), got[2:], first)
		}
		assert.Len(r, r.one(r.read()), 4)
	})
	r.admin("DEL", r.lock)
	assert.Equal(r, answer(nil, -2, t, 3, all), r.one(r.inspect("8")), "a lock that is free")
	r.admin("ZADD", wire.QueueKey(family(r)), enqueuedAt(5), permitTicket(5, 2))
	assert.Equal(r, answer(permitTicket(5, 2), enqueuedAt(5)), r.one(r.inspect("8").on(slot(r, 1))).([]any)[4], "of all slots")
	r.admin("DEL", r.queue, r.hint)
	r.one(share(r, alice))
	r.admin("ZADD", r.queue, enqueuedAt(1), ticket(1))
	got := r.one(r.inspect("8")).([]any)
	require.Len(r, got, 7, "readers, and the tickets after them")
	assert.Equal(r, answer(ticket(1), enqueuedAt(1)), got[6])
	for n := range 64 {
		r.admin("ZADD", r.queue, strconv.Itoa(n), dead(n))
	}
	assert.Equal(r, []any{}, r.one(r.inspect("8")).([]any)[6], "the first 64 are dead")
}

func readsTheFirst(r *rig) {
	r.subscribe()
	r.holds(alice)
	r.admin("SET", r.hint, "1")
	read := func(request func(string, clock.Steady) *wire.Request) []wire.Ticket {
		got := r.do(request(r.lock, r.soon(10*time.Second)))
		require.Equal(r, wire.Done, got.Status, "%v", got.Err)
		return got.Tickets
	}
	r.admin("ZADD", r.queue, "5", "no ticket", "inf", ticket(7), "-1", ticket(8))
	assert.Empty(r, read(wire.NewInspect))
	r.admin("ZADD", r.queue, enqueuedAt(2), readerTicket(2), enqueuedAt(1), ticket(1), enqueuedAt(3), permitTicket(3, 12))
	const place = 1_700_000_000_000_000
	want := []wire.Ticket{{Manager: Manager, EnqueuedAt: place + 1}, {Manager: Manager, EnqueuedAt: place + 2, Shared: true}, {Manager: Manager, EnqueuedAt: place + 3, Limit: 12}}
	assert.Equal(r, want, read(wire.NewInspect))
	assert.Empty(r, read(wire.NewRead), "it has not asked for them")
	for n := range 20 {
		r.admin("ZADD", r.queue, enqueuedAt(n), ticket(n))
	}
	r.admin("ZREM", r.queue, "no ticket", ticket(8))
	assert.EqualValues(r, place, read(wire.NewInspect)[0].EnqueuedAt, "Redis 7.2 writes it as 1.7e+15")
	got := read(wire.NewInspect)
	require.NotEmpty(r, got)
	assert.LessOrEqual(r, len(got), wire.MostTickets)
}

var scanCases = []testCase{
	{"scan answers the keys of a prefix, page by page, and changes nothing", scans},
	{"scan leaves out what is no lock", scansLocksOnly},
	{"scan takes a prefix word by word, whatever a pattern means by its signs", scansWordByWord},
	{"a cursor that is none is an error of the scan alone", scansFromNowhere},
}

// scan is a page of the keys with a prefix.
func scan(r *rig, prefix, cursor string, count int) op {
	return op{r.lock, []string{"scan", cursor, wire.Literal(prefix) + "*", strconv.Itoa(count)}}
}

// scanned returns all keys with a prefix, in their order, and how many pages there were.
func scanned(r *rig, prefix string, count int) (keys []string, pages int) {
	r.Helper()
	for cursor := wire.LastPage; ; {
		pages++
		page := r.one(scan(r, prefix, cursor, count)).([]any)
		require.Len(r, page, 2)
		for _, key := range page[1].([]any) {
			keys = append(keys, key.(string))
		}
		if cursor = page[0].(string); cursor == wire.LastPage {
			slices.Sort(keys)
			return slices.Compact(keys), pages
		}
	}
}

func scans(r *rig) {
	keys, _ := scanned(r, r.lock, 10)
	assert.Empty(r, keys)
	var want []string
	for i := range 300 {
		key := r.lock + "/" + strconv.Itoa(1000+i)
		want = append(want, key)
		r.admin("SET", key, "held")
		r.admin("SET", "another "+key, "held")
	}
	r.unchanged(func() {
		got, _ := scanned(r, r.lock, 10)
		assert.Equal(r, want, got)
		got, pages := scanned(r, r.lock, 10000)
		assert.Equal(r, want, got)
		assert.Equal(r, 1, pages)
		got, _ = scanned(r, r.lock+"/120", 10)
		assert.Equal(r, want[200:210], got)
	})
}

func scansLocksOnly(r *rig) {
	r.holds(alice)
	r.one(r.wait(bob, 1))
	r.admin("SET", wire.WatchKey(r.lock), "1")
	r.admin("RPUSH", r.lock+"/list", "1")
	keys, _ := scanned(r, r.lock, 100)
	assert.Equal(r, []string{r.lock}, keys)
}

func scansWordByWord(r *rig) {
	signs := r.lock + `*?[a-c]\^{x}`
	r.admin("SET", signs, "held", "PX", "60000")
	r.admin("SET", r.lock+`xxa\^{x}`, "held", "PX", "60000")
	r.admin("SET", r.lock+`*?a^{x}`, "held", "PX", "60000")
	keys, _ := scanned(r, signs, 100)
	assert.Equal(r, []string{signs}, keys)
}

func scansFromNowhere(r *rig) {
	answers := r.apply(scan(r, r.lock, "x", 10), r.read())
	require.IsType(r, failed(""), answers[0])
	assert.Contains(r, string(answers[0].(failed)), "cursor")
	assert.Equal(r, answer(nil, -2, 0, 0), answers[1])
}
