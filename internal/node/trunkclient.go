package node

import (
	"context"
	"net"
	"os"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/vote"
)

// trunkClient is the client of a node that shares the connection to its server. Like the client of rueidis, it dials
// when it is used and has no connection. One goroutine uses it at a time.
type trunkClient struct {
	rueidis.Client // builds commands; it is never dialled
	life           context.Context
	dial           master.Dial
	watch          func(net.Conn) net.Conn // of the node's conns

	share *share
	conn  net.Conn // the share, as watch has returned it
}

// join returns the node's share, and gets one if there is none.
func (c *trunkClient) join() (*share, error) {
	if c.share != nil && !c.share.gone.Load() {
		return c.share, nil
	}
	ctx, cancel := context.WithTimeout(c.life, 2*maxDial)
	defer cancel()
	conn, err := c.dial(ctx, "", nil, nil)
	if err != nil {
		return nil, err
	}
	s, watched := conn.(*share), c.watch(conn)
	c.share, c.conn = s, watched
	s.limit = time.AfterFunc(time.Hour, s.overdue)
	s.limit.Stop()
	s.onEnd(func() { _ = watched.Close() })
	return s, nil
}

// Do sends one command over the trunk.
func (c *trunkClient) Do(_ context.Context, command rueidis.Completed) rueidis.RedisResult {
	s, err := c.join()
	if err != nil {
		return rueidis.NewErrorResult(err)
	}
	s.expect()
	r := s.trunk.client.Do(s.life, command)
	s.answered()
	if err := r.NonRedisError(); err != nil {
		return rueidis.NewErrorResult(c.failed(s, err))
	}
	return r
}

// DoMulti sends commands over the trunk, with no command of another node between them.
func (c *trunkClient) DoMulti(_ context.Context, commands ...rueidis.Completed) (results []rueidis.RedisResult) {
	s, err := c.join()
	if err != nil {
		for range commands {
			results = append(results, rueidis.NewErrorResult(err))
		}
		return results
	}
	s.expect()
	results = s.trunk.client.DoMulti(s.life, commands...)
	s.answered()
	for i, r := range results {
		if err := r.NonRedisError(); err != nil {
			results[i] = rueidis.NewErrorResult(c.failed(s, err))
		}
	}
	return results
}

// Receive subscribes over the trunk, and returns when that ends, or the node leaves it.
func (c *trunkClient) Receive(ctx context.Context, subscribe rueidis.Completed, f func(rueidis.PubSubMessage)) error {
	s, err := c.join()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	return s.trunk.client.Receive(ctx, subscribe, f)
}

// Close leaves the trunk.
func (c *trunkClient) Close() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
}

// failed leaves a trunk that has not answered, and returns why it has not.
func (c *trunkClient) failed(s *share, err error) error {
	switch {
	case s.trunk.silent.Load():
		err = os.ErrDeadlineExceeded
	case s.life.Err() != nil && c.life.Err() == nil:
		err = vote.ErrReconnected // the node has hung up
	}
	_ = c.conn.Close()
	return err
}
