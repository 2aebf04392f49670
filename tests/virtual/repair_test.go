package virtual

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// Faults that operators cause: a node answers, and refuses.
const (
	noRights      = "NOPERM User quorumlock has no permissions to run the 'evalsha' command"
	wrongPassword = "WRONGPASS invalid username-password pair or user is disabled."
)

// refuse makes nodes refuse commands, and returns the count of refusals.
func refuse(c *quorumlocktest.Cluster, text string, commands []string, nodes ...int) *atomic.Int64 {
	var times atomic.Int64
	for _, i := range nodes {
		c.Nodes()[i].Fail(func(args []string) bool {
			refused := slices.Contains(commands, args[0])
			if refused {
				times.Add(1)
			}
			return refused
		}, text)
	}
	return &times
}

func repair(c *quorumlocktest.Cluster) {
	for _, n := range c.Nodes() {
		n.Fail(nil, "")
	}
}

// logged returns an option for a Manager's log, and the log.
func logged() (quorumlock.Option, *testkit.Buffer) {
	var text testkit.Buffer
	return quorumlock.WithLogger(slog.New(slog.NewTextHandler(&text, nil))), &text
}

// Rights and passwords are wrong for some minutes, until an operator repairs them.
func TestWhatOperatorsRepairIsWaitedForOnceThisClientHasHadVotes(t *testing.T) {
	for fault, begin := range map[string]func(c *quorumlocktest.Cluster) *atomic.Int64{
		"rights": func(c *quorumlocktest.Cluster) *atomic.Int64 {
			return refuse(c, noRights, []string{"EVALSHA"}, 0, 1, 2)
		},
		"rights on two of three nodes": func(c *quorumlocktest.Cluster) *atomic.Int64 {
			return refuse(c, noRights, []string{"EVALSHA"}, 0, 1)
		},
		"password": func(c *quorumlocktest.Cluster) *atomic.Int64 {
			defer c.Restart()
			defer c.Kill() // established connections are not asked for a password
			return refuse(c, wrongPassword, []string{"HELLO", "AUTH"}, 0, 1, 2)
		},
	} {
		t.Run(fault, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				log, text := logged()
				m := manager(t, c, log)
				ctx, cancel := context.WithCancel(background)
				terms, led, acquired := 0, make(chan error, 1), make(chan error, 1)
				go func() {
					led <- m.Lead(ctx, "leader", func(ctx context.Context, _ *quorumlock.Lease) error {
						terms++
						<-ctx.Done()
						return nil
					})
				}()
				time.Sleep(time.Minute)
				require.Equal(t, 1, terms)
				refused := begin(c)
				go func() { _, err := m.Acquire(background, "job"); acquired <- err }()
				time.Sleep(5 * time.Minute)
				assert.Empty(t, led, "Lead continues")
				assert.Empty(t, acquired, "Acquire waits")
				assert.Less(t, refused.Load(), int64(5*60*3*4), "with backoff")
				said := strings.Count(text.String(), "waits for nodes that an operator must repair")
				assert.Positive(t, said)
				assert.LessOrEqual(t, said, 6, "once a minute: %s", text)
				repair(c)
				time.Sleep(5 * time.Second)
				require.NoError(t, <-acquired)
				assert.Equal(t, 2, terms)
				cancel()
				require.ErrorIs(t, <-led, context.Canceled)
			})
		})
	}
}

// A client whose rights were never sufficient learns that at its first call.
func TestAClientThatNeverGotAVoteGivesUpAtOnce(t *testing.T) {
	run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
		m, other := manager(t, c), manager(t, c)
		refuse(c, noRights, []string{"EVALSHA"}, 0, 1)
		for name, call := range map[string]func() error{
			"Acquire": func() error { _, err := m.Acquire(background, "job"); return err },
			"Lead": func() error {
				return m.Lead(background, "job", func(context.Context, *quorumlock.Lease) error { return nil })
			},
		} {
			began := time.Now()
			require.ErrorIs(t, call(), quorumlock.ErrNoQuorum, name)
			assert.Less(t, time.Since(began), timeout, name)
		}
		repair(c)

		// A refusal because another client has the name is also a vote.
		l := acquire(t, other, "job")
		_, err := m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		refuse(c, noRights, []string{"EVALSHA"}, 0, 1)
		_, err = m.Acquire(background, "job", quorumlock.WithWait(time.Minute))
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		assert.ErrorContains(t, err, "waited 1m0s")
		repair(c)
		_ = l.Release(background) // it was lost in between
	})
}

// As with a node that is down, New starts on the others, and reports the node.
func TestNewBeginsOnAMajorityWhenANodeNeedsAnOperator(t *testing.T) {
	for fault, one := range map[string]struct {
		begin func(c *quorumlocktest.Cluster, node int)
		text  string
	}{
		"rights":   {func(c *quorumlocktest.Cluster, i int) { refuse(c, noRights, []string{"EVALSHA"}, i) }, "NOPERM"},
		"password": {func(c *quorumlocktest.Cluster, i int) { refuse(c, wrongPassword, []string{"HELLO", "AUTH"}, i) }, "WRONGPASS"},
		"replica":  {func(c *quorumlocktest.Cluster, i int) { c.Nodes()[i].SetRole("slave") }, "server is a replica"},
	} {
		t.Run(fault, func(t *testing.T) {
			run(t, 3, func(t *testing.T, c *quorumlocktest.Cluster) {
				one.begin(c, 1)
				log, text := logged()
				m := manager(t, c, log)
				require.NoError(t, m.Ready())
				synctest.Wait() // the log is written
				assert.Contains(t, text.String(), "node grants no locks")
				assert.Contains(t, text.String(), one.text)
				assert.ErrorContains(t, m.Nodes()[1].Err, one.text)
				l := acquire(t, m, "job")
				assert.Equal(t, 2, holders(t, c, "job"))
				repair(c)
				c.Nodes()[1].SetRole("master")
				time.Sleep(2 * interval)
				assert.NoError(t, m.Nodes()[1].Err)
				assert.Equal(t, 3, holders(t, c, "job"))
				require.NoError(t, l.Release(background))

				one.begin(c, 1)
				one.begin(c, 2)
				_, err := begin(background, t, c, quorumlock.WithStartupWait(time.Hour))
				require.ErrorIs(t, err, quorumlock.ErrInvalid, "no majority is left")
				assert.ErrorContains(t, err, one.text)
			})
		})
	}
}
