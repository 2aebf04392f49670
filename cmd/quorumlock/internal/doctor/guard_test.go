//go:build unix

package doctor

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// The marker of a failover group also names the data and the epoch. Doctor is given the address of the master.
func TestAQuarantineOfAFailoverGroupIsNamed(t *testing.T) {
	t.Parallel()
	sentinel, server := redistest.StartSentinel(t, redistest.Options{}), redistest.Start(t, 1)[0]
	host, port, err := net.SplitHostPort(server.Addr())
	require.NoError(t, err)
	sentinel.MustDo("SENTINEL", "MONITOR", "locks", host, port, "1")
	m, err := quorumlock.New(t.Context(), []rueidis.ClientOption{quorumlock.Sentinel("locks", sentinel.Addr())}, quorumlock.WithPrefix(prefix),
		quorumlock.WithTTL(50*time.Second), quorumlock.WithFailover(5*time.Second), quorumlock.WithRestartGuard(time.Minute))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return server.MustDo("EXISTS", prefix+"\xffg").(int64) == 1 }, time.Minute, 50*time.Millisecond)
	require.NoError(t, m.Close(t.Context()))
	judged := func() ([]string, string) {
		_, r := examine(t, options([]string{server.Addr()}, nil), Settings{Guard: time.Minute})
		return found(r), fmt.Sprint(r.Findings)
	}
	waits := []string{"fail no_quorum -1", "warn in_quarantine 0"}
	written := server.MustDo("GET", prefix+"\xffg").(string)
	findings, text := judged()
	assert.Equal(t, waits, findings, text)
	assert.Equal(t, written, server.MustDo("GET", prefix+"\xffg"), "doctor writes no marker")

	fields := strings.Fields(written)
	fields[1] = "1"
	for marker, begins := range map[string]bool{fields[0]: false, "moved." + fields[0]: true, "run" + fields[0]: true,
		strings.Replace(fields[0], ".", ".other", 1): true} {
		server.MustDo("SET", prefix+"\xffg", strings.Join(append([]string{marker}, fields[1:]...), " "))
		findings, text = judged()
		assert.Empty(t, findings, marker)
		assert.Equal(t, begins, strings.Contains(text, "the node is new, or was restarted or promoted"), marker)
	}
}

// The library withholds the votes of such a node, and starts no quarantine there.
func TestANodeOnWhichTheGuardCannotWorkFails(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, 1)[0]
	server.MustDo(append([]string{"ACL", "SETUSER", "blind"}, append(documented(t), "-info")...)...)
	blind := func(o *rueidis.ClientOption) { o.Username, o.Password = "blind", "CHANGE-ME" }
	renamed := redistest.Start(t, 1, "--rename-command", "INFO", "hidden")[0]
	for claim, c := range map[string]struct {
		all  []rueidis.ClientOption
		says string
	}{
		"no right":  {options([]string{server.Addr()}, blind), "give the user +info"},
		"no INFO":   {options([]string{renamed.Addr()}, nil), "rename-command"},
		"no run_id": {nil, "INFO names no run_id"},
	} {
		nodes := []Node{{Addr: "a:1", Role: "master", Mode: "standalone"}}
		if c.all != nil {
			nodes, _ = examine(t, c.all, guarded)
		}
		code := CodeUnchecked
		if c.all == nil {
			code = CodeNoRunID
		}
		for _, marker := range []time.Duration{0, guarded.Guard} {
			nodes[0].Marker, nodes[0].Process, nodes[0].Quarantine = marker, "run", marker/2
			r := Judge(nodes, guarded)
			assert.Equal(t, []string{"fail no_quorum -1", "fail " + code + " 0"}, found(r), claim)
			assert.Zero(t, r.Voting+r.Waiting, claim)
			assert.NotContains(t, notes(r, 0), "note in_quarantine", claim)
			assert.Contains(t, fmt.Sprint(r.Findings), c.says, claim)
			assert.Contains(t, fmt.Sprint(r.Findings), "with the restart guard it grants no locks", claim)
		}
		nodes[0].Marker = 0
		assert.NotContains(t, fmt.Sprint(found(Judge(nodes, Settings{}))), "fail", "without the guard it grants locks: "+claim)
		nodes[0].Marker, nodes[0].Binds = time.Minute, time.Minute
		assert.Contains(t, found(Judge(nodes, guarded)), "fail restart_guard_differs 0", claim)
	}
}
