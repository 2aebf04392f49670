package failover_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/failover"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A client that had leases in the previous term uses a new one when the old master no longer votes. Otherwise its lease
// moves, its key at the old master ends, and a client there gets the lock.
func TestANewTermIsUsedWhenTheOneBeforeGivesNoVoteAnyMore(t *testing.T) {
	var c failover.Tracker[int]
	assert.True(t, c.Meet(7, clock.Steady(time.Hour)), "a new client has no lease of a term before")
	assert.False(t, c.Meet(8, clock.Steady(time.Hour+1)))
	assert.False(t, c.Meet(8, clock.Steady(time.Hour+failover.SettleFor)))
	assert.True(t, c.Meet(8, clock.Steady(time.Hour+1+failover.SettleFor)))
	assert.False(t, c.Meet(7, clock.Steady(2*time.Hour)), "an older term is a new one for those who did not use it")
	assert.Greater(t, failover.SettleFor, failover.ConfirmedFor+failover.ConfirmedFor/100, "rates of clocks differ")
}

func TestAnUnconfirmedTermGivesNoVote(t *testing.T) {
	var c failover.Tracker[int]
	c.Use(7, clock.Validity(time.Minute))
	assert.Equal(t, 7, c.Used())
	assert.True(t, c.Confirmed(clock.Validity(time.Minute+failover.ConfirmedFor)))
	assert.False(t, c.Confirmed(clock.Validity(time.Minute+failover.ConfirmedFor+1)))
	assert.True(t, c.Record(7, clock.Validity(2*time.Minute), clock.Steady(time.Minute)))
	assert.True(t, c.Confirmed(clock.Validity(2*time.Minute+failover.ConfirmedFor)))
}

func TestAnotherTermConfirmsNothingAndEndsTheConnections(t *testing.T) {
	for _, other := range []int{6, 8} {
		var c failover.Tracker[int]
		c.Use(7, clock.Validity(time.Minute))
		assert.False(t, c.Record(other, clock.Validity(2*time.Minute), clock.Steady(2*time.Minute)))
		assert.False(t, c.Confirmed(clock.Validity(2*time.Minute)))
		assert.Equal(t, 7, c.Used())
	}
}

// The first answer that names it starts the wait of a dial that comes later.
func TestTheWaitForANewTermBeginsWithTheFirstAnswerThatNamesIt(t *testing.T) {
	var c failover.Tracker[int]
	assert.True(t, c.Meet(7, 0))
	c.Use(7, 0)
	assert.False(t, c.Record(8, clock.Validity(time.Second), clock.Steady(time.Second)))
	assert.True(t, c.Meet(8, clock.Steady(time.Second+failover.SettleFor)))
}

// The clock of the guard may run faster than the client's: the window is a little shorter here.
func TestWhatWasSentAfterTheWindowRenewsNothing(t *testing.T) {
	var c failover.Tracker[int]
	c.Use(7, clock.Validity(time.Minute))
	const last = time.Minute + 9500*time.Millisecond
	assert.True(t, c.Renews(clock.Validity(last), 10*time.Second))
	assert.False(t, c.Renews(clock.Validity(last+1), 10*time.Second))
	assert.True(t, c.Record(7, clock.Validity(2*time.Minute), clock.Steady(2*time.Minute)))
	assert.True(t, c.Renews(clock.Validity(last+time.Minute), 10*time.Second))
	assert.Greater(t, failover.LeastWindow-failover.LeastWindow/20, failover.ConfirmedFor, "votes are within the window as well")
}

func TestAMoveOfTheSlotEndsTheVotesUntilTheNextMarker(t *testing.T) {
	var c failover.Tracker[int]
	c.Use(7, clock.Validity(time.Minute))
	assert.False(t, c.Look(false, clock.Validity(time.Minute)))
	assert.True(t, c.Watched(clock.Validity(time.Minute+failover.ConfirmedFor)))
	assert.False(t, c.Watched(clock.Validity(time.Minute+failover.ConfirmedFor+1)), "a move may have begun and ended since")
	assert.False(t, c.Moved())

	assert.True(t, c.Look(true, clock.Validity(time.Minute)))
	assert.False(t, c.Look(true, clock.Validity(time.Minute)), "it is known")
	assert.False(t, c.FoundMove(), "it is known")
	assert.True(t, c.Moving())
	c.Marked()
	assert.True(t, c.Moved(), "more keys may leave after that marker")
	assert.True(t, c.Look(false, clock.Validity(time.Minute)))
	assert.False(t, c.Moving())
	assert.True(t, c.Moved(), "keys have left")
	c.Marked()
	assert.False(t, c.Moved())

	assert.True(t, c.FoundMove(), "an answer says it before the next look")
	assert.True(t, c.Moved())
	c.Use(7, clock.Validity(time.Minute))
	assert.True(t, c.Moved(), "the server is the same")
	c.Use(8, clock.Validity(time.Minute))
	assert.False(t, c.Moved(), "a new term has a marker of its own")
}
