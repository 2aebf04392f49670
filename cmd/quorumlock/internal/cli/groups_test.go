//go:build unix

package cli

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

// Run and inspect accept failover groups among the nodes. The Sentinel has its own user.
func TestANodeMayBeAFailoverGroup(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t, redistest.Options{Args: []string{"--user", "reader", "on", ">of-the-sentinel", "+@all"}})
	servers := redistest.Start(t, 3)
	host, port, _ := net.SplitHostPort(servers[0].Addr())
	sentinel.MustDo("SENTINEL", "MONITOR", "locks", host, port, "1")
	owner := redistest.StartOwners(t, 1, redistest.Options{})[0]
	for name, addrs := range map[string][]string{
		"Sentinel":    {"sentinel:locks@" + sentinel.Addr(), servers[1].Addr(), servers[2].Addr()},
		"ClusterSlot": {"slot:{locks}@" + owner.Addr()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flags := []string{"--prefix", "{locks}:", "--restart-guard", "4s", "--failover-window", "2s",
				"--sentinel-username", "reader", "--sentinel-password", "of-the-sentinel"}
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
			for _, command := range []string{"bench", "doctor"} {
				got = invoke(t, addrs, append([]string{command}, flags...)...)
				assert.Equal(t, exitUsage, got.code, got.stderr)
				assert.Contains(t, got.stderr, addrs[0]+" is a failover group, and "+command+" speaks to one server of each node: give the address of its master")
			}
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
