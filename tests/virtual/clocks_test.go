package virtual

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestAGrantThatAClockStepHasOvertakenDoesNotCount(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		acquire(t, m, "other", quorumlock.WithoutRenewal())
		c.Nodes()[2].Cut()
		c.Nodes()[0].Delay(10 * time.Millisecond)
		c.Nodes()[1].Delay(100 * time.Millisecond)
		time.AfterFunc(25*time.Millisecond, func() { // node 0 has voted
			c.Nodes()[0].StepClock(time.Hour)
			_, err := m.TryAcquire(background, "third") // its answer shows the step, long before node 1 has voted
			assert.Error(t, err)
		})
		began := time.Now()
		l, err := m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum, "one of the two granted keys has expired")
		assert.ErrorContains(t, err, "stepped forward")
		assert.Equal(t, 200*time.Millisecond, time.Since(began))
		assert.Nil(t, l)
		c.Nodes()[2].Heal()
	})
}

func TestAClockThatStepsOnOneNodeCostsThatNodesVoteUntilLeasesHaveHealed(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		events := m.Subscribe(100)
		l := acquire(t, m, "job")
		c.Nodes()[0].StepClock(time.Hour)
		require.Equal(t, 2, holders(t, c, "job"), "the key on the node has expired")
		changes(events)
		time.Sleep(interval + interval/10)
		now := changes(events)
		require.Len(t, now, 1)
		assert.Equal(t, 0, now[0].Node)
		assert.ErrorContains(t, now[0].Err, "stepped forward")
		assert.InDelta(t, ttl, now[0].QuarantinedFor, float64(ttl/50))
		assert.True(t, l.Valid())
		assert.Equal(t, 3, holders(t, c, "job"), "healed")

		acquire(t, m, "other", quorumlock.WithoutRenewal())
		assert.Equal(t, 2, holders(t, c, "other"), "it does not vote")
		status, err := m.Inspect(background, "other")
		require.NoError(t, err)
		assert.Positive(t, status.Nodes[0].QuarantinedFor)

		time.Sleep(ttl + ttl/50)
		now = changes(events)
		require.Len(t, now, 1)
		require.NoError(t, now[0].Err, "a report says that it votes again")
		acquire(t, m, "third")
		assert.Equal(t, 3, holders(t, c, "third"))
	})
}

func TestClocksThatStepOnAMajorityAreALossOfEveryLeaseWithinOneRound(t *testing.T) {
	for _, n := range []int{3, 5} {
		run(t, n, func(t *testing.T, c *quorumlocktest.Cluster) {
			m := manager(t, c)
			renewed := acquire(t, m, "job")
			manual := acquire(t, m, "manual", quorumlock.WithoutRenewal())
			for _, node := range c.Nodes()[:n/2+1] {
				node.StepClock(time.Hour)
			}
			time.Sleep(interval + interval/10)
			synctest.Wait()
			for _, l := range []*quorumlock.Lease{renewed, manual} {
				var lost *quorumlock.LostError
				require.ErrorAs(t, l.Err(), &lost, l.Name())
				assert.Equal(t, quorumlock.LostMissing, lost.Reason)
				require.Len(t, lost.Nodes, n/2+1)
				assert.ErrorContains(t, lost.Nodes[0], "stepped forward by 1h")
			}
		})
	}
}

// The holder has a bare majority. One of its nodes forgets the key because its clock was
// stepped, and the competitor could have that node and the third.
func TestAVoteThatShowsASteppedClockDoesNotCount(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		holder, competitor := manager(t, c), manager(t, c)
		c.Nodes()[2].Fail(func(cmd []string) bool { return cmd[0] == "EVALSHA" }, "LOADING for a moment")
		l := acquire(t, holder, "job", quorumlock.WithoutRenewal())
		c.Nodes()[2].Fail(nil, "")
		// Late in the lease a small step is enough. It is too small for the node to
		// refuse the request as too late.
		time.Sleep(ttl - 400*time.Millisecond)
		c.Nodes()[0].StepClock(450 * time.Millisecond)
		_, err := competitor.Acquire(background, "job", quorumlock.WithWait(time.Millisecond))
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.ErrorContains(t, err, "stepped forward")
		assert.True(t, l.Valid())
		synctest.Wait()
		assert.Equal(t, 1, holders(t, c, "job"), "the competitor's key is released")
	})
}

// The quarantine after a step forward ends an hour later by that clock. When the clock is set back, each new process would
// wait for the longest lease until then.
func TestAQuarantineFromAClockThatWasAheadDoesNotMeetEachNewProcess(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		guarded := []quorumlock.Option{quorumlock.WithRestartGuard(30 * time.Second), quorumlock.WithTrustEmptyNodes()}
		m := manager(t, c, guarded...)
		acquire(t, m, "job")
		c.Nodes()[0].StepClock(time.Hour)
		time.Sleep(10 * time.Second)
		require.Positive(t, m.Nodes()[0].QuarantinedFor)
		c.Nodes()[0].StepClock(-time.Hour)
		fresh := func() *quorumlock.Manager { return manager(t, c, guarded...) }
		assert.Positive(t, fresh().Nodes()[0].QuarantinedFor, "the first one finds it")
		time.Sleep(time.Minute)
		for _, client := range []*quorumlock.Manager{m, fresh()} {
			assert.Zero(t, client.Nodes()[0].QuarantinedFor)
			require.NoError(t, client.Nodes()[0].Err)
		}
	})
}

// If one client finds a clock step, all clients learn of it with the next vote. Their own readings of that clock may be
// too old, or missing.
func TestAStepThatOneClientFindsBindsTheOthersUnderTheGuard(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		guarded := []quorumlock.Option{quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes()}
		finder := manager(t, c, guarded...)
		acquire(t, finder, "job")
		c.Nodes()[0].StepClock(time.Hour)
		time.Sleep(interval + interval/10)
		fresh := manager(t, c, guarded...)
		acquire(t, fresh, "other")
		assert.Equal(t, 2, holders(t, c, "other"))
	})
}

// A client whose own clock stood still (a paused guest) finds steps on all nodes. Only that client may lose votes
// because of that.
func TestAClientWhoseClockStoodStillBlocksNoOtherClientsVotes(t *testing.T) {
	for name, stepped := range map[string][]int{"all nodes": {0, 1, 2}, "all but one that is down": {0, 1}} {
		t.Run(name, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				guarded := []quorumlock.Option{quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes()}
				finder := manager(t, c, guarded...)
				l := acquire(t, finder, "job")
				if len(stepped) < 3 {
					c.Nodes()[2].Kill()
				}
				for _, i := range stepped {
					c.Nodes()[i].StepClock(time.Hour)
				}
				time.Sleep(interval + interval/10)
				require.ErrorIs(t, l.Err(), quorumlock.ErrLost)
				time.Sleep(10 * time.Second)
				fresh := manager(t, c, guarded...)
				_, err := fresh.TryAcquire(background, "other")
				require.NoError(t, err)
				synctest.Wait()
				for _, i := range stepped {
					v, err := c.Nodes()[i].Do("EXISTS", config.DefaultPrefix+"other")
					require.NoError(t, err)
					assert.EqualValues(t, 1, v)
				}
			})
		})
	}
}

func TestAClockThatStepsBackCostsNoVote(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m := manager(t, c)
		events := m.Subscribe(100)
		l := acquire(t, m, "job")
		changes(events)
		c.Nodes()[0].StepClock(-time.Hour)
		time.Sleep(time.Minute)
		assert.True(t, l.Valid())
		changed := changes(events)
		require.NotEmpty(t, changed)
		for _, e := range changed {
			require.NoError(t, e.Err)
			assert.ErrorContains(t, e.Warning, "clock is -1h0m0s off the other nodes' median")
		}
		acquire(t, m, "other")
		assert.Equal(t, 3, holders(t, c, "other"))
	})
}

// If the clocks of nodes are set back, their keys live longer. That is safe, even on a
// majority, but the log must report it.
func TestClocksOfAMajorityThatStepBackAreLoggedWithinOneInterval(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		var log testkit.Buffer
		m := manager(t, c, quorumlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		l := acquire(t, m, "job")
		time.Sleep(5 * time.Second)
		c.Nodes()[0].StepClock(-time.Hour)
		c.Nodes()[1].StepClock(-time.Minute)
		time.Sleep(config.DefaultTTL/3*11/10 + time.Millisecond)
		synctest.Wait()
		assert.True(t, l.Valid())
		said := log.String()
		assert.Equal(t, 2, strings.Count(said, "a node's clock was stepped, which can end leases early: set its time service to slew the clock"), said)
		assert.Regexp(t, `slew the clock" node=0 .*by=-1h0m0(\.\d+)?s`, said)
		assert.Regexp(t, `slew the clock" node=1 .*by=-1m0(\.\d+)?s`, said)
		time.Sleep(3 * config.DefaultTTL)
		assert.True(t, l.Valid())
	})
}
