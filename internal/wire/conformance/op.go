package conformance

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/wire"
)

const (
	keyLife  = 30_000 // of a lock, ms: on a busy machine a case takes many seconds
	keyTTL   = "30000"
	metadata = "1700000000000000 - label with spaces"
	second   = int64(time.Second / time.Microsecond)
	hour     = 3600 * second
)

// Ahead is how far a register may move ahead of the node's clock in the cases.
const Ahead = 2 * time.Second

// op is one operation of a call of the script.
type op struct {
	key  string
	args []string
}

// on is the same operation on another lock.
func (o op) on(lock string) op { return op{lock, o.args} }

// with is the same operation with another argument.
func (o op) with(i int, arg string) op {
	args := slices.Clone(o.args)
	args[i] = arg
	return op{o.key, args}
}

// The arguments that cases change.
const (
	argTTL      = 2 // of acquire, wait, extend and heal
	argNotAfter = 3 // of acquire, wait and heal
	argTicket   = 5 // of wait
	argMode     = 7 // of wait
)

// Declined is the answer of the lean script to an operation that it leaves to the usual one.
const Declined = "Declined"

// failed is the error text of an operation that failed.
type failed string

// apply runs operations in one call of the script, sent now by a client whose clock
// shows the same as the server's, and returns their answers.
func (r *rig) apply(ops ...op) []any {
	r.Helper()
	return r.applySent(r.micros(), ops...)
}

// applySent is apply for a call that was sent at this instant.
func (r *rig) applySent(at int64, ops ...op) []any {
	r.Helper()
	reply, ok := r.admin(r.command(at, ops...)...).([]any)
	require.True(r, ok)
	require.GreaterOrEqual(r, len(reply), 2)
	assert.InDelta(r, r.micros(), reply[0], float64(5*second), "the node's clock")
	return answersIn(r, reply, len(ops))
}

// answersIn returns the answers in a script's reply.
func answersIn(r *rig, reply []any, operations int) []any {
	r.Helper()
	_, answers, err := Answers(reply)
	require.NoError(r, err)
	require.Len(r, answers, operations)
	return answers
}

// Answers returns the node's clock, µs, and the answers in a reply of the script: numbers, lists, texts for operations
// that failed, and Declined.
func Answers(reply any) (now int64, answers []any, err error) {
	wrong := fmt.Errorf("the script has answered %v", reply)
	parts, _ := reply.([]any)
	if len(parts) < 2 {
		return 0, nil, wrong
	}
	now, _ = parts[0].(int64)
	codes, isText := parts[1].(string)
	details := parts[2:]
	for _, code := range codes {
		switch code {
		case '-':
			answers = append(answers, int64(-1))
		case '?':
			answers = append(answers, Declined)
		case '*':
			if len(details) == 0 {
				return 0, nil, wrong
			}
			answer := details[0]
			if list, _ := answer.([]any); len(list) == 1 {
				text, isText := list[0].(string)
				if !isText {
					return 0, nil, wrong
				}
				answer = failed(text)
			}
			answers, details = append(answers, answer), details[1:]
		default:
			answers = append(answers, int64(code-'0'))
		}
	}
	if !isText || len(details) > 0 { // one detail for each *
		return 0, nil, wrong
	}
	return now, answers, nil
}

func (r *rig) command(at int64, ops ...op) []string {
	keys := []string{r.registers, r.base, r.hint, r.marker, wire.ListsKey(r.server.Prefix)}
	flags := r.flags
	if !r.bare {
		flags += "k"
	}
	if r.sharded() {
		flags += "c"
	}
	args := []string{"0", micros(at), r.known, r.channel, r.capText, flags}
	for _, o := range ops {
		keys = append(keys, o.key)
		if !r.bare {
			queue, watch, set := wire.Companions(o.key)
			keys = append(keys, queue, watch, set)
		}
		args = append(args, o.args...)
	}
	command := append([]string{"EVAL", wire.Apply, strconv.Itoa(len(keys))}, keys...)
	return append(command, args...)
}

// one runs one operation and returns its answer.
func (r *rig) one(o op) any {
	r.Helper()
	return r.apply(o)[0]
}

// fails checks that an operation fails because of a key of another type.
func (r *rig) fails(answer any) {
	r.Helper()
	require.IsType(r, failed(""), answer)
	assert.Contains(r, string(answer.(failed)), "WRONGTYPE")
}

// answer returns the parts of a reply, with each int as an int64.
func answer(parts ...any) []any {
	for i, part := range parts {
		if n, ok := part.(int); ok {
			parts[i] = int64(n)
		}
	}
	return parts
}

// granted is the answer to an acquisition: where the register was moved to (0 for nowhere), where it stood before, and
// how many clients wait.
func granted(moved, from int64, waiting ...int64) []any {
	return answer(moved, from, append(waiting, 0)[0])
}

func micros(us int64) string { return strconv.FormatInt(us, 10) }

func (r *rig) acquire(owner string, t int64) op {
	return op{r.lock, []string{"acquire", wire.Compose(owner, t, metadata), keyTTL, micros(r.micros() + 60*second), micros(t)}}
}

// wait is an acquisition of the n-th waiter.
func (r *rig) wait(owner string, n int) op {
	return r.waitFor(owner, n, r.micros())
}

func (r *rig) waitFor(owner string, n int, t int64) op {
	o := r.acquire(owner, t)
	return op{r.lock, append(append([]string{"wait"}, o.args[1:]...), ticket(n), enqueuedAt(n), "")}
}

func (r *rig) extend(owner string, t int64) op {
	return op{r.lock, []string{"extend", owner + " " + micros(t) + " ", keyTTL}}
}

func (r *rig) heal(owner string) op {
	return op{r.lock, []string{"heal", wire.Compose(owner, 0, metadata), keyTTL, micros(r.micros() + 60*second), micros(r.micros() + 60*second)}}
}

func (r *rig) raise(owner string, t int64) op {
	return op{r.lock, []string{"raise", wire.Compose(owner, t, metadata), micros(t)}}
}

// resume takes the lock over from an owner.
func resume(r *rig, owner, from string, t int64) op {
	o := r.acquire(owner, t)
	return op{r.lock, append(append([]string{"resume"}, o.args[1:]...), from+" ")}
}

func (r *rig) release(owner string) op { return op{r.lock, []string{"release", owner + " "}} }

// leave is the end of the n-th wait, and of the lock if it is the owner's.
func (r *rig) leave(owner string, n int) op {
	return op{r.lock, []string{"leave", owner + " ", ticket(n), "", ""}}
}

// stay releases what the n-th waiter got; the waiter continues to wait.
func (r *rig) stay(owner string, n int, mode string) op {
	return op{r.lock, []string{"leave", owner + " ", ticket(n), enqueuedAt(n), mode}}
}

func (r *rig) pass(n int) op { return passOf(r, ticket(n)) }

// passOf is a pass of this ticket.
func passOf(r *rig, ticket string) op {
	return op{r.lock, []string{"quit", ticket[:wire.TicketLen] + " w ", ticket, "", ""}}
}

// ask and revoke mark the lock of an owner.
func ask(r *rig, owner, note string) op { return mark(r, owner, "a", "0", note) }

func revoke(r *rig, owner, life, note string) op { return mark(r, owner, "x", life, note) }

func detach(r *rig, owner, life string) op { return mark(r, owner, "d", life, "") }

func mark(r *rig, owner, kind, life, note string) op {
	return op{r.lock, []string{"mark", owner + " ", kind, life, micros(r.micros() + 60*second), note}}
}

func drop(r *rig, owner string) op { return op{r.lock, []string{"drop", owner + " "}} }

func back(r *rig, owner, from string) op {
	return op{r.lock, []string{"back", owner + " ", from + " "}}
}

func (r *rig) read() op { return op{r.lock, []string{"read", "", ""}} }

func (r *rig) forget(most int) op {
	return op{r.registers, []string{"forget", micros(hour), strconv.Itoa(most)}}
}

// everyOperation has each operation once, on the rig's lock, by this owner.
func (r *rig) everyOperation(owner string) map[string]op {
	ops := map[string]op{}
	for _, o := range []op{
		r.acquire(owner, r.micros()), r.wait(owner, 9), r.extend(owner, 7), r.heal(owner), r.raise(owner, r.micros()+hour),
		r.release(owner), r.leave(owner, 9), r.pass(9), ask(r, owner, "note"), resume(r, owner, owner, r.micros()), drop(r, owner), back(r, owner, owner), r.read(),
	} {
		ops[o.args[0]] = o
	}
	return ops
}

// sharded reports whether the node is a slot of a cluster, whose wake-ups go by SPUBLISH.
func (r *rig) sharded() bool { return master.SlotTag(&r.server.Option) != "" }

// publish sends a node's message as a stranger.
func (r *rig) publish(text string) {
	r.Helper()
	command := "PUBLISH"
	if r.sharded() {
		command = "SPUBLISH"
	}
	r.admin(command, wire.WakeChannel(r.server.Prefix, Manager), text)
}
