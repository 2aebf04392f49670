//go:build unix

package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every command runs in a process that refuses what FIPS 140 does not allow, such as SHA-1.
func TestEveryCommandWorksWhereOnlyFIPSIsAllowed(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	under := func(args ...string) outcome {
		c := commandLine(t, addrs, args...)
		c.Env = append(c.Env, "GODEBUG=fips140=only")
		return finish(t, c)
	}
	handle := func(args ...string) string {
		o := under(args...)
		require.Equal(t, exitOK, o.code, o.stderr)
		return strings.TrimSpace(o.stdout)
	}
	first := handle("acquire", "job", "--ttl", "1m")
	second := handle("renew", first, "--ttl", "1m")
	owner := decoded[statusJSON](t, under("inspect", "job", "--json").stdout).Holder.Owner
	calls := [][]string{
		{"inspect", "job"},
		{"list"},
		{"ask-release", "job"},
		{"revoke", "job"},
		{"release", "job", "--dead", owner},
		{"run", "other", "--", "true"},
		{"run", "--shared", "other", "--", "true"},
		{"bench", "--duration", "1s"},
		{"doctor"},
		{"doctor", "--failover", "--nodes", addrs[0], "--for", "1s", "--settle", "1s"},
		{"version"},
		{"man", "run"},
		{"install-docs", t.TempDir()},
		{"completion", "bash"},
		{"help"},
		{"watch", "job", "--every", "1ms"}, // refused by the library, or it would not end
		{"web", "--listen", "0.0.0.0:0"},   // refused, or it would not end
		{"release", second},                // revoked above
		{"acquire", "job", "--ttl", "1m"},  // broken above
		{"renew", second},
	}
	codes := map[string]int{"doctor": exitWarnings, "watch": exitUsage, "web": exitUsage, "release": exitLost, "renew": exitLost}
	tried := map[string]bool{}
	for _, args := range calls {
		o := under(args...)
		tried[args[0]] = true
		assert.NotContains(t, o.stderr, "panic", args)
		assert.Contains(t, []int{exitOK, codes[args[0]]}, o.code, "%v: %s", args, o.stderr)
	}
	for _, c := range (&program{}).root().Commands() {
		assert.True(t, tried[c.Name()], "%s is not tried", c.Name())
	}
}
