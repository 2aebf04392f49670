package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var listCases = []testCase{
	{"a node has an identity once its quarantine is over", (*rig).listNames},
	{"an identity that was lost with the data is restored by a client that knew it", (*rig).listRestores},
	{"lists are registered beside each other exactly if their majorities meet", (*rig).listsMeet},
	{"a refused list says which list is in its way, and changes nothing", (*rig).listRefused},
	{"a list takes the place of its parts", (*rig).listGrows},
	{"a list that ends is forgotten, and one that is used stands", (*rig).listEnds},
	{"a list that adds nothing is prolonged where it stands", (*rig).listKept},
	{"a list of another version of the protocol is refused", (*rig).listOfAnotherVersion},
	{"a node remembers 64 lists at most", (*rig).listsBounded},
	{"a list that comes too late changes nothing", (*rig).listTooLate},
	{"a key of another type is no list", (*rig).listSparesOthers},
}

// The arguments of the operation list that cases change.
const (
	argVersion  = 1
	argSize     = 2
	argIDs      = 3
	argKnown    = 4
	argFresh    = 5
	argLife     = 6
	argAdds     = 7
	argKeeps    = 8
	argListLate = 9
)

// list registers a list of that many nodes: the asked one, whose identity will be "self",
// and these.
func (r *rig) list(size int, ids ...string) op {
	return op{wire.ListsKey(r.server.Prefix), []string{
		"list", "1", strconv.Itoa(size), strings.Join(ids, ","), "", "self", "60000", "1", "1", micros(r.micros() + 60*second),
	}}
}

// listed registers a list on a node that the client knows.
func (r *rig) listed(size int, ids ...string) op { return r.list(size, ids...).with(argKnown, "self") }

// entries are the lists that the node remembers, and when each ends, µs.
func (r *rig) entries() map[string]int64 {
	r.Helper()
	all := map[string]int64{}
	got := r.admin("ZRANGE", wire.ListsKey(r.server.Prefix), "0", "-1", "WITHSCORES").([]any)
	for i := 0; i < len(got); i += 2 {
		end, err := strconv.ParseFloat(got[i+1].(string), 64)
		require.NoError(r, err)
		if text := got[i].(string); !strings.HasPrefix(text, "node ") {
			all[text] = int64(end)
		}
	}
	return all
}

var (
	registered = answer("self", 0, "", 1)
	unwritten  = answer("self", 0, "", 0)
)

func (r *rig) listNames() {
	nobody := answer("", 0, "", 0)
	r.unchanged(func() { assert.Equal(r, nobody, r.one(r.list(3)), "without a marker") })
	r.quarantine(r.guard("run", 60_000, "0", "0"))
	r.unchanged(func() { assert.Equal(r, nobody, r.one(r.list(3)), "in quarantine a client that knew it may come") })
	for what, marker := range map[string]string{
		"over": fmt.Sprintf("run %d 60000 nonce", r.micros()), "trusted": "run 0 60000 nonce",
		"no end, because it is further away than the longest lease": "run 9007199254740990 60000 nonce",
	} {
		r.admin("DEL", wire.ListsKey(r.server.Prefix))
		r.admin("SET", r.marker, marker)
		assert.Equal(r, registered, r.one(r.list(3)), what)
		assert.Equal(r, registered, r.one(r.list(3).with(argFresh, "other")), what)
		assert.Equal(r, registered, r.one(r.list(3).with(argKnown, "other")), "it does not change")
	}
}

func (r *rig) listRestores() {
	r.quarantine(r.guard("run", 60_000, "0", "0"))
	assert.Equal(r, answer("mine", 0, "", 1), r.one(r.list(3).with(argKnown, "mine")))
	assert.Equal(r, answer("mine", 0, "", 1), r.one(r.list(3)), "for everybody")
}

// everySet are the sets of names that contain the first.
func everySet(names []string) (sets [][]string) {
	for bits := range 1 << (len(names) - 1) {
		set := []string{names[0]}
		for i, name := range names[1:] {
			if bits>>i&1 == 1 {
				set = append(set, name)
			}
		}
		sets = append(sets, set)
	}
	return sets
}

// meet reports whether two majorities always share a node, by trying all of them.
func meet(a, b []string) bool {
	for bits := range 1 << len(a) {
		rest, size := len(b), 0
		for i, name := range a {
			if bits>>i&1 == 1 {
				size++
				if slices.Contains(b, name) {
					rest--
				}
			}
		}
		if size >= len(a)/2+1 && rest >= len(b)/2+1 {
			return false
		}
	}
	return true
}

func (r *rig) listsMeet() {
	sets := everySet([]string{"self", "b", "c", "d", "e"})
	for _, a := range sets {
		for _, b := range sets {
			r.admin("DEL", wire.ListsKey(r.server.Prefix))
			require.Equal(r, registered, r.one(r.listed(len(a), a[1:]...)))
			got, ok := r.one(r.listed(len(b), b[1:]...)).([]any)
			require.True(r, ok)
			require.Equal(r, meet(a, b), got[3] == int64(1), "%v beside %v: %v", a, b, got)
			require.Equal(r, meet(a, b), got[1] == int64(0), "%v beside %v: %v", a, b, got)
		}
	}
}

func (r *rig) listRefused() {
	r.one(r.listed(3, "b", "c"))
	r.one(r.listed(4, "b", "c", "d").with(argLife, "90000"))
	r.unchanged(func() {
		got := r.one(r.listed(3, "d", "e").with(argKeeps, "0")).([]any)
		assert.Equal(r, []any{"self", "1 4 b,c,d,self", int64(0)}, []any{got[0], got[2], got[3]}, "the one that ends last")
		r.left(90_000, got[1])
	})
	assert.Equal(r, registered, r.one(r.listed(5, "b")), "nodes that it has not met do not count")
	assert.Len(r, r.entries(), 3)
}

func (r *rig) listGrows() {
	whole := "1 3 b,c,self"
	r.one(r.listed(3))
	r.one(r.listed(3, "b").with(argLife, "120000"))
	end := r.entries()["1 3 b,self"]
	assert.Len(r, r.entries(), 1)
	r.one(r.listed(3, "c", "b"))
	assert.Equal(r, map[string]int64{whole: end}, r.entries(), "it ends as late as its parts")
	r.one(r.listed(3, "c").with(argLife, "180000"))
	assert.Len(r, r.entries(), 2, "who has met two nodes only may have another third one")
	assert.Equal(r, end, r.entries()[whole], "a part does not prolong the whole")
	r.one(r.listed(3, "b", "c"))
	assert.Len(r, r.entries(), 1, "it was a part of this one")
	r.one(r.listed(4, "c", "b"))
	assert.Len(r, r.entries(), 2, "a list of another size is another list")
}

func (r *rig) listEnds() {
	began := r.micros()
	r.one(r.listed(3, "b", "c"))
	assert.InDelta(r, began+60*second, r.entries()["1 3 b,c,self"], float64(5*second))
	r.admin("ZADD", wire.ListsKey(r.server.Prefix), micros(r.micros()-1), "1 3 b,c,self")
	assert.Equal(r, registered, r.one(r.listed(3, "d", "e")), "nobody uses the other")
	assert.Len(r, r.entries(), 1)
	r.admin("ZADD", wire.ListsKey(r.server.Prefix), micros(r.micros()+600*second), "1 3 d,e,self")
	r.one(r.listed(3, "d", "e"))
	assert.Greater(r, r.entries()["1 3 d,e,self"], r.micros()+590*second, "it is not shortened")
	assert.EqualValues(r, -1, r.pttl(wire.ListsKey(r.server.Prefix)), "the identity stays")
}

func (r *rig) listKept() {
	keep := r.listed(3, "b").with(argAdds, "0")
	require.Equal(r, unwritten, r.one(keep))
	assert.Empty(r, r.entries())
	r.one(r.listed(3, "b").with(argLife, "30000"))
	before := r.entries()["1 3 b,self"]
	require.Equal(r, registered, r.one(keep))
	assert.Greater(r, r.entries()["1 3 b,self"], before)
	before = r.entries()["1 3 b,self"]
	require.Equal(r, unwritten, r.one(r.listed(3, "b", "c").with(argAdds, "0").with(argLife, "90000")), "it has grown")
	assert.Len(r, r.entries(), 1)
	assert.Greater(r, r.entries()["1 3 b,self"], before+20*second, "leases rely on what it was")

	r.one(r.listed(3, "d"))
	before = r.entries()["1 3 b,self"]
	got := r.one(r.listed(3, "b", "c").with(argLife, "120000")).([]any)
	assert.Equal(r, []any{"1 3 d,self", int64(0)}, got[2:], "it has grown, and is refused")
	assert.Greater(r, r.entries()["1 3 b,self"], before+20*second)
	r.unchanged(func() {
		r.one(r.listed(3, "b", "c").with(argLife, "180000").with(argKeeps, "0"))
	})
}

func (r *rig) listOfAnotherVersion() {
	for _, other := range []string{"2 3 b,c,self", "garbage"} {
		r.admin("DEL", wire.ListsKey(r.server.Prefix))
		r.admin("ZADD", wire.ListsKey(r.server.Prefix), micros(r.micros()+60*second), other)
		got := r.one(r.listed(3, "b", "c")).([]any)
		assert.Equal(r, other, got[2])
		assert.Greater(r, got[1], int64(50_000))
	}
	r.admin("DEL", wire.ListsKey(r.server.Prefix))
	r.one(r.listed(3, "b", "c"))
	got := r.one(r.listed(3, "b", "c").with(argVersion, "2")).([]any)
	assert.Equal(r, "1 3 b,c,self", got[2])
}

func (r *rig) listsBounded() {
	for i := range 64 {
		require.Equal(r, registered, r.one(r.listed(15, "n"+strconv.Itoa(i)).with(argLife, strconv.Itoa(60_000+i))))
	}
	got := r.one(r.listed(15, "n64")).([]any)
	assert.Equal(r, []any{"1 15 n0,self", int64(0)}, got[2:])
	assert.Len(r, r.entries(), 64)
	assert.Equal(r, registered, r.one(r.listed(15, "n7")), "those that stand go on")
}

func (r *rig) listTooLate() {
	r.one(r.listed(3, "b", "c"))
	late := r.listed(4, "b", "c", "d").with(argListLate, micros(r.micros()-1))
	r.unchanged(func() { assert.Equal(r, answer("", 0, "", 0), r.one(late)) })
}

func (r *rig) listSparesOthers() {
	r.admin("HSET", wire.ListsKey(r.server.Prefix), "theirs", "x")
	r.fails(r.one(r.listed(3)))
	assert.Equal(r, "x", r.admin("HGET", wire.ListsKey(r.server.Prefix), "theirs"))
}
