package queue

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/campaign"
	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/hold"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// asker is a Caller whose campaign asks the nodes.
type asker struct {
	caller
	campaign campaign.Campaign
}

func (c *asker) CarryTicket(notBefore clock.Validity) wire.TicketUpdate {
	return c.campaign.CarryTicket(notBefore)
}

func (*asker) Open() (*hold.Lock, hold.Tenant) { return &hold.Lock{}, &lease{} }

func (*asker) Queue() hold.Queue { return nil }

// A release has carried the caller's ticket to the nodes, and the caller gives up before
// it takes its turn.
func TestACallerThatGivesUpAtItsTurnRemovesItsTicket(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	r := roomOf(t, clock.New(), server.Addr())
	stop := r.run()
	defer stop()
	campaigns := campaign.New(&campaign.Config{
		Ensemble: r.ensemble, Locks: r.dog.Locks, Prefix: "p:", Manager: strings.Repeat("0", wire.ManagerLen), Closing: r.config.Closing,
	})
	terms := &config.Terms{Terms: quorum.Terms{Nodes: 1, TTL: time.Hour, Timeout: time.Second, Interval: 20 * time.Minute}}
	server.MustDo("SET", key, "somebody else", "PX", "60000")
	for range 20 { // select chooses at random
		ctx, cancel := context.WithCancel(context.Background())
		c := &asker{}
		campaigns.Begin(&c.campaign, campaign.Call{Wait: ctx, Key: key, Terms: terms, Kind: campaign.Exclusive, Caller: c})
		p := r.Enter(key, Waiting{Caller: c, Terms: terms, Arrived: c.campaign.Arrived})
		asks(t, p) // the queue was empty
		carried := c.CarryTicket(0)
		server.MustDo("ZADD", wire.QueueKey(key), carried.EnqueuedAt, carried.Ticket)
		p.turn <- Turn{Enqueued: true}
		cancel()
		_, _ = p.Wait(ctx)
		c.campaign.GiveUp()
		p.Leave()
	}
	require.Eventually(t, func() bool { return server.MustDo("EXISTS", wire.QueueKey(key)) == int64(0) }, 20*time.Second, time.Millisecond)
}
