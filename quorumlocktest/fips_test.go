//go:build go1.26

package quorumlocktest_test

import (
	"crypto/fips140"
	"os"
	"os/exec"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// The kit and the library work in a process that refuses what FIPS 140 does not allow. The
// test starts itself as such a process.
func TestTheKitWorksWhereOnlyFIPSIsAllowed(t *testing.T) {
	if !fips140.Enforced() {
		self, err := os.Executable()
		require.NoError(t, err)
		c := exec.CommandContext(t.Context(), self, "-test.run=^"+t.Name()+"$")
		c.Env = append(os.Environ(), "GODEBUG=fips140=only")
		text, err := c.CombinedOutput()
		require.NoError(t, err, "%s", text)
		require.Contains(t, string(text), "PASS")
		return
	}
	cluster := quorumlocktest.Start(t, 3)
	l, err := cluster.Manager(t).Acquire(t.Context(), "job")
	require.NoError(t, err)
	require.NoError(t, l.Release(t.Context()))
	client := connect(t, cluster.Options()[0])
	require.EqualValues(t, 1, mustDo(t, client, "EVAL", "return 1", "0"))
	digest := mustDo(t, client, "SCRIPT", "LOAD", "return redis.sha1hex('')").(string)
	require.Equal(t, "da39a3ee5e6b4b0d3255bfef95601890afd80709", mustDo(t, client, "EVALSHA", digest, "0"))
	results := client.DoMulti(t.Context(), client.B().Multi().Build(), client.B().Eval().Script("return 2").Numkeys(0).Build(), client.B().Exec().Build())
	require.NoError(t, results[2].Error())
	require.NoError(t, func() error {
		_, err := rueidis.NewLuaScript("return 3", rueidis.WithLoadSHA1(true)).Exec(t.Context(), client, nil, nil).ToInt64()
		return err
	}())
}
