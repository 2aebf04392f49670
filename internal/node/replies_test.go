package node_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A run proves nothing about a protocol that was not used. So the test asks the server,
// here and in each run of "make compat", which sets the expected protocol in
// QUORUMLOCK_RESP.
func TestTheProtocolIsTheOneAskedFor(t *testing.T) {
	usual, noHello := "resp=3", []string{"--rename-command", "HELLO", ""}
	if os.Getenv("QUORUMLOCK_RESP") == "2" {
		usual, noHello = "resp=2", nil // no server knows RESP3
	}
	for _, c := range []struct {
		claim  string
		server []string
		option bool // AlwaysRESP2
		want   string
	}{
		{"by default", nil, false, usual},
		{"RESP2 by option", nil, true, "resp=2"},
		{"RESP2 for want of HELLO", noHello, false, "resp=2"},
	} {
		t.Run(c.claim, func(t *testing.T) {
			server := redistest.Start(t, 1, c.server...)[0]
			const name = "asked-for"
			n, _ := run(t, node.Config{
				Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}, AlwaysRESP2: c.option, ClientName: name},
			})
			require.Eventually(t, func() bool { return n.Health().Err == nil }, 20*time.Second, 5*time.Millisecond)
			ours := 0
			for line := range strings.Lines(server.MustDo("CLIENT", "LIST").(string)) {
				if strings.Contains(line, " name="+name+" ") {
					ours++
					assert.Contains(t, line, " "+c.want)
				}
			}
			assert.Equal(t, 1, ours, "one connection, whatever was tried before")
		})
	}
}

// Another client flushes the scripts before each call: the script is then sent together with the call.
func TestScriptsThatAreFlushedOverAndOverAreSentWithTheCall(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	proxy := redistest.NewProxy(t, server.Addr())
	n, now := greeted(t, proxy.Addr())
	sent := 0
	proxy.DelayCommand(func(cmd []string) bool {
		if slices.Contains(cmd, "acquire") {
			if sent++; sent <= 5 {
				server.MustDo("SCRIPT", "FLUSH")
			}
		}
		return false
	}, 0)
	answer := make(answers, 1)
	require.True(t, n.Post(acquisition("p:job", ownerA, now()+time.Minute), answer))
	got := answer.Next(t)
	assert.Equal(t, 2, sent, "with the script in front")
	assert.Equal(t, wire.Granted, got.Status)
	assert.EqualValues(t, 1, server.MustDo("EXISTS", "p:job"))
}

// A batch reads the node's clock once, for all its answers.
func TestEveryAnswerCarriesTheNodesClock(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	n, now := greeted(t, server.Addr())
	before, known := n.Reading()
	require.True(t, known)
	time.Sleep(20 * time.Millisecond)
	answer := make(answers, 1)
	require.True(t, n.Post(wire.NewRead("p:job", clock.Steady(now()+time.Minute)), answer))
	answer.Next(t)
	after, _ := n.Reading()
	assert.Greater(t, after.At, before.At)
	wall := time.Duration(time.Now().UnixNano())
	assert.InDelta(t, wall, now()+after.Offset, float64(time.Second))
	assert.Less(t, after.RoundTrip, time.Second)
}

// An idle node runs the script once, in the greeting, and then sends nothing.
func TestAnIdleNodeAsksForNothing(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	greeted(t, server.Addr())
	time.Sleep(100 * time.Millisecond)
	count := func() int {
		info := server.MustDo("INFO", "commandstats").(string)
		return strings.Count(info, "evalsha:calls=1,")
	}
	assert.Equal(t, 1, count(), "the rehearsal of the greeting")
	time.Sleep(300 * time.Millisecond)
	assert.Equal(t, 1, count())
}
