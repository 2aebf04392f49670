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

// dead breaks what an owner has of the lock "job".
func dead(t *testing.T, addrs []string, owner string, more ...string) outcome {
	t.Helper()
	return invoke(t, addrs, append([]string{"release", "job", "--dead", owner}, more...)...)
}

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
	l, err := m.TryAcquire(t.Context(), "job")
	require.NoError(t, err)
	_, err = m.Revoke(t.Context(), "job", "it is dead")
	require.NoError(t, err)
	assert.Equal(t, outcome{stdout: `{"deleted":3,"name":"job","nodes":3,"owner":"` + l.Owner() + "\"}\n"}, dead(t, addrs, l.Owner(), "--json"))
	assert.Zero(t, keysLeft(servers))
	o := invoke(t, addrs, "acquire", "job", "--ttl", "10m", "--holder", "script")
	require.Equal(t, 0, o.code, o.stderr)
	owner := decoded[statusJSON](t, invoke(t, addrs, "inspect", "job", "--json").stdout).Holder.Owner
	assert.Regexp(t, `^deleted the keys of [0-9a-f]{32} on [23] of 3 nodes\n$`, dead(t, addrs, owner).stdout, "a majority has it; a slow node may not")
	assert.Zero(t, keysLeft(servers))
}

func TestReleaseBreaksALockOnAMajority(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	l, err := open(t, addrs, quorumlock.WithTTL(time.Minute)).TryAcquire(t.Context(), "job")
	require.NoError(t, err)
	servers[2].Kill()
	o := dead(t, addrs, l.Owner())
	assert.Zero(t, o.code)
	assert.Equal(t, "deleted the keys of "+l.Owner()+" on 2 of 3 nodes\n", o.stdout)
	assert.Regexp(t, `(?m)^quorumlock: `+addrs[2]+`: .*; keys left there are too few to hold the lock$`, o.stderr)
	assert.Equal(t, exitConflict, dead(t, addrs, l.Owner()).code, "they are gone")
	servers[1].Kill()
	assert.Equal(t, exitNoQuorum, dead(t, addrs, l.Owner()).code)
}

func TestReleaseBreaksNoKeyOfAnotherProgram(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1)[0]
	owner := strings.Repeat("a", 32)
	for _, value := range []string{"", "\xff\xfe by another program", owner, "y " + owner + " "} {
		server.MustDo("SET", key, value)
		o := dead(t, []string{server.Addr()}, owner)
		assert.Equal(t, exitConflict, o.code, o.stdout)
		assert.EqualValues(t, 1, server.MustDo("EXISTS", key))
	}
}

func TestReleaseBreaksALockWithTheRightsThatLocksNeed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1, append([]string{"--user", "u"}, strings.Fields(rights)...)...)[0]
	owner := strings.Repeat("a", 32)
	for lock, value := range map[string]string{key: owner + " 1 1700000000000000 - dead", config.DefaultPrefix + "shared": "s " + wire.Nobody + " 0 0 - ", wire.SlotKey(key, 1): owner + " 1 1700000000000000 - dead"} {
		server.MustDo("SET", lock, value, "PX", "600000")
	}
	ends := strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10)
	server.MustDo("ZADD", wire.ReadersKey(config.DefaultPrefix+"shared"), ends, owner+" 0 1700000000000000 - dead")
	server.MustDo("ZADD", wire.SlotsKey(key), "0", "0", ends, "1")
	for _, args := range [][]string{{"job"}, {"shared"}, {"job", "--permits", "2"}} {
		o := invoke(t, []string{server.Addr()}, append([]string{"--username", "u", "--password", "word", "release", "--dead", owner}, args...)...)
		assert.Equal(t, outcome{stdout: "deleted the keys of " + owner + " on 1 of 1 nodes\n"}, o)
	}
	assert.EqualValues(t, 0, server.MustDo("EXISTS", key, config.DefaultPrefix+"shared", wire.ReadersKey(config.DefaultPrefix+"shared"), wire.SlotKey(key, 1)))
}

// Without the change of the set, a waiter that is after another slot would wait for the end of the dead owner's lock.
func TestReleaseBreaksAPermitAndAWaiterGetsIt(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	m := open(t, addrs, quorumlock.WithTTL(time.Minute))
	leases := map[string]*quorumlock.Lease{}
	for range 4 {
		l, err := m.TryAcquire(t.Context(), "job", quorumlock.Permits(4), quorumlock.WithoutRenewal())
		require.NoError(t, err)
		leases[l.Owner()] = l
	}
	granted := make(chan *quorumlock.Lease, 4)
	for range 4 {
		go func() {
			l, err := open(t, addrs).Acquire(t.Context(), "job", quorumlock.Permits(4))
			assert.NoError(t, err)
			granted <- l
		}()
	}
	eventually(t, "the waiters", func() bool {
		s, err := m.Inspect(t.Context(), "job", quorumlock.Permits(4))
		return err == nil && s.Waiters == 4
	})
	for owner := range leases {
		assert.Equal(t, outcome{stdout: "deleted the keys of " + owner + " on 3 of 3 nodes\n"}, dead(t, addrs, owner, "--permits", "4"))
		select {
		case l := <-granted:
			assert.Equal(t, leases[owner].Slot(), l.Slot())
		case <-time.After(patience):
			require.Fail(t, "no waiter got the permit")
		}
	}
}

// Readers died with long leases. One server lacks one of them, and another server has only a woken waiter.
func TestReleaseBreaksALockOfReaders(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	soon := strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10)
	reader := func(owner string) string { return strings.Repeat(owner, 32) + " 0 1700000000000000 - dead" }
	woken := strings.Repeat("c", 32) + " w "
	for i, members := range [][]string{{reader("a"), reader("b"), woken}, {reader("a"), reader("b")}, {reader("b")}} {
		servers[i].MustDo("SET", key, "s "+wire.Nobody+" 0 0 - ", "PX", "600000")
		for _, m := range members {
			servers[i].MustDo("ZADD", wire.ReadersKey(key), soon, m)
		}
		servers[i].MustDo("ZADD", wire.ReadersKey(key), "1", reader("e")) // has ended, and stays as long as others read
	}
	m := open(t, addrs)
	granted := make(chan error, 1)
	go func() {
		_, err := m.Acquire(t.Context(), "job")
		granted <- err
	}()
	eventually(t, "the waiter", func() bool { s, err := m.Inspect(t.Context(), "job"); return err == nil && s.Waiters == 1 })
	assert.Equal(t, exitConflict, dead(t, addrs, strings.Repeat("c", 32)).code, "a waiter that was woken is no reader")
	assert.Equal(t, outcome{stdout: "deleted the keys of " + strings.Repeat("a", 32) + " on 2 of 3 nodes\n"}, dead(t, addrs, strings.Repeat("a", 32)))
	assert.Equal(t, 6, keysLeft(servers), "the other reader has the lock")
	assert.Equal(t, outcome{stdout: "deleted the keys of " + strings.Repeat("b", 32) + " on 3 of 3 nodes\n"}, dead(t, addrs, strings.Repeat("b", 32)))
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
	assert.Contains(t, invoke(t, addrs, "inspect", "job").stdout, "owner    "+revokedReaders+"\n")
	assert.Equal(t, outcome{stdout: "deleted the keys of " + revokedReaders + " on 3 of 3 nodes\n"}, dead(t, addrs, revokedReaders))
	assert.Zero(t, keysLeft(servers))
	assert.Equal(t, 0, invoke(t, addrs, "run", "job", "--wait", "0", "--", "true").code)
}

func TestReleaseLeavesALivingReaderAlone(t *testing.T) {
	t.Parallel()
	addrs := redistest.Addrs(redistest.Start(t, 1))
	first := readerOf(t, addrs, "dead", time.Minute)
	second := readerOf(t, addrs, "alive w ", time.Minute) // as the entry of a waiter that was woken ends
	assert.Zero(t, dead(t, addrs, first.Owner()).code)
	require.NoError(t, second.Renew(t.Context()))
	s, err := open(t, addrs).Inspect(t.Context(), "job")
	require.NoError(t, err)
	require.Len(t, s.Holders, 1)
	assert.Equal(t, second.Owner(), s.Holder.Owner)
}
