package node

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// A greeting over the same connection does not send the scripts again. A server that has lost them gets both again, at
// the latest at the greeting after it reports the loss.
func TestScriptsAreSentAfterADialAndToAServerThatHasLostThem(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	n := New(Config{
		Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}}, Prefix: "p:", Clock: clock.New().Both, Cap: time.Second,
	})
	go n.Run()
	defer n.Close(context.Background(), nil, nil)
	calls := func(command string) (n int) {
		stats, _ := server.MustDo("INFO", "commandstats").(string)
		_, text, _ := strings.Cut(stats, "cmdstat_"+command+":calls=")
		_, _ = fmt.Sscan(strings.ReplaceAll(text, ",", " "), &n)
		return n
	}
	greetings := func() int { return calls("time") }
	await := func(what string, done func() bool) {
		t.Helper()
		require.Eventually(t, done, 20*time.Second, time.Millisecond, what)
	}
	greet := func() {
		t.Helper()
		before := greetings()
		n.Check()
		await("another greeting", func() bool { return greetings() > before })
	}
	await("connected", func() bool { return n.Health().Err == nil })
	require.Equal(t, 2, calls("script|load"))
	for range 3 {
		greet()
	}
	assert.Equal(t, 2, calls("script|load"), "the same connection")

	server.MustDo("SCRIPT", "FLUSH")
	greet() // its rehearsal finds no script
	await("the usual script", func() bool { return calls("script|load") == 3 })
	greet()
	await("both", func() bool { return calls("script|load") == 5 })
	greet()
	assert.Equal(t, 5, calls("script|load"))

	server.MustDo("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	await("another connection", func() bool { return calls("script|load") == 7 })
}
