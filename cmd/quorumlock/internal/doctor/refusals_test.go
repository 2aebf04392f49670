//go:build unix

package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/redistest"
)

// Doctor names everything that makes run fail, with the cause and the remedy, at a node that it does not count.
func TestEveryRefusalOfAGrantIsNamed(t *testing.T) {
	t.Parallel()
	full := redistest.Start(t, 1, "--maxmemory-policy", "noeviction")
	full[0].MustDo("CONFIG", "SET", "maxmemory", "1")
	unsaved := redistest.Start(t, 1)
	dir := unsaved[0].MustDo("CONFIG", "GET", "dir").([]any)[1].(string)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "dump.rdb", "in the way"), 0o700))
	unsaved[0].MustDo("CONFIG", "SET", "save", "3600 1")
	unsaved[0].MustDo("SET", "other", "1")
	_, _ = unsaved[0].Do("BGSAVE")
	require.Eventually(t, func() bool { _, err := unsaved[0].Do("SET", "other", "1"); return err != nil }, time.Minute, 10*time.Millisecond)
	type refusal struct {
		servers []*redistest.Server
		want    string
		says    []string
	}
	cases := map[string]refusal{
		"OOM":        {full, "fail memory_full 0", []string{"SET", "OOM", "maxmemory"}},
		"MISCONF":    {unsaved, "fail writes_stopped 0", []string{"SET", "MISCONF", "disk"}},
		"NOREPLICAS": {redistest.Start(t, 1, "--min-replicas-to-write", "1"), "fail min_replicas 0", []string{"min-replicas-to-write"}},
	}
	for _, command := range []string{"EVALSHA", "SCRIPT", "TIME", "SET", "ZADD", "GETRANGE", "MGET", "DEL", "EXISTS", "PEXPIREAT", "PTTL", "ZCARD", "ZRANGE", "ZRANK", "ZREM", "ZSCORE", "PUBLISH", "SUBSCRIBE"} {
		cases[command+" renamed"] = refusal{redistest.Start(t, 1, "--rename-command", command, "hidden"), "fail missing_command 0", []string{command, "rename-command"}}
	}
	cases["PING renamed"] = refusal{want: "warn missing_command 0"} // judged only: redistest waits for a PING
	for claim, c := range cases {
		var r Report
		if c.servers == nil {
			r = Judge([]Node{{RunID: "a", Role: "master", Refused: []Refusal{{"PING", "unknown command 'PING', with args beginning with: "}}}}, guarded)
			assert.Equal(t, 1, r.Waiting, claim)
		} else {
			_, r = examine(t, options(addrs(c.servers), nil), guarded)
			assert.Zero(t, r.Voting+r.Waiting, claim)
		}
		assert.Contains(t, found(r), c.want, "%s: %+v", claim, r.Findings)
		at := slices.IndexFunc(r.Findings, func(f Finding) bool { return strings.HasSuffix(c.want, f.Code+" "+strconv.Itoa(f.Node)) })
		require.GreaterOrEqual(t, at, 0, claim)
		for _, word := range c.says {
			assert.Contains(t, r.Findings[at].Problem+r.Findings[at].Fix, word, claim)
		}
	}
}
