//go:build unix

package redistest

import (
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
