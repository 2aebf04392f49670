package node_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/node/conformance"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// RESP2 has one kind of null, no maps, and no HELLO that tells what the server
// is: no case may see a difference. "make compat" runs everything on servers
// that know no HELLO; this is the option of the client.
func TestRealRedisConformsOverRESP2(t *testing.T) {
	conformance.Run(t, func(tb testing.TB) conformance.Server {
		server := redistest.Start(tb, 1)[0]
		return conformance.Server{
			Option:  rueidis.ClientOption{InitAddress: []string{server.Addr()}, AlwaysRESP2: true},
			Do:      server.Do,
			Restart: server.Restart,
		}
	})
}

// What a run shows about a protocol is worth nothing if it was spoken by nobody.
// So the server is asked, here and in each run of "make compat", which says what
// it wants in QUORUMLOCK_RESP.
func TestTheProtocolIsTheOneAskedFor(t *testing.T) {
	usual, noHello := "resp=3", []string{"--rename-command", "HELLO", ""}
	if os.Getenv("QUORUMLOCK_RESP") == "2" {
		usual, noHello = "resp=2", nil // all servers are like that
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
			n := node.New(node.Config{
				Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}, AlwaysRESP2: c.option, ClientName: name},
				Prefix: "p:", Now: clock.New().Now,
			})
			ended := make(chan struct{})
			go func() { defer close(ended); n.Run() }()
			defer func() { n.Close(context.Background(), nil, nil); <-ended }()
			require.Eventually(t, func() bool { return n.Health().Err == nil }, 20*time.Second, 5*time.Millisecond)
			ours := 0
			for line := range strings.Lines(server.MustDo("CLIENT", "LIST").(string)) {
				if strings.Contains(line, " name="+name+" ") {
					ours++
					assert.Contains(t, line, " "+c.want)
				}
			}
			assert.Equal(t, 1, ours, "one connection, whatever was tried on the way")
		})
	}
}

// Somebody flushes the scripts again and again: nothing that the user of a lock
// has to mend, and nothing that was applied.
func TestScriptsThatAreFlushedTwiceAreNoMisconfiguration(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	proxy := redistest.NewProxy(t, server.Addr())
	n, now := greeted(t, proxy.Addr())
	defer n.Close(context.Background(), nil, nil)
	sent := 0
	proxy.DelayCommand(func(cmd []string) bool {
		if len(cmd) == 3+3+13 { // the acquire
			sent++
			server.MustDo("SCRIPT", "FLUSH")
		}
		return false
	}, 0)
	answer := make(answers, 1)
	require.True(t, n.Post(&node.Request{
		Kind: node.Acquire, Keys: []string{"p:job", "p:job:fence", "p:job:queue"}, Expires: now() + time.Minute,
		Args: []string{"0123456789abcdef0123456789abcdef", "0 - x", "10000", "10000", "1", "1000000", "9000000000000000", "", ""},
	}, answer))
	got := <-answer
	assert.Equal(t, 2, sent)
	assert.Equal(t, node.Unsent, got.Status)
	var config *node.ConfigError
	assert.NotErrorAs(t, got.Err, &config)
	assert.ErrorContains(t, got.Err, "NOSCRIPT")
	assert.EqualValues(t, 0, server.MustDo("EXISTS", "p:job"))
}
