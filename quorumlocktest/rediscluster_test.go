package quorumlocktest_test

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/testkit/clustercases"
	"github.com/quorumlock/quorumlock/quorumlocktest"
	"github.com/quorumlock/quorumlock/spread"
)

// The same cases run on a real cluster in tests/integration.
func TestARedisClusterConforms(t *testing.T) {
	for name, run := range map[string]func(*testing.T, clustercases.Cluster){"use": clustercases.Use, "change": clustercases.Change} {
		for protocol, resp2 := range map[string]bool{"RESP3": false, "RESP2": true} {
			t.Run(name+"/"+protocol, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { run(t, underTest(t, resp2)) })
			})
		}
	}
}

func underTest(t *testing.T, resp2 bool) clustercases.Cluster {
	c := quorumlocktest.StartRedisCluster(t, 3)
	option := c.Option()
	option.AlwaysRESP2 = resp2
	u := clustercases.Cluster{Option: option, OwnerOf: c.MasterOf, Move: c.Move, Replace: func(name string) { c.Failover(c.MasterOf(name)) }}
	for _, n := range c.Nodes()[:3] {
		u.Masters = append(u.Masters, n.Do)
	}
	return u
}

// masters runs a test on a Redis Cluster in virtual time, with a Manager.
func masters(t *testing.T, test func(*testing.T, *quorumlocktest.RedisCluster, *quorumlock.Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := quorumlocktest.StartRedisCluster(t, 3)
		test(t, c, c.Manager(t))
	})
}

func TestAManagerOfARedisClusterHasTwoConnectionsToEachMaster(t *testing.T) {
	masters(t, func(t *testing.T, c *quorumlocktest.RedisCluster, m *quorumlock.Manager) {
		for i := range 64 {
			acquired(t, m, string(rune('A'+i)))
		}
		for i, want := range []string{"2", "2", "2", "1", "1", "0"} { // one of them to each of the five seeds
			info, _ := admin(t, c.Nodes()[i], "INFO", "clients").(string)
			assert.Contains(t, info, "connected_clients:"+want+"\r\n", "server %d", i)
		}
	})
}

// Without its message a waiter polls, each half a second here.
func TestAReleaseWakesTheWaiterOfAnotherClientOfTheCluster(t *testing.T) {
	masters(t, func(t *testing.T, c *quorumlocktest.RedisCluster, m *quorumlock.Manager) {
		ctx, other := context.Background(), c.Manager(t)
		for name, kinds := range map[string][2]quorumlock.AcquireOption{
			"exclusive": {quorumlock.WithMinHold(0), quorumlock.WithMinHold(0)},
			"permit":    {quorumlock.Permits(1), quorumlock.Permits(1)},
			"reader":    {quorumlock.WithMinHold(0), quorumlock.Shared()},
		} {
			l, err := m.Acquire(ctx, "job", kinds[0])
			require.NoError(t, err)
			granted := make(chan time.Time, 1)
			go func() {
				next, err := other.Acquire(ctx, "job", kinds[1])
				if assert.NoError(t, err) {
					granted <- time.Now()
					assert.NoError(t, next.Release(ctx))
				}
			}()
			time.Sleep(10*time.Second + 123*time.Millisecond)
			released := time.Now()
			require.NoError(t, l.Release(ctx))
			assert.Less(t, (<-granted).Sub(released), 10*time.Millisecond, name)
		}
	})
}

func TestAListThatEndsBetweenTwoBucketsSaysThatItIsNotComplete(t *testing.T) {
	masters(t, func(t *testing.T, c *quorumlocktest.RedisCluster, m *quorumlock.Manager) {
		const all = 64
		for i := range all {
			acquired(t, m, strconv.Itoa(i))
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		names, last := 0, error(nil)
		for _, err := range m.List(ctx, "") {
			if last = err; err == nil {
				names++
			}
			cancel()
		}
		assert.Less(t, names, all)
		require.ErrorIs(t, last, context.Canceled)
		require.ErrorIs(t, last, quorumlock.ErrNoQuorum)
	})
}

// The names in the buckets of one master cannot be looked at. The others are taken over all the same.
func TestTheNamesOfOneMasterThatIsDownKeepNoOtherFromASpread(t *testing.T) {
	masters(t, func(t *testing.T, c *quorumlocktest.RedisCluster, m *quorumlock.Manager) {
		var names []string
		down := (c.MasterOf("group/") + 1) % 3 // the members are counted on another one
		for i := range 64 {
			names = append(names, strconv.Itoa(i))
		}
		join := func(m *quorumlock.Manager) (member *spread.Member, leave func()) {
			member = spread.New(m, spread.Config{
				Group: "group", Names: names, TTL: 10 * time.Second, Log: slog.New(slog.DiscardHandler),
				Func: func(ctx context.Context, _ *quorumlock.Lease, _ string) error { <-ctx.Done(); return nil },
			})
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() { defer close(done); _ = member.Run(ctx) }()
			return member, func() { cancel(); <-done }
		}
		a, leaveA := join(m)
		defer leaveA()
		_, leaveB := join(c.Manager(t))
		time.Sleep(time.Minute)
		require.Len(t, a.Status().Names, len(names)/2)
		c.Kill(down)
		time.Sleep(time.Minute)
		leaveB()
		alive := 0
		for _, name := range names {
			if c.MasterOf("group/"+name) != down {
				alive++
			}
		}
		began := time.Now()
		for len(a.Status().Names) < alive && time.Since(began) < 20*time.Second { // two TTL
			time.Sleep(time.Second)
		}
		t.Logf("%d names after %v", alive, time.Since(began))
		assert.Len(t, a.Status().Names, alive)
	})
}

func TestALeaseOutlivesAMasterThatIsKilled(t *testing.T) {
	for _, lost := range []bool{false, true} { // the keys, because they have not reached the replica
		masters(t, func(t *testing.T, c *quorumlocktest.RedisCluster, m *quorumlock.Manager) {
			l := acquired(t, m, "job")
			of := c.MasterOf("job")
			c.Kill(of)
			if lost {
				c.Nodes()[3+of].FlushAll()
			}
			c.Failover(of)
			assert.Equal(t, 3+of, c.MasterOf("job"))
			time.Sleep(time.Minute)
			if lost {
				assert.Equal(t, quorumlock.LostMissing, (<-l.Lost()).Reason)
				return
			}
			require.NoError(t, l.Err())
			c.Restart(of) // as a replica
			require.NoError(t, l.Renew(context.Background()))
			c.Failover(3 + of)
			assert.Equal(t, of, c.MasterOf("job"))
			time.Sleep(time.Minute)
			require.NoError(t, l.Err())
			require.NoError(t, l.Release(context.Background()))
		})
	}
}

func TestAMasterThatRestartsWithoutAFailoverIsEmpty(t *testing.T) {
	masters(t, func(t *testing.T, c *quorumlocktest.RedisCluster, m *quorumlock.Manager) {
		l := acquired(t, m, "job")
		of, began := c.MasterOf("job"), time.Now()
		c.Kill(of)
		c.Restart(of)
		assert.Equal(t, quorumlock.LostMissing, (<-l.Lost()).Reason)
		next := acquired(t, m, "job")
		assert.Greater(t, time.Since(began), 12*time.Second, "the guard")
		c.ForceLost(t, next)
		assert.Equal(t, quorumlock.LostTaken, (<-next.Lost()).Reason)
	})
}

func TestACutClientOfARedisClusterLosesItsLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := quorumlocktest.StartRedisCluster(t, 3)
		m := c.ManagerFor(t, "a")
		l := acquired(t, m, "job")
		c.Partition("a", c.MasterOf("job"))
		assert.Equal(t, quorumlock.LostExpired, (<-l.Lost()).Reason)
		c.Rejoin("a")
		require.NoError(t, acquired(t, m, "job").Release(context.Background()))
	})
}

func TestAClientForClustersFollowsASlotWithAllItsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := quorumlocktest.StartRedisCluster(t, 3)
		client, err := rueidis.NewClient(c.Option())
		require.NoError(t, err)
		t.Cleanup(func() { time.Sleep(time.Minute) }) // it closes connections later
		t.Cleanup(client.Close)
		key := func(text string) string { return "{qlb0}" + text }
		name := ""
		for i := 0; master.Bucket(name) != 0; i++ { // the tag's
			name = strconv.Itoa(i)
		}
		write := [][]string{
			{"SET", key("string"), "1", "PX", "60000"}, {"RPUSH", key("list"), "a", "b"}, {"SADD", key("set"), "a"},
			{"HSET", key("hash"), "f", "v"}, {"ZADD", key("zset"), "1700000000000001", "m"},
		}
		read := [][]string{
			{"GET", key("string")}, {"PTTL", key("string")}, {"LRANGE", key("list"), "0", "-1"}, {"SMEMBERS", key("set")},
			{"HGET", key("hash"), "f"}, {"ZSCORE", key("zset"), "m"},
		}
		values := func() (all []any) {
			for _, command := range read {
				all = append(all, mustDo(t, client, command...))
			}
			return all
		}
		for _, command := range write {
			mustDo(t, client, command...)
		}
		before, owner := values(), c.MasterOf(name)
		c.Move(name, 1)
		assert.Equal(t, before, values(), "moved")
		c.Failover(1)
		assert.Equal(t, before, values(), "handed to the replica")
		c.Kill(4)
		c.Failover(4)
		assert.Equal(t, "1", admin(t, c.Nodes()[1], "GET", key("string")), "kept by the replica")
		assert.Equal(t, []int{0, 1}, []int{owner, c.MasterOf(name)})

		_, err = c.Nodes()[0].Do("GET", key("string"))
		require.EqualError(t, err, "MOVED 464 node-1:6379")
		_, err = c.Nodes()[0].Do("EVAL", "return 1", "2", "{a}", "{b}")
		require.EqualError(t, err, "CROSSSLOT Keys in request don't hash to the same slot")
		_, err = c.Nodes()[1].Do("EVAL", "return redis.call('GET', '{ql06}')", "1", key("string"))
		require.ErrorContains(t, err, "Script attempted to access a non local key in a cluster node")
	})
}

func TestATransactionWithAKeyOfAnotherServerIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := quorumlocktest.StartRedisCluster(t, 3)
		option := c.Options()[0]
		client := connect(t, option)
		mustDo(t, client, "MULTI")
		mustDo(t, client, "SET", "{qlb0}", "1")
		_, err := do(t, client, "SET", "{ql05}", "1")
		require.ErrorContains(t, err, "MOVED")
		_, err = do(t, client, "EXEC")
		require.ErrorContains(t, err, "EXECABORT")
		assert.Nil(t, admin(t, c.Nodes()[0], "GET", "{qlb0}"))
	})
}

func TestWhatCannotBeIsRefused(t *testing.T) {
	c := quorumlocktest.StartRedisCluster(t, 3)
	assert.PanicsWithValue(t, "quorumlocktest: a Redis Cluster with 2 masters", func() { quorumlocktest.NewRedisCluster(2) })
	assert.PanicsWithValue(t, "quorumlocktest: server 3 is not a master", func() { c.Failover(3) })
	assert.PanicsWithValue(t, "quorumlocktest: server 3 is not a master", func() { c.Move("job", 3) })
	_, err := c.Option().DialCtxFn(t.Context(), "node-6:6379", nil, nil)
	require.ErrorContains(t, err, `no server "node-6:6379"`)
}
