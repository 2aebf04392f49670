//go:build unix

package redistest

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
