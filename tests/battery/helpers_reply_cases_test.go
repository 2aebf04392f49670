package battery

import (
	"os"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A replyCase is an answer of a node that does not come from our scripts. It makes a real server give that answer, and
// has the answer's required meaning.
type replyCase struct {
	name   string
	status wire.Status // the status that a node must report
	text   []string    // the error must contain one of these
	fix    []string    // and one of these remedies; none for a transient fault
	// before runs once, on a healthy server.
	before func(*replyRig)
	// begin causes the fault, and end removes it. end also undoes the side effects of
	// begin.
	begin, end func(*replyRig)
	// during runs while the client waits for the answer.
	during func(*replyRig)
	// once marks a fault that affects one request only.
	once bool
	// passing has the other statuses that are allowed until the fault takes effect.
	passing []wire.Status
	// login marks clients that need a user and a password.
	login bool
	// via returns the address that clients connect to; by default the server itself.
	via func(*replyRig) string
}

// breaking has the allowed statuses while a connection breaks and the client makes another one.
var breaking = []wire.Status{wire.NotApplied, wire.Unknown}

// replyCases are the cases of the table in docs/reference.md: all replies that a server can send us, and all faults of
// the connection.
var replyCases = []replyCase{
	{
		name: "connection refused", status: wire.NotApplied, passing: breaking, text: []string{"connection refused"},
		begin: func(r *replyRig) { r.server.Kill() },
		end:   (*replyRig).restart,
	},
	{
		// The server sends the reason and closes. rueidis has sent more than one command
		// by then, and notices the end before it reads the reason.
		name: "max number of clients reached", status: wire.NotApplied, passing: breaking,
		text: []string{"max number of clients reached", "EOF", "connection reset", "broken pipe"},
		begin: func(r *replyRig) {
			r.do("CONFIG", "RESETSTAT")
			r.do("CONFIG", "SET", "maxclients", "1") // for the administrator
			r.do("CLIENT", "KILL", "TYPE", "normal")
			r.until("the client was refused", func() bool {
				return !strings.Contains(r.do("INFO", "stats"), "rejected_connections:0\r")
			})
		},
		end: func(r *replyRig) { r.do("CONFIG", "SET", "maxclients", "10000") },
	},
	{
		name: "timeout: the server is stopped", status: wire.Unknown, text: []string{"timeout", "no answer within"}, once: true, passing: breaking,
		begin: func(r *replyRig) { r.server.Stop() },
		end:   func(r *replyRig) { r.server.Continue() },
	},
	{
		name: "EOF: the reply of an applied request is lost", status: wire.Unknown, text: []string{"EOF"}, once: true, passing: breaking,
		via: func(r *replyRig) string { return r.proxy.Addr() },
		begin: func(r *replyRig) {
			r.proxy.DropReply(func(cmd []string) bool { return r.ours(cmd) })
		},
		end: func(*replyRig) {},
	},
	{
		name: "EOF: the server closes the connection", status: wire.Unknown, text: []string{"EOF"}, once: true, passing: breaking,
		begin: func(r *replyRig) { r.do("CLIENT", "PAUSE", "60000", "WRITE") },
		during: func(r *replyRig) {
			if r.blocked() {
				r.do("CLIENT", "KILL", "TYPE", "normal")
			}
		},
		end: func(r *replyRig) { r.do("CLIENT", "UNPAUSE") },
	},
	{
		name: "connection reset: the server is killed during the call", status: wire.Unknown, text: []string{"connection reset"}, once: true, passing: breaking,
		begin: func(r *replyRig) { r.server.Stop() },
		during: func(r *replyRig) {
			time.Sleep(50 * time.Millisecond) // the request is in the server's socket
			r.server.Kill()
		},
		end: (*replyRig).restart,
	},
	{
		name: "LOADING", status: wire.Failed, text: []string{"LOADING"},
		begin: (*replyRig).load,
		end:   (*replyRig).restart,
	},
	{
		name: "LOADING at the greeting", status: wire.NotApplied, passing: breaking, text: []string{"LOADING"},
		begin: func(r *replyRig) {
			r.load()
			r.do("CLIENT", "KILL", "TYPE", "normal")
		},
		end: (*replyRig).restart,
	},
	{
		name: "BUSY", status: wire.Failed, text: []string{"BUSY"},
		before: func(r *replyRig) { r.do("CONFIG", "SET", "busy-reply-threshold", "10") },
		begin: func(r *replyRig) {
			busy(r.t, r.server, "while true do end")
			r.until("the script counts as slow", func() bool { return strings.HasPrefix(r.say("PING"), "-BUSY") })
		},
		end: func(r *replyRig) { r.do("SCRIPT", "KILL") },
	},
	{
		name: "MASTERDOWN", status: wire.Failed, text: []string{"MASTERDOWN"},
		begin: func(r *replyRig) {
			r.do("CONFIG", "SET", "replica-serve-stale-data", "no")
			r.do("REPLICAOF", "127.0.0.1", "1")
		},
		end: func(r *replyRig) { r.do("REPLICAOF", "NO", "ONE") },
	},
	{
		name: "NOREPLICAS", status: wire.Failed, text: []string{"NOREPLICAS"},
		begin: func(r *replyRig) { r.do("CONFIG", "SET", "min-replicas-to-write", "1") },
		end:   func(r *replyRig) { r.do("CONFIG", "SET", "min-replicas-to-write", "0") },
	},
	{
		name: "MISCONF", status: wire.Failed, text: []string{"MISCONF"},
		before: func(r *replyRig) { r.do("CONFIG", "SET", "save", "3600 1") },
		begin: func(r *replyRig) {
			require.NoError(r.t, os.Mkdir(r.dump(), 0o700)) // so that no snapshot can have this name
			r.save("err")
		},
		end: func(r *replyRig) {
			require.NoError(r.t, os.Remove(r.dump()))
			r.save("ok")
			require.NoError(r.t, os.Remove(r.dump()))
		},
	},
	{
		name: "OOM", status: wire.Failed, text: []string{"OOM command not allowed"},
		begin: func(r *replyRig) { r.do("CONFIG", "SET", "maxmemory", "1") },
		end:   func(r *replyRig) { r.do("CONFIG", "SET", "maxmemory", "0") },
	},
	{
		name: "READONLY", status: wire.Failed, text: []string{"READONLY"}, once: true, passing: breaking, // then it connects anew
		begin: func(r *replyRig) { r.do("REPLICAOF", "127.0.0.1", "1") },
		end:   func(r *replyRig) { r.do("REPLICAOF", "NO", "ONE") },
	},
	{
		name: "NOAUTH", status: wire.Misconfigured, text: []string{"NOAUTH"}, passing: breaking,
		fix: []string{"set Username and Password"},
		begin: func(r *replyRig) {
			r.do("CONFIG", "SET", "requirepass", "new")
			r.do("CLIENT", "KILL", "TYPE", "normal")
		},
		end: func(r *replyRig) { r.do("CONFIG", "SET", "requirepass", "") },
	},
	{
		name: "WRONGPASS", status: wire.Misconfigured, text: []string{"WRONGPASS"}, login: true, passing: breaking,
		fix: []string{"set Username and Password"},
		begin: func(r *replyRig) {
			r.do("ACL", "SETUSER", user, "resetpass", ">another")
			r.do("CLIENT", "KILL", "TYPE", "normal")
		},
		end: func(r *replyRig) { r.do("ACL", "SETUSER", user, ">"+password) },
	},
	{
		name: "NOPERM, for a command", status: wire.Misconfigured, text: []string{"NOPERM"}, login: true,
		fix:   []string{"give the user +evalsha"},
		begin: func(r *replyRig) { r.do("ACL", "SETUSER", user, "-evalsha") },
		end:   func(r *replyRig) { r.do("ACL", "SETUSER", user, "+evalsha") },
	},
	{
		name: "NOPERM, for a key", status: wire.Misconfigured, text: []string{"NOPERM"}, login: true,
		fix:   []string{"give the user the rights"},
		begin: func(r *replyRig) { r.do("ACL", "SETUSER", user, "resetkeys", "~others:*") },
		end:   func(r *replyRig) { r.do("ACL", "SETUSER", user, "~*") },
	},
	{
		name: "NOPERM, for writing a key", status: wire.Misconfigured, text: []string{"NOPERM"}, login: true,
		fix:   []string{"give the user the rights"},
		begin: func(r *replyRig) { r.do("ACL", "SETUSER", user, "resetkeys", "%R~*") },
		end:   func(r *replyRig) { r.do("ACL", "SETUSER", user, "~*") },
	},
	{
		name: "a right that a script lacks", status: wire.Misconfigured, login: true,
		fix:   []string{"+set"},
		text:  []string{"can't run this command", "ACL failure in script"}, // Redis 7.0, and later
		begin: func(r *replyRig) { r.do("ACL", "SETUSER", user, "-set") },
		end:   func(r *replyRig) { r.do("ACL", "SETUSER", user, "+set") },
	},
	{
		name: "WRONGTYPE", status: wire.Misconfigured, text: []string{"WRONGTYPE"},
		fix:   []string{"choose another prefix or name"},
		begin: func(r *replyRig) { r.do("HSET", lockKey(r.lock), "a", "b") },
		end:   func(r *replyRig) { r.do("DEL", lockKey(r.lock)) },
	},
	{
		name: "a base of the registers that is no number", status: wire.Misconfigured, text: []string{"the base of the registers is no number"},
		fix:   []string{"choose another prefix"},
		begin: func(r *replyRig) { r.do("SET", wire.BaseKey(config.DefaultPrefix), "x") },
		end:   func(r *replyRig) { r.do("DEL", wire.BaseKey(config.DefaultPrefix)) },
	},
	{
		name: "NOSCRIPT: sent again, and granted", status: wire.Granted,
		begin: func(r *replyRig) {
			r.do("CONFIG", "RESETSTAT")
			r.do("SCRIPT", "FLUSH")
		},
		end: func(r *replyRig) {
			require.Contains(r.t, r.do("INFO", "errorstats"), "errorstat_NOSCRIPT:count=")
		},
	},
	{
		name: "taken: the only contention", status: wire.Taken, text: []string{"held"},
		begin: func(r *replyRig) { r.do("SET", lockKey(r.lock), "somebody else") },
		end:   func(r *replyRig) { r.do("DEL", lockKey(r.lock)) },
	},

	// A server in cluster mode is refused when a client connects. So a proxy takes these requests to it, over a
	// connection that another server has accepted. The replies are the real server's.
	{
		name: "CLUSTERDOWN", status: wire.Failed, text: []string{"CLUSTERDOWN"},
		via:   viaBoard,
		begin: func(r *replyRig) { r.board.divert(r.cluster.bare.Addr(), r.ours) },
		end:   func(r *replyRig) { r.board.pass() },
	},
	{
		name: "MOVED", status: wire.Failed, text: []string{"MOVED"}, once: true, passing: breaking, // then it connects anew
		via:    viaBoard,
		before: func(r *replyRig) { r.lock = r.cluster.name(r.t, "moved", false) },
		begin: func(r *replyRig) {
			r.oneSlot()
			r.board.divert(r.cluster.low.Addr(), r.ours)
		},
		end: func(r *replyRig) { r.board.pass() },
	},
	{
		name: "ASK", status: wire.Failed, text: []string{"ASK"}, once: true, passing: breaking, // then it connects anew
		via: viaBoard,
		before: func(r *replyRig) {
			r.lock = r.cluster.name(r.t, "ask", true)
			r.cluster.migrate(r.t, r.lock)
		},
		begin: func(r *replyRig) {
			r.oneSlot()
			r.board.divert(r.cluster.low.Addr(), r.ours)
		},
		end: func(r *replyRig) { r.board.pass() },
	},
	{
		name: "TRYAGAIN", status: wire.Failed, text: []string{"TRYAGAIN"},
		via: viaBoard,
		before: func(r *replyRig) {
			r.lock = r.cluster.name(r.t, "tryagain", true)
			r.cluster.low.MustDo("SET", r.beside("r"), "1") // one of the keys is still there
			r.cluster.migrate(r.t, r.lock)
		},
		begin: func(r *replyRig) {
			r.oneSlot()
			r.board.divert(r.cluster.low.Addr(), r.ours)
		},
		end: func(r *replyRig) { r.board.pass() },
	},
	{
		// A lock and the companion keys of its prefix have different slots, unless the
		// prefix has a hash tag.
		name: "CROSSSLOT", status: wire.Misconfigured, text: []string{"CROSSSLOT"},
		fix:   []string{"list standalone masters"},
		via:   viaBoard,
		begin: func(r *replyRig) { r.board.divert(r.cluster.low.Addr(), r.ours) },
		end:   func(r *replyRig) { r.board.pass() },
	},

	// No server can be made to send these to us. The first does not arrive, see above. The others answer SCRIPT KILL
	// and INCR, which we do not send, and a script that runs for long, which ours do not. So a server sends them to
	// another client, and a proxy sends us the same text.
	{
		name: "max number of clients reached, and the client reads it", status: wire.NotApplied, passing: breaking, text: []string{"max number of clients reached"},
		via: viaBoard,
		begin: func(r *replyRig) {
			r.board.quote(r.quotes["clients"], func([]string) bool { return true })
			r.board.hangUp()
		},
		end: func(r *replyRig) { r.board.pass() },
	},
	{
		name: "UNKILLABLE", status: wire.Failed, text: []string{"UNKILLABLE"},
		via:   viaBoard,
		begin: func(r *replyRig) { r.board.quote(r.quotes["UNKILLABLE"], r.ours) },
		end:   func(r *replyRig) { r.board.pass() },
	},
	{
		name: "script killed", status: wire.Failed, text: []string{"Script killed by user"},
		via:   viaBoard,
		begin: func(r *replyRig) { r.board.quote(r.quotes["killed"], r.ours) },
		end:   func(r *replyRig) { r.board.pass() },
	},
	{
		name: "value is not an integer", status: wire.Misconfigured, text: []string{"not an integer"},
		fix:   []string{"docs/reference.md"},
		via:   viaBoard,
		begin: func(r *replyRig) { r.board.quote(r.quotes["integer"], r.ours) },
		end:   func(r *replyRig) { r.board.pass() },
	},
}
