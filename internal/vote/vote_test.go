package vote_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/vote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errRestart = errors.New("restart")
	errStep    = errors.New("step")
	errTerm    = errors.New("term")
	errLists   = errors.New("lists")
	errGuard   = errors.New("guard")
)

func mono(d time.Duration) clock.Mono { return clock.Mono(d) }

// An answer that shows a step comes behind votes that were on the wire, and may keep them on the wire for longer than
// the quarantine lasts.
func TestAVoteCountsOnlyIfItWasSentAfterTheEndOfTheQuarantine(t *testing.T) {
	v := vote.New(0, 0)
	before := vote.Cast{Sent: mono(time.Minute - 1)}
	require.NoError(t, v.Counts(before, vote.Others{}))
	v.Quarantine(mono(time.Minute), time.Second, errStep)
	end := time.Minute + time.Second + time.Second/100 // the node's clock may be slower
	require.ErrorIs(t, v.Counts(before, vote.Others{}), errStep)
	require.ErrorIs(t, v.May(mono(end-1), vote.Others{}), errStep)
	assert.Equal(t, time.Nanosecond, v.Left(mono(end-1)))
	require.NoError(t, v.May(mono(end), vote.Others{}))
	require.NoError(t, v.Counts(vote.Cast{Sent: mono(end)}, vote.Others{}))
	require.ErrorIs(t, v.Counts(before, vote.Others{}), errStep, "it was sent before the end")
}

func TestAQuarantineIsNeverShortened(t *testing.T) {
	v := vote.New(0, 0.1)
	v.Quarantine(mono(time.Minute), time.Minute, errRestart)
	v.Quarantine(mono(time.Minute), time.Second, errStep)
	require.ErrorIs(t, v.Quarantined(mono(2*time.Minute+6*time.Second-1)), errRestart)
	require.NoError(t, v.Quarantined(mono(2*time.Minute+6*time.Second)))
}

func TestTheEndOfAQuarantineIsNoticedOnce(t *testing.T) {
	v := vote.New(0, 0)
	assert.False(t, v.Ended(mono(time.Hour)), "there was none")
	v.Quarantine(mono(time.Hour), time.Minute, errRestart)
	assert.False(t, v.Ended(mono(time.Hour+time.Minute)))
	assert.True(t, v.Lasts())
	assert.True(t, v.Ended(mono(time.Hour+2*time.Minute)))
	assert.False(t, v.Lasts())
	assert.False(t, v.Ended(mono(time.Hour+2*time.Minute)))
}

// A problem that an operator must fix is reported first: a quarantine ends by itself.
func TestTheFirstReasonThatKeepsANodeFromVotingIsSaid(t *testing.T) {
	v := vote.New(0, 0)
	all := vote.Others{Term: errTerm, Lists: errLists}
	v.Withheld, v.Unguarded = errGuard, true
	v.Quarantine(0, time.Minute, errRestart)
	require.ErrorIs(t, v.May(0, all), errGuard)
	v.Withheld = nil
	require.ErrorIs(t, v.May(0, all), errRestart)
	require.ErrorIs(t, v.Barred(all), errTerm, "a quarantine ends by itself")
	after := mono(time.Hour)
	require.ErrorIs(t, v.May(after, all), errTerm)
	all.Term = nil
	require.ErrorIs(t, v.May(after, all), failover.ErrUnconfirmed)
	v.Unguarded = false
	require.ErrorIs(t, v.May(after, all), errLists)
}

func TestAGrantOverAnotherConnectionOrOfAnotherTermDoesNotCount(t *testing.T) {
	v := vote.New(0, 0)
	require.ErrorIs(t, v.Counts(vote.Cast{Changed: true}, vote.Others{}), vote.ErrReconnected)
	require.ErrorIs(t, v.Counts(vote.Cast{Former: true}, vote.Others{}), failover.ErrUnconfirmed)
	require.ErrorIs(t, v.Counts(vote.Cast{}, vote.Others{Term: errTerm}), failover.ErrUnconfirmed)
	require.ErrorIs(t, v.Counts(vote.Cast{}, vote.Others{Lists: errLists}), errLists)
	v.Unguarded = true
	require.ErrorIs(t, v.Counts(vote.Cast{}, vote.Others{}), failover.ErrUnconfirmed)
}

func TestTheGuardsMarkerSaysHowLongTheQuarantineLasts(t *testing.T) {
	const second = 1_000_000
	for claim, c := range map[string]struct {
		stop int64
		want time.Duration
	}{
		"an empty database that is trusted": {0, 0},
		"it is over":                        {100 * second, 0},
		"it goes on":                        {110 * second, 10*time.Second + 10*time.Second/100},
		"the node's clock was set back":     {1e9 * second, time.Minute + time.Minute/100},
	} {
		v := vote.New(time.Minute, 0)
		v.Marked(mono(time.Hour), c.stop, 100*second, errRestart)
		assert.Equal(t, c.want, v.Left(mono(time.Hour)), claim)
	}
	v := vote.New(time.Minute, 0)
	v.Stepped(mono(time.Hour), 0, time.Second, errStep)
	v.Marked(mono(time.Hour), 110*second, 100*second, errRestart)
	require.ErrorIs(t, v.Quarantined(mono(time.Hour)), errStep, "it is the same quarantine")
}

// The marker reports a step to other clients, once it is known that this process's clock did not make it.
func TestAStepIsSuspectedUntilItIsKnownWhoseItWas(t *testing.T) {
	found := clock.Steady(time.Hour)
	suspects := func(v *vote.Vote) bool { _, suspect := v.Suspected(); return suspect }
	v := vote.New(time.Minute, 0)
	v.Stepped(0, found, time.Minute, errStep)
	since, _ := v.Suspected()
	assert.Equal(t, found, since)
	assert.Less(t, v.Recheck(vote.Others{}), vote.RetryEvery, "it looks again soon")
	v.Guarded(found.Add(2*time.Second), false)
	assert.True(t, suspects(&v))
	v.Guarded(found.Add(2*time.Second+1), false)
	assert.False(t, suspects(&v), "nobody will know")
	v.Stepped(0, found, time.Minute, errStep)
	v.Guarded(found, true)
	assert.False(t, suspects(&v))
	assert.Zero(t, v.Recheck(vote.Others{Lists: errLists}), "the quarantine ends by itself")
	unguarded := vote.New(0, 0)
	unguarded.Stepped(0, found, time.Minute, errStep)
	assert.False(t, suspects(&unguarded), "there is no marker")
	require.ErrorIs(t, unguarded.May(0, vote.Others{}), errStep)
}

func TestALeaseReliesOnANodeWhileThatRemembersTheList(t *testing.T) {
	v := vote.New(time.Minute, 0)
	lifetime := func() time.Duration { return 20 * time.Second }
	at := vote.Cast{Steady: clock.Steady(time.Hour)}
	require.NoError(t, v.Keeps(at, lifetime), "it has registered nothing there")
	v.Remembers = at.Steady.Add(20 * time.Second)
	require.NoError(t, v.Keeps(at, lifetime))
	v.Remembers--
	require.ErrorIs(t, v.Keeps(at, lifetime), vote.ErrLapsed)
	require.NoError(t, v.Keeps(at, func() time.Duration { return 0 }), "it keeps no lease")
	at.Outlasted = true
	require.ErrorIs(t, v.Keeps(at, lifetime), failover.ErrUnconfirmed)
}
