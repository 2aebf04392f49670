package node

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/master"
)

const (
	// checkEvery is how often a node is greeted again over the same connection: its role,
	// eviction policy, data and clock may have changed without traffic.
	checkEvery = 10 * time.Second
	// retryEvery is how often a node that needs an operator is greeted again.
	retryEvery = time.Second
	// judgeEvery is how often, after a step of the node's clock, the Manager is asked
	// whether the step is the node's own, and judgeFor for how long.
	judgeEvery = 25 * time.Millisecond
	judgeFor   = 2 * time.Second
)

// link is the worker's connection to the master, and when it is dialled, greeted and tested. It
// is used by the worker and its parts, and by the transmitter while the worker waits for it;
// conns, debt and the published reading are safe for others.
type link struct {
	cfg    *Config
	addr   string          // or the name of the group
	life   context.Context // ends the call in flight when the node is cut off
	group  *master.Group   // nil if the node is one server
	client rueidis.Client
	conns  conns
	debt   debt
	meter  meter

	now      time.Duration // the steady clock when it was last read
	greeted  uint64        // the connection that has passed the greeting
	checkAt  time.Duration
	redial   backoff.BackOff
	redialAt time.Duration
	pingAt   time.Duration // when a connection that stays idle is tested
}

// look reads the steady clock.
func (l *link) look() { _, l.now = l.cfg.Clock() }

// regreet makes the worker greet once more before the next batch.
func (l *link) regreet() { l.greeted, l.redialAt = 0, l.now }

// connected reports whether the greeted connection is up.
func (l *link) connected() bool { return l.greeted != 0 && l.conns.up(l.greeted) }

// ping tests an idle connection. Nothing reads from it meanwhile, so its end would
// otherwise show only with the next request. Any answer will do.
func (l *link) ping() {
	l.debt.asked(l.now)
	if l.client.Do(context.Background(), l.client.B().Ping().Build()).NonRedisError() == nil {
		l.debt.answered()
	}
	l.look()
	l.pingAt = l.now + keepAlive
}

// option returns the node's option; if the node is a group, a dial goes to its master. The
// dials of the worker, its own ones, set the term.
func (l *link) option(own bool) rueidis.ClientOption {
	o := l.cfg.Option
	if l.group == nil {
		return o
	}
	dial := dialer(o)
	o.Sentinel, o.DialFn = rueidis.SentinelOption{}, nil
	o.InitAddress = []string{l.addr}
	o.DialCtxFn = l.group.Dial(dial, own)
	return o
}

// asideOption returns the option of a connection that only asks who the master is. The
// worker does not notice its end, and hangUp leaves it alone.
func (l *link) asideOption(o rueidis.ClientOption) rueidis.ClientOption {
	o.AlwaysRESP2 = l.cfg.Option.AlwaysRESP2
	o.DialFn, o.DialCtxFn = l.cfg.Option.DialFn, l.cfg.Option.DialCtxFn
	return requiredOptions(l.life, o, l.conns.watchAside)
}
