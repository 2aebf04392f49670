package main

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"syscall"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// world has the nodes, and causes their faults.
type world interface {
	size() int
	options(client string) []rueidis.ClientOption
	kill(node int)
	restart(node int)
	cut(client string, nodes int) // the first n nodes
	close()
}

// cluster has nodes in this process.
type cluster struct{ *quorumlocktest.Cluster }

func inProcess() cluster { return cluster{quorumlocktest.NewCluster(5)} }

func (c cluster) size() int                                    { return len(c.Nodes()) }
func (c cluster) options(client string) []rueidis.ClientOption { return c.OptionsFor(client) }
func (c cluster) kill(node int)                                { c.Nodes()[node].Kill() }
func (c cluster) restart(node int)                             { c.Nodes()[node].Restart() }
func (c cluster) close()                                       { c.Close() }

func (c cluster) cut(client string, nodes int) {
	for i := range nodes {
		c.Partition(client, i)
	}
}

// remote has real nodes. The example must not kill them; it cuts its own connections,
// which looks the same to a contender.
type remote struct {
	addrs []string

	mu    sync.Mutex
	dead  map[int]bool            // nodes that no client reaches
	away  map[string]map[int]bool // nodes that a client does not reach
	conns map[net.Conn]path
}

type path struct {
	client string
	node   int
}

func realNodes(addrs []string) *remote {
	return &remote{addrs: addrs, dead: map[int]bool{}, away: map[string]map[int]bool{}, conns: map[net.Conn]path{}}
}

func (r *remote) size() int { return len(r.addrs) }

func (r *remote) options(client string) []rueidis.ClientOption {
	nodes := quorumlock.Addrs(r.addrs...)
	for i := range nodes {
		nodes[i].DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, _ *tls.Config) (net.Conn, error) {
			p := path{client, i}
			if !r.open(p) {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
			}
			conn, err := d.DialContext(ctx, "tcp", addr)
			if err == nil {
				r.mu.Lock()
				r.conns[conn] = p
				r.mu.Unlock()
			}
			return conn, err
		}
	}
	return nodes
}

func (r *remote) open(p path) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.dead[p.node] && !r.away[p.client][p.node]
}

func (r *remote) kill(node int) {
	r.mu.Lock()
	r.dead[node] = true
	r.mu.Unlock()
	r.sever()
}

func (r *remote) restart(node int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead[node] = false
}

func (r *remote) cut(client string, nodes int) {
	r.mu.Lock()
	r.away[client] = map[int]bool{}
	for i := range nodes {
		r.away[client][i] = true
	}
	r.mu.Unlock()
	r.sever()
}

// sever closes the connections that the faults forbid.
func (r *remote) sever() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn, p := range r.conns {
		if r.dead[p.node] || r.away[p.client][p.node] {
			_ = conn.Close()
			delete(r.conns, conn)
		}
	}
}

func (r *remote) close() {}
