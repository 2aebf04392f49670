package conformance

import (
	"fmt"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var announceCases = []testCase{
	{"an announcement is shown to all, and ends with its key", (*rig).announced},
	{"an announcement that comes too late changes nothing", (*rig).announcedTooLate},
	{"a node shows and keeps a bounded number of announcements", (*rig).announcedBounded},
	{"a key of another type is no announcement, and no error", (*rig).announceSparesOthers},
	{"a full server shows announcements, and refuses no call with one", (*rig).announceOnAFullServer},
}

// announce announces a text for a minute.
func (r *rig) announce(text string) op {
	return op{wire.InUseKey(r.server.Prefix), []string{"announce", text, "60000", micros(r.micros() + 60*second)}}
}

// shown returns the texts in the answer to an announcement, and checks how long they stand.
func (r *rig) shown(o op) (texts []any) {
	r.Helper()
	all, ok := r.one(o).([]any)
	assert.True(r, ok)
	for i := 0; i+1 < len(all); i += 2 {
		texts = append(texts, all[i])
		assert.InDelta(r, 60_000, all[i+1], 30_000, all[i])
	}
	return texts
}

func (r *rig) announced() {
	key := wire.InUseKey(r.server.Prefix)
	assert.Empty(r, r.shown(r.announce("plain 3 a,b,c A")))
	assert.Equal(r, []any{"plain 3 a,b,c A"}, r.shown(r.announce("plain 3 c,d,e C")))
	r.left(60_000, r.pttl(key))
	r.admin("ZADD", key, micros(r.micros()-1), "plain 3 a,b,c A")
	assert.Equal(r, []any{"plain 3 c,d,e C"}, r.shown(r.announce("plain 3 c,d,e C")), "what has ended is not shown")
	assert.EqualValues(r, 1, r.admin("ZCARD", key))
	r.admin("ZADD", key, micros(r.micros()+35*second), "plain 3 c,d,e C")
	r.one(r.announce("plain 3 c,d,e C"))
	left, _ := r.one(r.announce("plain 3 c,d,e C")).([]any)
	r.left(60_000, left[1], "prolonged")
}

func (r *rig) announcedTooLate() {
	late := r.announce("plain 3 a,b,c A").with(3, micros(r.micros()-1))
	r.unchanged(func() { assert.Equal(r, []any{}, r.one(late)) })
}

func (r *rig) announcedBounded() {
	for i := range 70 {
		r.one(r.announce(fmt.Sprint("plain 3 a,b,c ", i)))
	}
	assert.Len(r, r.shown(r.announce("plain 3 a,b,c 7")), 64)
	assert.EqualValues(r, 64, r.admin("ZCARD", wire.InUseKey(r.server.Prefix)))
}

func (r *rig) announceSparesOthers() {
	key := wire.InUseKey(r.server.Prefix)
	r.admin("SET", key, "theirs")
	assert.Equal(r, []any{}, r.one(r.announce("plain 3 a,b,c A")))
	assert.Equal(r, "theirs", r.admin("GET", key))
	assert.EqualValues(r, -1, r.pttl(key))
}

func (r *rig) announceOnAFullServer() {
	r.one(r.announce("plain 3 a,b,c A"))
	fill(r)
	assert.Equal(r, []any{"plain 3 a,b,c A"}, r.shown(r.announce("plain 3 c,d,e C")))
}
