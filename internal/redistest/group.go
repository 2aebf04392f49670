//go:build unix

package redistest

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// groupName is what the Sentinels call the group.
const groupName = "quorumlock-test"

// A Group is a master with replicas, watched by Sentinels. A replica takes the master's place when the master fails,
// and by Failover. In every other respect its servers are as from [Start]: they can be killed, frozen and restarted. A
// restarted server takes the role that it had, until the Sentinels give it another one.
type Group struct {
	*members
	sentinels []*Server
}

// GroupOptions changes the defaults of StartGroup.
type GroupOptions struct {
	Replicas  int      // 2 by default
	Sentinels int      // 3 by default; a majority of them decides
	Args      []string // of every data server, such as "--min-replicas-to-write", "1"
	Clock     bool     // as in Options, for the data servers

	// DownAfter is how long the master may be silent. 1 s by default.
	DownAfter time.Duration
	// FailoverTimeout bounds the parts of a failover. After twice this time, a failed one
	// is tried again. 3 s by default.
	FailoverTimeout time.Duration
}

// StartGroup starts a group. It returns when all replicas are in step with the master, and
// every Sentinel knows all replicas and all other Sentinels.
func StartGroup(tb testing.TB, o GroupOptions) *Group {
	tb.Helper()
	replicas, sentinels := cmp.Or(o.Replicas, 2), cmp.Or(o.Sentinels, 3)
	g := &Group{members: newMembers(tb, 1+replicas, Options{Args: o.Args, Clock: o.Clock})}
	master := strings.Replace(g.proxies[0].Addr(), ":", " ", 1)
	for i, s := range g.servers {
		if i == 0 {
			s.configure("")
		} else {
			s.configure("replicaof " + master + "\n")
		}
	}
	g.start()
	await(tb, groupTimeout, "the replicas of a new group", func() error { return g.servers[0].inStep(replicas) })

	for range sentinels {
		g.sentinels = append(g.sentinels, newSentinel(tb, master, sentinels/2+1, replicas, o))
	}
	startAll(tb, g.sentinels)
	await(tb, groupTimeout, "the Sentinels of a new group", func() error {
		for _, s := range g.sentinels {
			if err := g.complete(s); err != nil {
				return fmt.Errorf("sentinel %s: %w", s.Addr(), err)
			}
		}
		return nil
	})
	return g
}

func newSentinel(tb testing.TB, master string, quorum, replicas int, o GroupOptions) *Server {
	s := newServer(tb, Options{Args: []string{"--sentinel"}})
	s.explain()
	s.configure(fmt.Sprintf("sentinel monitor %[1]s %[2]s %[3]d\n"+
		"sentinel down-after-milliseconds %[1]s %[4]d\n"+
		"sentinel failover-timeout %[1]s %[5]d\n"+
		"sentinel parallel-syncs %[1]s %[6]d\n",
		groupName, master, quorum, cmp.Or(o.DownAfter, time.Second).Milliseconds(),
		cmp.Or(o.FailoverTimeout, 3*time.Second).Milliseconds(), replicas))
	return s
}

// StaleSentinel starts a Sentinel that takes an isolated server for the master, and reaches no other server. It first
// waits until that server has lost its replicas, which takes its repl-timeout: the Sentinel would learn the others'
// addresses from it.
func (g *Group) StaleSentinel(isolated int) *Server {
	g.tb.Helper()
	server := g.servers[isolated]
	await(g.tb, groupTimeout, "an isolated server without replicas", func() error { return server.inStep(0) })
	s := newSentinel(g.tb, strings.Replace(server.Addr(), ":", " ", 1), 2, 1, GroupOptions{})
	startAll(g.tb, []*Server{s})
	return s
}

// complete returns an error unless a Sentinel knows and reaches the whole group.
func (g *Group) complete(sentinel *Server) error {
	for _, part := range []struct {
		list string
		want int
	}{{"MASTERS", 1}, {"REPLICAS", len(g.servers) - 1}, {"SENTINELS", len(g.sentinels) - 1}} {
		command := []string{"SENTINEL", part.list, groupName}
		if part.list == "MASTERS" {
			command = command[:2]
		}
		reply, err := sentinel.Do(command...)
		if err != nil {
			return err
		}
		list, _ := reply.([]any)
		if len(list) != part.want {
			return fmt.Errorf("knows %d of %d %s", len(list), part.want, part.list)
		}
		for _, entry := range list {
			fields := pairs(entry)
			flags, link := fields["flags"], cmp.Or(fields["master-link-status"], "ok")
			if strings.Contains(flags, "disconnected") || strings.Contains(flags, "down") || link != "ok" {
				return fmt.Errorf("one of its %s is %s, with its master link %s", part.list, flags, link)
			}
		}
	}
	return nil
}

// Name returns the name by which the Sentinels know the group.
func (g *Group) Name() string { return groupName }

// Sentinels returns the Sentinels. They can be killed, frozen and restarted as servers can.
func (g *Group) Sentinels() []*Server { return g.sentinels }

// SentinelAddrs returns the addresses of the Sentinels.
func (g *Group) SentinelAddrs() []string { return Addrs(g.sentinels) }

// Master returns the index of the master and its epoch, when a majority of the Sentinels
// that answer agree on them. Until then Master waits.
func (g *Group) Master() (index int, epoch int64) {
	g.tb.Helper()
	return g.await(groupTimeout, "a master", func(term) bool { return true })
}

// AwaitMaster waits until such a majority names a master whose index is not the given one.
// It fails the test after d.
func (g *Group) AwaitMaster(not int, d time.Duration) (index int, epoch int64) {
	g.tb.Helper()
	return g.await(d, fmt.Sprintf("another master than server %d", not), func(t term) bool { return t.index != not })
}

func (g *Group) await(d time.Duration, what string, wanted func(term) bool) (index int, epoch int64) {
	g.tb.Helper()
	return awaitTerm(g.tb, d, what, func() []term {
		return ask(g.sentinels, func(s *Server) (term, bool) {
			t, _, err := g.view(s)
			return t, err == nil
		})
	}, wanted)
}

// view asks a Sentinel for the master, and whether it runs a failover. A Sentinel executes
// the two commands of one packet without anything between them.
func (g *Group) view(sentinel *Server) (t term, failover bool, err error) {
	replies, err := roundTrip(sentinel.Addr(), viewTimeout,
		[]string{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", groupName}, // the new one already during a failover
		[]string{"SENTINEL", "MASTER", groupName})
	if err != nil {
		return term{}, false, err
	}
	addr, _ := replies[0].([]any)
	fields := pairs(replies[1])
	if len(addr) != 2 || fields == nil {
		return term{}, false, fmt.Errorf("replies %v", replies)
	}
	t.index = g.index(net.JoinHostPort(addr[0].(string), addr[1].(string)))
	t.epoch, err = strconv.ParseInt(fields["config-epoch"], 10, 64)
	return t, strings.Contains(fields["flags"], "failover_in_progress"), err
}

// Failover hands the role of the master to a replica, by SENTINEL FAILOVER. It returns when a majority of the Sentinels
// that answer names the new master. A failover without an effect is tried again.
func (g *Group) Failover() (index int, epoch int64) {
	g.tb.Helper()
	old, _ := g.Master()
	var leader *Server // only this one is asked: two of them could promote two replicas
	var refused error
	await(g.tb, groupTimeout, "a planned failover", func() error {
		if leader == nil {
			leader = g.sentinelOf(old)
		}
		if leader == nil {
			return fmt.Errorf("no Sentinel names server %d", old)
		}
		t, running, err := g.view(leader)
		if err != nil || t.index != old {
			return err
		}
		if !running { // not yet, or the last one had no effect
			_, refused = leader.Do("SENTINEL", "FAILOVER", groupName)
		}
		return errors.Join(fmt.Errorf("the master is %v", t), refused)
	})
	return g.AwaitMaster(old, groupTimeout)
}

// sentinelOf returns a Sentinel that names this master, nil without one.
func (g *Group) sentinelOf(master int) *Server {
	for _, s := range g.sentinels {
		if t, _, err := g.view(s); err == nil && t.index == master {
			return s
		}
	}
	return nil
}

// pairs turns a flat list of names and values into a map; nil if reply isn't one.
func pairs(reply any) map[string]string {
	list, ok := reply.([]any)
	if !ok {
		return nil
	}
	fields := map[string]string{}
	for i := 0; i+1 < len(list); i += 2 {
		name, _ := list[i].(string)
		fields[name], _ = list[i+1].(string)
	}
	return fields
}
