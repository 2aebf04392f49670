package battery

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// A replyCase is one answer of a node that does not come from our scripts, how to make a
// real server give it, and its required meaning.
type replyCase struct {
	name   string
	status node.Status // the status that a node must report
	text   []string    // the error has to contain one of these
	fix    []string    // and one of these remedies; none for a fault that passes
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
	passing []node.Status
	// login marks clients that need a user and a password.
	login bool
	// via returns the address that clients connect to; by default the server itself.
	via func(*replyRig) string
}

// breaking has the statuses while a connection breaks and another one is made.
var breaking = []node.Status{node.Unsent, node.Unknown}

// replyCases are those of the table in docs/operations.md: all replies that a server can
// send us, and all that can happen to the connection.
var replyCases = []replyCase{
	{
		name: "connection refused", status: node.Unsent, passing: breaking, text: []string{"connection refused"},
		begin: func(r *replyRig) { r.server.Kill() },
		end:   (*replyRig).restart,
	},
	{
		// The server sends the reason and closes. rueidis has sent more than one command
		// by then, and notices the end before it reads the reason.
		name: "max number of clients reached", status: node.Unsent, passing: breaking,
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
		name: "timeout: the server is stopped", status: node.Unknown, text: []string{"timeout", "no answer in time"}, once: true, passing: breaking,
		begin: func(r *replyRig) { r.server.Stop() },
		end:   func(r *replyRig) { r.server.Continue() },
	},
	{
		name: "EOF: the reply of an applied request is lost", status: node.Unknown, text: []string{"EOF"}, once: true, passing: breaking,
		via: func(r *replyRig) string { return r.proxy.Addr() },
		begin: func(r *replyRig) {
			r.proxy.DropReply(func(cmd []string) bool { return r.ours(cmd) })
		},
		end: func(*replyRig) {},
	},
	{
		name: "EOF: the server closes the connection", status: node.Unknown, text: []string{"EOF"}, once: true, passing: breaking,
		begin: func(r *replyRig) { r.do("CLIENT", "PAUSE", "60000", "WRITE") },
		during: func(r *replyRig) {
			if r.blocked() {
				r.do("CLIENT", "KILL", "TYPE", "normal")
			}
		},
		end: func(r *replyRig) { r.do("CLIENT", "UNPAUSE") },
	},
	{
		name: "connection reset: the server is killed during the call", status: node.Unknown, text: []string{"connection reset"}, once: true, passing: breaking,
		begin: func(r *replyRig) { r.server.Stop() },
		during: func(r *replyRig) {
			time.Sleep(50 * time.Millisecond) // the request is in the server's socket
			r.server.Kill()
		},
		end: (*replyRig).restart,
	},
	{
		name: "LOADING", status: node.Failed, text: []string{"LOADING"},
		begin: (*replyRig).load,
		end:   (*replyRig).restart,
	},
	{
		name: "LOADING at the greeting", status: node.Unsent, passing: breaking, text: []string{"LOADING"},
		begin: func(r *replyRig) {
			r.load()
			r.do("CLIENT", "KILL", "TYPE", "normal")
		},
		end: (*replyRig).restart,
	},
	{
		name: "BUSY", status: node.Failed, text: []string{"BUSY"},
		before: func(r *replyRig) { r.do("CONFIG", "SET", "busy-reply-threshold", "10") },
		begin: func(r *replyRig) {
			busy(r.t, r.server, "while true do end")
			r.until("the script counts as slow", func() bool { return strings.HasPrefix(r.say("PING"), "-BUSY") })
		},
		end: func(r *replyRig) { r.do("SCRIPT", "KILL") },
	},
	{
		name: "MASTERDOWN", status: node.Failed, text: []string{"MASTERDOWN"},
		begin: func(r *replyRig) {
			r.do("CONFIG", "SET", "replica-serve-stale-data", "no")
			r.do("REPLICAOF", "127.0.0.1", "1")
		},
		end: func(r *replyRig) { r.do("REPLICAOF", "NO", "ONE") },
	},
	{
		name: "NOREPLICAS", status: node.Failed, text: []string{"NOREPLICAS"},
		begin: func(r *replyRig) { r.do("CONFIG", "SET", "min-replicas-to-write", "1") },
		end:   func(r *replyRig) { r.do("CONFIG", "SET", "min-replicas-to-write", "0") },
	},
	{
		name: "MISCONF", status: node.Failed, text: []string{"MISCONF"},
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
		name: "OOM", status: node.Failed, text: []string{"OOM command not allowed"},
		begin: func(r *replyRig) { r.do("CONFIG", "SET", "maxmemory", "1") },
		end:   func(r *replyRig) { r.do("CONFIG", "SET", "maxmemory", "0") },
	},
	{
		name: "READONLY", status: node.Failed, text: []string{"READONLY"}, once: true, passing: breaking, // then it is dialled anew
		begin: func(r *replyRig) { r.do("REPLICAOF", "127.0.0.1", "1") },
		end:   func(r *replyRig) { r.do("REPLICAOF", "NO", "ONE") },
	},
	{
		name: "NOAUTH", status: node.Misconfigured, text: []string{"NOAUTH"}, passing: breaking,
		fix: []string{"set Username and Password"},
		begin: func(r *replyRig) {
			r.do("CONFIG", "SET", "requirepass", "new")
			r.do("CLIENT", "KILL", "TYPE", "normal")
		},
		end: func(r *replyRig) { r.do("CONFIG", "SET", "requirepass", "") },
	},
	{
		name: "WRONGPASS", status: node.Misconfigured, text: []string{"WRONGPASS"}, login: true, passing: breaking,
		fix: []string{"set Username and Password"},
		begin: func(r *replyRig) {
			r.do("ACL", "SETUSER", user, "resetpass", ">another")
			r.do("CLIENT", "KILL", "TYPE", "normal")
		},
		end: func(r *replyRig) { r.do("ACL", "SETUSER", user, ">"+password) },
	},
	{
		name: "NOPERM, for a command", status: node.Misconfigured, text: []string{"NOPERM"}, login: true,
		fix:   []string{"give the user the rights"},
		begin: func(r *replyRig) { r.do("ACL", "SETUSER", user, "-evalsha") },
		end:   func(r *replyRig) { r.do("ACL", "SETUSER", user, "+evalsha") },
	},
	{
		name: "NOPERM, for a key", status: node.Misconfigured, text: []string{"NOPERM"}, login: true,
		fix:   []string{"give the user the rights"},
		begin: func(r *replyRig) { r.do("ACL", "SETUSER", user, "resetkeys", "~others:*") },
		end:   func(r *replyRig) { r.do("ACL", "SETUSER", user, "~*") },
	},
	{
		name: "NOPERM, for writing a key", status: node.Misconfigured, text: []string{"NOPERM"}, login: true,
		fix:   []string{"give the user the rights"},
		begin: func(r *replyRig) { r.do("ACL", "SETUSER", user, "resetkeys", "%R~*") },
		end:   func(r *replyRig) { r.do("ACL", "SETUSER", user, "~*") },
	},
	{
		name: "a right that a script lacks", status: node.Misconfigured, login: true,
		fix:   []string{"+set", "the 'set' command"},
		text:  []string{"can't run this command", "ACL failure in script"}, // Redis 7.0, and later
		begin: func(r *replyRig) { r.do("ACL", "SETUSER", user, "-set") },
		end:   func(r *replyRig) { r.do("ACL", "SETUSER", user, "+set") },
	},
	{
		name: "WRONGTYPE", status: node.Misconfigured, text: []string{"WRONGTYPE"},
		fix:   []string{"choose another prefix or name"},
		begin: func(r *replyRig) { r.do("HSET", lockKey(r.lock), "a", "b") },
		end:   func(r *replyRig) { r.do("DEL", lockKey(r.lock)) },
	},
	{
		name: "a base of the registers that is no number", status: node.Misconfigured, text: []string{"the base of the registers is no number"},
		fix:   []string{"choose another prefix"},
		begin: func(r *replyRig) { r.do("SET", node.BaseKey(quorumlock.DefaultPrefix), "x") },
		end:   func(r *replyRig) { r.do("DEL", node.BaseKey(quorumlock.DefaultPrefix)) },
	},
	{
		name: "NOSCRIPT: sent again, and granted", status: node.Granted,
		begin: func(r *replyRig) {
			r.do("CONFIG", "RESETSTAT")
			r.do("SCRIPT", "FLUSH")
		},
		end: func(r *replyRig) {
			require.Contains(r.t, r.do("INFO", "errorstats"), "errorstat_NOSCRIPT:count=")
		},
	},
	{
		name: "taken: the only contention", status: node.Taken, text: []string{"held"},
		begin: func(r *replyRig) { r.do("SET", lockKey(r.lock), "somebody else") },
		end:   func(r *replyRig) { r.do("DEL", lockKey(r.lock)) },
	},

	// A server in cluster mode is refused at the greeting. So a proxy takes these
	// requests to it, over a connection that was greeted elsewhere. The replies are the
	// real server's.
	{
		name: "CLUSTERDOWN", status: node.Failed, text: []string{"CLUSTERDOWN"},
		via:   viaBoard,
		begin: func(r *replyRig) { r.board.divert(r.cluster.bare.Addr(), r.ours) },
		end:   func(r *replyRig) { r.board.pass() },
	},
	{
		name: "MOVED", status: node.Failed, text: []string{"MOVED"}, once: true, passing: breaking, // then it is dialled anew
		via:    viaBoard,
		before: func(r *replyRig) { r.lock = r.cluster.name(r.t, "moved", false) },
		begin: func(r *replyRig) {
			r.oneSlot()
			r.board.divert(r.cluster.low.Addr(), r.ours)
		},
		end: func(r *replyRig) { r.board.pass() },
	},
	{
		name: "ASK", status: node.Failed, text: []string{"ASK"}, once: true, passing: breaking, // then it is dialled anew
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
		name: "TRYAGAIN", status: node.Failed, text: []string{"TRYAGAIN"},
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
		name: "CROSSSLOT", status: node.Misconfigured, text: []string{"CROSSSLOT"},
		fix:   []string{"list standalone masters"},
		via:   viaBoard,
		begin: func(r *replyRig) { r.board.divert(r.cluster.low.Addr(), r.ours) },
		end:   func(r *replyRig) { r.board.pass() },
	},

	// No server can be made to send these to us. The first does not arrive, see above.
	// The others answer SCRIPT KILL and INCR, which we do not send, and a script that
	// runs for long, which ours do not. So a server sends them to another client, and a
	// proxy sends the same text to us.
	{
		name: "max number of clients reached, and heard", status: node.Unsent, passing: breaking, text: []string{"max number of clients reached"},
		via: viaBoard,
		begin: func(r *replyRig) {
			r.board.quote(r.quotes["clients"], func([]string) bool { return true })
			r.board.hangUp()
		},
		end: func(r *replyRig) { r.board.pass() },
	},
	{
		name: "UNKILLABLE", status: node.Failed, text: []string{"UNKILLABLE"},
		via:   viaBoard,
		begin: func(r *replyRig) { r.board.quote(r.quotes["UNKILLABLE"], r.ours) },
		end:   func(r *replyRig) { r.board.pass() },
	},
	{
		name: "script killed", status: node.Failed, text: []string{"Script killed by user"},
		via:   viaBoard,
		begin: func(r *replyRig) { r.board.quote(r.quotes["killed"], r.ours) },
		end:   func(r *replyRig) { r.board.pass() },
	},
	{
		name: "value is not an integer", status: node.Misconfigured, text: []string{"not an integer"},
		fix:   []string{"docs/operations.md"},
		via:   viaBoard,
		begin: func(r *replyRig) { r.board.quote(r.quotes["integer"], r.ours) },
		end:   func(r *replyRig) { r.board.pass() },
	},
}

// Each case goes to a node, which reports the exact status, and to a Manager of two
// nodes, the other of which always grants. A fault must never be reported as contention.
// A fault that passes must not be reported as a misconfiguration, or the other way round.
// After the fault the node has to recover by itself, with no keys left behind.
func TestEveryErrorReplyIsClassifiedAsListed(t *testing.T) {
	r := newRow(t, "error replies of real servers")
	healthy := redistest.Start(t, 1)[0]
	cluster := newReplyCluster(t)
	quotes := newQuotes(t)
	var mu sync.Mutex
	right := 0
	t.Run("each", func(t *testing.T) {
		for i, c := range replyCases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				rig := newReplyRig(t, fmt.Sprintf("reply-%d", i))
				rig.healthy, rig.cluster, rig.quotes = healthy, cluster, quotes
				ok := rig.run(c)
				mu.Lock()
				defer mu.Unlock()
				if ok && !t.Failed() {
					right++
				}
			})
		}
	})
	r.figure(fmt.Sprintf("classified as listed, and back after the fault: %d/%d", right, len(replyCases)), "all",
		right == len(replyCases))
}

// At its memory limit a server refuses commands that allocate. The result must be: no new
// lease, and none lost. Without renewals all would be lost.
func TestHoldersKeepTheirLeasesWhenTheNodesAreFull(t *testing.T) {
	const ttl = 3 * time.Second // long enough that a busy machine still renews
	leases, rounds := 50, count(20, 1)
	r := newRow(t, fmt.Sprintf("all nodes out of memory for 1.5 TTL %d times, N=3", rounds))
	servers := redistest.Start(t, 3)
	m := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTTL(ttl))
	kept, refused, released, left, grants := 0, 0, 0, 0, 0
	for round := range rounds {
		var live []*quorumlock.Lease
		for i := range leases {
			l, err := m.Acquire(t.Context(), fmt.Sprintf("held-%d-%d", round, i))
			require.NoError(t, err)
			live = append(live, l)
		}
		for _, s := range servers {
			s.MustDo("CONFIG", "SET", "maxmemory", "1")
		}
		for end := time.Now().Add(ttl * 3 / 2); time.Now().Before(end); time.Sleep(ttl / 30) {
			l, err := m.TryAcquire(t.Context(), "new")
			switch {
			case err == nil:
				grants++
				require.NoError(t, l.Release(t.Context()))
			case !errors.Is(err, quorumlock.ErrNoQuorum) || errors.Is(err, quorumlock.ErrHeld):
				t.Errorf("refused as %v", err)
			case strings.Contains(err.Error(), "OOM"):
				refused++
			}
		}
		for _, l := range live {
			if l.Valid() {
				kept++
			}
			if err := l.Release(t.Context()); err == nil {
				released++
			}
		}
		within(10*time.Second, func() bool { return countLocks(servers) == 0 })
		left += countLocks(servers)
		for _, s := range servers {
			s.MustDo("CONFIG", "SET", "maxmemory", "0")
		}
		patiently(t, "a lease is granted", func() bool {
			l, err := m.TryAcquire(t.Context(), "new")
			return err == nil && l.Release(t.Context()) == nil
		})
	}
	r.figure(fmt.Sprintf("leases kept %d/%d", kept, leases*rounds), "all", kept == leases*rounds)
	r.figure(fmt.Sprintf("new leases granted %d, refused for want of memory %d", grants, refused), "none, all",
		grants == 0 && refused > 0)
	r.figure(fmt.Sprintf("released while full %d/%d, keys left %d", released, leases*rounds, left), "all, 0",
		released == leases*rounds && left == 0)
}

// Valkey names its mode differently from Redis. A cluster is no set of independent nodes
// under either name.
func TestAClusterIsRefusedByEitherNameOfItsMode(t *testing.T) {
	r := newRow(t, "a cluster refused by its mode")
	names := []string{"redis_mode", "server_mode"}
	refused := 0
	for _, name := range names {
		board := newSwitchboard(t, redistest.Start(t, 1)[0].Addr())
		info := "# Server\r\nrun_id:0123456789012345678901234567890123456789\r\n" + name + ":cluster\r\n"
		board.quote(fmt.Sprintf("$%d\r\n%s\r\n", len(info), info), func(cmd []string) bool {
			return len(cmd) == 2 && cmd[0] == "INFO" && cmd[1] == "server"
		})
		m, err := quorumlock.New(t.Context(), quorumlock.Addrs(board.addr()))
		if err == nil {
			require.NoError(t, m.Close(context.Background()))
		}
		if errors.Is(err, quorumlock.ErrInvalid) && strings.Contains(err.Error(), "cluster") {
			refused++
		} else {
			t.Errorf("INFO says %s:cluster, and New returns %v", name, err)
		}
	}
	r.figure(fmt.Sprintf("refused %d/%d", refused, len(names)), "all", refused == len(names))
}

// The user of the cases that need one.
const (
	user     = "worker"
	password = "right"
)

// countLocks returns how many locks there are on servers.
func countLocks(servers []*redistest.Server) (n int) {
	for _, s := range servers {
		for _, key := range s.MustDo("KEYS", lockKey("*")).([]any) {
			if !strings.Contains(key.(string), "\xff") {
				n++
			}
		}
	}
	return n
}

// replyRig runs a case: it has a server, and the means to cause the fault.
type replyRig struct {
	t       *testing.T
	server  *redistest.Server
	healthy *redistest.Server // gives every Manager its other vote
	proxy   *redistest.Proxy  // one way to the server
	board   *switchboard      // another way
	cluster *replyCluster
	quotes  map[string]string
	lock    string // the name that the clients ask for under the fault

	admin *rawConn // a connection to the server from before a fault, or nil
}

func newReplyRig(t *testing.T, lock string) *replyRig {
	t.Helper()
	r := &replyRig{t: t, lock: lock}
	r.server = redistest.Start(t, 1, "--enable-debug-command", "yes")[0]
	r.proxy = redistest.NewProxy(t, r.server.Addr())
	r.board = newSwitchboard(t, r.server.Addr())
	return r
}

func viaBoard(r *replyRig) string { return r.board.addr() }

// run runs a case on a node and on a Manager. It reports whether both results were right.
func (r *replyRig) run(c replyCase) bool {
	r.t.Helper()
	addr := r.server.Addr()
	if c.via != nil {
		addr = c.via(r)
	}
	option := rueidis.ClientOption{InitAddress: []string{addr}}
	if c.login {
		option.Username, option.Password = user, password
		r.do("ACL", "SETUSER", user, "on", ">"+password, "~*", "+@all")
	}
	if c.before != nil {
		c.before(r)
	}
	ok := true
	for _, connect := range []func(rueidis.ClientOption) replyClient{r.nodeClient, r.managerClient} {
		client := connect(option)
		r.until("a healthy node grants", func() bool { return r.probe(client) })
		ok = r.put(c, client) && ok
		client.close()
	}
	return ok
}

// put has a client ask under the fault until the answer is the listed one, and then some
// more: all of these have to be of the listed class. Until then only the classes of a
// fault that has not taken effect are allowed.
//
// On a slow machine a fault that affects one request can be missed, for instance when a
// hanging connection is given up before its use. Then the fault is caused again.
func (r *replyRig) put(c replyCase, client replyClient) bool {
	r.t.Helper()
	want := client.class(c.status)
	var passing []string
	for _, s := range c.passing {
		passing = append(passing, client.class(s))
	}
	rounds, enough := 1, 5
	if c.once {
		rounds, enough = 5, 1
	}
	var heard []string
	for range rounds {
		c.begin(r)
		right := 0
		for deadline := time.Now().Add(25 * time.Second); right < enough && (right > 0 || time.Now().Before(deadline)); time.Sleep(10 * time.Millisecond) {
			var during sync.WaitGroup
			if c.during != nil {
				during.Go(func() { c.during(r) })
			}
			class, err := client.ask(r.lock)
			during.Wait()
			heard = append(heard, fmt.Sprintf("%s: %v", class, err))
			switch {
			case class == want && (right > 0 || mentions(err, c.text) && (c.fix == nil || mentions(err, c.fix))):
				right++
			case right > 0 || !slices.Contains(passing, class):
				c.end(r)
				r.t.Errorf("%s: %s: %v, which is listed as %s, to be mended by %q; it said\n%s",
					client.kind(), class, err, want, c.fix, strings.Join(slices.Compact(heard), "\n"))
				return false
			}
			if c.once {
				break
			}
		}
		c.end(r)
		r.until("the node is back", func() bool { return r.probe(client) })
		if right > 0 {
			r.until("no lock is left", func() bool { return r.left() == 0 })
			return true
		}
	}
	r.t.Errorf("%s: never %s with any of %q and of %q; it said\n%s", client.kind(), want, c.text, c.fix, strings.Join(slices.Compact(heard), "\n"))
	return false
}

func mentions(err error, texts []string) bool {
	return err == nil && texts == nil ||
		err != nil && slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// probe reports whether the client is granted a lock that the fault does not affect.
func (r *replyRig) probe(client replyClient) bool {
	class, _ := client.ask(r.lock + "-probe")
	return class == granted
}

// left counts the locks of this case on both servers.
func (r *replyRig) left() (n int64) {
	for _, s := range []*redistest.Server{r.server, r.healthy} {
		n += s.MustDo("EXISTS", lockKey(r.lock)).(int64)
	}
	return n
}

// ours reports whether a command is about the lock of this case.
func (r *replyRig) ours(cmd []string) bool {
	all, _ := operations(cmd)
	return slices.ContainsFunc(all, func(op operation) bool { return op.key == lockKey(r.lock) })
}

// beside returns a companion key in the slot of the lock.
func (r *replyRig) beside(tag string) string { return "{" + lockKey(r.lock) + "}\xff" + tag }

// oneSlot puts all keys of a request into the slot of its lock, like a prefix with a hash
// tag. Otherwise a cluster answers CROSSSLOT first.
func (r *replyRig) oneSlot() {
	for _, tag := range []string{"r", "b", "h", "g"} {
		r.board.replace(quorumlock.DefaultPrefix+"\xff"+tag, r.beside(tag))
	}
}

// do sends a command over the administrator's connection, and returns the raw reply.
func (r *replyRig) do(args ...string) string {
	reply := r.say(args...)
	if strings.HasPrefix(reply, "-") {
		r.t.Errorf("%q: %s", args, reply)
	}
	return reply
}

// say is do for commands that may be refused.
func (r *replyRig) say(args ...string) string {
	if r.admin == nil {
		r.admin = dialRaw(r.t, r.server.Addr())
	}
	return r.admin.say(args...)
}

func (r *replyRig) until(what string, condition func() bool) {
	r.t.Helper()
	patiently(r.t, what, condition)
}

// blocked waits until the server holds a request back, and reports whether it does.
func (r *replyRig) blocked() bool {
	return within(2*time.Second, func() bool { return !strings.Contains(r.do("INFO", "clients"), "blocked_clients:0\r") })
}

func (r *replyRig) dump() string { return filepath.Join(r.server.Dir(), "dump.rdb") }

// save makes a snapshot, which has to end with this status.
func (r *replyRig) save(status string) {
	r.do("BGSAVE")
	r.until("the snapshot is "+status, func() bool {
		info := r.do("INFO", "persistence")
		return strings.Contains(info, "rdb_bgsave_in_progress:0\r") && strings.Contains(info, "rdb_last_bgsave_status:"+status+"\r")
	})
}

// restart restarts the server after a fault that it did not survive.
func (r *replyRig) restart() {
	r.server.Restart()
	r.admin = nil
}

// load has the server load its data, which takes a minute, until it is restarted.
func (r *replyRig) load() {
	r.do("DEBUG", "POPULATE", "60000")
	r.do("CONFIG", "SET", "key-load-delay", "1000", "loading-process-events-interval-bytes", "1024")
	dialRaw(r.t, r.server.Addr()).send("DEBUG", "RELOAD")
	r.until("the server loads", func() bool { return strings.Contains(r.do("INFO", "persistence"), "loading:1\r") })
}

// A replyClient asks for locks, and reports the class of the answer.
type replyClient interface {
	kind() string
	// class returns the class that the client has to report when a node reports s.
	class(s node.Status) string
	ask(name string) (class string, err error)
	close()
}

// The classes of answers that every client distinguishes.
const (
	granted       = "granted"
	taken         = "taken"
	misconfigured = "misconfigured"
)

// nodeClient is a single node.
type nodeClient struct {
	r     *replyRig
	clock *clock.Clock
	node  *node.Node
	ended chan struct{}
}

func (r *replyRig) nodeClient(option rueidis.ClientOption) replyClient {
	c := &nodeClient{r: r, clock: clock.New(), ended: make(chan struct{})}
	c.node = node.New(node.Config{Option: option, Prefix: quorumlock.DefaultPrefix, Clock: c.clock.Both, Cap: 2 * time.Second})
	go func() { defer close(c.ended); c.node.Run() }()
	return c
}

func (c *nodeClient) kind() string               { return "node" }
func (c *nodeClient) class(s node.Status) string { return s.String() }

func (c *nodeClient) close() {
	patience, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c.node.Close(patience, nil, nil)
	<-c.ended
}

// replies receives the answer to one request.
type replies chan node.Reply

func (c replies) Receive(_ int, _ *node.Request, r *node.Reply) { c <- *r }

// ask acquires a lock, and then releases it whatever the answer was.
func (c *nodeClient) ask(name string) (string, error) {
	lock, until := node.LockKey(quorumlock.DefaultPrefix, name), c.clock.Steady()+10*time.Second
	now := time.Now()
	value := node.Compose(strings.Repeat("c", node.OwnerLen), now.UnixMicro(), string(node.AppendMetadata(nil, now, "", "")))
	acquire := &node.Request{}
	acquire.Init(&node.Acquisition{
		Lock: lock, Value: value, KeyTTL: "5000", NotAfter: until, Token: strconv.FormatInt(now.UnixMicro(), 10),
	})
	reply := c.post(acquire)
	release := node.NewRelease(lock, value, nil, node.TicketUpdate{}, until)
	if reply.Status == node.Granted {
		c.post(release)
	} else {
		c.node.Post(release, make(replies, 1)) // its answer may have to wait for the end of the fault
	}
	err := reply.Err
	if reply.Status == node.Taken {
		err = errors.New("held by " + reply.Held)
	}
	if broken := new(node.ConfigError); errors.As(err, &broken) != (reply.Status == node.Misconfigured) {
		c.r.t.Errorf("%v is reported as %v", reply.Status, err)
	}
	return reply.Status.String(), err
}

func (c *nodeClient) post(req *node.Request) node.Reply {
	answer := make(replies, 1)
	if !c.node.Post(req, answer) {
		return node.Reply{Status: node.Unsent, Err: errors.New("queue full")}
	}
	return <-answer
}

// managerClient is a Manager with this node and a healthy one. Both have to grant.
type managerClient struct {
	r *replyRig
	m *quorumlock.Manager
}

func (r *replyRig) managerClient(option rueidis.ClientOption) replyClient {
	nodes := append([]rueidis.ClientOption{option}, quorumlock.Addrs(r.healthy.Addr())...)
	m, err := quorumlock.New(r.t.Context(), nodes, quorumlock.WithTTL(5*time.Second))
	require.NoError(r.t, err)
	return &managerClient{r: r, m: m}
}

func (c *managerClient) kind() string { return "manager" }

func (c *managerClient) class(s node.Status) string {
	switch s {
	case node.Granted:
		return granted
	case node.Taken:
		return taken
	case node.Misconfigured:
		return misconfigured
	default:
		return "no quorum"
	}
}

func (c *managerClient) close() { require.NoError(c.r.t, c.m.Close(context.Background())) }

func (c *managerClient) ask(name string) (string, error) {
	l, err := c.m.TryAcquire(c.r.t.Context(), name)
	if err == nil {
		return granted, l.Release(c.r.t.Context())
	}
	var short *quorumlock.QuorumError
	switch {
	case errors.Is(err, quorumlock.ErrHeld) == errors.Is(err, quorumlock.ErrNoQuorum):
		return "both or neither of ErrHeld and ErrNoQuorum", err
	case errors.Is(err, quorumlock.ErrHeld):
		return taken, err
	case !errors.As(err, &short) || len(short.Nodes) != 1 || short.Nodes[0].Node != 0:
		return "another node's error", err
	case short.Nodes[0].Misconfigured():
		return misconfigured, err
	default:
		return "no quorum", err
	}
}

// replyCluster is a cluster of two masters that share the slots, and a third master
// without slots that is alone.
type replyCluster struct {
	low, high, bare *redistest.Server
	highID          string
}

func newReplyCluster(t *testing.T) *replyCluster {
	t.Helper()
	servers := redistest.Start(t, 3, "--cluster-enabled", "yes")
	c := &replyCluster{low: servers[0], high: servers[1], bare: servers[2]}
	c.highID = c.high.MustDo("CLUSTER", "MYID").(string)
	c.low.MustDo("CLUSTER", "ADDSLOTSRANGE", "0", "8191")
	c.high.MustDo("CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
	host, port, err := net.SplitHostPort(c.high.Addr())
	require.NoError(t, err)
	c.low.MustDo("CLUSTER", "MEET", host, port)
	patiently(t, "the cluster is up", func() bool {
		return strings.Contains(c.low.MustDo("CLUSTER", "INFO").(string), "cluster_state:ok")
	})
	return c
}

// slot returns the slot of a lock's key.
func (c *replyCluster) slot(name string) int64 {
	return c.low.MustDo("CLUSTER", "KEYSLOT", lockKey(name)).(int64)
}

// name returns the name of a lock whose slot does, or does not, belong to the lower
// master.
func (c *replyCluster) name(t *testing.T, prefix string, low bool) string {
	t.Helper()
	for i := range 1000 {
		if name := fmt.Sprintf("%s-%d", prefix, i); (c.slot(name) < 8192) == low {
			return name
		}
	}
	t.Fatal("no name has a slot there")
	return ""
}

// migrate begins to move the slot of a lock from the lower master to the higher.
func (c *replyCluster) migrate(t *testing.T, name string) {
	t.Helper()
	c.low.MustDo("CLUSTER", "SETSLOT", strconv.FormatInt(c.slot(name), 10), "MIGRATING", c.highID)
}

// newQuotes collects replies that a server never sends to our commands.
func newQuotes(t *testing.T) map[string]string {
	t.Helper()
	s := redistest.Start(t, 1, "--busy-reply-threshold", "10")[0]
	defer s.Kill() // the second script cannot be ended otherwise
	admin := dialRaw(t, s.Addr())
	quotes := map[string]string{}
	kill := func() (reply string) {
		patiently(t, "the script counts as slow", func() bool {
			reply = admin.say("SCRIPT", "KILL")
			return !strings.HasPrefix(reply, "-NOTBUSY")
		})
		return reply
	}
	admin.say("CONFIG", "SET", "maxclients", "1")
	quotes["clients"] = dialRaw(t, s.Addr()).read()
	admin.say("CONFIG", "SET", "maxclients", "10000")
	admin.say("SET", "text", "x")
	quotes["integer"] = admin.say("EVAL", "return redis.call('INCR', 'text')", "0")
	slow := busy(t, s, "while true do end")
	kill()
	quotes["killed"] = slow.read()
	busy(t, s, "redis.call('SET', 'a', 'b') while true do end")
	quotes["UNKILLABLE"] = kill()
	for what, reply := range quotes {
		require.True(t, strings.HasPrefix(reply, "-"), "%s: %q", what, reply)
	}
	return quotes
}

// busy has a server run a script, and returns the connection that waits for it.
func busy(t *testing.T, s *redistest.Server, script string) *rawConn {
	t.Helper()
	conn := dialRaw(t, s.Addr())
	conn.send("EVAL", script, "0")
	return conn
}

// rawConn is a plain connection to a server: it lasts as long as the test, and returns
// raw replies.
type rawConn struct {
	t      *testing.T
	conn   net.Conn
	r      *bufio.Reader
	broken bool
}

func dialRaw(t *testing.T, addr string) *rawConn {
	t.Helper()
	conn, err := net.Dial("tcp4", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &rawConn{t: t, conn: conn, r: bufio.NewReader(conn)}
}

func (c *rawConn) say(args ...string) string {
	c.send(args...)
	return c.read()
}

func (c *rawConn) send(args ...string) {
	if c.broken {
		return
	}
	if _, err := c.conn.Write(encode(args)); err != nil {
		c.t.Errorf("%q: %v", args, err)
		c.broken = true
	}
}

func (c *rawConn) read() string {
	if c.broken {
		return ""
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	reply, err := readRaw(c.r)
	if err != nil {
		c.t.Errorf("reply: %v", err)
		c.broken = true
	}
	return string(reply)
}

func encode(args []string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, arg := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b
}

// readRaw reads one value and returns its bytes.
func readRaw(r *bufio.Reader) ([]byte, error) {
	value, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(value[1:])))
	values := 0
	switch value[0] {
	case '$', '=', '!':
		if n < 0 {
			return value, nil
		}
		body := make([]byte, n+len("\r\n"))
		_, err := io.ReadFull(r, body)
		return append(value, body...), err
	case '*', '~', '>':
		values = n
	case '%':
		values = 2 * n
	}
	for range values {
		v, err := readRaw(r)
		if err != nil {
			return nil, err
		}
		value = append(value, v...)
	}
	return value, nil
}

// readCommand reads one command of a client.
func readCommand(r *bufio.Reader) ([]string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
	if err != nil {
		return nil, err
	}
	cmd := make([]string, n)
	for i := range cmd {
		raw, err := readRaw(r)
		if err != nil {
			return nil, err
		}
		_, word, _ := strings.Cut(string(raw), "\r\n")
		cmd[i] = strings.TrimSuffix(word, "\r\n")
	}
	return cmd, nil
}

// A switchboard is a proxy that can have single commands answered by another server, or
// answer them itself. It passes one command at a time and waits for its reply, so that
// replies stay in order whatever their source.
type switchboard struct {
	ln     net.Listener
	target string
	all    sync.WaitGroup

	mu      sync.Mutex
	conns   []net.Conn
	match   func(cmd []string) bool // nil: all commands pass
	text    string                  // the answer, unless other is set
	other   string                  // the address of the server that answers
	instead map[string]string       // words to replace in diverted commands
}

func newSwitchboard(t *testing.T, target string) *switchboard {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	b := &switchboard{ln: ln, target: target, instead: map[string]string{}}
	b.all.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.conns = append(b.conns, conn)
			b.mu.Unlock()
			b.all.Go(func() { b.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		b.hangUp()
		b.all.Wait()
	})
	return b
}

func (b *switchboard) addr() string { return b.ln.Addr().String() }

// hangUp closes all connections of clients.
func (b *switchboard) hangUp() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, conn := range b.conns {
		_ = conn.Close()
	}
	b.conns = nil
}

// quote answers matching commands with this text.
func (b *switchboard) quote(text string, match func(cmd []string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text, b.match = text, match
}

// divert has matching commands answered by the server at this address.
func (b *switchboard) divert(addr string, match func(cmd []string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.other, b.match = addr, match
}

// replace replaces a word in diverted commands.
func (b *switchboard) replace(word, by string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.instead[word] = by
}

// pass ends quote, divert and replace.
func (b *switchboard) pass() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.match, b.text, b.other = nil, "", ""
	clear(b.instead)
}

func (b *switchboard) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp4", b.target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	requests, replies := bufio.NewReader(client), bufio.NewReader(server)
	for {
		cmd, err := readCommand(requests)
		if err != nil {
			return
		}
		reply := []byte(b.answer(cmd))
		if len(reply) == 0 {
			if _, err := server.Write(encode(cmd)); err != nil {
				return
			}
			if reply, err = readRaw(replies); err != nil {
				return
			}
		}
		if _, err := client.Write(reply); err != nil {
			return
		}
	}
}

// answer returns the reply to a command that does not pass, or "" for one that does.
func (b *switchboard) answer(cmd []string) string {
	b.mu.Lock()
	match, text, other := b.match, b.text, b.other
	for i, word := range cmd {
		if by, ok := b.instead[word]; ok {
			cmd[i] = by
		}
	}
	b.mu.Unlock()
	if match == nil || !match(cmd) {
		return ""
	}
	if other == "" {
		return text
	}
	conn, err := net.Dial("tcp4", other)
	if err != nil {
		return "-ERR switchboard: " + err.Error() + "\r\n"
	}
	defer func() { _ = conn.Close() }()
	if _, err = conn.Write(encode(cmd)); err == nil {
		var reply []byte
		if reply, err = readRaw(bufio.NewReader(conn)); err == nil {
			return string(reply)
		}
	}
	return "-ERR switchboard: " + err.Error() + "\r\n"
}
