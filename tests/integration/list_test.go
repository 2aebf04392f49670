package integration

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// held returns the names that a list shows as held, sorted, and its error.
func held(t *testing.T, m *quorumlock.Manager, prefix string) (names []string, err error) {
	t.Helper()
	for s, problem := range m.List(t.Context(), prefix) {
		if err = problem; err == nil && s.Held {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names, err
}

func TestListOnServersWithOtherKeysAndOneThatIsDown(t *testing.T) {
	t.Parallel()
	m, servers := testkit.Manager(t, 3, patient()...)
	for _, s := range servers {
		s.MustDo("EVAL", "for i = 1, 20000 do redis.call('SET', '"+testkit.Prefix[:len(testkit.Prefix)-1]+"/other/' .. i, i) end", "0")
	}
	var want []string
	for i := range 600 {
		name := fmt.Sprintf("jobs/%03d", i)
		_, err := m.Acquire(t.Context(), name)
		require.NoError(t, err)
		want = append(want, name)
	}
	_, err := m.Acquire(t.Context(), "report")
	require.NoError(t, err)

	names, err := held(t, m, "jobs/")
	require.NoError(t, err)
	assert.Equal(t, want, names)
	servers[0].Kill()
	names, err = held(t, m, "jobs/")
	require.NoError(t, err)
	assert.Equal(t, want, names)
	servers[1].Kill()
	_, err = held(t, m, "jobs/")
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
}

// Locks do not need the right to scan. A List without it returns an error that names the right, and the other requests
// of the Manager continue.
func TestListNeedsARightThatLocksDoNot(t *testing.T) {
	t.Parallel()
	rules := forConstructor(documented(t))
	servers := testkit.Start(t, 1, append([]string{"--user", "quorumlock"}, rules...)...)
	m := open(t, as(t, "quorumlock", redistest.Addrs(servers)), testkit.Options()...)
	l, err := m.Acquire(t.Context(), "job")
	require.NoError(t, err)
	_, err = held(t, m, "")
	require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
	require.ErrorContains(t, err, "give the user +scan")
	require.NotContains(t, err.Error(), "+set", "a right that the user has")
	require.NoError(t, l.Verify(t.Context()))

	servers[0].MustDo("ACL", "SETUSER", "quorumlock", "+scan")
	names, err := held(t, m, "")
	require.NoError(t, err)
	assert.Equal(t, []string{"job"}, names)
}

// A cursor of SCAN is worth nothing to another process. A list in progress starts again at a restarted node, and omits
// no name that is held all the time.
func TestAListBeginsAgainAtAServerThatHasRestarted(t *testing.T) {
	testkit.OnlyAddrs(t, "a restarted server gives its guarded locks to nobody, but it lists them")
	t.Parallel()
	server := redistest.Start(t, 1, "--appendonly", "yes", "--appendfsync", "always")[0]
	m := testkit.Connect(t, []string{server.Addr()})
	const locks = 3000
	server.MustDo("EVAL", "for i = 1, ARGV[1] do redis.call('SET', KEYS[1] .. i, 'somebody') end", "1", testkit.Prefix+"job/", fmt.Sprint(locks))
	found := map[string]bool{}
	for s, err := range m.List(t.Context(), "job/") {
		require.NoError(t, err)
		require.False(t, found[s.Name], "twice")
		if found[s.Name] = true; len(found) == 100 {
			server.Restart()
			testkit.Eventually(t, "it answers again", func() bool { _, err := m.Inspect(t.Context(), "job/1"); return err == nil })
		}
	}
	assert.Len(t, found, locks)
}
