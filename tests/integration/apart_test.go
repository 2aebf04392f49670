package integration

import (
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

const apart = "two clients could be granted the same lock"

// warns reports whether a node of a Manager has the warning about other lists.
func warns(m *quorumlock.Manager, node int) bool {
	warning := m.Nodes()[node].Warning
	return warning != nil && strings.Contains(warning.Error(), apart)
}

// Two clients without the guard hold one lock, and both report it. Other addresses of the same servers cause no report.
func TestListsThatExcludeEachOtherAreNoticedOnServers(t *testing.T) {
	testkit.OnlyNightly(t, "it waits for checks, 22 s")
	testkit.OnlyAddrs(t, "it is about lists of single servers")
	t.Parallel()
	servers := redistest.Start(t, 5)
	var log [3]testkit.Buffer
	connect := func(i int, addrs []string) *quorumlock.Manager {
		return testkit.Connect(t, addrs, quorumlock.WithTTL(5*time.Second), quorumlock.WithLogger(slog.New(slog.NewTextHandler(&log[i], nil))))
	}
	aliases := pick(servers, 0, 1, 2)
	for i, addr := range aliases {
		_, port, err := net.SplitHostPort(addr)
		require.NoError(t, err)
		aliases[i] = net.JoinHostPort("localhost", port)
	}
	slices.Reverse(aliases)
	a, b, alias := connect(0, pick(servers, 0, 1, 2)), connect(1, pick(servers, 2, 3, 4)), connect(2, aliases)
	events := [2]*quorumlock.Subscription{a.Subscribe(1000), b.Subscribe(1000)}
	leases := []*quorumlock.Lease{testkit.Acquired(t, a, "job"), testkit.Acquired(t, b, "job"), testkit.Acquired(t, alias, "other")}
	began := time.Now()
	require.Eventually(t, func() bool { return warns(a, 2) && warns(b, 0) && warns(alias, 0) }, 40*time.Second, 50*time.Millisecond)
	t.Log("noticed after", time.Since(began).Round(time.Second))
	for i, sub := range events {
		assert.Contains(t, log[i].String(), apart)
		told := false
		for len(sub.C()) > 0 {
			e, ok := (<-sub.C()).(quorumlock.NodeChanged)
			told = told || ok && e.Warning != nil && strings.Contains(e.Warning.Error(), apart)
		}
		assert.True(t, told, "an event of %d", i)
	}
	for i := range 2 {
		assert.False(t, warns(a, i) || warns(alias, 2-i), "one server has two addresses")
	}
	for _, l := range leases {
		assert.True(t, l.Valid())
		testkit.Released(t, l)
	}
}

// A server refuses the announcement because it is full, its user lacks a right, or another program has the key. It
// grants and renews like any other server.
func TestAnAnnouncementThatIsRefusedChangesNothing(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the rights of one server")
	t.Parallel()
	for claim, change := range map[string]func(*redistest.Server){
		"no right to read lists": func(s *redistest.Server) { s.MustDo("ACL", "SETUSER", "quorumlock", "-zrange") },
		"another program's key":  func(s *redistest.Server) { s.MustDo("SET", testkit.Prefix+"\xffu", "theirs") },
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			servers := redistest.Start(t, 1, append([]string{"--user", "quorumlock"}, forConstructor(documented(t))...)...)
			m := open(t, as(t, "quorumlock", redistest.Addrs(servers)), checked()...)
			l := testkit.Acquired(t, m, "job")
			change(servers[0])
			time.Sleep(throughChecks)
			require.True(t, l.Valid())
			assert.NoError(t, m.Nodes()[0].Err)
			testkit.Released(t, testkit.Acquired(t, m, "other"))
			testkit.Released(t, l)
		})
	}
}
