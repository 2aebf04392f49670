package node_test

import (
	"context"
	"sync"
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

// The marker survives with the data, and names the process that wrote it. Writes that
// this process had not put on disk are lost.
func TestARestartThatFindsItsDataIsQuarantinedAllTheSame(t *testing.T) {
	const guard = time.Second // longer than a busy machine stands still between greeting and look
	server := redistest.Start(t, 1, "--appendonly", "yes", "--appendfsync", "always")[0]
	greet := func() node.Health {
		n, _ := run(t, node.Config{
			Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}}, Guard: guard, Cap: time.Second,
		})
		defer n.Close(context.Background(), nil, nil)
		return n.Health()
	}
	require.NotZero(t, greet().Quarantined, "first use")
	time.Sleep(guard + guard/10)
	require.Zero(t, greet().Quarantined, "known")
	before, base := server.MustDo("GET", wire.GuardKey("p:")), server.MustDo("GET", wire.BaseKey("p:"))
	server.Restart()
	require.Equal(t, before, server.MustDo("GET", wire.GuardKey("p:")), "the data is there")
	h := greet()
	require.NoError(t, h.Err)
	assert.NotZero(t, h.Quarantined)
	require.ErrorIs(t, h.Reason, wire.ErrQuarantined)
	assert.Greater(t, server.MustDo("GET", wire.BaseKey("p:")), base, "registers count as the end of the quarantine")
}

// A client that knew the data notices their loss, although a new client trusts the empty
// database and writes the last marker.
func TestAFlushBetweenTwoTrustingClientsIsNoticed(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	config := node.Config{
		Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}}, Guard: time.Hour, Trust: true, Cap: time.Second,
	}
	n, now := run(t, config)
	require.Zero(t, n.Health().Quarantined, "a first deployment")
	answer := make(answers, 1)
	ask := func(n *node.Node, owner string) wire.Reply {
		require.True(t, n.Post(acquisition("p:job", owner, now()+10*time.Second), answer))
		return answer.Next(t)
	}
	require.Equal(t, wire.Granted, ask(n, ownerA).Status)
	server.MustDo("FLUSHALL") // ownerA's lock is gone, and n has not noticed
	newcomer, _ := run(t, config)
	require.Zero(t, newcomer.Health().Quarantined, "it is configured to trust an empty node")
	got := ask(n, ownerB)
	assert.Equal(t, wire.NotApplied, got.Status)
	require.ErrorIs(t, got.Err, wire.ErrQuarantined)
	assert.ErrorIs(t, n.Health().Reason, wire.ErrQuarantined)
	assert.EqualValues(t, 0, server.MustDo("EXISTS", "p:job"))
}

// calls are the calls of Listed and Gone, in their order. Every vote counts.
type calls struct {
	node.Lists

	mu  sync.Mutex
	all []string
}

func (c *calls) called(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, name)
}

func (c *calls) Entry(int) wire.ListEntry { return wire.ListEntry{Nodes: 1, Adds: true, Keeps: true} }
func (c *calls) Gone(int)                 { c.called("gone") }
func (c *calls) Votes(int) error          { return nil }
func (c *calls) Stale(int) bool           { return false }

func (c *calls) Listed(int, wire.ListEntry, clock.Steady, wire.ListAnswer) error {
	c.called("listed")
	return nil
}

func (c *calls) Announcement(int, string) *wire.Announcement { return nil }

// A node that has lost its data has lost the list as well, although the connection stands.
func TestANodeWithAnotherMarkerIsNotTrustedToRememberTheList(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	lists := new(calls)
	n, now := run(t, node.Config{
		Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}}, Guard: time.Hour, Trust: true, Cap: time.Second, Lists: lists,
	})
	lists.mu.Lock()
	lists.all = nil
	lists.mu.Unlock()
	server.MustDo("FLUSHALL")
	answer := make(answers, 1)
	require.True(t, n.Post(acquisition("p:job", ownerA, now()+10*time.Second), answer))
	require.ErrorIs(t, answer.Next(t).Err, wire.ErrQuarantined)
	lists.mu.Lock()
	defer lists.mu.Unlock()
	require.GreaterOrEqual(t, len(lists.all), 2)
	assert.Equal(t, []string{"gone", "listed"}, lists.all[:2])
}

// The data of a node in quarantine may be older than another client's grant. A raise
// would count there, and an extend's answer about the token would prove nothing. Leases
// are still renewed.
func TestARaiseIsRefusedInQuarantine(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	n, now := run(t, node.Config{
		Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}}, Guard: time.Hour, Cap: time.Second,
	})
	require.ErrorIs(t, n.Health().Reason, wire.ErrQuarantined, "first use")
	before := wire.Compose(ownerA, 7, metadata)
	server.MustDo("SET", "p:job", before, "PX", "60000")
	answer := make(answers, 1)
	require.True(t, n.Post(wire.Entry{Lock: "p:job", Value: wire.Compose(ownerA, 0, metadata)}.Raise(9, clock.Steady(now()+time.Minute)), answer))
	assert.EqualValues(t, -1, answer.Next(t).Before)
	assert.Equal(t, before, server.MustDo("GET", "p:job"))
	assert.EqualValues(t, 0, server.MustDo("EXISTS", wire.RegistersKey("p:")))
	require.True(t, n.Post(renewals([]string{"p:job"}, ownerA, 7, "30000", now()+time.Minute), answer))
	assert.Equal(t, []int64{wire.OursWithoutVote}, answer.Next(t).Answers)
	assert.LessOrEqual(t, server.MustDo("PTTL", "p:job").(int64), int64(30_000), "extended anyway")
}

// A node that may evict does not vote, although it knows the marker.
func TestARaiseIsRefusedWhereVotesAreWithheld(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	n, now := run(t, node.Config{
		Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}}, Guard: time.Hour, Trust: true, Cap: time.Second,
	})
	require.NoError(t, n.Health().Err)
	server.MustDo("SET", "p:job", wire.Compose(ownerA, 7, metadata), "PX", "60000")
	answer := make(answers, 1)
	raise := func(to int64) int64 {
		require.True(t, n.Post(wire.Entry{Lock: "p:job", Value: wire.Compose(ownerA, 0, metadata)}.Raise(to, clock.Steady(now()+time.Minute)), answer))
		return answer.Next(t).Before
	}
	require.EqualValues(t, 0, raise(9))
	server.MustDo("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
	n.Check()
	require.Eventually(t, func() bool { return n.Health().Withheld }, 20*time.Second, 10*time.Millisecond)
	assert.EqualValues(t, -1, raise(11))
}
