//go:build unix

package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// promised breaks the lock "job".
var promised = []string{"release", "job", "--force", "--holder-is-stopped"}

const key = quorumlock.DefaultPrefix + "job"

// rights are those of docs/operations.md.
const rights = "on >word resetchannels &quorumlock:* ~quorumlock:* -@all +evalsha +script|load +time +info +ping +getrange +mget +set +del " +
	"+exists +pexpireat +pttl +dbsize +zadd +zcard +zrange +zrank +zrem +zscore +publish +subscribe"

// keysLeft returns how many of the keys of the lock "job" servers have.
func keysLeft(servers []*redistest.Server) (n int) {
	for _, s := range servers {
		n += int(s.MustDo("EXISTS", key, wire.ReadersKey(key)).(int64))
	}
	return n
}

func TestReleaseBreaksALockThatWasRevokedOrDetached(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	m := open(t, addrs, quorumlock.WithTTL(time.Minute), quorumlock.WithHolder("dead"))
	_, err := m.TryAcquire(t.Context(), "job")
	require.NoError(t, err)
	_, err = m.Revoke(t.Context(), "job", "it is dead")
	require.NoError(t, err)
	assert.Equal(t, outcome{stdout: "deleted the keys of dead on 3 of 3 nodes\n"}, invoke(t, addrs, promised...))
	assert.Zero(t, keysLeft(servers))
	o := invoke(t, addrs, "acquire", "job", "--ttl", "10m", "--holder", "script")
	require.Equal(t, 0, o.code, o.stderr)
	assert.Equal(t, outcome{stdout: "deleted the keys of script on 3 of 3 nodes\n"}, invoke(t, addrs, promised...))
	assert.Zero(t, keysLeft(servers))
}

func TestReleaseBreaksALockWithTheRightsThatLocksNeed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1, append([]string{"--user", "u"}, strings.Fields(rights)...)...)[0]
	server.MustDo("SET", key, strings.Repeat("a", 32)+" 1 1700000000000000 - dead", "PX", "600000")
	o := invoke(t, []string{server.Addr()}, append([]string{"--username", "u", "--password", "word"}, promised...)...)
	assert.Equal(t, outcome{stdout: "deleted the keys of dead on 1 of 1 nodes\n"}, o)
	assert.Zero(t, keysLeft([]*redistest.Server{server}))
}
