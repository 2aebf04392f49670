package battery

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// operation is one operation in a call of the library's script, as the files of internal/wire/lua list them.
type operation struct {
	name string
	key  string   // of the lock
	args []string // without the name
}

// arguments returns how many arguments each operation has.
var arguments = map[string]int{
	"acquire": 4, "wait": 7, "extend": 2, "heal": 4, "raise": 2, "release": 1, "leave": 4, "read": 2,
	"share": 6, "prolong": 2, "restore": 4, "quit": 4, "anew": 4, "forget": 2, "guard": 7, "list": 9, "announce": 3,
}

// leanArguments returns how many arguments each operation of the lean script has.
var leanArguments = map[string]int{"acquire": 4, "release": 1}

const (
	shared = 5 // keys before the keys of the locks
	frame  = 6 // arguments before the first operation; the last one has the flags
)

// operations returns the operations of a command, or none if it isn't a call of the script. known is false if one of
// them is unknown.
func operations(cmd []string) (all []operation, known bool) {
	if len(cmd) < 3 || !strings.EqualFold(cmd[0], "EVALSHA") {
		return nil, true
	}
	keys, err := strconv.Atoi(cmd[2])
	if isLean(cmd) {
		op := cmd[3+keys]
		n := leanArguments[op]
		return []operation{{name: op, key: cmd[3], args: cmd[4+keys : min(4+keys+n, len(cmd))]}}, len(cmd) >= 4+keys+n
	}
	if err != nil || keys < shared || len(cmd) < 3+keys+frame {
		return nil, false
	}
	step, args := 1, cmd[3+keys+frame:]
	if strings.Contains(cmd[3+keys+frame-1], "k") { // each lock has three companion keys
		step = 4
	}
	for at := 3 + shared; at < 3+keys; at += step {
		key := cmd[at]
		if len(args) == 0 {
			return all, false
		}
		n, ok := arguments[args[0]]
		if !ok || len(args) < 1+n {
			return all, false
		}
		all = append(all, operation{name: args[0], key: key, args: args[1 : 1+n]})
		args = args[1+n:]
	}
	return all, len(args) == 0
}

// isLean reports whether a command is a call of the script for lone callers, whose first key is the lock.
func isLean(cmd []string) bool {
	return len(cmd) > 6 && cmd[2] == "2" && (cmd[5] == "acquire" || cmd[5] == "release")
}

// asks reports whether a command has an operation of this kind. A client with queues
// acquires by "wait", and releases by "leave". A reader has operations of its own.
func asks(cmd []string, kind string) bool {
	all, _ := operations(cmd)
	return slices.ContainsFunc(all, func(op operation) bool { return op.kind() == kind })
}

func (op operation) kind() string {
	switch op.name {
	case "wait", "share", "anew":
		return "acquire"
	case "leave", "quit":
		if strings.HasSuffix(op.args[0], " w ") { // the value is a ticket, and not a lease
			return "pass"
		}
		return "release"
	case "prolong":
		return "extend"
	case "restore":
		return "heal"
	default:
		return op.name
	}
}

// The rows recognise operations by their names. If the script used other names or arguments, the rows would drop
// nothing.
func TestTheRowsKnowEveryOperationOfTheScript(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	proxies, addrs := testkit.Proxied(t, []*redistest.Server{server})
	seen := map[string]bool{}
	commands := make(chan []string, 1000)
	proxies[0].DelayCommand(func(cmd []string) bool { // sees every command
		select {
		case commands <- slices.Clone(cmd):
		default:
		}
		return false
	}, 0)
	m := testkit.Connect(t, addrs, quorumlock.WithRestartGuard(config.DefaultTTL), quorumlock.WithTrustEmptyNodes())
	for i := range 4 { // every second one is refused, and waits
		acquire := m.Acquire
		if i > 1 {
			acquire = testkit.With(m.Acquire, quorumlock.Shared())
		}
		l, err := acquire(t.Context(), "job")
		require.NoError(t, err)
		require.NoError(t, l.Renew(t.Context()))
		require.NoError(t, l.Verify(t.Context()))
		require.NoError(t, l.Release(t.Context()))
		server.MustDo("SET", lockKey("job"), "somebody else", "PX", "300")
	}
	for len(commands) > 0 {
		all, known := operations(<-commands)
		assert.True(t, known)
		for _, op := range all {
			seen[op.kind()], seen[op.name] = true, true
			if op.name != "guard" && op.name != "list" && op.name != "announce" && op.name != "forget" && op.key != wire.GuardKey(config.DefaultPrefix) {
				assert.Equal(t, lockKey("job"), op.key, op.name)
			}
		}
	}
	for _, kind := range []string{"acquire", "extend", "release", "read", "guard", "share", "prolong", "quit"} {
		assert.True(t, seen[kind], kind)
	}
}
