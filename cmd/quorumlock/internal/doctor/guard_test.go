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
