//go:build linux

package battery

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// These rows are about a process that needs long to use a reservation, among three that do not. If the processes simply
// took turns, it would have the lock most of the time.

const (
	nearOnes   = 3
	nearHold   = 5 * time.Millisecond
	ofNearOnes = "the near ones get of what they get alone"
)

// contendFor acquires a lock again and again for d, and returns how often.
func contendFor(m *quorumlock.Manager, d time.Duration) (grants int) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	for ctx.Err() == nil {
		l, err := m.Acquire(ctx, "job")
		if err != nil {
			return grants
		}
		grants++
		time.Sleep(nearHold)
		_ = l.Release(context.Background()) // its answer may come after the node timeout
	}
	return grants
}

// shareTime has three near processes and another one contend, alone and together. other contends for d, and returns how
// often it got the lock.
func shareTime(t *testing.T, r *row, servers []*redistest.Server, d time.Duration, other func(d time.Duration) int) {
	t.Helper()
	var managers []*quorumlock.Manager
	for range nearOnes {
		managers = append(managers, testkit.Connect(t, redistest.Addrs(servers)))
	}
	near := func(d time.Duration) int {
		var grants atomic.Int64
		var all sync.WaitGroup
		for _, m := range managers {
			all.Go(func() { grants.Add(int64(contendFor(m, d))) })
		}
		all.Wait()
		return int(grants.Load())
	}
	near(time.Second / 5) // they have met contention
	var nearAlone, otherAlone, nearAmong, otherAmong int
	const turns = 3 // the load of the machine changes from second to second
	for range turns {
		nearAlone += near(d / turns)
		otherAlone += other(d / turns)
		var all sync.WaitGroup
		all.Go(func() { otherAmong += other(d / turns) })
		nearAmong += near(d / turns)
		all.Wait()
	}
	part := float64(nearAmong) / float64(nearAlone)
	share := float64(otherAmong) * (nearOnes + 1) / float64(max(otherAlone, 1))
	leastPart, leastShare := .6, .5
	if !full { // short rounds on a busy machine
		leastPart, leastShare = .4, .2
	}
	r.figure(fmt.Sprintf("%.0f %% is what %s (%d of %d)", 100*part, ofNearOnes, nearAmong, nearAlone), atLeastInFull("at least 60 %"), part >= leastPart)
	r.figure(fmt.Sprintf("%.2f of its share of the time (%d of %d)", share, otherAmong, otherAlone), atLeastInFull("at least half"), share >= leastShare)
}

func TestAFarClientHasItsShareOfTheTime(t *testing.T) {
	eachNight(t)
	trips := []time.Duration{50, 150, 250, 400}
	if !full {
		trips = trips[1:2]
		t.Parallel()
	}
	for _, trip := range trips {
		trip *= time.Millisecond
		t.Run(fmt.Sprint(trip), func(t *testing.T) {
			r := newRow(t, fmt.Sprintf("a client with a round trip of %v among %d near ones, N=3", trip, nearOnes))
			servers := redistest.Start(t, 3)
			far := farManager(t, servers, trip)
			shareTime(t, r, servers, time.Duration(count(100, 25))*trip, func(d time.Duration) int { return contendFor(far, d) })
		})
	}
}

// Its process runs for 20 ms of each 100 ms, as with a quota of CPU.
func TestAThrottledClientHasItsShareOfTheTime(t *testing.T) {
	if !full {
		t.Parallel()
	}
	r := newRow(t, fmt.Sprintf("a client that is stopped for 80 of each 100 ms among %d others, N=3", nearOnes))
	servers := redistest.Start(t, 3)
	c := spawn(t, "contender", redistest.Addrs(servers))
	var over atomic.Bool
	var throttle sync.WaitGroup
	throttle.Go(func() {
		for !over.Load() {
			time.Sleep(20 * time.Millisecond)
			if _, err := c.pause(); err != nil {
				return // it has ended
			}
			time.Sleep(80 * time.Millisecond)
			_, _ = c.resume()
		}
	})
	shareTime(t, r, servers, time.Duration(count(30, 3))*time.Second, func(d time.Duration) (grants int) {
		require.NoError(t, c.send(d))
		require.NoError(t, c.receive(&grants))
		return grants
	})
	over.Store(true)
	throttle.Wait()
	require.NoError(t, c.end())
}

func init() { roles["contender"] = contenderRole }

// contenderRole contends for the duration in each command, and answers with its number of grants.
func contenderRole() int {
	var addrs []string
	if err := roleConfig(&addrs); err != nil {
		return roleFailed(err)
	}
	m, err := quorumlock.New(context.Background(), quorumlock.Addrs(addrs...))
	if err != nil {
		return roleFailed(err)
	}
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		var d time.Duration
		if err := json.Unmarshal(commands.Bytes(), &d); err != nil {
			return roleFailed(err)
		}
		if err := answer(contendFor(m, d)); err != nil {
			return roleFailed(err)
		}
	}
	if err := m.Close(context.Background()); err != nil {
		return roleFailed(err)
	}
	return 0
}
