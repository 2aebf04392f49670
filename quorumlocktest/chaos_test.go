package quorumlocktest_test

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// chaos makes clients use a cluster for a while, with faults in quick succession. Afterwards everything must work
// again. The test that calls it checks that no goroutine is left.
func chaos(t *testing.T, duration, pace time.Duration) {
	t.Helper()
	const nodes, clients = 3, 4
	cluster := quorumlocktest.Start(t, nodes)
	end := time.Now().Add(duration)
	var wg sync.WaitGroup
	all := make([][]rueidis.Client, clients)
	for c := range all {
		for _, option := range cluster.OptionsFor(fmt.Sprint(c)) {
			client := connect(t, option)
			all[c] = append(all[c], client)
			wg.Go(func() {
				for time.Now().Before(end) {
					_, _ = do(t, client, "INCR", "n")
					_, _ = do(t, client, "EVAL", "return redis.call('SET', KEYS[1], redis.call('TIME')[2], 'PX', 5)", "1", "k")
					_, _ = do(t, client, "PUBLISH", "c", "m")
					time.Sleep(time.Duration(rand.Int64N(int64(pace))))
				}
			})
		}
	}
	for range 2 {
		wg.Go(func() {
			for time.Now().Before(end) {
				n := cluster.Nodes()[rand.IntN(nodes)]
				client := fmt.Sprint(rand.IntN(clients))
				faults := []func(){
					n.Kill, n.Restart, n.Restart, n.Hang, n.Resume, n.Cut, n.CutReplies, n.Heal, n.Heal, n.FlushAll,
					func() { n.Delay(time.Duration(rand.Int64N(int64(pace)))) },
					func() { n.StepClock(time.Duration(rand.Int64N(int64(pace))) - pace/2) },
					func() { n.Fail(func(args []string) bool { return args[0] == "SET" }, "OOM") },
					func() { n.Fail(nil, "") },
					func() { n.SetRole("slave") },
					func() { _, _ = n.Do("INFO") },
					func() { cluster.Partition(client, rand.IntN(nodes)) },
					func() { cluster.Rejoin(client) },
				}
				faults[rand.IntN(len(faults))]()
				time.Sleep(time.Duration(rand.Int64N(int64(pace))))
			}
		})
	}
	wg.Wait()

	for c := range all {
		cluster.Rejoin(fmt.Sprint(c))
	}
	for _, n := range cluster.Nodes() {
		n.Fail(nil, "")
		n.Heal()
		n.Restart()
	}
	for _, clients := range all {
		for _, client := range clients {
			require.Eventually(t, func() bool {
				v, err := do(t, client, "PING")
				return err == nil && v == "PONG"
			}, 10*time.Second, 10*time.Millisecond)
		}
	}
}

func TestAnyMixOfFaultsIsSurvivedInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { chaos(t, 20*time.Second, 100*time.Millisecond) })
}

func TestAnyMixOfFaultsIsSurvivedInRealTime(t *testing.T) {
	chaos(t, 300*time.Millisecond, 2*time.Millisecond)
}

func TestNothingIsExecutedOnceHangHasReturned(t *testing.T) {
	cluster := quorumlocktest.Start(t, 1)
	n := cluster.Nodes()[0]
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		client := connect(t, cluster.Options()[0])
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = client.Do(t.Context(), client.B().Incr().Key("n").Build()).AsInt64()
				}
			}
		})
	}
	count := func() int {
		v, _ := n.Do("GET", "n")
		s, _ := v.(string)
		i, _ := strconv.Atoi(s)
		return i
	}
	before := 0
	for range 20 {
		require.Eventually(t, func() bool { return count() > before }, 5*time.Second, time.Millisecond)
		n.Hang()
		before = count()
		time.Sleep(2 * time.Millisecond)
		assert.Equal(t, before, count())
		n.Resume()
	}
	close(stop)
	wg.Wait()
}
