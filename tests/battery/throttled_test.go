//go:build linux

package battery

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// A quota of a container lets a process run for 20 ms of each 100 ms.
const (
	quotaPeriod = 100 * time.Millisecond
	quotaRuns   = 20 * time.Millisecond
)

// throttle stops and continues a process as such a quota does, until end is called.
func throttle(c *child) (end func()) {
	over, running := make(chan struct{}), sync.WaitGroup{}
	running.Go(func() {
		process := c.cmd.Process
		defer func() { _ = process.Signal(syscall.SIGCONT) }()
		for every(over, quotaRuns) {
			_ = process.Signal(syscall.SIGSTOP)
			time.Sleep(quotaPeriod - quotaRuns)
			_ = process.Signal(syscall.SIGCONT)
		}
	})
	return func() { close(over); running.Wait() }
}

// A holder with a quota of CPU is cut off from all nodes. It has measured how late it runs, and reports the loss before
// its waiting successor is granted the name.
func TestAThrottledHolderReportsItsLossBeforeTheNextGrant(t *testing.T) {
	eachNight(t)
	const ttl = 2 * time.Second
	forSizes(t, true, func(t *testing.T, n int) {
		total := count(100, 4)
		r := newRow(t, fmt.Sprintf("a holder whose CPU is throttled to %v of %v, cut off %d times, TTL %v, N=%d", quotaRuns, quotaPeriod, total, ttl, n))
		w := startWitness(t)
		servers := redistest.Start(t, n)
		proxies, addrs := testkit.Proxied(t, servers)
		successors := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTTL(ttl))
		s := spawn(t, "sleeper", sleeperConfig{Addrs: addrs, Witness: w.addr, TTL: ttl})
		var ready string
		require.NoError(t, s.receive(&ready))
		end := throttle(s)
		lost, inTime, early := 0, 0, []time.Duration{}
		for i := range total {
			tr, err := cutThrottled(t, s, proxies, successors, w.addr, [2]string{fmt.Sprint("polled-", i), fmt.Sprint("watched-", i)})
			require.NoError(t, err)
			for j := range tr.sleeper {
				if !tr.sleeper[j].Lost {
					continue
				}
				lost++
				before := tr.successor[j].Granted.since(tr.sleeper[j].CtxDone)
				if early = append(early, before); before >= 0 {
					inTime++
				}
			}
		}
		end()
		require.NoError(t, s.end())
		tally, holds, writes, _ := w.finish(t)
		r.figure(fmt.Sprintf("lost %d of %d, reported before the successor's grant %d (by %v at the least, p50 %v)", lost, 2*total, inTime,
			brief(quantile(early, 0)), brief(quantile(early, 0.5))), "all", lost == 2*total && inTime == lost)
		exclusion(t, r, &tally, holds, writes)
	})
}

// cutThrottled has a throttled sleeper take two leases and cuts it off from the nodes. It heals the connections when
// the successors have the names.
func cutThrottled(t *testing.T, s *child, proxies []*redistest.Proxy, successors *quorumlock.Manager, witness string, names [2]string) (*trial, error) {
	tr := &trial{}
	var taken [2]sleeperLease
	if err := errors.Join(s.send(sleeperCommand{Take: names}), s.receive(&taken)); err != nil {
		return nil, err
	}
	over := make(chan struct{})
	var waiting sync.WaitGroup
	var failures [2]error
	for i, lease := range taken {
		if lease.Error != "" {
			return nil, errors.New(lease.Error)
		}
		waiting.Go(func() {
			failures[i] = succeed(context.WithoutCancel(t.Context()), successors, names[i], witness, over, &tr.successor[i])
		})
	}
	time.Sleep(time.Second) // it measures its delays
	for _, p := range proxies {
		p.Swallow()
	}
	time.Sleep(3 * time.Second) // the keys end after a TTL
	close(over)
	waiting.Wait()
	for _, p := range proxies {
		p.Heal()
	}
	err := errors.Join(s.send(sleeperCommand{}), s.receive(&tr.sleeper))
	for _, lease := range tr.sleeper {
		if lease.Error != "" {
			err = errors.Join(err, errors.New(lease.Error))
		}
	}
	return tr, errors.Join(err, failures[0], failures[1])
}
