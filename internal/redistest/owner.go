//go:build unix

package redistest

import (
	"errors"
	"strconv"
	"strings"
	"testing"
)

// StartOwners is StartWith for clusters of one server each, which owns every hash slot. Unlike the servers of a
// [Cluster], they have no proxies and no replicas.
func StartOwners(tb testing.TB, n int, o Options) []*Server {
	tb.Helper()
	servers := make([]*Server, n)
	o.Args = append([]string{"--cluster-enabled", "yes"}, o.Args...)
	for i := range servers {
		servers[i] = newServer(tb, o)
		servers[i].owner, servers[i].bus = true, true
	}
	startAll(tb, servers)
	for _, s := range servers {
		s.MustDo("CLUSTER", "ADDSLOTSRANGE", "0", strconv.Itoa(slots-1))
	}
	for _, s := range servers {
		s.awaitCluster()
	}
	return servers
}

// awaitCluster waits until the cluster serves its slots, which takes 2 s after a restart.
func (s *Server) awaitCluster() {
	s.tb.Helper()
	await(s.tb, groupTimeout, "a cluster of one", func() error {
		if info, _ := s.MustDo("CLUSTER", "INFO").(string); !strings.Contains(info, "cluster_state:ok") {
			return errors.New(info)
		}
		return nil
	})
}

// StartSentinel starts a Sentinel that watches nothing, until SENTINEL MONITOR names a master
// set.
func StartSentinel(tb testing.TB, o Options) *Server {
	tb.Helper()
	o.Args = append([]string{"--sentinel"}, o.Args...)
	s := newServer(tb, o)
	s.configure("")
	startAll(tb, []*Server{s})
	return s
}
