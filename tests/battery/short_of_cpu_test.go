//go:build linux

package battery

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// busyConfig configures a process that computes in this many goroutines. It also has leases if it has addresses.
type busyConfig struct {
	Computing int
	Addrs     []string
	TTL       time.Duration
	Guard     bool
	During    time.Duration
}

// busyAnswer has the number of lost leases, and the largest delay of the plain loop.
type busyAnswer struct {
	Leases, Lost int
	Late         time.Duration
	Cause        string // of one loss
}

func init() { roles["busy"] = busyRole }

func busyRole() int {
	var c busyConfig
	if err := roleConfig(&c); err != nil {
		return roleFailed(err)
	}
	var m *quorumlock.Manager
	if len(c.Addrs) > 0 {
		opts := []quorumlock.Option{quorumlock.WithTTL(c.TTL)}
		if c.Guard {
			opts = append(opts, quorumlock.WithRestartGuard(c.TTL))
		}
		var err error
		if m, err = quorumlock.New(context.Background(), quorumlock.Addrs(c.Addrs...), opts...); err != nil {
			return roleFailed(err)
		}
	}
	for range c.Computing {
		go func() {
			for { //nolint:staticcheck // it computes until the process ends
			}
		}()
	}
	if m == nil {
		bufio.NewScanner(os.Stdin).Scan()
		return 0
	}
	got, err := holdWhileBusy(m, &c)
	if err == nil {
		err = answer(got)
	}
	if err != nil {
		return roleFailed(err)
	}
	return 0
}

// holdWhileBusy holds five leases, acquired within two thirds of a TTL, alongside a loop that writes a key each second.
func holdWhileBusy(m *quorumlock.Manager, c *busyConfig) (got busyAnswer, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), c.During)
	defer cancel()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: c.Addrs[:1], ForceSingleClient: true, DisableCache: true})
	if err != nil {
		return got, err
	}
	defer client.Close()
	var mu sync.Mutex
	var all sync.WaitGroup
	const leases = 5
	for i := range leases {
		all.Go(func() {
			time.Sleep(time.Duration(i) * c.TTL * 2 / 3 / leases)
			l, err := m.Acquire(ctx, fmt.Sprint("job-", i))
			if err != nil {
				return // a process that is so late gets none: the bar is about the leases that it has
			}
			select {
			case <-l.Done():
			case <-ctx.Done():
			}
			mu.Lock()
			defer mu.Unlock()
			if got.Leases++; l.Err() != nil {
				got.Lost, got.Cause = got.Lost+1, l.Err().Error()
			}
		})
	}
	for ctx.Err() == nil {
		due := time.Now().Add(time.Second)
		time.Sleep(time.Until(due))
		err := client.Do(context.Background(), client.B().Set().Key("plain").Value("x").Px(c.TTL).Build()).Error()
		if err != nil {
			return got, err
		}
		got.Late = max(got.Late, time.Since(due))
	}
	all.Wait()
	return got, nil
}

// A process that is short of CPU reads answers late. It keeps its leases if a plain loop in the same process, which
// writes a key each second, is never late by half a TTL.
func TestAProcessShortOfCPUKeepsItsLeases(t *testing.T) {
	eachNight(t)
	judged := 0
	for _, c := range []struct {
		ttl       time.Duration
		computing int
	}{{3 * time.Second, 32}, {5 * time.Second, 64}, {8 * time.Second, 100}, {10 * time.Second, 120}} {
		during := time.Duration(count(6, 3)) * c.ttl
		r := newRow(t, fmt.Sprintf("%d computing goroutines beside three other busy processes, TTL %v, %v", c.computing, c.ttl, during))
		for _, guard := range []bool{false, true} {
			servers := redistest.Start(t, 3)
			var neighbours []*child
			for range 3 {
				neighbours = append(neighbours, spawn(t, "busy", busyConfig{Computing: 1}))
			}
			during := during
			if guard {
				during += c.ttl // the nodes are new, and do not vote before
			}
			holder := spawn(t, "busy", busyConfig{Computing: c.computing, Addrs: redistest.Addrs(servers), TTL: c.ttl, Guard: guard, During: during})
			var got busyAnswer
			require.NoError(t, holder.receive(&got))
			require.NoError(t, holder.end())
			for _, n := range neighbours {
				require.NoError(t, n.end())
			}
			late := 100 * got.Late / c.ttl
			text := fmt.Sprintf("guard %v: %d of %d leases kept, the loop was late by %v at most, %d %% of the TTL", guard, got.Leases-got.Lost, got.Leases, brief(got.Late), late)
			if got.Lost > 0 {
				text += "; " + got.Cause
			}
			if late >= 50 {
				t.Logf("%s: the loop was too late, so it shows nothing", text)
				continue
			}
			judged++
			r.figure(text, "all five, because the loop is never late by half a TTL", got.Lost == 0 && got.Leases == 5)
		}
	}
	if full {
		newRow(t, "processes short of CPU").figure(fmt.Sprintf("%d of 8 processes were not late by half a TTL", judged), "at least 6", judged >= 6)
	}
}
