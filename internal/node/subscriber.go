package node

import (
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/wire"
)

// Subscribe makes the node wake the waiters of this Manager, over a connection of its
// own: in RESP2, a push between the replies could not be distinguished from them. It
// returns at once, and is safe to call again.
//
// A wake-up is a hint. While the node wakes no waiters, they do not queue on it, and
// poll.
func (n *Node) Subscribe() {
	if n.cfg.Manager != "" {
		n.subscribeOnce.Do(func() { close(n.subscribe) })
	}
}

// RunSubscriber waits for Subscribe, and then subscribes until the node is closed, over
// one connection after the other. It must be called once, and returns after the node is
// closed.
func (n *Node) RunSubscriber() {
	select {
	case <-n.subscribe:
	case <-n.ctx.Done():
		return
	}
	retry := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond), backoff.WithMaxInterval(2*time.Second),
		backoff.WithMaxElapsedTime(0))
	for n.ctx.Err() == nil {
		err := n.receive(retry.Reset)
		n.subscribed.Store(false)
		n.judgeSubscriber(err)
		select {
		case <-time.After(retry.NextBackOff()):
		case <-n.ctx.Done():
		}
	}
}

// receive subscribes over one connection, and returns when that ends.
func (n *Node) receive(confirmed func()) error {
	client, err := rueidis.NewClient(requiredOptions(n.ctx, n.option(false), n.watchSubscriber))
	if client == nil {
		return err
	}
	// The connection ends after 1.5 s if a hanging node does not answer a ping, and at
	// once when the node is closed.
	defer client.Close()
	if err != nil {
		return err
	}
	ctx := rueidis.WithOnSubscriptionHook(n.ctx, func(s rueidis.PubSubSubscription) {
		if s.Kind == "subscribe" {
			confirmed()
			n.judgeSubscriber(nil)
			n.subscribed.Store(true)
			n.cfg.OnSubscribed(n.cfg.Index)
		}
	})
	channel := n.channels + n.cfg.Manager
	return client.Receive(ctx, client.B().Subscribe().Channel(channel).Build(), func(m rueidis.PubSubMessage) {
		if len(m.Message) > 1+wire.TicketLen {
			n.cfg.OnWake(n.cfg.Index, wire.WakeKind(m.Message[0]), m.Message[1:1+wire.TicketLen], m.Message[1+wire.TicketLen:])
		}
	})
}

// judgeSubscriber makes the worker report a warning when a subscription needs an
// operator, and again when that is over.
func (n *Node) judgeSubscriber(err error) {
	if n.ctx.Err() != nil {
		return
	}
	var now *wire.ConfigError
	if err != nil {
		if status, refused := classify(err); status != wire.Misconfigured || !errors.As(refused, &now) {
			return // the node is down, and the worker notices that
		}
		now = &wire.ConfigError{Problem: "this node sends no wake-ups, so waiters poll: " + now.Problem, Fix: now.Fix}
	}
	if before := n.subscribeErr.Swap(now); (before == nil) != (now == nil) {
		n.Check()
	}
}

// subscription returns why the node cannot wake waiters, nil if it can.
func (n *Node) subscription() error {
	if err := n.subscribeErr.Load(); err != nil {
		return err
	}
	return nil
}
