package quorumlocktest

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
)

// process is one run of a node's Redis, from start to kill: a miniredis. All commands go
// through the hook, one at a time, under the node's exec. The hook sets miniredis's clock
// to the node's, and corrects replies that differ from the replies of Redis.
type process struct {
	node    *Node
	redis   *miniredis.Miniredis
	srv     *server.Server // redis.Server(), which must not be called while redis may be closed
	runID   string
	replID  string
	started time.Time // on the node's clock

	// Guarded by node.exec:
	scripts     map[string]script // by digest
	subscribers []*session        // those with a subscription
	running     *session          // the session of the running command
	readOnly    bool              // the running script may not write

	mu     sync.Mutex
	lastID int                       // guarded by mu
	peers  map[*server.Peer]*session // guarded by mu; a session is in it under both its peers
}

// session is one connection, as the process sees it. Only the goroutine of the connection
// uses it, except for fields that exec guards.
//
// Commands do not run on miniredis's own peer but on a shadow of it. The shadow's replies
// go to a buffer, where they can be corrected.
type session struct {
	id     int
	peer   *server.Peer // nil for Do
	shadow *server.Peer
	out    *bytes.Buffer // replies of shadow
	multi  bool          // a transaction is open on shadow
	subs   subscriptions // guarded by node.exec
}

// newProcess starts a process. The caller holds node.exec.
func newProcess(n *Node) *process {
	p := &process{
		node:    n,
		redis:   miniredis.NewMiniRedis(),
		runID:   randomID(),
		replID:  randomID(),
		started: n.now(),
		scripts: map[string]script{},
		peers:   map[*server.Peer]*session{},
	}
	p.redis.SetTime(n.now())
	p.redis.ClockTTL(true)
	first, err := p.redis.Dial() // starts the server without a listener
	if err != nil {
		panic(fmt.Sprintf("quorumlocktest: miniredis does not start: %v", err))
	}
	p.srv = p.redis.Server()
	p.srv.SetPreHook(p.hook)
	_ = first.Close()
	return p
}

// stop closes all connections and waits for their goroutines. The node no longer refers
// to the process, so no further command runs.
func (p *process) stop() {
	// A blocking command waits on a condition that Close can fail to signal.
	p.redis.CtxCancel()
	p.redis.FlushAll()
	p.redis.Close()
}

// step moves the clock by d. miniredis counts down the rest of a key's TTL, so a step
// back must be added to it. The caller holds node.exec.
func (p *process) step(d time.Duration) {
	now := p.node.now()
	p.redis.SetTime(now)
	p.redis.DB(0) // expires the keys that are due by now
	if d < 0 {
		p.redis.FastForward(d)
	}
	p.redis.SetTime(now.Add(d))
}

// admit opens a session for a new connection, or for Do if peer is nil.
func (p *process) admit(peer *server.Peer) *session {
	s := &session{peer: peer, out: &bytes.Buffer{}, subs: subscriptions{}}
	s.shadow = server.NewPeer(bufio.NewWriter(s.out))
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lastID++
	s.id = p.lastID
	p.peers[s.shadow] = s
	if peer != nil {
		p.peers[peer] = s
		peer.OnDisconnect(func() { p.dismiss(s) })
	}
	return s
}

func (p *process) dismiss(s *session) {
	p.node.exec.Lock()
	p.subscribers = slices.DeleteFunc(p.subscribers, func(other *session) bool { return other == s })
	p.node.exec.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.peers, s.shadow)
	if s.peer != nil {
		delete(p.peers, s.peer)
	}
}

// clients counts the connections that have sent a command.
func (p *process) clients() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	count := 0
	for peer, s := range p.peers {
		if peer == s.peer {
			count++
		}
	}
	return count
}

func (p *process) session(c *server.Peer) *session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.peers[c]
}

// hook sees every command before miniredis: the commands of connections, the same
// commands again when they run on the shadow, and the commands of scripts. The latter
// come on a nameless peer that has a context from the start. hook returns true when the
// command is done.
func (p *process) hook(c *server.Peer, cmd string, args ...string) bool {
	s := p.session(c)
	if s == nil && c.Ctx == nil {
		s = p.admit(c)
	}
	switch {
	case s == nil:
		return p.nested(c, cmd, args)
	case c == s.shadow:
		return false
	}
	if p.serve(s, cmd, args) == nil || s.shadow.Closed() {
		c.Close() // killed, or QUIT
	}
	return true
}

// serve executes one command when its turn comes, writes the reply to the connection, if
// there is one, and returns it. It returns nil and writes nothing if the process was
// killed before.
func (p *process) serve(s *session, cmd string, args []string) (reply []byte) {
	n := p.node
	n.exec.Lock()
	for n.hung && n.proc == p && s.peer != nil {
		resumed := n.resumed
		n.exec.Unlock()
		<-resumed
		n.exec.Lock()
	}
	defer n.exec.Unlock()
	if n.proc != p {
		return nil
	}
	p.running = s
	p.redis.SetTime(n.now())
	switch {
	case n.failing(s, cmd, args):
		reply = errorReply(n.failWith)
	case p.redirect(cmd, args) != "":
		reply = p.elsewhere(s, cmd, args)
	case blocks(cmd, args):
		// The command may wait for other clients, whose commands need exec.
		n.exec.Unlock()
		reply = p.dispatch(s, cmd, args...)
		n.exec.Lock()
	default:
		reply = p.execute(s, cmd, args)
	}
	if s.peer != nil {
		// Under exec, so that the reply is in order with published messages, and under
		// the current fault.
		s.peer.WriteRaw(string(reply))
		s.peer.Flush()
	}
	return reply
}

// execute runs one command. The caller holds node.exec.
func (p *process) execute(s *session, cmd string, args []string) []byte {
	if s.restricted(cmd) {
		return errorReply("ERR Can't execute '" + strings.ToLower(cmd) +
			"': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context")
	}
	switch cmd {
	case "CLUSTER":
		if p.node.slots != nil {
			return p.node.slots.answer(p.node.index, args, s.shadow.Resp3)
		}
	case "EVAL", "EVAL_RO", "EVALSHA", "EVALSHA_RO":
		if len(args) >= 2 {
			return p.eval(s, cmd, args)
		}
	case "SUBSCRIBE", "UNSUBSCRIBE", "PSUBSCRIBE", "PUNSUBSCRIBE", "SSUBSCRIBE", "SUNSUBSCRIBE":
		return p.subscribe(s, cmd, args)
	case "PUBLISH", "SPUBLISH":
		switch {
		case len(args) == 2 && s.multi: // EXEC runs it, as a nested command
			return p.dispatch(s, "EVAL", "return redis.call('"+cmd+"', ARGV[1], ARGV[2])", "0", args[0], args[1])
		case len(args) == 2:
			return fmt.Appendf(nil, ":%d\r\n", p.publish(cmd == "SPUBLISH", args[0], args[1]))
		}
	case "PUBSUB":
		if reply := p.pubsub(args); reply != nil && !s.multi {
			return reply
		}
	case "PING":
		if len(args) < 2 && s.subs.any() && !s.shadow.Resp3 {
			return []byte("*2\r\n" + bulk("pong") + bulk(strings.Join(args, "")))
		}
	case "SCRIPT":
		if len(args) > 0 && !s.multi {
			return p.script(s, strings.ToUpper(args[0]), args)
		}
	case "INFO":
		if !s.multi {
			return infoReply(p.info(args), s.shadow.Resp3)
		}
	case "CLIENT":
		if reply := p.client(s, args); reply != nil && !s.multi {
			return reply
		}
	case "HELLO":
		return p.hello(s, args)
	}
	reply := p.dispatch(s, cmd, args...)
	switch cmd {
	case "MULTI":
		s.multi = reply[0] == '+'
	case "EXEC", "DISCARD":
		s.multi = false
	}
	return reply
}

// dispatch runs a command of miniredis on the shadow.
func (p *process) dispatch(s *session, cmd string, args ...string) []byte {
	s.out.Reset()
	unenforced(func() { p.srv.Dispatch(s.shadow, append([]string{cmd}, args...)) })
	s.shadow.Flush()
	return correct(bytes.Clone(s.out.Bytes()))
}

// nested runs a script's command itself if miniredis should not run it. The locks of the
// process and of miniredis are held.
func (p *process) nested(c *server.Peer, cmd string, args []string) bool {
	switch {
	case p.node.failing(p.running, cmd, args):
		c.WriteError(p.node.failWith)
	case p.readOnly && p.srv.IsRegisteredCommand(cmd) && !p.srv.IsReadOnlyCommand(cmd) && !slices.Contains(neverWrites, cmd):
		c.WriteError("ERR Write commands are not allowed from read-only scripts.")
	case p.redirect(cmd, args) != "":
		c.WriteError("ERR Script attempted to access a non local key in a cluster node")
	case cmd == "INFO":
		c.WriteBulk(p.info(args))
	case (cmd == "PUBLISH" || cmd == "SPUBLISH") && len(args) == 2:
		c.WriteInt(p.publish(cmd == "SPUBLISH", args[0], args[1]))
	case cmd == "PUBSUB" && p.pubsub(args) != nil:
		c.WriteRaw(string(p.pubsub(args)))
	case cmd == "CLIENT" || cmd == "HELLO":
		c.WriteError("ERR This Redis command is not allowed from script")
	default:
		return false
	}
	return true
}

// neverWrites lists read-only commands that miniredis treats as writes.
var neverWrites = []string{"ECHO", "INFO", "PING", "PUBLISH", "PUBSUB", "SELECT", "SPUBLISH", "TIME"}

// client answers the subcommands of CLIENT that miniredis does not know; nil for others.
func (p *process) client(s *session, args []string) []byte {
	if len(args) == 0 {
		return nil
	}
	switch strings.ToUpper(args[0]) {
	case "ID":
		return fmt.Appendf(nil, ":%d\r\n", s.id)
	case "SETINFO", "NO-EVICT", "NO-TOUCH":
		return []byte("+OK\r\n")
	}
	return nil
}

// hello runs HELLO and corrects its fields.
func (p *process) hello(s *session, args []string) []byte {
	reply := string(p.dispatch(s, "HELLO", args...))
	if strings.HasPrefix(reply, "-") {
		return []byte(reply)
	}
	role := p.field("role")
	if role == "slave" {
		role = "replica"
	}
	return []byte(strings.NewReplacer(
		bulk("miniredis"), bulk("redis"),
		bulk(redisVersion), bulk(p.field("redis_version")),
		":42\r\n", fmt.Sprintf(":%d\r\n", s.id),
		bulk("standalone"), bulk(p.field("redis_mode")),
		bulk("master"), bulk(role),
	).Replace(reply))
}

// blocks reports whether a command may wait for other clients.
func blocks(cmd string, args []string) bool {
	switch cmd {
	case "BLPOP", "BRPOP", "BLMPOP", "BLMOVE", "BRPOPLPUSH", "BZPOPMIN", "BZPOPMAX", "BZMPOP":
		return true
	case "XREAD", "XREADGROUP":
		return slices.ContainsFunc(args, func(arg string) bool { return strings.EqualFold(arg, "BLOCK") })
	}
	return false
}

var expireError = regexp.MustCompile(`invalid expire time in (\w+)`)

// correct changes the text of an error to the text of Redis.
func correct(reply []byte) []byte {
	if len(reply) > 0 && reply[0] == '-' {
		return expireError.ReplaceAll(reply, []byte("invalid expire time in '$1' command"))
	}
	return reply
}

func errorReply(text string) []byte { return []byte("-" + text + "\r\n") }

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

func reader(reply []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(reply)) }

// randomID returns 40 hex digits, the form of run ids and replication ids.
func randomID() string {
	var id [20]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}
