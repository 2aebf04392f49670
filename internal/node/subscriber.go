package node

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// subscriber receives the wake-ups of a node, over a connection of its own.
type subscriber struct {
	cfg     *Config
	life    context.Context // of the node
	channel string
	open    func() (rueidis.Client, error) // opens the next connection
	check   func()                         // makes the worker report a warning, or its end
	compare func(ask func() Identity)      // compares with the worker's server; nil if another server may be right

	start     chan struct{} // closed by subscribe
	startOnce sync.Once
	confirmed atomic.Bool // waiters that queue here are woken
	problem   atomic.Pointer[wire.ConfigError]
}

// subscribe makes run subscribe, unless the Manager has no channel.
func (s *subscriber) subscribe() {
	if s.cfg.Manager != "" {
		s.startOnce.Do(func() { close(s.start) })
	}
}

// run waits for subscribe, and then subscribes until the node is closed, over one connection
// after the other.
func (s *subscriber) run() {
	select {
	case <-s.start:
	case <-s.life.Done():
		return
	}
	retry := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond), backoff.WithMaxInterval(2*time.Second),
		backoff.WithMaxElapsedTime(0))
	for s.life.Err() == nil {
		err := s.receive(retry.Reset)
		s.confirmed.Store(false)
		s.judge(err)
		select {
		case <-time.After(retry.NextBackOff()):
		case <-s.life.Done():
		}
	}
}

// receive subscribes over one connection, and returns when that ends.
func (s *subscriber) receive(confirmed func()) error {
	client, err := s.open()
	if client == nil {
		return err
	}
	// The connection ends after 1.5 s if a hanging node does not answer a ping, and at
	// once when the node is closed.
	defer client.Close()
	if err != nil {
		return err
	}
	if s.compare != nil {
		s.compare(func() Identity { return masterAt(s.life, client) })
	}
	ctx := rueidis.WithOnSubscriptionHook(s.life, func(one rueidis.PubSubSubscription) {
		if one.Kind == "subscribe" || one.Kind == "ssubscribe" {
			confirmed()
			s.judge(nil)
			s.confirmed.Store(true)
			s.cfg.OnSubscribed(s.cfg.Index)
		}
	})
	subscribe := client.B().Subscribe().Channel(s.channel).Build()
	if master.SlotTag(&s.cfg.Option) != "" {
		subscribe = client.B().Ssubscribe().Channel(s.channel).Build()
	}
	return client.Receive(ctx, subscribe, func(m rueidis.PubSubMessage) {
		if len(m.Message) > 1+wire.TicketLen {
			s.cfg.OnWake(s.cfg.Index, wire.WakeKind(m.Message[0]), m.Message[1:1+wire.TicketLen], m.Message[1+wire.TicketLen:])
		}
	})
}

// judge makes the worker report a warning when a subscription needs an operator, and again when it no longer does.
func (s *subscriber) judge(err error) {
	if s.life.Err() != nil {
		return
	}
	var now *wire.ConfigError
	if err != nil {
		if status, refused := classify(err); status != wire.Misconfigured || !errors.As(refused, &now) {
			return // the node is down, and the worker notices that
		}
		now = &wire.ConfigError{Problem: "this node sends no wake-ups, so waiters poll: " + now.Problem, Fix: now.Fix}
	}
	if before := s.problem.Swap(now); (before == nil) != (now == nil) {
		s.check()
	}
}

// warning returns why the node cannot wake waiters, nil if it can.
func (s *subscriber) warning() error {
	if err := s.problem.Load(); err != nil {
		return err
	}
	return nil
}
