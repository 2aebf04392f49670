package conformance

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var readCases = []testCase{
	{"read answers all and changes nothing", (*rig).reads},
	{"read and extend count no ticket of a process that has died", countsTheLiving},
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

// countsTheLiving has tickets of one process that listens and of others that do not, so many that no script
// looks at all.
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
