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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	// patience bounds the wait for an event that must happen, and soon the wait for one
	// that must not.
	patience = 20 * time.Second
	soon     = 100 * time.Millisecond
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

func TestDoOnAStoppedServerTimesOut(t *testing.T) {
	t.Parallel()
	s := Start(t, 1)[0]
	s.Stop()
	begin := time.Now()
	_, err := s.Do("PING")
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	assert.GreaterOrEqual(t, time.Since(begin), 5*time.Second)
	assert.Less(t, time.Since(begin), patience)
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

func TestDoReturnsEveryKindOfReply(t *testing.T) {
	t.Parallel()
	s := Start(t, 1)[0]
	assert.Equal(t, "OK", s.MustDo("SET", "k", "a\r\nb"))
	assert.Equal(t, "a\r\nb", s.MustDo("GET", "k"))
	assert.Equal(t, int64(1), s.MustDo("DEL", "k"))
	assert.Nil(t, s.MustDo("GET", "k"))
	assert.Equal(t, []any{int64(1), "a", nil, []any{}, &ReplyError{Text: "ERR mine"}},
		s.MustDo("EVAL", "return {1, 'a', false, {}, redis.error_reply('ERR mine')}", "0"))

	_, err := s.Do("NOSUCH")
	var refused *ReplyError
	require.ErrorAs(t, err, &refused)
	assert.Contains(t, refused.Text, "ERR unknown command")
	_, err = s.Do()
	assert.Error(t, err)
}

func TestMustDoFailsTheTestOnAnError(t *testing.T) {
	t.Parallel()
	s := Start(t, 1)[0]
	assert.Contains(t, failure(t, func(tb testing.TB) { s.tb = tb; s.MustDo("NOSUCH") }), "unknown command")
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

func TestProxyPassesBothDirectionsAndEnds(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	c := dial(t, p.Addr())
	c.do("OK", "SET", "k", "v")
	assert.Equal(t, "v", s.MustDo("GET", "k"))
	big := strings.Repeat("x", 3<<20)
	c.do("OK", "SET", "big", big)
	c.do(big, "GET", "big")

	// If a client sends a request and closes, the server executes it and notices the end.
	c.send("SET", "k", "last")
	_ = c.conn.Close()
	eventually(t, func() bool { return clients(s) == 1 && s.MustDo("GET", "k") == "last" })

	c = dial(t, p.Addr())
	c.do("PONG", "PING")
	s.Kill()
	c.wantEnd()
	// Without a server behind the proxy, connections are reset, maybe during the dial.
	conn, err := net.Dial("tcp", p.Addr())
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
	s.Restart()
	dial(t, p.Addr()).do("PONG", "PING")
}

func TestProxyPassesWhatIsNoRESP(t *testing.T) {
	t.Parallel()
	_, p := proxied(t)
	p.DropReply(func([]string) bool { return true })
	c := dial(t, p.Addr())
	_, err := c.conn.Write([]byte("PING\r\nECHO inline\r\n"))
	require.NoError(t, err)
	c.want("PONG")
	c.want("inline")
}

func TestSwallowThrowsAwayBothDirectionsAndKeepsConnectionsOpen(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	old := dial(t, p.Addr())
	old.do("OK", "SET", "k", "before")
	p.Swallow()
	fresh := dial(t, p.Addr())
	old.send("SET", "k", "old")
	fresh.send("SET", "k", "fresh")
	old.wantSilence()
	fresh.wantSilence()
	old.send("SET", "k", "again")
	old.wantSilence()
	awaitLosses(t, p, 2)
	assert.Equal(t, "before", s.MustDo("GET", "k"))

	p.Heal()
	old.wantEnd()
	fresh.wantEnd()
	assert.Equal(t, "before", s.MustDo("GET", "k"))
	dial(t, p.Addr()).do("OK", "SET", "k", "after")
}

func TestSwallowThrowsAwayRepliesThatAreOnTheirWay(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	c := dial(t, p.Addr())
	c.send("BLPOP", "list", "0")
	eventually(t, func() bool { return blocked(s) == 1 })
	p.Swallow()
	s.MustDo("RPUSH", "list", "item")
	c.wantSilence()
	awaitLosses(t, p, 1)
	p.Heal()
	c.wantEnd()
}

func TestSwallowLetsNoBytePassOnceItHasReturned(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	for range 20 {
		c := dial(t, p.Addr())
		hammered := make(chan struct{})
		go func() {
			defer close(hammered)
			for {
				if _, err := c.conn.Write(encodeCommand([]string{"INCR", "n"})); err != nil {
					return
				}
				if _, err := readReply(c.r); err != nil {
					return
				}
			}
		}()
		time.Sleep(2 * time.Millisecond)
		p.Swallow()
		s.MustDo("PING") // the server handles the proxy's earlier bytes before the next command
		before := s.MustDo("GET", "n")
		time.Sleep(5 * time.Millisecond)
		require.Equal(t, before, s.MustDo("GET", "n"))
		p.Heal()
		_ = c.conn.Close()
		<-hammered
	}
}

func TestSwallowHidesTheEndOfAConnectionUntilHeal(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	c := dial(t, p.Addr())
	c.do("PONG", "PING")
	p.Swallow()
	_ = c.conn.Close()
	time.Sleep(soon)
	assert.Equal(t, 2, clients(s), "the one behind the partition, and the one asking")
	p.Heal()
	eventually(t, func() bool { return clients(s) == 1 })

	c = dial(t, p.Addr())
	c.do("PONG", "PING")
	p.Swallow()
	s.Kill()
	c.wantSilence()
	p.Heal()
	c.wantEnd()
}

func TestSwallowCutsAWriteThatAFrozenServerBlocks(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	c := dial(t, p.Addr())
	c.do("PONG", "PING")
	s.Stop()
	// More than the capacity of the socket buffers between proxy and server.
	require.NoError(t, c.conn.SetWriteDeadline(time.Now().Add(patience)))
	_, err := c.conn.Write(encodeCommand([]string{"SET", "k", strings.Repeat("x", 32<<20)}))
	require.NoError(t, err)
	time.Sleep(soon)
	swallowed := make(chan struct{})
	go func() { p.Swallow(); close(swallowed) }()
	select {
	case <-swallowed:
	case <-time.After(patience):
		t.Fatal("Swallow hangs")
	}
	awaitLosses(t, p, 1)
	p.Heal()
	s.Continue()
	c.wantEnd()
	assert.Nil(t, s.MustDo("GET", "k"))
}

func TestHealSparesConnectionsThatLostNothing(t *testing.T) {
	t.Parallel()
	_, p := proxied(t)
	c := dial(t, p.Addr())
	c.do("PONG", "PING")
	p.Swallow()
	p.Heal()
	c.do("PONG", "PING")
	p.SwallowReplies()
	p.Heal()
	c.do("PONG", "PING")
}

func TestConnectionThatLostBytesStaysSwallowedUnderAnotherFault(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	c := dial(t, p.Addr())
	c.do("PONG", "PING")
	request := encodeCommand([]string{"SET", "k", "torn"})
	p.Swallow()
	_, err := c.conn.Write(request[:10])
	require.NoError(t, err)
	awaitLosses(t, p, 1)
	p.SwallowReplies()
	_, err = c.conn.Write(append(request[10:], encodeCommand([]string{"SET", "k", "whole"})...))
	require.NoError(t, err)
	c.wantSilence()
	assert.Nil(t, s.MustDo("GET", "k"))
}

func TestSwallowRepliesLetsRequestsReachTheServer(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	old := dial(t, p.Addr())
	old.do("PONG", "PING")
	p.SwallowReplies()
	fresh := dial(t, p.Addr())
	old.send("SET", "old", "v")
	fresh.send("SET", "fresh", "v")
	old.wantSilence()
	fresh.wantSilence()
	eventually(t, func() bool { return s.MustDo("EXISTS", "old", "fresh") == int64(2) })
	awaitLosses(t, p, 2)
	p.Heal()
	old.wantEnd()
	fresh.wantEnd()
	dial(t, p.Addr()).do("v", "GET", "old")
}

func TestRefuseClosesConnectionsAndRefusesNewOnesUntilHeal(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	addr := p.Addr()
	for range 5 {
		c := dial(t, addr)
		c.do("PONG", "PING")
		p.Refuse()
		p.Refuse()
		c.wantEnd()
		_, err := net.Dial("tcp", addr)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		eventually(t, func() bool { return clients(s) == 1 })
		p.Heal()
		assert.Equal(t, addr, p.Addr())
		dial(t, addr).do("PONG", "PING")
	}
	p.Refuse()
	p.Swallow()
	dial(t, addr).wantSilence()
}

func TestResetEndsCurrentConnectionsWithRST(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	c := dial(t, p.Addr())
	c.do("PONG", "PING")
	p.Reset()
	require.NoError(t, c.conn.SetReadDeadline(time.Now().Add(patience)))
	_, err := c.r.ReadByte()
	require.ErrorIs(t, err, syscall.ECONNRESET)
	eventually(t, func() bool { return clients(s) == 1 })
	dial(t, p.Addr()).do("PONG", "PING")
}

func TestDelayHoldsBothDirectionsBackInOrderWithoutLimitingThroughput(t *testing.T) {
	t.Parallel()
	const (
		n     = 200
		delay = time.Second
	)
	_, p := proxied(t)
	c := dial(t, p.Addr())
	c.do("PONG", "PING")
	p.Delay(delay)
	begin := time.Now()
	for i := range n { // a write each, so that there are many chunks
		c.send("ECHO", strconv.Itoa(i))
		time.Sleep(100 * time.Microsecond)
	}
	for i := range n {
		c.want(strconv.Itoa(i))
		if i == 0 {
			assert.GreaterOrEqual(t, time.Since(begin), 2*delay)
		}
	}
	assert.Less(t, time.Since(begin), n*delay/10, "one delay after another")

	p.Delay(time.Hour)
	p.Delay(0)
	c.do("PONG", "PING")
}

func TestSwallowThrowsAwayWhatIsDelayed(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	c := dial(t, p.Addr())
	c.do("PONG", "PING")
	p.Delay(3 * time.Second)
	c.send("SET", "k", "v")
	eventually(t, func() bool { return underWay(p) > 0 })
	p.Swallow()
	awaitLosses(t, p, 1)
	assert.Nil(t, s.MustDo("GET", "k"))
	p.Heal()
	c.wantEnd()
}

func TestDropReplyServesTheCommandAndEndsTheConnection(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	c := dial(t, p.Addr())
	c.do("OK", "SET", "k", "0")
	p.DropReply(is("SET"))
	c.do("0", "GET", "k") // no match, and the fault stays armed
	c.send("SET", "k", "1")
	c.wantEOF()
	assert.Equal(t, "1", s.MustDo("GET", "k"))
	c.send("SET", "behind", "v") // executed, because this side is still open
	eventually(t, func() bool { return s.MustDo("GET", "behind") == "v" })
	c.wantEOF()
	_ = c.conn.Close()

	c = dial(t, p.Addr())
	c.do("OK", "SET", "k", "2") // the fault was for one command only
	eventually(t, func() bool { return clients(s) == 2 })
}

func TestDropReplyPassesTheRepliesBeforeIt(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	for _, hello := range []string{"2", "3"} {
		p.DropReply(is("INCR"))
		c := dial(t, p.Addr())
		var request []byte
		for _, cmd := range [][]string{
			{"HELLO", hello}, {"EVAL", "return {1, {2, {}}, 'a\\r\\nb'}", "0"}, {"GET", "none"}, {"NOSUCH"},
			{"CONFIG", "GET", "save*"}, {"INCR", "n"}, {"ECHO", "behind"},
		} {
			request = append(request, encodeCommand(cmd)...)
		}
		_, err := c.conn.Write(request)
		require.NoError(t, err)
		assert.Contains(t, c.raw(), "redis")
		assert.Equal(t, "*3\r\n:1\r\n*2\r\n:2\r\n*0\r\n$4\r\na\r\nb\r\n", c.raw())
		assert.Contains(t, []string{"$-1\r\n", "_\r\n"}, c.raw())
		assert.Contains(t, c.raw(), "-ERR unknown command")
		assert.Contains(t, c.raw(), "save")
		c.wantEOF()
	}
	assert.Equal(t, "2", s.MustDo("GET", "n"))
}

func TestDropReplyTellsPushesFromReplies(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	c := dial(t, p.Addr())
	c.send("HELLO", "3")
	assert.Contains(t, c.raw(), "redis")
	c.do("OK", "CLIENT", "TRACKING", "ON", "BCAST")
	s.MustDo("SET", "other", "v")
	assert.Contains(t, c.raw(), ">2\r\n$10\r\ninvalidate")
	p.DropReply(is("BLPOP"))
	c.send("BLPOP", "list", "0")
	eventually(t, func() bool { return blocked(s) == 1 })
	s.MustDo("SET", "another", "v")
	assert.Contains(t, c.raw(), "another") // before the doomed reply
	s.MustDo("RPUSH", "list", "item")
	for { // the push about the list, if it comes first
		if _, err := c.r.Peek(1); err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
		require.Contains(t, c.raw(), ">2\r\n$10\r\ninvalidate")
	}
	assert.Equal(t, int64(0), s.MustDo("EXISTS", "list"))
}

func TestDropReplyThrowsAwayAReplyOfManyChunks(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	s.MustDo("SET", "big", strings.Repeat("x", 3<<20))
	p.DropReply(is("GET"))
	c := dial(t, p.Addr())
	c.send("GET", "big")
	c.wantEOF()
}

func TestDropReplyKnowsACommandThatArrivesByteByByte(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	p.DropReply(func(cmd []string) bool { return len(cmd) == 3 && cmd[2] == "a\r\nb" })
	c := dial(t, p.Addr())
	for _, b := range append(encodeCommand([]string{"PING"}), encodeCommand([]string{"SET", "k", "a\r\nb"})...) {
		_, err := c.conn.Write([]byte{b})
		require.NoError(t, err)
	}
	c.want("PONG")
	c.wantEOF()
	assert.Equal(t, "a\r\nb", s.MustDo("GET", "k"))
}

func TestDropReplyArmedTwiceDropsTwoReplies(t *testing.T) {
	t.Parallel()
	_, p := proxied(t)
	p.DropReply(is("INCR"))
	p.DropReply(is("INCR"))
	for range 2 {
		c := dial(t, p.Addr())
		c.send("INCR", "n")
		c.send("INCR", "n") // its client gets no more replies, so this does not use up the second fault
		c.wantEOF()
	}
	c := dial(t, p.Addr())
	c.send("INCR", "n")
	reply, err := readReply(c.r)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, reply, int64(3))
}

func TestDropReplyWaitsForACommandThatReachesTheServer(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	p.DropReply(is("INCR"))
	lost := dial(t, p.Addr())
	lost.do("PONG", "PING")
	p.Swallow()
	lost.send("INCR", "n")
	awaitLosses(t, p, 1)
	p.Heal()
	c := dial(t, p.Addr())
	c.send("INCR", "n")
	c.wantEOF()
	assert.Equal(t, "1", s.MustDo("GET", "n"))
}

func TestSwallowReplyServesTheCommandAndLeavesTheConnectionSilent(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	c := dial(t, p.Addr())
	p.SwallowReply(is("SET"))
	c.do(nil, "GET", "k") // no match, and the fault stays armed
	_, err := c.conn.Write(append(encodeCommand([]string{"PING"}), encodeCommand([]string{"SET", "k", "1"})...))
	require.NoError(t, err)
	c.want("PONG")
	c.wantSilence()
	assert.Equal(t, "1", s.MustDo("GET", "k"))
	c.send("SET", "behind", "v") // executed, also without a reply
	eventually(t, func() bool { return s.MustDo("GET", "behind") == "v" })
	c.wantSilence()
	s.Kill()
	c.wantSilence() // not even the end arrives
	p.Heal()
	c.wantEnd()
	s.Restart()
	dial(t, p.Addr()).do("OK", "SET", "k", "2") // the fault was for one command only
}

func TestSwallowRequestTakesTheCommandAndWhatFollowsIt(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	c := dial(t, p.Addr())
	p.SwallowRequest(is("SET"))
	c.do(int64(1), "INCR", "n") // no match, and the fault stays armed
	var request []byte
	for _, cmd := range [][]string{{"INCR", "n"}, {"SET", "k", "v"}, {"INCR", "n"}} {
		request = append(request, encodeCommand(cmd)...)
	}
	_, err := c.conn.Write(request)
	require.NoError(t, err)
	c.want(int64(2)) // earlier commands are answered
	c.send("INCR", "n")
	c.wantSilence()
	awaitLosses(t, p, 1)
	assert.Equal(t, "2", s.MustDo("GET", "n"))
	assert.Nil(t, s.MustDo("GET", "k"))
	dial(t, p.Addr()).do("OK", "SET", "k", "v") // the fault was for one command only
	p.Heal()
	c.wantEnd()
}

func TestSwallowRequestLetsNoTornCommandThrough(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	p.SwallowRequest(is("SET"))
	c := dial(t, p.Addr())
	for _, b := range encodeCommand([]string{"SET", "k", "v"}) {
		_, err := c.conn.Write([]byte{b})
		require.NoError(t, err)
	}
	c.wantSilence()
	p.Heal()
	c.wantEnd()
	assert.Nil(t, s.MustDo("GET", "k"))
}

func TestArmedFaultsAreUsedUpInTheirOrder(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	p.SwallowRequest(is("INCR"))
	p.DropReply(is("INCR"))
	p.SwallowReply(is("INCR"))
	for i, end := range []func(*client){(*client).wantSilence, (*client).wantEOF, (*client).wantSilence} {
		c := dial(t, p.Addr())
		c.send("INCR", "n")
		end(c)
		assert.Equal(t, []any{nil, "1", "2"}[i], s.MustDo("GET", "n"))
	}
	dial(t, p.Addr()).do(int64(3), "INCR", "n")
}

func TestDelayCommandHoldsItAndWhatFollowsOnItsConnectionAlone(t *testing.T) {
	t.Parallel()
	const delay = time.Second
	s, p := proxied(t)
	p.DelayCommand(is("SET"), delay)
	c, other := dial(t, p.Addr()), dial(t, p.Addr())
	c.do("PONG", "PING") // no match, no delay
	begin := time.Now()
	var request []byte
	for _, cmd := range [][]string{{"ECHO", "before"}, {"SET", "k", "1"}, {"ECHO", "behind"}, {"SET", "k", "2"}, {"GET", "k"}} {
		request = append(request, encodeCommand(cmd)...)
	}
	_, err := c.conn.Write(request)
	require.NoError(t, err)
	c.want("before")
	other.do("overtaken", "ECHO", "overtaken")
	assert.Nil(t, s.MustDo("GET", "k"))
	assert.Less(t, time.Since(begin), delay, "all of this while the command is held; else this test proves nothing")
	c.want("OK")
	assert.GreaterOrEqual(t, time.Since(begin), delay)
	c.want("behind")
	c.want("OK")
	c.want("2")
	assert.Less(t, time.Since(begin), 2*delay, "each by d from when it arrived, not one after another")

	p.DelayCommand(is("SET"), time.Hour)
	p.DelayCommand(nil, 0)
	c.do("OK", "SET", "k", "3")
}

func TestDelayCommandHoldsACommandThatArrivesByteByByte(t *testing.T) {
	t.Parallel()
	_, p := proxied(t)
	p.DelayCommand(is("SET"), soon)
	c := dial(t, p.Addr())
	for _, b := range append(encodeCommand([]string{"SET", "k", "v"}), encodeCommand([]string{"GET", "k"})...) {
		_, err := c.conn.Write([]byte{b})
		require.NoError(t, err)
	}
	sent := time.Now()
	c.want("OK")
	assert.Greater(t, time.Since(sent), soon/2) // the GET was on its way by then
	c.want("v")
}

func TestSwallowThrowsAwayACommandThatIsHeld(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	c := dial(t, p.Addr())
	c.do("PONG", "PING")
	p.DelayCommand(is("SET"), 2*time.Second)
	p.DropReply(is("SET"))
	c.send("SET", "k", "1")
	eventually(t, func() bool { return underWay(p) > 0 })
	p.Swallow()
	awaitLosses(t, p, 1)
	p.Heal()
	c.wantEnd()
	assert.Nil(t, s.MustDo("GET", "k"))

	p.DelayCommand(is("SET"), soon)
	c = dial(t, p.Addr())
	c.send("SET", "k", "2")
	c.wantEOF() // the first command never arrived, so the fault was still armed
	assert.Equal(t, "2", s.MustDo("GET", "k"))
}

func TestHalfOpenConnectionsStandForTheirClientsAlone(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	old := dial(t, p.Addr())
	old.do("PONG", "PING")
	old.send("BLPOP", "list", "0")
	eventually(t, func() bool { return blocked(s) == 1 })
	p.HalfOpen()
	eventually(t, func() bool { return clients(s) == 1 }) // the server has noticed the end
	old.send("SET", "k", "v")
	old.wantSilence()
	assert.Nil(t, s.MustDo("GET", "k"))

	fresh := dial(t, p.Addr())
	fresh.do("OK", "SET", "k", "fresh")
	s.Kill()
	fresh.wantEnd()
	old.wantSilence()
	s.Restart()
	p.Heal()
	old.wantEnd()
	dial(t, p.Addr()).do("PONG", "PING")
}

func TestHalfOpenConnectionsStandForTheirServerAlone(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	old := dial(t, p.Addr())
	old.send("BLPOP", "list", "0")
	eventually(t, func() bool { return blocked(s) == 1 })
	p.HalfOpenServer()
	old.wantEnd()
	time.Sleep(soon)
	assert.Equal(t, 2, clients(s), "the one that is gone, and the one asking")
	s.MustDo("RPUSH", "list", "item")
	assert.Equal(t, int64(0), s.MustDo("EXISTS", "list"), "served to nobody")
	dial(t, p.Addr()).do("PONG", "PING")
	p.Heal()
	eventually(t, func() bool { return clients(s) == 2 })
}

func TestHalfOpenSeversAConnectionThatIsBeingMade(t *testing.T) {
	t.Parallel()
	s, p := proxied(t)
	for range 200 {
		c := dial(t, p.Addr())
		c.send("INCR", "n")
		p.HalfOpen() // before, during or after the proxy's dial
		_ = c.conn.Close()
	}
	eventually(t, func() bool { return clients(s) == 1 })
	eventually(t, func() bool { return len(p.snapshot()) == 0 })
}

func TestRetargetMovesTheConnectionsToCome(t *testing.T) {
	t.Parallel()
	servers := Start(t, 2)
	for i, s := range servers {
		s.MustDo("SET", "who", strconv.Itoa(i))
	}
	p := NewProxy(t, servers[0].Addr())
	old := dial(t, p.Addr())
	old.do("0", "GET", "who")
	p.Retarget(servers[1].Addr())
	old.do("0", "GET", "who")
	dial(t, p.Addr()).do("1", "GET", "who")
	p.Reset()
	dial(t, p.Addr()).do("1", "GET", "who")
}

func TestCleanUpDoesNotWaitForFaultsThatLast(t *testing.T) {
	t.Parallel()
	var begin time.Time
	var p *Proxy
	t.Run("faults", func(t *testing.T) {
		var s *Server
		s, p = proxied(t)
		p.Delay(time.Hour)
		for range 50 {
			dial(t, p.Addr()).send("PING")
		}
		eventually(t, func() bool { return underWay(p) == 50 })
		stuck := dial(t, p.Addr())
		p.Delay(0)
		s.Stop()
		stuck.send("SET", "k", strings.Repeat("x", 16<<20))
		time.Sleep(soon)
		p.Swallow()
		dial(t, p.Addr()).wantSilence()
		begin = time.Now()
		p.close() // as the clean-up does, which then finds it closed
		assert.Empty(t, p.links, "read without its lock: every goroutine is joined")
	})
	assert.Less(t, time.Since(begin), patience)
	p.Heal() // calls after the clean-up are harmless
	_, err := net.Dial("tcp", p.Addr())
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// proxied starts a server and a proxy before it.
func proxied(t *testing.T) (*Server, *Proxy) {
	t.Helper()
	s := Start(t, 1)[0]
	return s, NewProxy(t, s.Addr())
}

// is matches commands by name.
func is(name string) func([]string) bool {
	return func(cmd []string) bool { return cmd[0] == name }
}

// clients counts the connections of s, its own among them.
func clients(s *Server) int {
	return strings.Count(s.MustDo("CLIENT", "LIST").(string), "\n")
}

// blocked counts the clients that wait in a blocking command.
func blocked(s *Server) int64 { return s.info("clients", "blocked_clients") }

// awaitLosses waits until n connections have lost bytes. Without it, Heal could come
// before the bytes that a test wants swallowed.
func awaitLosses(t *testing.T, p *Proxy, n int) {
	t.Helper()
	eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		count := 0
		for l := range p.links {
			if l.requests.lost || l.replies.lost {
				count++
			}
		}
		return count == n
	})
}

// underWay counts the requests, a chunk each, that the proxy has read but not yet
// delivered.
func underWay(p *Proxy) int {
	count := 0
	for _, l := range p.snapshot() {
		l.requests.lineMu.Lock()
		count += len(l.requests.line)
		l.requests.lineMu.Unlock()
	}
	return count
}

// eventually waits for a condition that must come true.
func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "the condition never came true")
	}
}

// failure requires that f fails its test, and returns the text of the failure.
func failure(t *testing.T, f func(tb testing.TB)) string {
	t.Helper()
	return ended(t, "failed: ", f)
}

// skipped requires that f skips its test, and returns the text of the skip.
func skipped(t *testing.T, f func(tb testing.TB)) string {
	t.Helper()
	return ended(t, "skipped: ", f)
}

func ended(t *testing.T, how string, f func(tb testing.TB)) string {
	t.Helper()
	tb := &endingTB{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(tb)
	}()
	<-done
	text, ok := strings.CutPrefix(tb.end, how)
	require.True(t, ok, "expected %q, and not %q", how, tb.end)
	return text
}

// An endingTB records a failure or a skip instead of passing it on to its test.
type endingTB struct {
	testing.TB
	end string
}

func (tb *endingTB) Fatalf(format string, args ...any) {
	tb.end = "failed: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (tb *endingTB) Skipf(format string, args ...any) {
	tb.end = "skipped: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// A client is one raw connection.
type client struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, patience)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(2*patience)))
	return &client{t: t, conn: conn, r: bufio.NewReader(conn)}
}

func (c *client) send(args ...string) {
	c.t.Helper()
	_, err := c.conn.Write(encodeCommand(args))
	require.NoError(c.t, err)
}

func (c *client) want(reply any) {
	c.t.Helper()
	got, err := readReply(c.r)
	require.NoError(c.t, err)
	require.Equal(c.t, reply, got)
}

func (c *client) do(reply any, args ...string) {
	c.t.Helper()
	c.send(args...)
	c.want(reply)
}

// raw returns the bytes of the next RESP2 or RESP3 value.
func (c *client) raw() string {
	c.t.Helper()
	var s scanner
	var value []byte
	for {
		b, err := c.r.ReadByte()
		require.NoError(c.t, err)
		value = append(value, b)
		_, done, err := s.scan(value[len(value)-1:])
		require.NoError(c.t, err)
		if done {
			return string(value)
		}
	}
}

// wantSilence requires that no byte and no end arrives for a while.
func (c *client) wantSilence() {
	c.t.Helper()
	require.NoError(c.t, c.conn.SetReadDeadline(time.Now().Add(soon)))
	_, err := c.r.Peek(1)
	require.ErrorIs(c.t, err, os.ErrDeadlineExceeded)
	require.NoError(c.t, c.conn.SetReadDeadline(time.Now().Add(2*patience)))
}

// wantEOF requires that the connection ends normally, without a byte before the end.
func (c *client) wantEOF() {
	c.t.Helper()
	_, err := c.r.ReadByte()
	require.ErrorIs(c.t, err, io.EOF)
}

// wantEnd requires that the connection ends, normally or by a RST.
func (c *client) wantEnd() {
	c.t.Helper()
	_, err := c.r.ReadByte()
	if !errors.Is(err, syscall.ECONNRESET) {
		require.ErrorIs(c.t, err, io.EOF)
	}
}
