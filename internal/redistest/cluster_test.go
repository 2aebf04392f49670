//go:build unix

package redistest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAClusterReplacesAKilledMasterAndTakesItBackAsAReplica(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{})
	slot := Slot("k")
	owner, before := c.Owner(slot)
	old := c.Servers()[owner]
	old.MustDo("SET", "k", "v")
	assert.Equal(t, int64(1), old.MustDo("WAIT", "1", "20000"))
	old.Kill()
	next, after := c.AwaitOwner(slot, owner, groupTimeout)
	assert.Equal(t, owner+3, next)
	assert.Greater(t, after, before)
	awaitReply(t, c.Servers()[next], "v", "GET", "k")
	old.Restart()
	awaitReplica(t, old)
	index, epoch := c.Owner(slot)
	assert.Equal(t, next, index)
	assert.Equal(t, after, epoch)
}

func TestAnIsolatedMasterOfAClusterIsReplacedAndStillAnswersDirectClients(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{})
	slot := Slot("k")
	owner, before := c.Owner(slot)
	old := c.Servers()[owner]
	announced := c.Addrs()[owner]
	direct, outside := dial(t, c.Direct(announced)), dial(t, announced)
	direct.do("OK", "SET", "k", "both")
	outside.do("both", "GET", "k")
	direct.do(int64(1), "WAIT", "1", "20000")
	c.Isolate(owner)
	outside.send("GET", "k")
	outside.wantSilence()
	if _, err := old.Do("SET", "k", "old"); err != nil {
		require.ErrorContains(t, err, "CLUSTERDOWN") // already, on a very slow machine
	}

	next, after := c.AwaitOwner(slot, owner, groupTimeout)
	assert.Greater(t, after, before)
	require.NoError(t, roleIs(old, "master"))
	awaitReply(t, c.Servers()[next], "both", "GET", "k") // no byte of the isolated one has arrived
	// It sees no majority, so it serves no keys.
	await(t, groupTimeout, "CLUSTERDOWN", func() error { return refuses(old, "CLUSTERDOWN", "SET", "k", "old") })
	direct.do("PONG", "PING")
	awaitReply(t, c.Servers()[next], "OK", "SET", "k", "new")

	c.Rejoin(owner)
	awaitReplica(t, old)
	direct.do("OK", "READONLY")
	await(t, groupTimeout, "a reply", func() error { // a server that rejoins waits before it serves
		direct.send("GET", "k")
		reply, err := readReply(direct.r)
		if err == nil && reply != "new" {
			err = fmt.Errorf("it is %v", reply)
		}
		return err
	})
	index, epoch := c.Owner(slot)
	assert.Equal(t, next, index)
	assert.Equal(t, after, epoch)
}

func TestAnIsolatedReplicaOfAClusterIsForgottenByAllAndComesBack(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{})
	replica := c.Servers()[3]
	c.Isolate(3)
	fails := func(s *Server, want int) error {
		nodes, err := c.view(s)
		count := 0
		for _, n := range nodes {
			if n.is("fail") || n.is("fail?") {
				count++
			}
		}
		if err == nil && count != want {
			err = fmt.Errorf("it thinks that %d have failed", count)
		}
		return err
	}
	await(t, groupTimeout, "five that the replica misses", func() error { return fails(replica, 5) })
	await(t, groupTimeout, "one that the others miss", func() error { return fails(c.Servers()[1], 1) })
	index, _ := c.Owner(0)
	assert.Zero(t, index)
	c.Rejoin(3)
	await(t, groupTimeout, "no failures", func() error { return errors.Join(fails(replica, 0), fails(c.Servers()[1], 0)) })
	awaitReplica(t, replica)
}

func TestAPlannedFailoverOfAClusterChangesTheOwner(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{})
	last := slots - 1
	owner, epoch := c.Owner(last)
	assert.Equal(t, 2, owner)
	for range 2 {
		next, after := c.Failover(last)
		assert.NotEqual(t, owner, next)
		assert.Greater(t, after, epoch)
		awaitReplica(t, c.Servers()[owner])
		owner, epoch = next, after
	}
	other, _ := c.Owner(0)
	assert.Zero(t, other, "the other masters stay")
}

func TestAMigratedSlotTakesItsKeysAndTheirLifetimesAlong(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{})
	slot := Slot("{tag}")
	from, before := c.Owner(slot)
	to := (from + 1) % 3
	source, target := c.Servers()[from], c.Servers()[to]
	const keys = 250 // more than one command moves
	for i := range keys {
		source.MustDo("SET", "{tag}"+strconv.Itoa(i), "v", "PX", "3600000")
	}
	after := c.Migrate(slot, to)
	assert.Greater(t, after, before)
	index, epoch := c.Owner(slot)
	assert.Equal(t, to, index)
	assert.Equal(t, after, epoch)
	assert.Equal(t, int64(keys), target.MustDo("CLUSTER", "COUNTKEYSINSLOT", strconv.Itoa(slot)))
	assert.Greater(t, target.MustDo("PTTL", "{tag}0"), int64(3_000_000))
	require.NoError(t, refuses(source, "MOVED "+strconv.Itoa(slot)+" "+c.Addrs()[to], "GET", "{tag}0"))
	assert.Equal(t, after, c.Migrate(slot, to), "nothing to do")
	neighbour, _ := c.Owner(slot + 1)
	assert.Equal(t, from, neighbour)
}

func TestSlotAgreesWithTheServer(t *testing.T) {
	t.Parallel()
	s := Start(t, 1, "--cluster-enabled", "yes")[0]
	for _, key := range []string{
		"", "k", "123456789", "{tag}", "a{tag}b", "{}", "{}a", "a{}{b}", "{", "}{", "}{a}", "{{a}}", "{a}{b}", "a{b", "a}b", "\x00\xff{\xfe}",
		strings.Repeat("x", 1000),
	} {
		assert.Equal(t, s.MustDo("CLUSTER", "KEYSLOT", key), int64(Slot(key)), "%q", key)
	}
}

// refuses returns an error unless s refuses a command with this text.
func refuses(s *Server, text string, command ...string) error {
	reply, err := s.Do(command...)
	switch {
	case err == nil:
		return fmt.Errorf("%q is answered by %v", command, reply)
	case !strings.Contains(err.Error(), text):
		return err
	default:
		return nil
	}
}
