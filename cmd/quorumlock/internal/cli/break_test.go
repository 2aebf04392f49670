//go:build unix

package cli

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// promised breaks the lock "job".
var promised = []string{"release", "job", "--force", "--holder-is-stopped"}

const key = config.DefaultPrefix + "job"

// rights are the rights in docs/reference.md.
const rights = "reset on >word resetchannels &quorumlock:* ~quorumlock:* +evalsha +script|load +time +info +ping +getrange +mget +set +del " +
	"+exists +pexpireat +pttl +dbsize +zadd +zcard +zrange +zrank +zrem +zscore +publish +pubsub|numsub +subscribe"

// keysLeft returns how many of the keys of the lock "job" the servers have.
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
	assert.Regexp(t, `^deleted the keys of script on [23] of 3 nodes\n$`, invoke(t, addrs, promised...).stdout, "a majority has it; a slow node may not")
	assert.Zero(t, keysLeft(servers))
}

// A key without an owner value would match every holder that comes next.
func TestReleaseBreaksNoKeyOfAnotherProgramByChance(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1)[0]
	for value, want := range map[string]string{"": "has a key without an owner", "\xff\xfe by another program": "nothing was deleted"} {
		server.MustDo("SET", key, value)
		o := invoke(t, []string{server.Addr()}, promised...)
		assert.Equal(t, exitConflict, o.code, o.stdout)
		assert.Contains(t, o.stderr, want)
		assert.EqualValues(t, 1, server.MustDo("EXISTS", key))
	}
}

func TestReleaseBreaksALockWithTheRightsThatLocksNeed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1, append([]string{"--user", "u"}, strings.Fields(rights)...)...)[0]
	for _, value := range []string{strings.Repeat("a", 32) + " 1 1700000000000000 - dead", "s " + wire.Nobody + " 0 0 - "} {
		server.MustDo("SET", key, value, "PX", "600000")
		server.MustDo("ZADD", wire.ReadersKey(key), strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10), strings.Repeat("a", 32)+" 0 1700000000000000 - dead")
		o := invoke(t, []string{server.Addr()}, append([]string{"--username", "u", "--password", "word"}, promised...)...)
		assert.Equal(t, 0, o.code, o.stderr)
		assert.Contains(t, o.stdout, " on 1 of 1 nodes\n")
		assert.EqualValues(t, 0, server.MustDo("EXISTS", key))
	}
}

// Readers died with long leases. One server lacks one of them, and another server has only a woken waiter.
func TestReleaseBreaksALockOfReaders(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	soon := strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10)
	reader := func(owner string) string { return strings.Repeat(owner, 32) + " 0 1700000000000000 - dead" }
	for i, members := range [][]string{{reader("a"), reader("b")}, {reader("a")}, {strings.Repeat("c", 32) + " w "}} {
		servers[i].MustDo("SET", key, "s "+wire.Nobody+" 0 0 - ", "PX", "600000")
		for _, m := range members {
			servers[i].MustDo("ZADD", wire.ReadersKey(key), soon, m)
		}
	}
	m := open(t, addrs)
	granted := make(chan error, 1)
	go func() {
		_, err := m.Acquire(t.Context(), "job")
		granted <- err
	}()
	eventually(t, "the waiter", func() bool { s, err := m.Inspect(t.Context(), "job"); return err == nil && s.Waiters == 1 })
	assert.Equal(t, outcome{stdout: "deleted the keys of dead and 1 other reader on 3 of 3 nodes\n"}, invoke(t, addrs, promised...))
	select {
	case err := <-granted:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "the waiter was not woken")
	}
	for _, s := range servers {
		assert.EqualValues(t, 0, s.MustDo("EXISTS", wire.ReadersKey(key)))
	}
}

func TestReleaseBreaksALockOfRevokedReaders(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	readerOf(t, addrs, "first", time.Minute)
	readerOf(t, addrs, "second", time.Minute)
	_, err := open(t, addrs).Revoke(t.Context(), "job", "")
	require.NoError(t, err)
	assert.Equal(t, outcome{stdout: "deleted the keys of readers whose leases were revoked on 3 of 3 nodes\n"}, invoke(t, addrs, promised...))
	assert.Zero(t, keysLeft(servers))
	assert.Equal(t, 0, invoke(t, addrs, "run", "job", "--wait", "0", "--", "true").code)
}

// The promise covers the holders at the time of the look. A reader that comes between it and the deletion stays.
func TestReleaseLeavesAReaderAloneThatCameLater(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 1)
	addrs := redistest.Addrs(servers)
	readerOf(t, addrs, "dead", time.Minute)
	first := readerOf(t, addrs, "first", time.Minute)
	p := &program{connection: connection{prefix: config.DefaultPrefix, options: quorumlock.Addrs(addrs...)}}
	of := victims{name: "job", owner: first.Owner(), shared: true}
	p.see(t.Context(), &of)
	second := readerOf(t, addrs, "second", time.Minute)
	n, err := p.deleteOn(t.Context(), 0, &of)
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	require.NoError(t, second.Renew(t.Context()))
	s, err := open(t, addrs).Inspect(t.Context(), "job")
	require.NoError(t, err)
	require.Len(t, s.Holders, 1)
	assert.Equal(t, second.Owner(), s.Holder.Owner)

	servers[0].MustDo("SET", key, strings.Repeat("d", 32)+" 1 1700000000000000 - writer")
	p.see(t.Context(), &of)
	n, err = p.deleteOn(t.Context(), 0, &of)
	require.NoError(t, err)
	assert.Zero(t, n, "a writer that came later lives, too")
	assert.Equal(t, 2, keysLeft(servers))
}
