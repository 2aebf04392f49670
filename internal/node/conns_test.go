package node

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// A node forgets a connection that has ended, however it ended.
func TestConnectionsThatHaveEndedAreForgotten(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	n := New(Config{
		Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}}, Prefix: "p:", Clock: clock.New().Both,
	})
	go n.Run()
	defer n.Close(context.Background(), nil, nil)
	up := func() bool { return n.Health().Err == nil && n.conns.lost.Load() < n.conns.dialed.Load() }
	require.Eventually(t, up, 20*time.Second, time.Millisecond)
	for range 30 {
		server.MustDo("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		require.Eventually(t, up, 20*time.Second, time.Millisecond)
		time.Sleep(5 * time.Millisecond)
	}
	server.Stop() // dials succeed, but greetings do not
	before := n.conns.dialed.Load()
	require.Eventually(t, func() bool { return n.conns.dialed.Load() > before+2 }, 20*time.Second, time.Millisecond)
	server.Continue()
	require.Eventually(t, up, 20*time.Second, time.Millisecond)
	n.conns.mu.Lock()
	defer n.conns.mu.Unlock()
	assert.LessOrEqual(t, len(n.conns.open), 1)
}

// endless is a connection from which everything can be read at once.
type endless struct{ net.Conn }

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestAReadOfAConnectionAllocatesNothing(t *testing.T) {
	c, p := &watchedConn{Conn: endless{}}, make([]byte, 64)
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = c.Read(p) }))
}
