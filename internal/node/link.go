package node

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/vote"
)

const (
	// checkEvery is how often a node is greeted again over the same connection: its role,
	// eviction policy, data and clock may have changed without traffic.
	checkEvery = 10 * time.Second
	// checkAhead is how long before its time a check may go along with a batch: with a TTL of 3 s, renewals are a
	// second apart, and in a late process up to twice that.
	checkAhead = 2 * time.Second
	// greetMax is how long an operation of a greeting may still run on the server after it was asked.
	greetMax = 2 * maxDial
)

// link is the worker's connection to the master, with the times at which it is dialled, greeted and tested. The worker
// and its parts use it, and the transmitter while the worker waits for it. conns, debt and the published reading are
// safe for others.
type link struct {
	cfg    *Config
	addr   string          // or the name of the group
	life   context.Context // ends the call in flight when the node is cut off
	group  *master.Group   // nil if the node is one server
	client rueidis.Client
	conns  conns
	debt   debt
	meter  meter
	vote   vote.Vote // whether votes over this connection count; only the worker uses it
	start  time.Time // the origin of mono

	now     clock.Steady // the steady clock when it was last read
	greeted uint64       // the connection that has passed the greeting
	used    uint64       // the last connection that has, also while it is greeted again
	// since is an instant after which nothing was sent over an earlier connection, and nothing was sent again.
	since    clock.Validity
	checkAt  clock.Steady
	alongAt  clock.Steady // from then on a batch takes the check along
	redial   backoff.BackOff
	redialAt clock.Steady
	pingAt   clock.Steady // when a connection that stays idle is tested
	renewed  clock.Steady // until then the test is a look at the socket, see testAt
	lookAt   clock.Steady // when the owner of a slot is asked whether the slot is moving
	// expires is when the credentials of the connection end, 0 if they do not. The goroutine that dials writes it.
	expires atomic.Int64
}

// look reads the steady clock.
func (l *link) look() { _, l.now = l.cfg.Clock() }

// mono reads the monotonic clock.
func (l *link) mono() clock.Mono { return clock.Mono(time.Since(l.start)) }

// regreet makes the worker greet once more before the next batch.
func (l *link) regreet() { l.greeted, l.redialAt = 0, l.now }

// connected reports whether the greeted connection is up.
func (l *link) connected() bool { return l.greeted != 0 && l.conns.up(l.greeted) }

// ping tests an idle connection. Nothing reads from it, so its end would otherwise show only with the next request. Any
// answer will do.
func (l *link) ping() {
	if l.now < l.renewed {
		if unread, ended := l.conns.peek(); !unread && !ended {
			l.pingAt = min(l.renewed, l.now.Add(keepAlive))
			return
		}
	}
	l.debt.asked(l.now)
	if l.client.Do(context.Background(), l.client.B().Ping().Build()).NonRedisError() == nil {
		l.debt.answered()
	}
	l.look()
	l.pingAt = l.testAt(0)
}

// nextCheck returns when a sound connection is greeted again. A renewal waits behind a greeting, and a process short of
// CPU takes long for one. So no two of sixteen nodes are greeted at the same time, and nodes of a list are far apart.
func (l *link) nextCheck() clock.Steady {
	phase := time.Duration((l.cfg.First+l.cfg.Index)*3%16) * checkEvery / 16
	at := l.now
	if at >= l.alongAt { // this check may have gone along before its time
		at = max(at, l.checkAt)
	}
	return at.Add(checkEvery - (time.Duration(at)+checkEvery-phase)%checkEvery)
}

// testAt returns when to test a connection that stays idle from now on. A renewal would wait for the answer to the
// PING, so a process that reads answers late tests later. Before a renewal that is due soon, the worker only looks
// whether the connection has ended, because the renewal tests it as well; before a later renewal, it only looks for a
// second.
func (l *link) testAt(renewal time.Duration) clock.Steady {
	idle := keepAlive + 2*min(l.meter.recent(l.now), greetMax)
	l.renewed = l.now
	switch {
	case renewal > renewalTests:
		l.renewed = l.now.Add(idle + time.Second)
	case renewal > 0:
		l.renewed = l.now.Add(idle + max(renewal, time.Second))
	}
	return l.now.Add(idle)
}

// option returns the node's option; if the node is a group, a dial goes to its master. own means the worker's dials,
// which set the term.
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

// required is requiredOptions for the node. The dial of a group asks its voters first.
func (l *link) required(o rueidis.ClientOption, watched func(net.Conn) net.Conn) rueidis.ClientOption {
	if l.group != nil {
		return requiredWithin(l.life, 2*maxDial, o, watched)
	}
	return requiredOptions(l.life, o, watched)
}

// optionAgain returns the option of a connection to the server that the worker has dialled.
func (l *link) optionAgain() rueidis.ClientOption {
	o := l.option(false)
	if l.group != nil {
		o.DialCtxFn = l.group.DialAgain(dialer(l.cfg.Option))
	}
	return o
}

// trunk returns the connection that the node shares, and joins one if it has none; nil for a node with a connection of
// its own. Only the worker may call it.
func (l *link) trunk() (*trunk, error) {
	client, ok := l.client.(*trunkClient)
	if !ok {
		return nil, nil
	}
	s, err := client.join()
	if err != nil {
		return nil, err
	}
	return s.trunk, nil
}

// open returns the client of the worker.
func (l *link) open() (rueidis.Client, error) {
	if c := l.cfg.Cluster; c != nil {
		return c.client(l.life, &c.requests, l.group, true, l.conns.watch), nil
	}
	o := forWorker(l.required(l.option(true), l.conns.watch))
	if credentials := o.AuthCredentialsFn; credentials != nil {
		o.AuthCredentialsFn = func(ctx rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
			c, err := credentials(ctx)
			l.expires.Store(int64(l.refreshAt(c.RefreshAfter)))
			c.RefreshAfter = time.Time{}
			return c, err
		}
	}
	return rueidis.NewClient(o)
}

// refreshAt returns when the worker connects again to get new credentials, a second from now at the earliest; 0 for
// never. rueidis would send AUTH over the connection instead, and the first one that met a batch would switch pipelining
// on for good, which has no bound for an answer.
func (l *link) refreshAt(after time.Time) clock.Steady {
	if after.IsZero() {
		return 0
	}
	_, now := l.cfg.Clock()
	return now.Add(max(time.Until(after), time.Second))
}

// expired reports whether the credentials of the connection have ended.
func (l *link) expired() bool {
	at := clock.Steady(l.expires.Load())
	return at != 0 && l.now >= at
}
