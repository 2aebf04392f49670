package quorumlocktest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/quorumlock/quorumlock/internal/master"
)

// slots is what the servers of a Redis Cluster know of each other. All of them know the same at any time.
type slots struct {
	nodes []*Node
	ids   []string

	changing sync.Mutex // held while keys move between servers; after life of servers, and before exec

	mu       sync.Mutex // after the exec of servers
	replicas []int      // the server i is a replica of the server replicas[i], or a master if that is -1
	epochs   []int      // of the masters, 0 for the replicas
	owners   [master.HashSlots]int
	ranges   [][][2]int // of the slots of each server, by owners
}

// newSlots returns the slots of a cluster with n masters, and a replica for each.
func newSlots(n int) *slots {
	s := &slots{}
	for i := range 2 * n {
		s.ids, s.replicas, s.epochs = append(s.ids, randomID()), append(s.replicas, max(i-n, -1)), append(s.epochs, 0)
	}
	for i := range n {
		s.epochs[i] = i + 1
	}
	for slot := range s.owners {
		s.owners[slot] = slot * n / master.HashSlots
	}
	for i := range 2 * n {
		s.nodes = append(s.nodes, newNode(fmt.Sprintf("node-%d:6379", i), s, i))
	}
	s.arrange()
	return s
}

// lock keeps keys where they are until unlock. Both do nothing for independent nodes.
func (s *slots) lock() {
	if s != nil {
		s.changing.Lock()
	}
}

func (s *slots) unlock() {
	if s != nil {
		s.changing.Unlock()
	}
}

// isMaster reports whether a server is a master.
func (s *slots) isMaster(server int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replicas[server] < 0
}

// owner returns the server that owns a slot.
func (s *slots) owner(slot int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owners[slot]
}

// replicaOf returns the replica of a master, nil for a replica.
func (s *slots) replicaOf(server int) *Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.replicas, server); i >= 0 {
		return s.nodes[i]
	}
	return nil
}

// move gives a slot to another master. As in Redis, that master gets a new epoch, unless it has the highest one.
func (s *slots) move(slot, to int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owners[slot] = to
	if latest := slices.Max(s.epochs); s.epochs[to] < latest {
		s.epochs[to] = latest + 1
	}
	s.arrange()
}

// promote makes a replica the master in place of its own, and returns the slots that it gets.
func (s *slots) promote(replica int) (moved []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	former := s.replicas[replica]
	s.replicas[former], s.replicas[replica] = replica, -1
	s.epochs[former], s.epochs[replica] = 0, slices.Max(s.epochs)+1
	for slot, owner := range s.owners {
		if owner == former {
			s.owners[slot] = replica
			moved = append(moved, slot)
		}
	}
	s.arrange()
	return moved
}

// redirect returns the error for a command whose keys are not all in one slot of this server, "" if they are.
func (s *slots) redirect(server int, keys []string) string {
	for _, key := range keys {
		if master.Slot(key) != master.Slot(keys[0]) {
			return "CROSSSLOT Keys in request don't hash to the same slot"
		}
	}
	if len(keys) == 0 || s.owner(master.Slot(keys[0])) == server {
		return ""
	}
	slot := master.Slot(keys[0])
	return fmt.Sprintf("MOVED %d %s", slot, s.nodes[s.owner(slot)].addr)
}

// arrange computes the ranges. The caller holds mu, or has the slots alone.
func (s *slots) arrange() {
	s.ranges = make([][][2]int, len(s.nodes))
	for slot, owner := range s.owners {
		of := &s.ranges[owner]
		if last := len(*of) - 1; last >= 0 && (*of)[last][1] == slot-1 {
			(*of)[last][1] = slot
		} else {
			*of = append(*of, [2]int{slot, slot})
		}
	}
}

// answer answers CLUSTER.
func (s *slots) answer(server int, args []string, resp3 bool) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch sub := strings.ToUpper(strings.Join(args[:min(len(args), 1)], "")); {
	case sub == "NODES" && len(args) == 1:
		return infoReply(s.byNodes(server), resp3)
	case sub == "SLOTS" && len(args) == 1:
		return []byte(s.bySlots())
	case sub == "SHARDS" && len(args) == 1:
		return []byte(s.byShards())
	case sub == "MYID" && len(args) == 1:
		return []byte(bulk(s.ids[server]))
	case sub == "KEYSLOT" && len(args) == 2:
		return fmt.Appendf(nil, ":%d\r\n", master.Slot(args[1]))
	}
	return errorReply("ERR CLUSTER " + strings.Join(args, " ") + ": quorumlocktest has NODES, SLOTS, SHARDS, MYID and KEYSLOT")
}

// byNodes returns the text of CLUSTER NODES. The caller holds mu, as in all functions below.
func (s *slots) byNodes(server int) string {
	var b strings.Builder
	for i, of := range s.replicas {
		flags, above, epoch := "master", "-", s.epochs[i]
		if of >= 0 {
			flags, above, epoch = "slave", s.ids[of], s.epochs[of]
		}
		if i == server {
			flags = "myself," + flags
		}
		fmt.Fprintf(&b, "%s %s@16379 %s %s 0 0 %d connected", s.ids[i], s.nodes[i].addr, flags, above, epoch)
		for _, r := range s.ranges[i] {
			b.WriteString(" " + strconv.Itoa(r[0]))
			if r[1] > r[0] {
				b.WriteString("-" + strconv.Itoa(r[1]))
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// shard returns a master and its replicas.
func (s *slots) shard(server int) []int {
	all := []int{server}
	for i, of := range s.replicas {
		if of == server {
			all = append(all, i)
		}
	}
	return all
}

func (s *slots) bySlots() string {
	var text string
	n := 0
	for i := range s.replicas {
		for _, r := range s.ranges[i] {
			text += array(2+len(s.shard(i))) + integer(r[0]) + integer(r[1])
			for _, j := range s.shard(i) {
				host, port := s.at(j)
				text += array(4) + bulk(host) + integer(port) + bulk(s.ids[j]) + array(0)
			}
			n++
		}
	}
	return array(n) + text
}

func (s *slots) byShards() string {
	var text string
	n := 0
	for i, of := range s.replicas {
		if of >= 0 {
			continue
		}
		n++
		ranges := s.ranges[i]
		text += array(4) + bulk("slots") + array(2*len(ranges))
		for _, r := range ranges {
			text += integer(r[0]) + integer(r[1])
		}
		text += bulk("nodes") + array(len(s.shard(i)))
		for _, j := range s.shard(i) {
			host, port := s.at(j)
			role := "master"
			if j != i {
				role = "replica"
			}
			text += array(14) + bulk("id") + bulk(s.ids[j]) + bulk("port") + integer(port) + bulk("ip") + bulk(host) + bulk("endpoint") + bulk(host) +
				bulk("role") + bulk(role) + bulk("replication-offset") + integer(0) + bulk("health") + bulk("online")
		}
	}
	return array(n) + text
}

// at returns the host and the port of a server.
func (s *slots) at(server int) (host string, port int) {
	host, text, _ := strings.Cut(s.nodes[server].addr, ":")
	port, _ = strconv.Atoi(text)
	return host, port
}

func array(n int) string { return fmt.Sprintf("*%d\r\n", n) }

func integer(n int) string { return fmt.Sprintf(":%d\r\n", n) }
