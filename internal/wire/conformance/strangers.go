package conformance

import (
	"strings"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

var strangerCases = []testCase{
	{"a value that is not ours to its last byte is another program's, whatever it begins with", leavesStrangersAlone},
}

// strangers are values of other programs that begin as ours do.
func strangers() []string {
	lease := wire.Compose(bob, 7, metadata)
	return []string{
		"s ", "s hello", "s " + lease, theirs[:len(theirs)-1], theirs + "x", strings.ToUpper(theirs), "s " + wire.Nobody + " 1 0 - ",
		"s " + wire.Nobody + " a 0 0 - ", "s " + wire.Nobody + " w ", "x " + theirs[2:], "x " + wire.Nobody + " hello", "d " + theirs[2:], theirs[2:],
		strings.Repeat("z", wire.OwnerLen) + " w ", strings.ToUpper(bob) + " w ", bob + " w  ", strings.Repeat(" ", wire.OwnerLen) + " w ",
	}
}

// meets has each operation that may meet another program's lock. Only marks name no owner.
func meets(r *rig) (ops []op) {
	for _, o := range r.everyOperation(alice) {
		ops = append(ops, o)
	}
	for _, owner := range []string{alice, wire.Nobody} {
		ops = append(ops, ask(r, owner, "note"), revoke(r, owner, "90000", "note"), detach(r, owner, "90000"))
	}
	return append(ops, r.wait(alice, 1).with(argMode, "l"), r.stay(alice, 1, "y"), r.stay(alice, 1, "f"),
		share(r, alice), shareFor(r, alice, 3), prolong(r, alice), restore(r, alice), align(r, alice, r.micros()), quit(r, alice),
		quit(r, alice).with(argQuitTicket, readerTicket(3)), op{r.lock, []string{"read", reader(alice), ""}})
}

// argQuitTicket is the ticket of quit.
const argQuitTicket = 2

func leavesStrangersAlone(r *rig) {
	r.subscribe()
	queues := [][]string{nil, {ticket(1), readerTicket(2)}, {readerTicket(2), ticket(1)}}
	for i, value := range strangers() {
		for j, o := range meets(r) {
			r.admin("FLUSHALL")
			for k, waiter := range queues[(i+j)%len(queues)] { // each operation meets each queue, and each value
				r.admin("ZADD", r.queue, enqueuedAt(k), waiter)
				r.admin("SET", r.hint, "1")
			}
			r.admin("ZADD", wire.ReadersKey(r.lock), "1", reader(alice)) // has ended
			r.admin("SET", r.lock, value, "PX", "50000")
			got := r.one(o)
			assert.Equal(r, value, r.admin("GET", r.lock), "%s of %q", o.args[0], value)
			r.left(50_000, r.pttl(r.lock), "%s of %q", o.args[0], value)
			switch o.args[0] {
			case "acquire", "wait", "share", "resume", "read":
				assert.Equal(r, value, got.([]any)[0], "%s", o.args[0])
			case "raise":
				assert.EqualValues(r, -1, got.([]any)[0], "%s", o.args[0])
			default:
				assert.Equal(r, int64(-1), got, "%s of %q", o.args[0], value)
			}
		}
	}
}
