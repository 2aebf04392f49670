package node

import (
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Data that has arrived is seen without a read, and is read although the deadline has passed.
func TestWhatHasComeIsReadPastItsDeadline(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	here, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	there, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = there.Close() })
	n := New(Config{})
	conn := n.conns.watch(here)
	t.Cleanup(func() { _ = conn.Close() })
	require.False(t, n.Unread())
	_, err = there.Write([]byte("+OK"))
	require.NoError(t, err)
	if runtime.GOOS == "linux" {
		require.Eventually(t, n.Unread, 10*time.Second, time.Millisecond)
	}
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(-time.Second)))
	room := make([]byte, 8)
	got, err := conn.Read(room)
	require.NoError(t, err)
	assert.Equal(t, "+OK", string(room[:got]))
	assert.False(t, n.Unread())
	_, err = conn.Read(room)
	assert.ErrorIs(t, err, os.ErrDeadlineExceeded, "nothing has come")
}
