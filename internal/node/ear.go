package node

import (
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"
)

// Listen has the node tell this Manager whose turn it is, over a connection of
// its own: a push between the replies could not be told from them in RESP2. It
// returns at once, and is safe to call again.
//
// What is heard are hints. As long as nobody listens, waiters do not queue on the
// node and find out by asking.
func (n *Node) Listen() {
	if n.cfg.Manager != "" {
		n.once.Do(func() { close(n.listen) })
	}
}

// Hear is the ear: it waits for Listen, and then listens until the node is
// closed, over one connection after the other. It must be called once, and
// returns when Run has come to its end.
func (n *Node) Hear() {
	select {
	case <-n.listen:
	case <-n.ctx.Done():
		return
	}
	retry := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(20*time.Millisecond), backoff.WithMaxInterval(2*time.Second),
		backoff.WithMaxElapsedTime(0))
	for n.ctx.Err() == nil {
		err := n.subscribe(retry.Reset)
		n.listens.Store(false)
		n.judgeEar(err)
		select {
		case <-time.After(retry.NextBackOff()):
		case <-n.ctx.Done():
		}
	}
}

// subscribe listens as long as one connection stands.
func (n *Node) subscribe(confirmed func()) error {
	client, err := rueidis.NewClient(force(n.ctx, n.cfg.Option, n.overhear))
	if client == nil {
		return err
	}
	// A ping that a node that hangs does not answer ends the connection, after 1.5 s;
	// Close of the node does at once.
	defer client.Close()
	if err != nil {
		return err
	}
	ctx := rueidis.WithOnSubscriptionHook(n.ctx, func(s rueidis.PubSubSubscription) {
		if s.Kind == "subscribe" {
			confirmed()
			n.judgeEar(nil)
			n.listens.Store(true)
			n.cfg.Heard(n.cfg.Index)
		}
	})
	channel := n.channels + n.cfg.Manager
	return client.Receive(ctx, client.B().Subscribe().Channel(channel).Build(), func(m rueidis.PubSubMessage) {
		if len(m.Message) > 1+TicketLen {
			n.cfg.Turn(n.cfg.Index, m.Message[0] == 'k', m.Message[1:1+TicketLen], m.Message[1+TicketLen:])
		}
	})
}

// judgeEar has the worker tell, as a doubt, of an ear that somebody has to mend,
// and that it was mended.
func (n *Node) judgeEar(err error) {
	if n.ctx.Err() != nil {
		return
	}
	var now *ConfigError
	if err != nil {
		if status, refused := classify(err); status != Misconfigured || !errors.As(refused, &now) {
			return // it is down, and the worker finds that
		}
		now = &ConfigError{Problem: "nobody is woken by this node, waiters have to ask: " + now.Problem, Fix: now.Fix}
	}
	if before := n.deaf.Swap(now); (before == nil) != (now == nil) {
		n.Check()
	}
}

// deafness returns what keeps the ear from listening, nil for nothing.
func (n *Node) deafness() error {
	if err := n.deaf.Load(); err != nil {
		return err
	}
	return nil
}
