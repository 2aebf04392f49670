//go:build unix

package redistest

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

const slots = 16384

// A Cluster is a Redis cluster. A replica takes the place of its master when the master fails, and by Failover. In
// every other respect the servers are as from [Start]: they can be killed, frozen and restarted. A restarted server
// remembers the cluster.
//
// Server i is the i-th master at first. The replicas follow the masters: with three
// masters, servers 3 and 6 are the replicas of server 0.
type Cluster struct {
	*members
	ids []string // of the servers, in the cluster
}

// ClusterOptions changes the defaults of StartCluster.
type ClusterOptions struct {
	Masters  int      // 3 by default; fewer cannot replace one of them
	Empty    int      // how many masters, the last ones, have no slots at first
	Replicas int      // of each master; 1 by default
	Args     []string // of every server, such as "--min-replicas-to-write", "1"

	// TLS makes the servers use it with each other, and announce their TLSAddr to clients that use it. No proxy is in
	// between.
	TLS *TLS

	// NodeTimeout is how long a server may be silent. 2 s by default.
	NodeTimeout time.Duration
}

// StartCluster starts a cluster in which every master that is not Empty has the same number of slots. It returns when
// every server reports the cluster as ok and knows the role of every other one, and all replicas are in step with their
// masters.
func StartCluster(tb testing.TB, o ClusterOptions) *Cluster {
	tb.Helper()
	masters, replicas := cmp.Or(o.Masters, 3), cmp.Or(o.Replicas, 1)
	timeout := cmp.Or(o.NodeTimeout, 2*time.Second)
	c := &Cluster{members: newMembers(tb, masters*(1+replicas), Options{Args: o.Args, TLS: o.TLS})}
	for i, s := range c.servers {
		bus := NewProxy(tb, "")
		c.buses = append(c.buses, bus)
		host, port, _ := net.SplitHostPort(c.proxies[i].Addr())
		_, busPort, _ := net.SplitHostPort(bus.Addr())
		s.bus = true
		announced := []string{"--cluster-announce-port", port}
		if o.TLS != nil { // a server announces its own port for TLS if none is given
			announced = []string{"--tls-cluster", "yes", "--tls-replication", "yes", "--protected-mode", "no"} // servers have addresses other than 127.0.0.1
		}
		s.args = slices.Concat([]string{
			"--cluster-enabled", "yes", "--cluster-node-timeout", strconv.FormatInt(timeout.Milliseconds(), 10),
			"--cluster-announce-ip", host, "--cluster-announce-bus-port", busPort,
		}, announced, s.args)
	}
	c.start()

	for i, s := range c.servers {
		c.ids = append(c.ids, s.MustDo("CLUSTER", "MYID").(string))
		// Two masters with the same epoch would need to resolve that first.
		s.MustDo("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if full := masters - o.Empty; i < full {
			s.MustDo("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(slots*i/full), strconv.Itoa(slots*(i+1)/full-1))
		}
	}
	var met time.Time
	await(tb, groupTimeout, "the servers of a new cluster", func() error {
		if time.Since(met) > 2*timeout { // a handshake that takes longer is dropped
			met = time.Now()
			c.meet()
		}
		return c.each(c.acquainted)
	})
	for i, s := range c.servers[masters:] {
		s.MustDo("CLUSTER", "REPLICATE", c.ids[i%masters])
	}
	await(tb, groupTimeout, "the state of a new cluster", func() error {
		return errors.Join(c.each(func(s *Server) error { return c.settled(s, masters) }),
			c.each(func(s *Server) error {
				if slices.Index(c.servers, s) >= masters {
					return nil
				}
				return s.inStep(replicas)
			}))
	})
	return c
}

// meet introduces every server to every other one.
func (c *Cluster) meet() {
	for i, s := range c.servers {
		for j := range i {
			host, port, _ := net.SplitHostPort(c.proxies[j].Addr())
			_, busPort, _ := net.SplitHostPort(c.buses[j].Addr())
			s.MustDo("CLUSTER", "MEET", host, port, busPort)
		}
	}
}

// each returns the first error of f.
func (c *Cluster) each(f func(*Server) error) error {
	for _, s := range c.servers {
		if err := f(s); err != nil {
			return fmt.Errorf("%s: %w", s.Addr(), err)
		}
	}
	return nil
}

// acquainted returns an error unless a server knows and reaches every other one.
func (c *Cluster) acquainted(s *Server) error {
	nodes, err := c.view(s)
	if err != nil {
		return err
	}
	if len(nodes) != len(c.servers) {
		return fmt.Errorf("knows %d of %d servers", len(nodes), len(c.servers))
	}
	for _, n := range nodes {
		if n.index < 0 || !n.linked || n.is("handshake") || n.is("fail") || n.is("fail?") {
			return fmt.Errorf("has no good link to %+v", n)
		}
	}
	return nil
}

// settled returns an error unless a server sees the cluster as StartCluster wants it.
func (c *Cluster) settled(s *Server, masters int) error {
	if err := c.acquainted(s); err != nil {
		return err
	}
	nodes, err := c.view(s)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		master := ""
		if n.index >= masters {
			master = c.ids[n.index%masters]
		}
		if n.master != master {
			return fmt.Errorf("server %d has the master %q", n.index, n.master)
		}
	}
	info, err := s.Do("CLUSTER", "INFO")
	if text, _ := info.(string); err == nil && !strings.Contains(text, "cluster_state:ok") {
		err = errors.New("the state is not ok")
	}
	return err
}

// A clusterNode is what one server knows of another, or of itself.
type clusterNode struct {
	index  int // -1 for a stranger
	flags  []string
	master string // the id of its master; "" if it isn't a replica
	epoch  int64
	linked bool
	slots  [][2]int // first and last
}

func (n clusterNode) is(flag string) bool { return slices.Contains(n.flags, flag) }

func (n clusterNode) owns(slot int) bool {
	return slices.ContainsFunc(n.slots, func(r [2]int) bool { return r[0] <= slot && slot <= r[1] })
}

// view returns what a server knows, by CLUSTER NODES.
func (c *Cluster) view(s *Server) ([]clusterNode, error) {
	replies, err := roundTrip(s.Addr(), viewTimeout, []string{"CLUSTER", "NODES"})
	if err != nil {
		return nil, err
	}
	text, ok := replies[0].(string)
	if !ok {
		return nil, fmt.Errorf("redistest: CLUSTER NODES: %v", replies[0])
	}
	var nodes []clusterNode
	for line := range strings.Lines(text) {
		// <id> <address> <flags> <master> <ping> <pong> <epoch> <link> <slot or range>...
		fields := strings.Fields(line)
		if len(fields) < 8 {
			return nil, fmt.Errorf("redistest: CLUSTER NODES: %q", line)
		}
		n := clusterNode{
			index: slices.Index(c.ids, fields[0]), flags: strings.Split(fields[2], ","),
			master: strings.Trim(fields[3], "-"), linked: fields[7] == "connected",
		}
		n.epoch, err = strconv.ParseInt(fields[6], 10, 64)
		for _, field := range fields[8:] {
			if strings.HasPrefix(field, "[") {
				continue // a slot that is on its way belongs to its old master
			}
			from, to, isRange := strings.Cut(field, "-")
			if !isRange {
				to = from
			}
			first, err1 := strconv.Atoi(from)
			last, err2 := strconv.Atoi(to)
			err = errors.Join(err, err1, err2)
			n.slots = append(n.slots, [2]int{first, last})
		}
		if err != nil {
			return nil, fmt.Errorf("redistest: CLUSTER NODES: %q: %w", line, err)
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// Owner returns the index of the master that owns a slot, and that master's epoch, when a
// majority of the masters that answer agree on them. Until then Owner waits.
func (c *Cluster) Owner(slot int) (index int, epoch int64) {
	c.tb.Helper()
	return c.await(slot, groupTimeout, "an owner", func(term) bool { return true })
}

// AwaitOwner waits until such a majority names an owner of the slot whose index is not the
// given one. It fails the test after d.
func (c *Cluster) AwaitOwner(slot, not int, d time.Duration) (index int, epoch int64) {
	c.tb.Helper()
	return c.await(slot, d, fmt.Sprintf("another owner than server %d", not), func(t term) bool { return t.index != not })
}

func (c *Cluster) await(slot int, d time.Duration, what string, wanted func(term) bool) (index int, epoch int64) {
	c.tb.Helper()
	return awaitTerm(c.tb, d, fmt.Sprintf("%s of slot %d", what, slot), func() []term {
		return ask(c.servers, func(s *Server) (t term, ok bool) {
			nodes, err := c.view(s)
			if err != nil {
				return term{}, false
			}
			t.index = -1 // the vote of a master that knows no owner
			for _, n := range nodes {
				if n.is("myself") {
					ok = n.is("master")
				}
				if n.owns(slot) {
					t = term{n.index, n.epoch}
				}
			}
			return t, ok
		})
	}, wanted)
}

// Failover hands the slots of a slot's owner to its replica, by CLUSTER FAILOVER. It returns when a majority, as for
// Owner, names the new owner. A failover without an effect is tried again.
func (c *Cluster) Failover(slot int) (index int, epoch int64) {
	c.tb.Helper()
	old, _ := c.Owner(slot)
	var asked time.Time
	await(c.tb, groupTimeout, "a planned failover", func() error {
		nodes, err := c.view(c.servers[old])
		if err != nil {
			return err
		}
		replica := -1
		for _, n := range nodes {
			if n.index == old && !n.owns(slot) {
				return nil
			}
			if replica < 0 && n.master == c.ids[old] && !n.is("fail") && !n.is("fail?") {
				replica = n.index
			}
		}
		if replica < 0 {
			return fmt.Errorf("server %d has no replica", old)
		}
		err = fmt.Errorf("server %d is to follow server %d", replica, old)
		if time.Since(asked) > 6*time.Second { // a replica gives up after 5 s
			asked = time.Now()
			_, refused := c.servers[replica].Do("CLUSTER", "FAILOVER")
			err = errors.Join(err, refused)
		}
		return err
	})
	return c.AwaitOwner(slot, old, groupTimeout)
}

// Migrate moves a slot with its keys to a master, by its index, as redis-cli --cluster reshard does. In between,
// clients meet ASK and TRYAGAIN. It returns when a majority, as for Owner, names the new owner.
func (c *Cluster) Migrate(slot, to int) (epoch int64) {
	c.tb.Helper()
	from, epoch := c.Owner(slot)
	if from == to {
		return epoch
	}
	number, source, target := strconv.Itoa(slot), c.servers[from], c.servers[to]
	target.MustDo("CLUSTER", "SETSLOT", number, "IMPORTING", c.ids[from])
	source.MustDo("CLUSTER", "SETSLOT", number, "MIGRATING", c.ids[to])
	for {
		keys, _ := source.MustDo("CLUSTER", "GETKEYSINSLOT", number, "100").([]any)
		if len(keys) == 0 {
			break
		}
		host, port, _ := net.SplitHostPort(target.Addr())
		command := []string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}
		for _, key := range keys {
			command = append(command, key.(string))
		}
		source.MustDo(command...)
	}
	// The new owner first: otherwise the slot has no owner for a moment.
	target.MustDo("CLUSTER", "SETSLOT", number, "NODE", c.ids[to])
	source.MustDo("CLUSTER", "SETSLOT", number, "NODE", c.ids[to])
	_, epoch = c.await(slot, groupTimeout, fmt.Sprintf("server %d as the owner", to), func(t term) bool { return t.index == to })
	return epoch
}

// HalfMove begins to move a slot to the next server, and moves these keys. undo takes the move back, like an operator
// who gives up: the keys stay where they are, and are no longer found.
func (c *Cluster) HalfMove(slot int, keys ...string) (undo func()) {
	c.tb.Helper()
	owner, _ := c.Owner(slot)
	source, target, number := c.servers[owner], c.servers[(owner+1)%3], strconv.Itoa(slot)
	target.MustDo("CLUSTER", "SETSLOT", number, "IMPORTING", c.ids[owner])
	source.MustDo("CLUSTER", "SETSLOT", number, "MIGRATING", c.ids[(owner+1)%3])
	host, port, _ := net.SplitHostPort(target.Addr())
	if answer := source.MustDo(append([]string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}, keys...)...); answer != "OK" {
		c.tb.Fatalf("redistest: MIGRATE of %q: %v", keys, answer)
	}
	return func() {
		c.tb.Helper()
		source.MustDo("CLUSTER", "SETSLOT", number, "STABLE")
		target.MustDo("CLUSTER", "SETSLOT", number, "STABLE")
	}
}

// Slot returns the slot of a key. It hashes the part in the first braces, if there is one, else the whole key.
func Slot(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16 // CRC-16/XMODEM
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return int(crc) % slots
}
