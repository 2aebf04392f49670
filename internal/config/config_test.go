package config

import (
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/master"
)

// A6: the quarantine must outlast how far a grant may move a register, and the window.
func TestAGrantMovesARegisterNoFurtherThanTheGuardOutlasts(t *testing.T) {
	for most, c := range map[time.Duration]Config{
		2 * time.Second:        {},
		time.Second:            {Guarded: true, Guard: 4 * time.Second},
		250 * time.Millisecond: {Guarded: true, Guard: 6 * time.Second, Failover: 5 * time.Second},
		0:                      {Unfenced: true, Guarded: true, Guard: time.Minute},
	} {
		assert.Equal(t, most, c.RegisterCap(), "guard %v, window %v", c.Guard, c.Failover)
	}
}

// A late watchdog does not use up the time that the options give to a round.
func TestHowMuchEarlierALossMayBeReportedIsBounded(t *testing.T) {
	nodes := []rueidis.ClientOption{{InitAddress: []string{"a:1"}}, {InitAddress: []string{"b:1"}}, {InitAddress: []string{"c:1"}}}
	for _, c := range []struct {
		ttl, timeout time.Duration // 0 for the default
		want         time.Duration
	}{
		{0, 0, DefaultTTL / 10},
		{time.Second, 400 * time.Millisecond, 97500 * time.Microsecond},
		// two thirds of 1 s − 367 ms for an interval with its jitter − 450 − 50 − 25 − 12
		{time.Second, 450 * time.Millisecond, 64 * time.Millisecond},
	} {
		settings := Default(len(nodes))
		if c.ttl > 0 {
			settings.Terms.TTL, settings.NodeTimeout, settings.NodeTimeoutSet = c.ttl, c.timeout, true
		}
		require.Nil(t, settings.Complete(nodes))
		assert.InDelta(t, c.want, settings.Terms.MaxLag, float64(time.Millisecond))
	}
}

// Every field that changes what a caller gets is in the key: a lock must not be passed on to a
// caller that has asked for something else.
func TestALockIsPassedOnBetweenEqualTermsOnly(t *testing.T) {
	base := Terms{MinHold: time.Second, LockDelay: time.Second, Label: "a"}
	base.TTL = time.Minute
	same := base
	same.Call.Wait, same.Trip = Wait{Set: true, Most: time.Second}, time.Second
	assert.Equal(t, passKey(&base), passKey(&same), "how long a call waits, and how far the nodes are")
	for name, change := range map[string]func(*Terms){
		"TTL":        func(t *Terms) { t.TTL++ },
		"lock delay": func(t *Terms) { t.LockDelay++ },
		"max hold":   func(t *Terms) { t.MaxHold++ },
		"min hold":   func(t *Terms) { t.MinHold++ },
		"renewal":    func(t *Terms) { t.Manual = true },
		"label":      func(t *Terms) { t.Label = "b" },
	} {
		other := base
		change(&other)
		assert.NotEqual(t, passKey(&base), passKey(&other), name)
	}
}

// A program that gives one option for a whole cluster has not listed a node 0.
func TestAProblemOfAClusterNamesNoNode(t *testing.T) {
	for want, o := range map[string]rueidis.ClientOption{
		`InitAddress is empty: cannot be used here`: {},
		`SelectDB: cannot be used here`:             {InitAddress: []string{"a:1"}, SelectDB: 1},
		`("a"): must be host:port`:                  {InitAddress: []string{"a"}},
		`("A:1"): is named twice`:                   {InitAddress: []string{"a:1", "A:1"}},
	} {
		c, node := Default(1), master.SlotOption(master.BucketTag(0), o.InitAddress)
		node.SelectDB = o.SelectDB
		c.Guarded, c.Guard, c.FailoverSet, c.Failover = true, time.Minute, true, 5*time.Second
		p := c.CompleteCluster(&node)
		require.NotNil(t, p, want)
		assert.Equal(t, "cluster", p.What)
		assert.Equal(t, want, p.Value+": "+p.Bound)
	}
}
