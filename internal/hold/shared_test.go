package hold

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// sharedGrant is grant for a shared lease. Every register stands at 6.
func (p process) sharedGrant(terms *config.Terms) *Grant {
	g := p.grant(terms)
	g.Entry.Value, g.Entry.Shared, g.Proposal = wire.Compose(owner, 0, "1 - "), true, 0
	*g.Ballot = quorum.NewSharedBallot(terms.Nodes, true)
	for i := range terms.Nodes {
		g.Ballot.Grant(i, 0, 6)
	}
	return g
}

// A caller of the process does not wait behind a shared lease, so none may get its lock.
func TestASharedLeaseIsNotFoundByItsKey(t *testing.T) {
	for _, refused := range []bool{false, true} { // locks from before the first refusal are found in another way
		p := idle(3)
		if refused {
			assert.Nil(t, p.Find("job"))
		}
		l, first := p.open(t, p.sharedGrant(hour(3)))
		assert.EqualValues(t, 7, first.events[0].Token)
		assert.Equal(t, wire.Compose(owner, 0, "1 - "), l.Value(), "it shows no token, and stays the same")
		assert.Nil(t, p.Find("job"))
		writer, _ := p.open(t, p.grant(hour(3)))
		assert.Same(t, writer, p.Find("job"))
	}
}

func TestAReaderMissesItsEntryWhereOnlyOthersRead(t *testing.T) {
	p := idle(3)
	reader, _ := p.open(t, p.sharedGrant(hour(3)))
	writer, _ := p.open(t, p.grant(hour(3)))
	reading := func(values ...string) *wire.Reply {
		return &wire.Reply{Held: "s " + wire.Nobody + " 0 0 - ", TTL: time.Second, Readers: &wire.Readers{Count: 1, Values: values}}
	}
	assert.Equal(t, ErrMissing, reader.owns(reading("another's")))
	assert.Equal(t, ErrTaken, writer.owns(reading("another's")))
	assert.Equal(t, ErrMissing, reader.owns(reading()))
	assert.Equal(t, ErrMissing, writer.owns(reading()), "the lock waits for readers: a reservation")
}

// All requests for a shared lease concern its entry among the readers.
func TestAReaderIsRenewedRestoredKeptAndReleasedAsAReader(t *testing.T) {
	servers := redistest.Start(t, 1)
	p, server := running(t, servers), servers[0]
	terms := &config.Terms{Terms: quorum.Terms{Nodes: 1, TTL: 5 * time.Minute, Timeout: 10 * time.Second}, MinHold: time.Minute, KeyTTL: "300000", Manual: true}
	lock := wire.LockKey("p:", "job")
	open := func() (*Lock, *lease) {
		g := p.sharedGrant(terms)
		g.Entry.Lock = lock
		server.MustDo("SET", lock, "s "+wire.Nobody+" 0 0 - ", "PX", "60000")
		server.MustDo("ZADD", wire.ReadersKey(lock), strconv.FormatInt(time.Now().Add(10*time.Second).UnixMilli(), 10), g.Entry.Value)
		return p.open(t, g)
	}
	left := func(l *Lock) time.Duration {
		score, err := strconv.ParseInt(fmt.Sprint(server.MustDo("ZSCORE", wire.ReadersKey(lock), l.Value())), 10, 64)
		if err != nil {
			return 0
		}
		return time.Until(time.UnixMilli(score))
	}
	l, first := open()
	l.Renew(first, nil, nil)
	require.Eventually(t, func() bool { return left(l) > 4*time.Minute }, 10*time.Second, time.Millisecond)
	assert.Equal(t, 1, l.Verify(context.Background()).Got)
	server.MustDo("DEL", lock, wire.ReadersKey(lock))
	p.heal(healing(nil).with(l, quorum.All(1)))
	require.Eventually(t, func() bool { return server.MustDo("EXISTS", lock) == int64(1) && left(l) > 4*time.Minute }, 10*time.Second, time.Millisecond)
	_, _, ok := l.Vacate(first, Ending{What: Released})
	require.True(t, ok)
	l.Free(wire.TicketUpdate{}).Wait(context.Background(), 10*time.Second)
	assert.InDelta(t, time.Minute, left(l), float64(10*time.Second), "the minimum hold")

	server.MustDo("FLUSHALL")
	terms.MinHold = 0
	l, _ = open()
	p.End()
	require.Eventually(t, func() bool { return server.MustDo("EXISTS", lock) == int64(0) }, 10*time.Second, time.Millisecond)
	assert.Zero(t, left(l))
}
