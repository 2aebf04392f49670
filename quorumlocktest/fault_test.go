package quorumlocktest_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestClientSetsGetsAndRunsScripts(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		assert.Equal(t, "OK", mustDo(t, client, "SET", "k", "v", "NX", "PX", "1000"))
		assert.Equal(t, "v", mustDo(t, client, "GET", "k"))
		digest := mustDo(t, client, "SCRIPT", "LOAD", "return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}")
		assert.Equal(t, []any{"v", int64(1000)}, mustDo(t, client, "EVALSHA", digest.(string), "1", "k"))

		time.Sleep(999 * time.Millisecond)
		assert.Equal(t, "v", mustDo(t, client, "GET", "k"))
		time.Sleep(time.Millisecond)
		_, err := do(t, client, "GET", "k")
		assert.True(t, rueidis.IsRedisNil(err))
		assert.Equal(t, "node-0:6379", n.Addr())
	})
}

func TestIdleHourTakesNoTimeAndLosesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		id := mustDo(t, client, "CLIENT", "ID")
		mustDo(t, client, "SET", "k", "v", "EX", "3601")
		time.Sleep(time.Hour)
		assert.Equal(t, "v", mustDo(t, client, "GET", "k"))
		assert.Equal(t, id, mustDo(t, client, "CLIENT", "ID"), "the first connection still stands")
		time.Sleep(time.Second)
		assert.Nil(t, admin(t, n, "GET", "k"))
	})
}

func TestKilledNodeRefusesAndLosesItsData(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		mustDo(t, client, "SET", "k", "v")
		digest := mustDo(t, client, "SCRIPT", "LOAD", "return 1")
		before := infoField(t, n, "run_id")

		n.Kill()
		n.Kill()
		synctest.Wait()
		_, err := do(t, client, "GET", "k")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		_, err = n.Do("GET", "k")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)

		n.Restart()
		assert.Nil(t, admin(t, n, "GET", "k"))
		_, err = do(t, client, "EVALSHA", digest.(string), "0")
		require.ErrorContains(t, err, "NOSCRIPT")
		assert.NotEqual(t, before, infoField(t, n, "run_id"))
		assert.Len(t, infoField(t, n, "run_id"), 40)

		mustDo(t, client, "SET", "k", "v")
		n.Restart()
		assert.Nil(t, admin(t, n, "GET", "k"), "restarting a running node is a kill, too")
	})
}

func TestKillAnswersPendingCallsWithAnError(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		n.Hang()
		failed := make(chan error, 1)
		go func() {
			_, err := client.Do(context.Background(), client.B().Set().Key("k").Value("v").Build()).ToAny()
			failed <- err
		}()
		synctest.Wait()
		n.Kill()
		require.Error(t, <-failed)
		n.Restart()
		assert.Nil(t, admin(t, n, "GET", "k"), "the commands that a hung process has not executed die with it")
		assert.Equal(t, "PONG", mustDo(t, client, "PING"), "a new process does not hang")
	})
}

func TestHungNodeExecutesItsCommandsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 1)
		n := cluster.Nodes()[0]
		client := connect(t, cluster.Options()[0])
		mustDo(t, client, "PING")

		n.Hang()
		for i := range 1000 { // more than one buffer of miniredis
			go func() {
				time.Sleep(time.Duration(i) * time.Microsecond)
				_, _ = do(t, client, "APPEND", "log", fmt.Sprintf("%d,", i))
			}()
		}
		start := time.Now()
		time.Sleep(2 * time.Second)
		_, err := do(t, client, "PING")
		require.Error(t, err, "dialing a hung node succeeds, the handshake does not")
		assert.Less(t, time.Since(start), 3*time.Second)
		assert.Nil(t, admin(t, n, "GET", "log"), "no command was executed")

		n.Resume()
		synctest.Wait()
		var want strings.Builder
		got, _ := admin(t, n, "GET", "log").(string)
		for i := range strings.Count(got, ",") {
			fmt.Fprintf(&want, "%d,", i)
		}
		assert.NotEmpty(t, got, "the commands of a client that has closed are executed anyway")
		assert.Equal(t, want.String(), got)
		assert.Equal(t, "PONG", mustDo(t, client, "PING"))
	})
}

func TestHungNodeAnswersAfterResume(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		n.Hang()
		time.AfterFunc(300*time.Millisecond, n.Resume)
		start := time.Now()
		assert.Equal(t, "OK", mustDo(t, client, "SET", "k", "v", "PX", "1000"))
		assert.Equal(t, 300*time.Millisecond, time.Since(start))
		assert.EqualValues(t, 1000, admin(t, n, "PTTL", "k"), "the command is executed when the node resumes")
	})
}

func TestCommandsKeptByAHungNodeSurviveACut(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		n.Hang()
		for i := range 3 {
			_, err := do(t, client, "SET", fmt.Sprintf("k%d", i), strings.Repeat("v", 10<<10))
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		n.Cut()
		_, err := do(t, client, "SET", "late", "v")
		require.Error(t, err)
		n.Resume()
		synctest.Wait()
		assert.EqualValues(t, 3, admin(t, n, "DBSIZE"), "the commands had arrived")
		assert.EqualValues(t, 0, admin(t, n, "EXISTS", "late"))
	})
}

func TestCutLosesBothDirections(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		id := mustDo(t, client, "CLIENT", "ID")
		n.Cut()
		_, err := do(t, client, "SET", "k", "v")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.EqualValues(t, 0, admin(t, n, "EXISTS", "k"))

		time.Sleep(2 * time.Second) // until rueidis notices by its pings
		start := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 70*time.Millisecond)
		defer cancel()
		err = client.Do(ctx, client.B().Ping().Build()).Error()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		var timeout net.Error
		require.ErrorAs(t, err, &timeout)
		assert.True(t, timeout.Timeout())
		assert.Equal(t, 70*time.Millisecond, time.Since(start), "a dial hangs until its context ends")

		n.Heal()
		assert.Equal(t, "OK", mustDo(t, client, "SET", "k", "v"))
		assert.NotEqual(t, id, mustDo(t, client, "CLIENT", "ID"))
	})
}

func TestHealClosesOnlyConnectionsThatLostBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 1)
		n := cluster.Nodes()[0]
		option := cluster.Options()[0]
		dial := func() net.Conn {
			c, err := option.DialCtxFn(t.Context(), n.Addr(), &net.Dialer{}, nil)
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
		quiet, busy := dial(), dial()
		assert.Equal(t, n.Addr(), quiet.RemoteAddr().String())
		n.Cut()
		_, err := busy.Write([]byte("*1\r\n$4\r\nPING\r\n"))
		require.NoError(t, err)
		n.Heal()

		_, err = busy.Read(make([]byte, 1))
		require.Error(t, err)
		_, err = quiet.Write([]byte("*1\r\n$4\r\nPING\r\n"))
		require.NoError(t, err)
		buf := make([]byte, 7)
		_, err = quiet.Read(buf)
		require.NoError(t, err)
		assert.Equal(t, "+PONG\r\n", string(buf))
	})
}

func TestDialOfACutNodeGoesThroughWhenItIsHealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 1)
		n := cluster.Nodes()[0]
		n.Cut()
		time.AfterFunc(time.Second, n.Heal)
		start := time.Now()
		client := connect(t, cluster.Options()[0])
		assert.Equal(t, time.Second, time.Since(start))
		assert.Equal(t, "PONG", mustDo(t, client, "PING"))
	})
}

func TestDialOfACutNodeObeysTheDialersTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 1)
		cluster.Nodes()[0].Cut()
		option := cluster.Options()[0]
		option.Dialer.Timeout = 123 * time.Millisecond
		start := time.Now()
		_, err := rueidis.NewClient(option)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 123*time.Millisecond, time.Since(start))
	})
}

func TestCutNodeThatDiesLooksSilentUntilItIsHealed(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		n.Cut()
		n.Kill()
		for range 3 {
			_, err := do(t, client, "PING")
			require.ErrorIs(t, err, context.DeadlineExceeded)
			time.Sleep(time.Second)
		}
		n.Heal()
		synctest.Wait()
		_, err := do(t, client, "PING")
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

func TestCutRepliesExecutesRequests(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		n.CutReplies()
		_, err := do(t, client, "SET", "k", "v")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, "v", admin(t, n, "GET", "k"))
		n.Heal()
		synctest.Wait()
		assert.Equal(t, "v", mustDo(t, client, "GET", "k"))
	})
}

func TestReplyThatWasLostStaysLost(t *testing.T) {
	cluster := quorumlocktest.Start(t, 1)
	n := cluster.Nodes()[0]
	for i := range 50 {
		c := dial(t, cluster)
		n.CutReplies()
		key := fmt.Sprint(i)
		_, err := fmt.Fprintf(c, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$1\r\nv\r\n", len(key), key)
		require.NoError(t, err)
		for admin(t, n, "GET", key) == nil {
			runtime.Gosched()
		}
		n.Heal() // at once
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
}

func TestDelayTakesItsTimeInEachDirection(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		n.Delay(30 * time.Millisecond)
		start := time.Now()
		mustDo(t, client, "SET", "k", "v", "PX", "1000")
		assert.Equal(t, 60*time.Millisecond, time.Since(start))
		assert.EqualValues(t, 970, admin(t, n, "PTTL", "k"))

		n.Restart()
		time.Sleep(time.Second)
		start = time.Now()
		mustDo(t, client, "PING")
		assert.Equal(t, 180*time.Millisecond, time.Since(start), "a round trip each for dial, handshake and command")

		n.Heal()
		start = time.Now()
		mustDo(t, client, "PING")
		assert.Zero(t, time.Since(start))
	})
}

func TestDelayKeepsTheOrder(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		var wg sync.WaitGroup
		for i := range 20 {
			n.Delay(time.Duration(100-5*i) * time.Millisecond)
			wg.Go(func() { mustDo(t, client, "APPEND", "log", string(rune('a'+i))) })
			synctest.Wait()
		}
		wg.Wait()
		assert.Equal(t, "abcdefghijklmnopqrst", admin(t, n, "GET", "log"))
	})
}

func TestCutLosesBytesInFlight(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		n.Delay(20 * time.Millisecond)
		time.AfterFunc(10*time.Millisecond, n.Cut)
		_, err := do(t, client, "SET", "k", "v")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Nil(t, admin(t, n, "GET", "k"))
		n.Heal()
		synctest.Wait()
		mustDo(t, client, "PING")

		n.Delay(20 * time.Millisecond)
		time.AfterFunc(30*time.Millisecond, n.Cut)
		_, err = do(t, client, "SET", "k", "v")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, "v", admin(t, n, "GET", "k"))
		n.Heal()
	})
}

func TestDelayedBytesOfAClosedClientArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 1)
		n := cluster.Nodes()[0]
		c, err := cluster.Options()[0].DialCtxFn(t.Context(), "", nil, nil)
		require.NoError(t, err)
		n.Delay(time.Second)
		_, err = c.Write([]byte("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n"))
		require.NoError(t, err)
		require.NoError(t, c.Close())
		time.Sleep(999 * time.Millisecond)
		assert.Nil(t, admin(t, n, "GET", "k"))
		time.Sleep(2 * time.Millisecond)
		assert.Equal(t, "v", admin(t, n, "GET", "k"))
	})
}

func TestFlushAllKeepsTheProcess(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		mustDo(t, client, "SET", "k", "v")
		digest := mustDo(t, client, "SCRIPT", "LOAD", "return 7")
		before := infoField(t, n, "run_id")
		n.FlushAll()
		assert.EqualValues(t, 0, mustDo(t, client, "DBSIZE"))
		assert.EqualValues(t, 7, mustDo(t, client, "EVALSHA", digest.(string), "0"))
		assert.Equal(t, before, infoField(t, n, "run_id"))
	})
}

func TestStepOfTheClockMovesTimeAndExpiry(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		now := func() time.Time {
			v := mustDo(t, client, "EVAL", "return redis.call('TIME')", "0").([]any)
			require.Equal(t, v, mustDo(t, client, "TIME"))
			d, err := time.ParseDuration(v[0].(string) + "s" + v[1].(string) + "us")
			require.NoError(t, err)
			return time.Unix(0, 0).Add(d)
		}
		assert.True(t, now().Equal(time.Now().Truncate(time.Microsecond)))
		mustDo(t, client, "SET", "k", "v", "PX", "10000")
		mustDo(t, client, "SET", "forever", "v")

		time.Sleep(time.Second)
		n.StepClock(-time.Minute)
		assert.Equal(t, -time.Minute, time.Until(now()))
		assert.EqualValues(t, 69000, mustDo(t, client, "PTTL", "k"), "a step backward prolongs")
		n.StepClock(2 * time.Minute)
		assert.Equal(t, time.Minute, time.Until(now()))
		assert.EqualValues(t, 0, mustDo(t, client, "EXISTS", "k"), "a step forward expires")
		assert.EqualValues(t, 1, mustDo(t, client, "EXISTS", "forever"))

		mustDo(t, client, "SET", "k", "v", "PX", "10000")
		assert.EqualValues(t, 10000, mustDo(t, client, "PTTL", "k"))
		n.Restart()
		synctest.Wait()
		assert.Equal(t, time.Minute, time.Until(now()), "it is the clock of the machine")
		n.Kill()
		n.StepClock(-time.Minute)
		n.Restart()
		synctest.Wait()
		assert.Zero(t, time.Until(now()))
	})
}

func TestClockStandsStillInAScript(t *testing.T) {
	// In real time, and not through a client, which would time out on a busy machine.
	n := quorumlocktest.Start(t, 1).Nodes()[0]
	got := admin(t, n, "EVAL", `
		local a = redis.call('TIME')
		for i = 1, 2000 do redis.call('SET', 'k', i, 'PX', 1) end
		local b = redis.call('TIME')
		return {a[1] == b[1] and a[2] == b[2], redis.call('EXISTS', 'k')}`, "0")
	assert.Equal(t, []any{int64(1), int64(1)}, got)
}

func TestPartitionCutsOneClientOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 3)
		var a, b []rueidis.Client
		for i := range cluster.Nodes() {
			a = append(a, connect(t, cluster.OptionsFor("a")[i]))
			b = append(b, connect(t, cluster.OptionsFor("b")[i]))
		}
		reached := func(clients []rueidis.Client) (nodes []int) {
			for i, client := range clients {
				if _, err := do(t, client, "PING"); err == nil {
					nodes = append(nodes, i)
				}
			}
			return nodes
		}
		cluster.Partition("a", 0, 2)
		assert.Equal(t, []int{1}, reached(a))
		assert.Equal(t, []int{0, 1, 2}, reached(b))
		cluster.Partition("a")
		assert.Empty(t, reached(a))
		time.Sleep(5 * time.Second)
		assert.Empty(t, reached(a))
		cluster.Nodes()[2].Cut()
		assert.Equal(t, []int{0, 1}, reached(b))

		cluster.Rejoin("a")
		synctest.Wait()
		assert.Equal(t, []int{0, 1}, reached(a), "Rejoin does not end the cut of a node")
		cluster.Nodes()[2].Heal()
		synctest.Wait()
		assert.Equal(t, []int{0, 1, 2}, reached(a))
		assert.Equal(t, []int{0, 1, 2}, reached(b))
	})
}

func TestFailAnswersClientsAndScripts(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		const oom = "OOM command not allowed when used memory > 'maxmemory'."
		n.Fail(func(args []string) bool { return args[0] == "SET" && args[1] == "k" }, oom)
		_, err := do(t, client, "set", "k", "v")
		require.EqualError(t, err, oom)
		mustDo(t, client, "SET", "other", "v")
		_, err = do(t, client, "EVAL", "return redis.call('set', KEYS[1], 'v')", "1", "k")
		require.EqualError(t, err, oom+" script: b0e7bbc2efc136be74cdebcb73a106ad46ea881b, on @user_script:1.")
		_, err = do(t, client, "EVAL", "return redis.pcall('set', KEYS[1], 'v')", "1", "k")
		require.EqualError(t, err, oom)
		assert.Equal(t, "OK", admin(t, n, "SET", "k", "v"), "Fail does not apply to Do")

		n.Fail(nil, "")
		mustDo(t, client, "SET", "k", "v")
	})
}

func TestInfoLooksLikeThatOfRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.Start(t, 2)
		n := cluster.Nodes()[0]
		client := connect(t, cluster.Options()[0])

		info := parseInfo(mustDo(t, client, "INFO", "server").(string))
		assert.Equal(t, "standalone", info["redis_mode"])
		assert.Regexp(t, "^[0-9a-f]{40}$", info["run_id"])
		assert.NotEqual(t, infoField(t, cluster.Nodes()[1], "run_id"), info["run_id"])
		assert.NotContains(t, info, "role")

		info = parseInfo(mustDo(t, client, "INFO", "replication").(string))
		assert.Equal(t, "master", info["role"])
		assert.Equal(t, "0", info["connected_slaves"])
		assert.Regexp(t, "^[0-9a-f]{40}$", info["master_replid"])
		assert.Equal(t, strings.Repeat("0", 40), info["master_replid2"])

		info = parseInfo(mustDo(t, client, "INFO", "memory").(string))
		assert.Equal(t, map[string]string{"maxmemory": "0", "maxmemory_human": "0B", "maxmemory_policy": "noeviction"}, info)

		inScript := parseInfo(mustDo(t, client, "EVAL", "return redis.call('INFO', 'server')", "0").(string))
		assert.Equal(t, infoField(t, n, "run_id"), inScript["run_id"])
		assert.Equal(t, "txt:", mustDo(t, client, "INFO", "nosuch"))
		assert.Contains(t, mustDo(t, client, "INFO", "Memory", "replication"), "# Memory\r\n")
		assert.Equal(t, "1", infoField(t, n, "connected_clients"))

		time.Sleep(time.Minute)
		n.StepClock(time.Minute)
		assert.Equal(t, "120", infoField(t, n, "uptime_in_seconds"), "as in Redis, it follows the wall clock")

		n.SetRole("slave")
		n.SetInfo("maxmemory_policy", "allkeys-lru")
		n.SetInfo("redis_mode", "cluster")
		n.SetInfo("run_id", "same")
		n.SetInfo("availability_zone", "b")
		n.Restart()
		assert.Equal(t, "slave", infoField(t, n, "role"))
		assert.Equal(t, "allkeys-lru", infoField(t, n, "maxmemory_policy"))
		assert.Equal(t, "same", infoField(t, n, "run_id"))
		assert.Contains(t, admin(t, n, "INFO", "server"), "availability_zone:b\r\n")
		hello, err := n.Do("HELLO", "2")
		require.NoError(t, err)
		assert.Contains(t, hello, "replica")
		assert.Contains(t, hello, "cluster")
	})
}

func TestOneConnectionSubscribesAndGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		mustDo(t, client, "SET", "k", "v")
		ctx, cancel := context.WithCancel(context.Background())
		messages := make(chan string, 3)
		ended := make(chan error, 1)
		go func() {
			ended <- client.Receive(ctx, client.B().Subscribe().Channel("c").Build(), func(m rueidis.PubSubMessage) {
				messages <- m.Message
			})
		}()
		synctest.Wait()
		assert.Equal(t, "v", mustDo(t, client, "GET", "k"))
		assert.EqualValues(t, 1, mustDo(t, client, "PUBLISH", "c", "own"))
		assert.EqualValues(t, 1, mustDo(t, client, "EVAL", "return redis.call('PUBLISH', 'c', 'script')", "0"))
		assert.EqualValues(t, 1, admin(t, n, "PUBLISH", "c", "admin"))
		assert.Equal(t, []string{"own", "script", "admin"}, []string{<-messages, <-messages, <-messages})
		time.Sleep(time.Minute)

		n.Cut()
		time.Sleep(10 * time.Millisecond)
		assert.EqualValues(t, 1, admin(t, n, "PUBLISH", "c", "lost"), "a node does not know who is cut off")
		synctest.Wait()
		n.Heal()
		require.Error(t, <-ended, "the message was lost on that connection")
		synctest.Wait()
		assert.EqualValues(t, 0, admin(t, n, "PUBLISH", "c", "nobody"))

		go func() {
			ended <- client.Receive(ctx, client.B().Subscribe().Channel("c").Build(), func(rueidis.PubSubMessage) {})
		}()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		_, err := n.Do("SUBSCRIBE", "c")
		require.Error(t, err)
	})
}

func TestDoReturnsPlainValues(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, _ rueidis.Client) {
		assert.Equal(t, "OK", admin(t, n, "set", "k", "v"))
		assert.Equal(t, []any{"v", nil}, admin(t, n, "MGET", "k", "nokey"))
		assert.Equal(t, []any{int64(1), []any{"a", int64(1) << 53}}, admin(t, n, "EVAL", "return {1, {'a', 2^53}}", "0"))
		_, err := n.Do("HGET", "k", "f")
		require.EqualError(t, err, "WRONGTYPE Operation against a key holding the wrong kind of value")
		_, err = n.Do()
		require.Error(t, err)
	})
}

func TestBlockedCommandDoesNotOutliveItsNode(t *testing.T) {
	bubble(t, func(t *testing.T, n *quorumlocktest.Node, client rueidis.Client) {
		ended := make(chan error, 1)
		block := func() {
			_, err := client.Do(context.Background(), client.B().Blpop().Key("list").Timeout(0).Build()).ToAny()
			ended <- err
		}
		go block()
		synctest.Wait()
		assert.EqualValues(t, 1, admin(t, n, "RPUSH", "list", "x"))
		require.NoError(t, <-ended)
		go block()
		synctest.Wait()
		n.Kill()
		require.Error(t, <-ended)
	})
}

func TestClosedClusterStaysDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := quorumlocktest.NewCluster(2)
		n := cluster.Nodes()[0]
		client := connect(t, cluster.Options()[0])
		mustDo(t, client, "PING")
		cluster.Nodes()[1].Cut()
		dialing := make(chan error, 1)
		go func() {
			_, err := cluster.Options()[1].DialCtxFn(t.Context(), "", nil, nil)
			dialing <- err
		}()
		synctest.Wait()

		cluster.Close()
		cluster.Close()
		require.ErrorIs(t, <-dialing, syscall.ECONNREFUSED)
		n.Restart()
		n.Hang()
		n.Resume()
		n.StepClock(time.Second)
		n.FlushAll()
		_, err := do(t, client, "PING")
		require.Error(t, err)
		_, err = cluster.Options()[0].DialCtxFn(t.Context(), "", nil, nil)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
	assert.Panics(t, func() { quorumlocktest.NewCluster(0) })
}

func infoField(tb testing.TB, n *quorumlocktest.Node, key string) string {
	tb.Helper()
	return parseInfo(admin(tb, n, "INFO").(string))[key]
}

func parseInfo(text string) map[string]string {
	fields := map[string]string{}
	text = strings.TrimPrefix(text, "txt:") // a verbatim string, which rueidis returns with its type
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[key] = value
		}
	}
	return fields
}
