package quorumlocktest

import (
	"slices"

	"github.com/quorumlock/quorumlock/internal/master"
)

// Keys go from one server of a Redis Cluster to another while slots.changing and the exec of both are held.

// handSlot gives a slot to another master, with its keys.
func (n *Node) handSlot(slot int, to *Node) {
	n.exec.Lock()
	defer n.exec.Unlock()
	to.exec.Lock()
	defer to.exec.Unlock()
	n.slots.move(slot, to.index)
	n.leave([]int{slot}, to)
}

// handAll makes the replica of a node the master of its slots.
func (n *Node) handAll(replica *Node) {
	n.exec.Lock()
	defer n.exec.Unlock()
	n.replicate()
	replica.exec.Lock()
	defer replica.exec.Unlock()
	n.leave(n.slots.promote(replica.index), nil)
}

// leave ends the subscriptions to the shard channels of slots that the node no longer has, and moves their keys to
// another node, if there is one.
func (n *Node) leave(slots []int, to *Node) {
	if n.proc == nil {
		return
	}
	n.proc.unsubscribe(slots)
	for _, key := range n.proc.keys() {
		if slices.Contains(slots, master.Slot(key)) {
			n.proc.copyKey(key, to)
			n.proc.redis.Del(key)
		}
	}
}

// replicate gives all keys to the replica of the node, if it has one. The caller holds exec, but not the replica's.
func (n *Node) replicate() {
	if n.slots == nil || n.proc == nil {
		return
	}
	replica := n.slots.replicaOf(n.index)
	if replica == nil {
		return
	}
	replica.exec.Lock()
	defer replica.exec.Unlock()
	if replica.proc != nil {
		replica.proc.redis.FlushAll()
	}
	for _, key := range n.proc.keys() {
		n.proc.copyKey(key, replica)
	}
}

// keys returns the keys that have not expired.
func (p *process) keys() []string {
	p.step(0)
	return p.redis.Keys()
}

// copyKey copies a key to a node that is not killed, unless it is a stream.
func (p *process) copyKey(key string, node *Node) {
	if node == nil || node.proc == nil {
		return
	}
	node.proc.step(0)
	from, to := p.redis, node.proc.redis
	switch from.Type(key) {
	case "string":
		value, _ := from.Get(key)
		_ = to.Set(key, value)
	case "list":
		values, _ := from.List(key)
		_, _ = to.RPush(key, values...)
	case "set":
		members, _ := from.Members(key)
		_, _ = to.SAdd(key, members...)
	case "hash":
		fields, _ := from.HKeys(key)
		for _, field := range fields {
			to.HSet(key, field, from.HGet(key, field))
		}
	case "zset":
		members, _ := from.SortedSet(key)
		for member, score := range members {
			_, _ = to.ZAdd(key, score, member)
		}
	}
	if ttl := from.TTL(key); ttl > 0 {
		to.SetTTL(key, ttl)
	}
}
