package node

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// More old registers than one call drops are gone after the next greeting, without
// traffic. Younger registers stay, and without fencing the registers of other clients
// stay too.
func TestOldRegistersAreForgotten(t *testing.T) {
	const old = 2*forgetMost + 50
	for name, c := range map[string]struct {
		fenced time.Duration
		left   int
	}{"with fencing": {time.Second, 1}, "without fencing": {0, old + 1}} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t, 1)[0]
			real := clock.New()
			var ahead atomic.Int64
			n := New(Config{
				Option: rueidis.ClientOption{InitAddress: []string{server.Addr()}}, Prefix: "p:", Drift: 0.01, Cap: c.fenced,
				Clock: func() (validity clock.Validity, steady clock.Steady) {
					by := time.Duration(ahead.Load())
					validity, steady = real.Both()
					return validity.Add(by), steady.Add(by)
				},
			})
			ended := make(chan struct{})
			go func() { defer close(ended); n.Run() }()
			defer func() { n.Close(context.Background(), nil, nil); <-ended }()
			require.Eventually(t, func() bool { return n.Health().Err == nil }, 20*time.Second, time.Millisecond)
			add := []string{"ZADD", wire.RegistersKey("p:"), fmt.Sprint(time.Now().Add(-23 * time.Hour).UnixMicro()), "young"}
			for i := range old {
				add = append(add, fmt.Sprint(time.Now().Add(-25*time.Hour).UnixMicro()), fmt.Sprint(i))
			}
			server.MustDo(add...)
			registers := func() int { return int(server.MustDo("ZCARD", wire.RegistersKey("p:")).(int64)) }
			n.lanes.wake()
			time.Sleep(20 * time.Millisecond)
			require.Equal(t, old+1, registers(), "it is not time for a greeting")
			ahead.Store(int64(checkEvery))
			n.lanes.wake()
			if c.left == 1 {
				require.Eventually(t, func() bool { return registers() == 1 }, 20*time.Second, time.Millisecond)
			}
			time.Sleep(50 * time.Millisecond)
			assert.Equal(t, c.left, registers())
		})
	}
}
