//go:build unix

package cli

import (
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// Run and inspect accept failover groups among the nodes. The Sentinel has its own user.
func TestANodeMayBeAFailoverGroup(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t, redistest.Options{Args: []string{"--user", "reader", "on", ">of-the-sentinel", "+@all"}})
	// The user of the connections alone may run scripts.
	users := []string{"--user", "u", "on", ">word", "~*", "&*", "+@all", "--user", "default", "on", "nopass", "~*", "&*", "+@all", "-evalsha"}
	servers := redistest.Start(t, 3, users...)
	host, port, _ := net.SplitHostPort(servers[0].Addr())
	sentinel.MustDo("SENTINEL", "MONITOR", "locks", host, port, "1")
	owner := redistest.StartOwners(t, 1, redistest.Options{Args: users})[0]
	for name, c := range map[string]struct {
		addrs   []string
		servers []*redistest.Server
	}{
		"Sentinel":    {[]string{"sentinel:locks@" + sentinel.Addr(), servers[1].Addr(), servers[2].Addr()}, servers},
		"ClusterSlot": {[]string{"slot:{locks}@" + owner.Addr()}, []*redistest.Server{owner}},
	} {
		addrs := c.addrs
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := []string{"--prefix", "{locks}:", "--restart-guard", "4s", "--failover-window", "2s",
				"--username", "u", "--password", "word", "--sentinel-username", "reader", "--sentinel-password", "of-the-sentinel"}
			// The first quarantine takes a little longer than the guard.
			got := invoke(t, addrs, append([]string{"run", "job", "--ttl", "2s", "--wait", "30s"}, append(flags, "--", "echo", "ran")...)...)
			assert.Equal(t, 0, got.code, got.stderr)
			assert.Equal(t, "ran\n", got.stdout)
			got = invoke(t, addrs, append([]string{"inspect", "job"}, flags...)...)
			assert.Equal(t, 0, got.code, got.stderr)
			assert.Contains(t, got.stdout, "free")
			got = invoke(t, addrs, append([]string{"list"}, flags...)...)
			assert.Equal(t, 0, got.code, got.stderr)
			assert.Contains(t, got.stdout, "0 locks")
			got = invoke(t, addrs, append([]string{"doctor"}, flags...)...)
			assert.Equal(t, exitUsage, got.code, got.stderr)
			assert.Contains(t, got.stderr, addrs[0]+" is a failover group, and doctor speaks to one server of each node: give it the address of the master")

			marker := c.servers[0].MustDo("GET", "{locks}:\xffg")
			dead := strings.Repeat("a", 32)
			for _, s := range c.servers {
				s.MustDo("SET", "{locks}:job", dead+" 1 1700000000000000 - dead", "PX", "600000")
			}
			got = invoke(t, addrs, append([]string{"release", "job", "--dead", dead}, flags...)...)
			n := strconv.Itoa(len(c.servers))
			assert.Equal(t, outcome{stdout: "deleted the keys of " + dead + " on " + n + " of " + n + " nodes\n"}, got)
			got = invoke(t, addrs, append([]string{"bench", "--duration", "1s"}, flags...)...)
			assert.Equal(t, 0, got.code, got.stderr)
			group, _, _ := strings.Cut(addrs[0], "@")
			assert.Regexp(t, `(?m)^0 +`+regexp.QuoteMeta(group+" ("+c.servers[0].Addr()+")")+` +\d+\.\d µs$`, got.stdout)
			assert.Equal(t, marker, c.servers[0].MustDo("GET", "{locks}:\xffg"), "no command has the clients of the group wait")
		})
	}
}

func TestTheNodesMayBeAWholeCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t, redistest.ClusterOptions{})
	nodes := []string{"cluster:" + strings.Join(c.Addrs()[:3], "+")}
	flags := []string{"--restart-guard", "4s", "--failover-window", "2s"}
	got := invoke(t, nodes, append([]string{"run", "job", "--ttl", "2s", "--wait", "1m"}, append(flags, "--", "echo", "ran")...)...)
	assert.Equal(t, 0, got.code, got.stderr)
	assert.Equal(t, "ran\n", got.stdout)
	got = invoke(t, nodes, append([]string{"inspect", "job"}, flags...)...)
	assert.Equal(t, 0, got.code, got.stderr)
	assert.Contains(t, got.stdout, "free")
	got = invoke(t, nodes, append([]string{"list"}, flags...)...)
	assert.Equal(t, 0, got.code, got.stderr)
	assert.Contains(t, got.stdout, "0 locks")
	got = invoke(t, nodes, append([]string{"doctor"}, flags...)...)
	assert.Equal(t, exitUsage, got.code, got.stderr)
	assert.Contains(t, got.stderr, "give it the address of one of its masters, and a --prefix that begins with the tag of a bucket there")

	dead := strings.Repeat("a", 32)
	for _, name := range []string{"job", "other", "{job}/2"} {
		tag := master.BucketTag(master.Bucket(name))
		at, _ := c.Owner(redistest.Slot(tag))
		lock := tag + config.DefaultPrefix + name
		c.Servers()[at].MustDo("SET", lock, dead+" 1 1700000000000000 - dead", "PX", "600000")
		got = invoke(t, nodes, append([]string{"release", name, "--dead", dead}, flags...)...)
		assert.Equal(t, outcome{stdout: "deleted the keys of " + dead + " on 1 of 1 nodes\n"}, got)
		assert.EqualValues(t, 0, c.Servers()[at].MustDo("EXISTS", lock))
	}
	got = invoke(t, nodes, append([]string{"bench", "--duration", "1s", "--json"}, flags...)...)
	assert.Equal(t, 0, got.code, got.stderr)
	assert.Len(t, decoded[benchResult](t, got.stdout).CPUus, 3, "each master once")
	got = invoke(t, nodes, append([]string{"bench", "--duration", "1s"}, flags...)...)
	assert.Len(t, regexp.MustCompile(`(?m)^[012] +127\.0\.0\.1:\d+ +\d+\.\d µs$`).FindAllString(got.stdout, -1), 3, got.stdout)
}

// The old master is a replica now, which refuses to write.
func TestReleaseBreaksALockOnTheMasterOfToday(t *testing.T) {
	t.Parallel()
	g := redistest.StartGroup(t, redistest.GroupOptions{Replicas: 1})
	at, _ := g.Master()
	dead := strings.Repeat("a", 32)
	g.Servers()[at].MustDo("SET", key, dead+" 1 1700000000000000 - dead", "PX", "600000")
	g.Servers()[at].MustDo("WAIT", "1", "0")
	at, _ = g.Failover()
	group := []string{"sentinel:" + g.Name() + "@" + strings.Join(g.SentinelAddrs(), "+")}
	flags := []string{"--restart-guard", "4s", "--failover-window", "2s"}
	got := invoke(t, group, append([]string{"release", "job", "--dead", dead}, flags...)...)
	assert.Equal(t, outcome{stdout: "deleted the keys of " + dead + " on 1 of 1 nodes\n"}, got)
	assert.EqualValues(t, 0, g.Servers()[at].MustDo("EXISTS", key))
}

func TestReleaseBreaksALockBesideAGroupWithoutSentinels(t *testing.T) {
	t.Parallel()
	servers, dead := redistest.Start(t, 2), strings.Repeat("a", 32)
	for _, s := range servers {
		s.MustDo("SET", key, dead+" 1 1700000000000000 - dead", "PX", "600000")
	}
	nodes := append([]string{"sentinel:locks@127.0.0.1:1"}, redistest.Addrs(servers)...)
	got := invoke(t, nodes, "release", "job", "--dead", dead, "--restart-guard", "4s", "--failover-window", "2s")
	assert.Equal(t, 0, got.code, got.stderr)
	assert.Equal(t, "deleted the keys of "+dead+" on 2 of 3 nodes\n", got.stdout)
	assert.Regexp(t, `(?m)^quorumlock: sentinel:locks \(no known master\): .+; keys left there are too few to hold the lock$`, got.stderr)
}

// A Sentinel on this machine may name a master elsewhere.
func TestBenchAsksBeforeItLoadsTheMasterOfAGroup(t *testing.T) {
	t.Parallel()
	sentinel, server := redistest.StartSentinel(t, redistest.Options{}), redistest.Start(t, 1)[0]
	_, port, _ := net.SplitHostPort(server.Addr())
	sentinel.MustDo("SENTINEL", "MONITOR", "locks", "0.0.0.0", port, "1") // no address of loopback, but it leads here
	flags := []string{"bench", "--duration", "100ms", "--restart-guard", "4s", "--failover-window", "2s"}
	got := invoke(t, []string{"sentinel:locks@" + sentinel.Addr()}, flags...)
	assert.Equal(t, exitUsage, got.code)
	assert.Contains(t, got.stderr, "the master of sentinel:locks (0.0.0.0:"+port+") may be on another machine, and bench loads it: give --yes")
	got = invoke(t, []string{"sentinel:locks@192.0.2.1:26379"}, flags...)
	assert.Equal(t, exitUsage, got.code)
	assert.Contains(t, got.stderr, "192.0.2.1:26379 is on another machine")
}

func TestAFailoverGroupWithoutWhatItNeedsIsRefusedWithTheFix(t *testing.T) {
	t.Parallel()
	got := invoke(t, []string{"127.0.0.1:1"}, "inspect", "job", "--restart-guard", "5s", "--failover-window", "5s")
	assert.Equal(t, exitUsage, got.code)
	assert.Contains(t, got.stderr, "--failover-window 5s: must be below --restart-guard (5s)")
	for nodes, want := range map[string]string{
		"sentinel:locks@host":           `node 0 is not HOST:PORT`,
		"sentinel:locks@127.0.0.1:1":    "--restart-guard: is needed for node 0 (sentinel:locks)",
		"slot:{locks}@127.0.0.1:1":      "--restart-guard: is needed for node 0 (slot:{locks})",
		"sentinel:locks@127.0.0.1:1+,b": `node 0 is not HOST:PORT`,

		"cluster:127.0.0.1:1+127.0.0.1:2+127.0.0.1:3":             "--restart-guard: is needed for a cluster",
		"cluster:127.0.0.1:1+127.0.0.1:2+127.0.0.1:3,127.0.0.1:4": "a whole cluster stands alone",
		"cluster:127.0.0.1:1+b":                                   "node 0 is not HOST:PORT",
	} {
		got = invoke(t, []string{nodes}, "inspect", "job")
		assert.Contains(t, got.stderr, want, nodes)
		assert.NotEqual(t, 0, got.code, nodes)
	}
}
