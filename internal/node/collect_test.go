package node_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A server that reports that it is full does not wait for the next greeting, which comes within 10 s.
func TestAnErrorOfAFullServerDropsOldRegistersAtOnce(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	n, now := greeted(t, server.Addr())
	for i := range 1000 {
		server.MustDo("ZADD", wire.RegistersKey("p:"), strconv.FormatInt(time.Now().Add(-25*time.Hour).UnixMicro(), 10), strconv.Itoa(i))
	}
	server.MustDo("CONFIG", "SET", "maxmemory", "1")
	answer := make(answers, 1)
	require.True(t, n.Post(acquisition("p:job", ownerA, now()+time.Minute), answer))
	require.ErrorContains(t, answer.Next(t).Err, "OOM")
	assert.Eventually(t, func() bool { return server.MustDo("ZCARD", wire.RegistersKey("p:")) == int64(0) }, 7*time.Second, time.Millisecond)
}

// A user may have the right to drop registers but not to raise the base. Without the base, a later token could be lower
// than a dropped register.
func TestNoRegisterIsDroppedWhereTheBaseCannotBeRaised(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	server.MustDo("ACL", "SETUSER", "u", "on", ">word", "~*", "&*", "+@all", "-set")
	server.MustDo("ZADD", wire.RegistersKey("p:"), "5", "p:old")
	n, now := run(t, node.Config{Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}, Username: "u", Password: "word"}, Cap: time.Second})
	answer := make(answers, 1)
	require.True(t, n.Post(node.NewForget(now()+time.Minute), answer))
	require.Error(t, answer.Next(t).Err)
	assert.Equal(t, int64(1), server.MustDo("ZCARD", wire.RegistersKey("p:")))
}
