package conformance

import (
	"regexp"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var companionCases = []testCase{
	{"a call without the companions of its locks answers as one with them, or declines and does nothing", agreesWithoutCompanions},
	{"what needs no companions is never declined", needsNoCompanions},
	{"a node that is declined asks again with the companions", asksWithCompanions},
}

// companionStates has states of a lock, and whether acquire, release and extend need its companions in them.
var companionStates = []struct {
	name  string
	make  func(r *rig)
	needs map[string]bool
}{
	{"free", func(*rig) {}, nil},
	{"ours", func(r *rig) { leanOurs(r, 5) }, nil},
	{"ours, asked for", func(r *rig) { leanOurs(r, 5); r.one(ask(r, alice, note)) }, nil},
	{"ours, revoked", func(r *rig) { leanOurs(r, 5); r.one(revoke(r, alice, "60000", note)) }, nil},
	{"ours, detached", func(r *rig) { leanOurs(r, 5); r.one(detach(r, alice, "60000")) }, nil},
	{"another's", func(r *rig) { r.admin("SET", r.lock, wire.Compose(bob, 7, metadata), "PX", "60000") }, nil},
	{"another's, empty", func(r *rig) { r.admin("SET", r.lock, "") }, nil},
	{"reserved", func(r *rig) { r.admin("SET", r.lock, ticket(1)[:wire.TicketLen]+" w ", "PX", "60000") }, nil},
	{"readers have it", func(r *rig) { r.one(share(r, bob)) }, map[string]bool{"acquire": true, "extend": true}},
	{"free, the prefix has a queue", leanQueue, map[string]bool{"acquire": true, "release": true, "extend": true}},
	{"ours, the prefix has a queue", func(r *rig) { leanQueue(r); leanOurs(r, 5) }, map[string]bool{"acquire": true, "release": true, "extend": true}},
}

var instants = regexp.MustCompile(`\b[0-9]{13}\b`)

// timeless is a dump without the instants at which readers end.
func timeless(dump map[string]string) map[string]string {
	for key, content := range dump {
		dump[key] = instants.ReplaceAllString(content, "then")
	}
	return dump
}

func agreesWithoutCompanions(r *rig) {
	t := r.micros()
	for _, s := range companionStates {
		for _, o := range []op{r.acquire(alice, t), r.acquire(alice, t).with(argNotAfter, micros(t-second)), r.extend(alice, 5), r.extend(bob, 5), r.release(alice)} {
			r.admin("FLUSHALL")
			s.make(r)
			before := r.dump()
			r.bare = true
			got := r.one(o)
			r.bare = false
			after := r.dump()
			assert.Equal(r, s.needs[o.args[0]], got == Declined, "%s: %v", s.name, o.args)
			if got == Declined {
				assert.Equal(r, before, after, "%s: %v", s.name, o.args)
				continue
			}
			r.admin("FLUSHALL")
			s.make(r)
			want := r.one(o)
			if list, ok := want.([]any); ok { // the life of a lock differs from call to call
				assert.Equal(r, list[0], got.([]any)[0], "%s: %v", s.name, o.args)
			} else {
				assert.Equal(r, want, got, "%s: %v", s.name, o.args)
			}
			assert.Equal(r, timeless(r.dump()), timeless(after), "%s: %v", s.name, o.args)
		}
	}
}

func needsNoCompanions(r *rig) {
	leanQueue(r)
	leanOurs(r, 5)
	r.bare = true
	for _, o := range []op{
		back(r, alice, bob), r.forget(8), {r.marker, r.guard("", 0, "", "").args}, {r.server.Prefix, []string{"scan", "0", "*", "10"}},
	} {
		assert.NotEqual(r, Declined, r.one(o), "%v", o.args)
	}
}

func asksWithCompanions(r *rig) {
	r.subscribe()
	n := r.connect()
	leanQueue(r)
	got := r.on(n, r.request(bob, r.micros()))
	assert.Equal(r, []any{wire.Taken, ticket(1)[:wire.TicketLen]}, []any{got.Status, wire.ParseValue(got.Held).Owner}, "the queue comes first")
	r.woken(r.reservedFor(1))
	leanQueue(r)
	leanOurs(r, 6)
	n = r.connect()
	renewal := wire.NewBatch(wire.Extend, 2, r.soon(10*time.Second))
	for _, lock := range []string{r.lock, r.lock + "2"} {
		wire.Entry{Lock: lock, Value: wire.Compose(alice, 6, metadata)}.Extend(renewal, keyTTL)
	}
	assert.Equal(r, []int64{wire.Ours, wire.Missing}, r.on(n, renewal).Answers)
	r.left(keyLife, r.pttl(r.lock))
}
