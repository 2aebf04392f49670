package integration

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// The table of docs/lemmas.md: what happens to a lease, and to another client, when keys leave or come back while the
// server stays the same. There is one node with the guard, so that no other node hides the effect.
func TestKeysThatLeaveAServer(t *testing.T) {
	testkit.OnlyAddrs(t, "it has servers of its own")
	t.Parallel()
	const second, blocked, noticed = "a second holder", "blocked", "noticed"
	lock, copied := testkit.Prefix+"job", testkit.Prefix+"copy"
	for claim, k := range map[string]struct {
		do   func(s, other *redistest.Server)
		name string // that the other client asks for; "job" by default
		want string
	}{
		"DEL":    {func(s, _ *redistest.Server) { s.MustDo("DEL", lock) }, "job", second},
		"RENAME": {func(s, _ *redistest.Server) { s.MustDo("RENAME", lock, "elsewhere") }, "job", second},
		"MOVE":   {func(s, _ *redistest.Server) { s.MustDo("MOVE", lock, "1") }, "job", second},
		"MIGRATE": {func(s, other *redistest.Server) {
			host, port, _ := net.SplitHostPort(other.Addr())
			s.MustDo("MIGRATE", host, port, lock, "0", "5000")
		}, "job", second},
		"COPY":                   {func(s, _ *redistest.Server) { s.MustDo("COPY", lock, copied) }, "copy", blocked},
		"RESTORE":                {func(s, _ *redistest.Server) { s.MustDo("RESTORE", copied, "60000", s.MustDo("DUMP", lock).(string)) }, "copy", blocked},
		"FLUSHDB":                {func(s, _ *redistest.Server) { s.MustDo("FLUSHDB") }, "job", noticed},
		"SWAPDB":                 {func(s, _ *redistest.Server) { s.MustDo("SWAPDB", "0", "1") }, "job", noticed},
		"DEL of lock and marker": {func(s, _ *redistest.Server) { s.MustDo("DEL", lock, markerKey) }, "job", noticed},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			servers := redistest.Start(t, 2)
			opts := patient(quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes())
			nodes := testkit.Nodes(t, servers[0].Addr())
			m, other := open(t, nodes, opts...), open(t, nodes, opts...)
			l, err := m.Acquire(background, "job")
			require.NoError(t, err)
			k.do(servers[0], servers[1])
			next, err := other.TryAcquire(background, k.name)
			switch k.want {
			case second:
				require.NoError(t, err)
				assert.True(t, l.Valid() && next.Valid(), "nothing has noticed it")
				testkit.Released(t, next)
			case blocked:
				require.ErrorIs(t, err, quorumlock.ErrHeld)
			case noticed:
				require.ErrorContains(t, err, "in quarantine")
			}
			_ = l.Release(background)
		})
	}
}
