package battery

import (
	"context"
	"errors"
	"fmt"
	"net"
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
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// replyRig runs a case. It has a server, and the means to cause the fault.
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

// put has a client ask under the fault until the answer is the listed one, and then a few more times: all of these
// answers must be of the listed class. Before that, only the classes of a fault that has not taken effect are allowed.
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
	var noticed []string
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
			noticed = append(noticed, fmt.Sprintf("%s: %v", class, err))
			switch {
			case class == want && (right > 0 || mentions(err, c.text) && (c.fix == nil || mentions(err, c.fix))):
				right++
			case right > 0 || !slices.Contains(passing, class):
				c.end(r)
				r.t.Errorf("%s: %s: %v, which is listed as %s, to be fixed by %q; it said\n%s",
					client.kind(), class, err, want, c.fix, strings.Join(slices.Compact(noticed), "\n"))
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
	r.t.Errorf("%s: never %s with any of %q and of %q; it said\n%s", client.kind(), want, c.text, c.fix, strings.Join(slices.Compact(noticed), "\n"))
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
	for _, tag := range []string{"r", "b", "h", "g", "l"} {
		r.board.replace(config.DefaultPrefix+"\xff"+tag, r.beside(tag))
	}
	queue, watch, set := wire.Companions(lockKey(r.lock))
	for _, key := range []string{queue, watch, set} {
		r.board.replace(key, r.beside(key[len(lockKey(r.lock))+1:]))
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

// say is like do, for commands that may be refused.
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

// save makes a snapshot, which must end with this status.
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

// load has the server load its data. That takes a minute, or until it is restarted.
func (r *replyRig) load() {
	r.do("DEBUG", "POPULATE", "60000")
	r.do("CONFIG", "SET", "key-load-delay", "1000", "loading-process-events-interval-bytes", "1024")
	dialRaw(r.t, r.server.Addr()).send("DEBUG", "RELOAD")
	r.until("the server loads", func() bool { return strings.Contains(r.do("INFO", "persistence"), "loading:1\r") })
}

// A replyClient asks for locks, and reports the class of the answer.
type replyClient interface {
	kind() string
	// class returns the class that the client must report when a node reports s.
	class(s wire.Status) string
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
	c.node = node.New(node.Config{Option: option, Prefix: config.DefaultPrefix, Clock: c.clock.Both, Cap: 2 * time.Second})
	go func() { defer close(c.ended); c.node.Run() }()
	return c
}

func (c *nodeClient) kind() string { return "node" }

func (c *nodeClient) class(s wire.Status) string { return s.String() }

func (c *nodeClient) close() {
	patience, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c.node.Close(patience, nil, nil)
	<-c.ended
}

// replies receives the answer to one request.
type replies chan wire.Reply

func (c replies) Receive(_ int, _ *wire.Request, r *wire.Reply) { c <- *r }

// ask acquires a lock, and then releases it whatever the answer was.
func (c *nodeClient) ask(name string) (string, error) {
	lock, until := wire.LockKey(config.DefaultPrefix, name), c.clock.Steady().Add(10*time.Second)
	now := time.Now()
	value := wire.Compose(strings.Repeat("c", wire.OwnerLen), now.UnixMicro(), string(wire.AppendMetadata(nil, now, "", "")))
	acquire := &wire.Request{}
	acquire.Init(&wire.Acquisition{
		Lock: lock, Value: value, KeyTTL: "5000", NotAfter: until, Token: strconv.FormatInt(now.UnixMicro(), 10),
	})
	reply := c.post(acquire)
	release := wire.Entry{Lock: lock, Value: value}.Release(nil, wire.TicketUpdate{}, until)
	if reply.Status == wire.Granted {
		c.post(release)
	} else {
		c.node.Post(release, make(replies, 1)) // its answer may wait for the end of the fault
	}
	err := reply.Err
	if reply.Status == wire.Taken {
		err = errors.New("held by " + reply.Held)
	}
	if broken := new(wire.ConfigError); errors.As(err, &broken) != (reply.Status == wire.Misconfigured) {
		c.r.t.Errorf("%v is reported as %v", reply.Status, err)
	}
	return reply.Status.String(), err
}

func (c *nodeClient) post(req *wire.Request) wire.Reply {
	answer := make(replies, 1)
	if !c.node.Post(req, answer) {
		return wire.Reply{Status: wire.NotApplied, Err: errors.New("queue full")}
	}
	return <-answer
}

// managerClient is a Manager with this node and a healthy one. Both must grant.
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

func (c *managerClient) class(s wire.Status) string {
	switch s {
	case wire.Granted:
		return granted
	case wire.Taken:
		return taken
	case wire.Misconfigured:
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
	if errors.As(err, &short) {
		short.Nodes = slices.DeleteFunc(short.Nodes, func(n *quorumlock.NodeError) bool {
			return strings.Contains(n.Error(), "answer not awaited") // the other node has decided
		})
	}
	switch {
	case errors.Is(err, quorumlock.ErrHeld) == errors.Is(err, quorumlock.ErrNoQuorum):
		return "both or neither of ErrHeld and ErrNoQuorum", err
	case errors.Is(err, quorumlock.ErrHeld):
		return taken, err
	case !errors.As(err, &short) || len(short.Nodes) != 1 || short.Nodes[0].Node != 0:
		return "another node's error", err
	case short.Nodes[0].Misconfigured:
		return misconfigured, err
	default:
		return "no quorum", err
	}
}

// replyCluster has two masters that share the slots of a cluster, and a third master without slots that is not part of
// it.
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
