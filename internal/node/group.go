package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A node may be a failover group: a master, and replicas of which one may take its place.
// A term is a stretch in which one server is the master. A promoted replica may lack the
// last writes of the term before, so the restart guard starts a quarantine for every term:
// docs/managed.md has the rules, and docs/safety.md the proof.

// Term is a stretch in which one server is the writable master of a group.
type Term struct {
	Addr  string // host:port of the master
	Epoch int64  // the group's own count: it grows with every change of the master
}

// resolver asks those who choose the master of a group. Its methods are safe for
// concurrent use.
type resolver interface {
	// ask returns what one of them knows.
	ask(ctx context.Context, client rueidis.Client) (view, error)
	// explain adds to an error which one it is from, and how to mend it.
	explain(addr string, err error) error
}

var (
	// ErrUnconfirmed means that nobody has confirmed for a while that the connected server
	// is still the master of its group.
	ErrUnconfirmed = errors.New("no majority confirms that this server is still the master: look at those who choose it, if this lasts")
	// ErrNotMaster means that the server is, for now, not the master of its group.
	ErrNotMaster = errors.New("server is not the master of its group now: a failover ends this; if it lasts, look at the roles of the servers")
	// ErrNewTerm means that the master has just changed, and is used a little later.
	ErrNewTerm = errors.New("the master of the group has just changed: it is used when the one before gives no vote any more")
	// ErrLaterTerm means that another client has met a later master of the group.
	ErrLaterTerm = errors.New("a later master of the group has been here: a failover ends this; if it lasts, the group has forgotten its epoch: " +
		"stop all clients, wait for the guard's time, and delete the marker key")
)

// NoMasterSet stands for an empty name of a master set: an option without a name is that of
// a plain server.
const NoMasterSet = " "

// Group returns what chooses the master of a node: "sentinel", "slot", or "" for a node
// that is one server. name is how the node appears in logs and errors.
func Group(o *rueidis.ClientOption) (kind, name string) {
	switch _, slot := slotTag(o); {
	case o.Sentinel.MasterSet != "":
		return "sentinel", "sentinel:" + o.Sentinel.MasterSet
	case slot:
		return "slot", o.InitAddress[0]
	case len(o.InitAddress) > 0:
		return "", o.InitAddress[0]
	}
	return "", ""
}

// slotScheme begins the first address of a node that is the owner of a hash slot; the
// hash tag follows. If a port follows, slot is the name of a host.
const slotScheme = "slot:"

// SlotOption returns the option of a node that is the owner of a hash slot.
func SlotOption(tag string, seeds []string) rueidis.ClientOption {
	return rueidis.ClientOption{InitAddress: append([]string{slotScheme + tag}, seeds...)}
}

// SlotTag returns the hash tag of a node that SlotOption made; "" for another node.
func SlotTag(o *rueidis.ClientOption) string {
	tag, _ := slotTag(o)
	return tag
}

func slotTag(o *rueidis.ClientOption) (tag string, ok bool) {
	if len(o.InitAddress) == 0 {
		return "", false
	}
	tag, found := strings.CutPrefix(o.InitAddress[0], slotScheme)
	if _, err := strconv.ParseUint(tag, 10, 16); !found || err == nil {
		return "", false
	}
	return tag, true
}

// wholeTag reports whether a text is one hash tag with its braces.
func wholeTag(tag string) bool { return tag != "" && wire.HashTag(tag) == tag }

// Addresses returns the addresses in a node's option: its own, or those of the servers that
// choose the master of its group.
func Addresses(o *rueidis.ClientOption) []string {
	if kind, _ := Group(o); kind == "slot" {
		return o.InitAddress[1:]
	}
	return o.InitAddress
}

// Voters returns how many Sentinels the node's group has, or nodes its cluster, and how many
// of them are listed; 0 and 0 for a node that is one server.
func (n *Node) Voters() (known, listed int) {
	if n.group == nil {
		return 0, 0
	}
	return n.group.voters.size(), len(n.group.voters.addrs)
}

// VoterFaults returns what has to be fixed at the Sentinels or seeds of the node's group, though
// a majority of them names the master; nil for a node that is one server.
func (n *Node) VoterFaults() []error {
	if n.group == nil {
		return nil
	}
	return n.group.voters.faults()
}

// group is what a node knows of its failover group.
type group struct {
	resolver
	kind   string // as Group has it
	voters *voters

	mu                 sync.Mutex
	terms              failover.Tracker[Term]
	unconfirmedBecause error // why the last question confirmed nothing
}

// used returns the term that the worker dialled last.
func (g *group) used() Term {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.terms.Used()
}

// newGroup returns the group of a node, nil if the node is one server.
func (n *Node) newGroup() *group {
	switch kind, _ := Group(&n.cfg.Option); kind {
	case "sentinel":
		return newSentinels(n)
	case "slot":
		return newSlotOwner(n)
	default:
		return nil
	}
}

// option returns the node's option; if the node is a group, a dial goes to its master.
// The worker's dials set the term.
func (n *Node) option(worker bool) rueidis.ClientOption {
	o := n.cfg.Option
	g := n.group
	if g == nil {
		return o
	}
	dial := dialer(o)
	o.Sentinel, o.DialFn = rueidis.SentinelOption{}, nil
	o.InitAddress = []string{n.addr}
	o.DialCtxFn = func(ctx context.Context, _ string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		asked, _ := n.cfg.Clock()
		master, err := g.resolve(ctx)
		if err != nil {
			return nil, err
		}
		_, now := n.cfg.Clock()
		g.mu.Lock()
		usable := g.terms.Meet(master, now)
		g.mu.Unlock()
		if !usable {
			return nil, ErrNewTerm
		}
		conn, err := dial(ctx, master.Addr, d, config)
		if err == nil && worker {
			g.mu.Lock()
			g.terms.Use(master, asked)
			g.mu.Unlock()
		}
		return conn, err
	}
	return o
}

// Master returns the address of the group's master that the node was last connected to,
// "" for a node that is one server, and before the first connection.
func (n *Node) Master() string {
	if n.group == nil {
		return ""
	}
	return n.group.used().Addr
}

// RunGroup asks, until the node is closed, whether the term goes on, and drops the
// connections of a term that is over. It returns at once if the node is one server. It
// must be called once.
func (n *Node) RunGroup() {
	g := n.group
	if g == nil {
		return
	}
	defer g.voters.close()
	tick := time.NewTicker(failover.ConfirmEvery)
	defer tick.Stop()
	confirmed, faults := true, fmt.Sprint(n.VoterFaults())
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-tick.C:
		}
		n.confirm(g)
		confirmedNow, faultsNow := n.unconfirmed() == nil, fmt.Sprint(n.VoterFaults())
		if confirmedNow != confirmed || faultsNow != faults {
			n.Check() // the worker reports that the node votes, or does not, and its warnings
		}
		confirmed, faults = confirmedNow, faultsNow
	}
}

// confirm asks once. A dial may have changed the term in use meanwhile; then it has just
// been confirmed.
func (n *Node) confirm(g *group) {
	before := g.used()
	asked, _ := n.cfg.Clock()
	master, err := g.resolve(n.ctx)
	_, now := n.cfg.Clock()
	g.mu.Lock()
	g.unconfirmedBecause = err
	over := err == nil && before != (Term{}) && g.terms.Used() == before && !g.terms.Record(master, asked, now)
	g.mu.Unlock()
	if over {
		n.hangUp()
	}
}

// unconfirmed returns why votes may not count, because nobody has confirmed the term; nil
// if they do.
func (n *Node) unconfirmed() error {
	g := n.group
	if g == nil {
		return nil
	}
	now, _ := n.cfg.Clock()
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.terms.Confirmed(now):
		return nil
	case g.unconfirmedBecause != nil:
		return fmt.Errorf("%w: %w", ErrUnconfirmed, g.unconfirmedBecause)
	default:
		return ErrUnconfirmed
	}
}

// outlasted reports whether no lease may rely on an answer: when the request was sent, no
// majority had confirmed the term for the window, and another master may be about to vote. A
// request that insists prolongs no lease: it is a release, or keeps keys whose lease is over.
func (n *Node) outlasted(req *wire.Request, t *transfer) bool {
	g := n.group
	if g == nil || req.Insists || req.Kind != wire.Extend && req.Kind != wire.Heal && req.Kind != wire.Raise {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.terms.Used() != t.term || !g.terms.Renews(t.validity, n.cfg.Window)
}

// hangUp resets the connections of the worker and of the subscriber, so that the next
// ones go to the present master. Redis keeps the connections of a demoted master,
// and a promoted one keeps those from before its demotion.
func (n *Node) hangUp() {
	n.mu.Lock()
	conns := make([]*watchedConn, 0, len(n.conns))
	for conn := range n.conns {
		if !conn.aside {
			conns = append(conns, conn)
		}
	}
	n.mu.Unlock()
	n.severed.Store(true)
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// markerWord returns the word that names the server, its data and the group's epoch in the
// guard's marker: each term of a group starts a quarantine of its own. A node that is one
// server is named by its run_id alone: its replication id may change when its first replica
// connects, which must not start a quarantine.
func (n *Node) markerWord() string {
	if n.group == nil {
		return n.identity.RunID
	}
	return fmt.Sprintf("%s.%s.%d", n.identity.RunID, n.identity.ReplID, n.group.used().Epoch)
}

// epochOf returns the epoch in a marker, or in the word that markerWord returns.
func epochOf(marker string) int64 {
	word, _, _ := strings.Cut(marker, " ")
	epoch, _ := strconv.ParseInt(word[strings.LastIndexByte(word, '.')+1:], 10, 64)
	return epoch
}

// suits returns why a server cannot be this node, nil if it can. A server is away if another
// one is the master, or will be: if it is not the master of its group, or a replica at the
// address of a former master.
func (n *Node) suits(id Identity) error {
	if n.group == nil {
		err := id.Check()
		if err != nil && id.replica() {
			if n.identity.RunID != "" {
				return &wire.AwayError{Err: errors.New(err.Error())}
			}
			n.hangUp() // an address may lead to another server soon
		}
		return err
	}
	kind := n.group.kind
	switch major, _, _ := strings.Cut(id.Version, "."); {
	case id.Unchecked != nil:
		return nil // the guard withholds the votes
	case id.replica():
		return &wire.AwayError{Err: ErrNotMaster}
	case len(major) == 1 && major < "7" && major != "":
		return &wire.ConfigError{
			Problem: "server is version " + id.Version + ", and failovers of such servers are not tested",
			Fix:     "use Redis 7.0 or newer for a failover group",
		}
	case (kind == "slot") != (id.Mode == "cluster"):
		return &wire.ConfigError{
			Problem: "server runs in " + id.Mode + " mode",
			Fix:     "list the nodes of a cluster with ClusterSlot, and a master under Sentinels with Sentinel",
		}
	}
	return nil
}

// asideOption returns the option of a connection that only asks who the master is. The
// worker does not notice its end, and hangUp leaves it alone.
func (n *Node) asideOption(o rueidis.ClientOption) rueidis.ClientOption {
	o.AlwaysRESP2 = n.cfg.Option.AlwaysRESP2
	o.DialFn, o.DialCtxFn = n.cfg.Option.DialFn, n.cfg.Option.DialCtxFn
	return requiredOptions(n.ctx, o, func(conn net.Conn) net.Conn { return n.register(conn, 0, true) })
}
