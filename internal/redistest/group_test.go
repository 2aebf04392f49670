//go:build unix

package redistest

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAGroupReplacesAKilledMasterAndTakesItBackAsAReplica(t *testing.T) {
	t.Parallel()
	g := StartGroup(t, GroupOptions{})
	master, before := g.Master()
	assert.Zero(t, master)
	assert.Equal(t, g.Addrs()[0], announcedMaster(t, g))
	old := g.Servers()[master]
	old.MustDo("SET", "k", "v")
	assert.Equal(t, int64(2), old.MustDo("WAIT", "2", "20000"))
	old.Kill()

	next, after := g.AwaitMaster(master, groupTimeout)
	assert.Greater(t, after, before)
	assert.Equal(t, g.Addrs()[next], announcedMaster(t, g))
	s := g.Servers()[next]
	assert.Equal(t, "v", s.MustDo("GET", "k"))
	s.MustDo("SET", "k", "w")
	old.Restart()
	awaitReplica(t, old)
	assert.Equal(t, "w", old.MustDo("GET", "k"))
	s.Restart() // and it has not forgotten that it was promoted
	await(t, groupTimeout, "a master", func() error {
		index, _ := g.Master()
		return roleIs(g.Servers()[index], "master")
	})
}

func TestAnIsolatedMasterIsReplacedAndStillServesDirectClients(t *testing.T) {
	t.Parallel()
	g := StartGroup(t, GroupOptions{})
	master, before := g.Master()
	old := g.Servers()[master]
	announced := announcedMaster(t, g)
	direct, outside := dial(t, g.Direct(announced)), dial(t, announced)
	direct.do("OK", "SET", "k", "both")
	outside.do("both", "GET", "k")
	direct.do(int64(2), "WAIT", "2", "20000")
	g.Isolate(master)
	outside.send("GET", "k")
	outside.wantSilence()

	next, after := g.AwaitMaster(master, groupTimeout)
	assert.Greater(t, after, before)
	direct.do("OK", "SET", "k", "old")
	require.NoError(t, roleIs(old, "master"))
	s := g.Servers()[next]
	require.NoError(t, roleIs(s, "master"))
	assert.Equal(t, "both", s.MustDo("GET", "k"), "no byte of the isolated one arrives")
	dial(t, g.Direct(g.Addrs()[next])).do("OK", "SET", "k", "new")

	g.Rejoin(master)
	awaitReplica(t, old)
	assert.Equal(t, "new", old.MustDo("GET", "k"))
	index, epoch := g.Master()
	assert.Equal(t, next, index)
	assert.Equal(t, after, epoch)
}

func TestAnIsolatedReplicaGetsNothingFromItsMaster(t *testing.T) {
	t.Parallel()
	g := StartGroup(t, GroupOptions{Replicas: 1, Sentinels: 1, Args: []string{"--repl-timeout", "3"}})
	g.Isolate(1)
	g.Servers()[0].MustDo("SET", "k", "v")
	// The timeout ends its link, and no new one follows.
	await(t, groupTimeout, "the end of the link", func() error { return linkIs(g.Servers()[1], "down") })
	for range 5 {
		time.Sleep(5 * soon)
		require.Nil(t, g.Servers()[1].MustDo("GET", "k"))
		require.NoError(t, linkIs(g.Servers()[1], "down"))
	}
	g.Rejoin(1)
	awaitReplica(t, g.Servers()[1])
	assert.Equal(t, "v", g.Servers()[1].MustDo("GET", "k"))
}

func TestAnIsolatedMasterThatNeedsReplicasSoonRefusesToWrite(t *testing.T) {
	t.Parallel()
	g := StartGroup(t, GroupOptions{Args: []string{"--min-replicas-to-write", "1", "--min-replicas-max-lag", "2"}})
	master, _ := g.Master()
	old := g.Servers()[master]
	isolated := time.Now()
	g.Isolate(master)
	written := isolated // when the last write that it confirmed was sent
	await(t, groupTimeout, "NOREPLICAS", func() error {
		sent := time.Now()
		_, err := old.Do("SET", "k", "v")
		if err == nil {
			written = sent
			return fmt.Errorf("written")
		}
		require.ErrorContains(t, err, "NOREPLICAS")
		return nil
	})
	// The lag is in whole seconds, and compared once a second; one more second for a busy machine.
	assert.Less(t, written.Sub(isolated), (2+2+1)*time.Second)
	next, _ := g.AwaitMaster(master, groupTimeout)
	awaitReply(t, g.Servers()[next], "OK", "SET", "k", "v")
	_, err := old.Do("SET", "k", "v")
	assert.ErrorContains(t, err, "NOREPLICAS")
}

func TestAPlannedFailoverChangesTheMaster(t *testing.T) {
	t.Parallel()
	g := StartGroup(t, GroupOptions{})
	master, epoch := g.Master()
	for range 2 {
		next, after := g.Failover()
		assert.NotEqual(t, master, next)
		assert.Greater(t, after, epoch)
		awaitReplica(t, g.Servers()[master])
		master, epoch = next, after
	}
}

func TestAMinorityOfTheSentinelsReplacesNobody(t *testing.T) {
	t.Parallel()
	g := StartGroup(t, GroupOptions{Replicas: 1})
	g.Sentinels()[0].Stop()
	g.Sentinels()[1].Kill()
	g.Servers()[0].Kill()
	time.Sleep(30 * soon)
	master, _ := g.Master()
	assert.Zero(t, master)
	g.Sentinels()[1].Restart()
	g.AwaitMaster(0, groupTimeout)
}

// announcedMaster returns the address that a Sentinel gives to clients.
func announcedMaster(t *testing.T, g *Group) string {
	t.Helper()
	s := dial(t, g.SentinelAddrs()[0])
	s.send("SENTINEL", "GET-MASTER-ADDR-BY-NAME", g.Name())
	addr, err := readReply(s.r)
	require.NoError(t, err)
	return fmt.Sprintf("%s:%s", addr.([]any)...)
}

// awaitReply waits until s answers a command with want.
func awaitReply(t *testing.T, s *Server, want any, command ...string) {
	t.Helper()
	await(t, groupTimeout, "a reply", func() error {
		reply, err := s.Do(command...)
		if err == nil && reply != want {
			err = fmt.Errorf("%q is answered by %v", command, reply)
		}
		return err
	})
}

// awaitReplica waits until s is a replica that is connected to a master.
func awaitReplica(t *testing.T, s *Server) {
	t.Helper()
	await(t, groupTimeout, "a replica", func() error { return errors.Join(roleIs(s, "slave"), linkIs(s, "up")) })
}

// roleIs returns an error unless s has that role.
func roleIs(s *Server, want string) error {
	reply, err := s.Do("ROLE")
	if parts, _ := reply.([]any); err == nil && parts[0] != want {
		err = fmt.Errorf("it is a %v", parts[0])
	}
	return err
}

// linkIs returns an error unless the link of a replica to its master is in that state.
func linkIs(s *Server, state string) error {
	reply, err := s.Do("INFO", "replication")
	if text, _ := reply.(string); err == nil && !strings.Contains(text, "master_link_status:"+state) {
		err = fmt.Errorf("the link to the master is not %s:\n%s", state, text)
	}
	return err
}

func TestAGroupAndAClusterEndWithTheirTest(t *testing.T) {
	t.Parallel()
	var addrs []string
	t.Run("run", func(t *testing.T) {
		g, c := StartGroup(t, GroupOptions{}), StartCluster(t, ClusterOptions{})
		addrs = slices.Concat(Addrs(g.Servers()), Addrs(c.Servers()), g.Addrs(), c.Addrs(), g.SentinelAddrs())
		g.Isolate(0)
		g.Servers()[1].Stop()
		g.Sentinels()[0].Stop()
		c.Isolate(0)
		c.Servers()[1].Stop()
	})
	assert.Len(t, addrs, 2*3+2*6+3)
	for _, addr := range addrs {
		conn, err := net.Dial("tcp", addr)
		if !assert.ErrorIs(t, err, syscall.ECONNREFUSED) {
			_ = conn.Close()
		}
	}
	// At the end of all tests goleak checks that the goroutines have ended.
}
