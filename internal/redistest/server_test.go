//go:build unix

package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// childVariable makes the test binary the child of
// TestServersDieWithTheTestBinary.
const childVariable = "REDISTEST_CHILD"

func TestStartGivesEveryServerAnAddressAndADirectoryOfItsOwn(t *testing.T) {
	t.Parallel()
	servers := Start(t, 3)
	require.Len(t, servers, 3)
	addrs, dirs := map[string]bool{}, map[string]bool{}
	for i, s := range servers {
		assert.Equal(t, "PONG", s.MustDo("PING"))
		assert.Equal(t, []any{"dir", s.Dir()}, s.MustDo("CONFIG", "GET", "dir"))
		assert.Equal(t, []any{"bind", "127.0.0.1"}, s.MustDo("CONFIG", "GET", "bind"))
		assert.Equal(t, s.Addr(), Addrs(servers)[i])
		addrs[s.Addr()], dirs[s.Dir()] = true, true
	}
	assert.Len(t, addrs, 3)
	assert.Len(t, dirs, 3)
}

func TestStartPassesArgumentsToEveryServer(t *testing.T) {
	t.Parallel()
	for _, s := range Start(t, 2, "--maxmemory", "7mb", "--maxmemory-policy", "noeviction") {
		assert.Equal(t, []any{"maxmemory", "7340032"}, s.MustDo("CONFIG", "GET", "maxmemory"))
	}
}

func TestStartTakesARefusalForAnAnswer(t *testing.T) {
	t.Parallel()
	_, err := Start(t, 1, "--requirepass", "secret")[0].Do("PING")
	assert.ErrorContains(t, err, "NOAUTH")
}

func TestStartWithoutRedisServerFailsNamingMakeTest(t *testing.T) {
	t.Setenv("REDIS_SERVER", "")
	t.Setenv("PATH", t.TempDir())
	assert.Contains(t, failure(t, func(tb testing.TB) { Start(tb, 1) }), "make test")
}

func TestRedisServerVariableNamesTheBinary(t *testing.T) {
	installed, err := exec.LookPath("redis-server")
	require.NoError(t, err)
	named := filepath.Join(t.TempDir(), "named-server")
	require.NoError(t, os.Symlink(installed, named))
	t.Setenv("REDIS_SERVER", named)
	assert.Contains(t, Start(t, 1)[0].MustDo("INFO", "server"), "executable:"+named)
}

func TestStartFailsWithTheLogOfAServerThatEnds(t *testing.T) {
	t.Parallel()
	text := failure(t, func(tb testing.TB) { Start(tb, 2, "--no-such-option", "1") })
	assert.Contains(t, text, "exit status 1")
	assert.Contains(t, text, "no-such-option")
}

func TestStartTakesAnotherPortWhenAStrangerIsFaster(t *testing.T) {
	t.Parallel()
	// The other server is also a Redis, so an answer alone proves nothing.
	first := Start(t, 1)[0]
	s := &Server{tb: t, bin: first.bin, dir: t.TempDir()}
	t.Cleanup(s.Kill)
	tries := 0
	require.NoError(t, s.startOnFreePort(func() (int, error) {
		if tries++; tries == 1 {
			return first.port, nil
		}
		return freePort()
	}))
	assert.Greater(t, tries, 1)
	assert.NotEqual(t, first.Addr(), s.Addr())
	assert.Equal(t, []any{"dir", s.dir}, s.MustDo("CONFIG", "GET", "dir"))
}

func TestRestartWaitsForItsPort(t *testing.T) {
	t.Parallel()
	s := Start(t, 1)[0]
	s.Kill()
	stranger, err := net.Listen("tcp4", s.Addr())
	require.NoError(t, err)
	timer := time.AfterFunc(5*soon, func() { _ = closeListener(stranger) })
	defer timer.Stop()
	s.Restart()
	assert.Equal(t, "PONG", s.MustDo("PING"))
}

func TestKilledServerRefusesConnections(t *testing.T) {
	t.Parallel()
	s := Start(t, 1)[0]
	c := dial(t, s.Addr())
	s.Kill()
	c.wantEnd()
	_, err := s.Do("PING")
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	s.Kill()
	s.Continue()
	assert.Contains(t, failure(t, func(tb testing.TB) { s.tb = tb; s.Stop() }), "is down")
}

func TestRestartKeepsAddressAndDirectoryAndByDefaultNoData(t *testing.T) {
	t.Parallel()
	s := Start(t, 1)[0]
	addr, dir := s.Addr(), s.Dir()
	s.MustDo("SET", "k", "v")
	s.Restart() // while it runs
	assert.Equal(t, addr, s.Addr())
	assert.Equal(t, dir, s.Dir())
	assert.Nil(t, s.MustDo("GET", "k"))
	s.Kill()
	s.Restart()
	assert.Equal(t, []any{"dir", dir}, s.MustDo("CONFIG", "GET", "dir"))
}

func TestRestartWithAppendOnlyFileKeepsData(t *testing.T) {
	t.Parallel()
	s := Start(t, 1, "--appendonly", "yes", "--appendfsync", "always")[0]
	s.MustDo("SET", "k", "v")
	s.Restart()
	assert.Equal(t, "v", s.MustDo("GET", "k"))
}

func TestRestartFollowsAServerThatEndedByItself(t *testing.T) {
	t.Parallel()
	s := Start(t, 1)[0]
	_, err := s.Do("SHUTDOWN", "NOSAVE")
	require.ErrorIs(t, err, io.EOF)
	s.Restart()
	assert.Equal(t, "PONG", s.MustDo("PING"))
}

func TestStoppedServerKeepsConnectionsAndAnswersAfterContinue(t *testing.T) {
	t.Parallel()
	s := Start(t, 1)[0]
	c := dial(t, s.Addr())
	s.Stop()
	c.send("PING")
	c.wantSilence()
	s.Continue()
	c.want("PONG")
}

func TestServerHasStoppedWhenStopReturns(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells the state of a process")
	}
	s := Start(t, 1)[0]
	for range 200 {
		s.Stop()
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.proc.pid()))
		require.NoError(t, err)
		require.Contains(t, string(stat), ") T ")
		s.Continue()
	}
}

func TestKillAndRestartEndAStoppedServer(t *testing.T) {
	t.Parallel()
	s := Start(t, 1)[0]
	s.Stop()
	s.Restart()
	assert.Equal(t, "PONG", s.MustDo("PING"))
	s.Stop()
	s.Kill()
	_, err := s.Do("PING")
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestServerOutlivesTheThreadThatCalledStart(t *testing.T) {
	t.Parallel()
	started := make(chan *Server)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		started <- Start(t, 1)[0]
	}()
	s := <-started
	for range 10 {
		time.Sleep(soon / 5)
		require.Equal(t, "PONG", s.MustDo("PING"))
	}
}

func TestServersDieWithTheTestBinary(t *testing.T) {
	t.Parallel()
	if os.Getenv(childVariable) != "" {
		servers := Start(t, 2)
		servers[1].Stop()
		g := StartGroup(t, GroupOptions{Replicas: 1, Sentinels: 1})
		servers = slices.Concat(servers, g.Servers(), g.Sentinels())
		fmt.Printf("servers: %s\n", strings.Join(Addrs(servers), " "))
		select {} // until killed
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ties a process to its parent")
	}
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	// The child cannot remove its directories, so they are inside the parent's.
	child.Env = append(os.Environ(), childVariable+"=1", "TMPDIR="+t.TempDir())
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	t.Cleanup(func() { _ = child.Wait() })
	t.Cleanup(func() { _ = child.Process.Kill() })

	var addrs []string
	for lines := bufio.NewScanner(out); addrs == nil && lines.Scan(); {
		if list, ok := strings.CutPrefix(lines.Text(), "servers: "); ok {
			addrs = strings.Fields(list)
		}
	}
	require.Len(t, addrs, 5)
	dial(t, addrs[0]).do("PONG", "PING")
	require.NoError(t, child.Process.Kill())
	for _, addr := range addrs {
		eventually(t, func() bool {
			conn, err := net.Dial("tcp", addr)
			if err == nil {
				_ = conn.Close()
			}
			return errors.Is(err, syscall.ECONNREFUSED)
		})
	}
}
