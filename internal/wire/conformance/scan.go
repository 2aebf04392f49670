package conformance

import (
	"slices"
	"strconv"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var scanCases = []testCase{
	{"scan answers the keys of a prefix, page by page, and changes nothing", (*rig).scans},
	{"scan leaves out what is no lock", (*rig).scansLocksOnly},
	{"scan takes a prefix word by word, whatever a pattern means by its signs", (*rig).scansWordByWord},
	{"a cursor that is none is an error of the scan alone", (*rig).scansFromNowhere},
}

// scan is a page of the keys with a prefix.
func (r *rig) scan(prefix, cursor string, count int) op {
	return op{r.lock, []string{"scan", cursor, wire.Literal(prefix) + "*", strconv.Itoa(count)}}
}

// scanned returns all keys with a prefix, in their order, and how many pages there were.
func (r *rig) scanned(prefix string, count int) (keys []string, pages int) {
	r.Helper()
	for cursor := wire.LastPage; ; {
		pages++
		page := r.one(r.scan(prefix, cursor, count)).([]any)
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

func (r *rig) scans() {
	keys, _ := r.scanned(r.lock, 10)
	assert.Empty(r, keys)
	var want []string
	for i := range 300 {
		key := r.lock + "/" + strconv.Itoa(1000+i)
		want = append(want, key)
		r.admin("SET", key, "held")
		r.admin("SET", "another "+key, "held")
	}
	r.unchanged(func() {
		got, _ := r.scanned(r.lock, 10)
		assert.Equal(r, want, got)
		got, pages := r.scanned(r.lock, 10000)
		assert.Equal(r, want, got)
		assert.Equal(r, 1, pages)
		got, _ = r.scanned(r.lock+"/120", 10)
		assert.Equal(r, want[200:210], got)
	})
}

func (r *rig) scansLocksOnly() {
	r.holds(alice)
	r.one(r.wait(bob, 1))
	r.admin("SET", wire.WatchKey(r.lock), "1")
	r.admin("RPUSH", r.lock+"/list", "1")
	keys, _ := r.scanned(r.lock, 100)
	assert.Equal(r, []string{r.lock}, keys)
}

func (r *rig) scansWordByWord() {
	signs := r.lock + `*?[a-c]\^{x}`
	r.admin("SET", signs, "held", "PX", "60000")
	r.admin("SET", r.lock+`xxa\^{x}`, "held", "PX", "60000")
	r.admin("SET", r.lock+`*?a^{x}`, "held", "PX", "60000")
	keys, _ := r.scanned(signs, 100)
	assert.Equal(r, []string{signs}, keys)
}

func (r *rig) scansFromNowhere() {
	answers := r.apply(r.scan(r.lock, "x", 10), r.read())
	require.IsType(r, failed(""), answers[0])
	assert.Contains(r, string(answers[0].(failed)), "cursor")
	assert.Equal(r, answer(nil, -2, 0, 0), answers[1])
}
