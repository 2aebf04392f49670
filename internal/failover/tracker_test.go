package failover_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock/internal/failover"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A client that had leases in the term before uses a new one when the old master gives no
// vote any more. Otherwise its lease moves, its key at the old master ends, and a client
// there gets the lock.
func TestANewTermIsUsedWhenTheOneBeforeGivesNoVoteAnyMore(t *testing.T) {
	var c failover.Tracker[int]
	assert.True(t, c.Meet(7, time.Hour), "a new client has no lease of a term before")
	assert.False(t, c.Meet(8, time.Hour+1))
	assert.False(t, c.Meet(8, time.Hour+failover.SettleFor))
	assert.True(t, c.Meet(8, time.Hour+1+failover.SettleFor))
	assert.False(t, c.Meet(7, 2*time.Hour), "an older term is a new one for those who did not use it")
	assert.Greater(t, failover.SettleFor, failover.ConfirmedFor+failover.ConfirmedFor/100, "rates of clocks differ")
}

func TestAnUnconfirmedTermGivesNoVote(t *testing.T) {
	var c failover.Tracker[int]
	c.Use(7, time.Minute)
	assert.Equal(t, 7, c.Used())
	assert.True(t, c.Confirmed(time.Minute+failover.ConfirmedFor))
	assert.False(t, c.Confirmed(time.Minute+failover.ConfirmedFor+1))
	assert.True(t, c.Record(7, 2*time.Minute, time.Minute))
	assert.True(t, c.Confirmed(2*time.Minute+failover.ConfirmedFor))
}

func TestAnotherTermConfirmsNothingAndEndsTheConnections(t *testing.T) {
	for _, other := range []int{6, 8} {
		var c failover.Tracker[int]
		c.Use(7, time.Minute)
		assert.False(t, c.Record(other, 2*time.Minute, 2*time.Minute))
		assert.False(t, c.Confirmed(2*time.Minute))
		assert.Equal(t, 7, c.Used())
	}
}

// The first answer that names it starts the wait of a dial that comes later.
func TestTheWaitForANewTermBeginsWithTheFirstAnswerThatNamesIt(t *testing.T) {
	var c failover.Tracker[int]
	assert.True(t, c.Meet(7, 0))
	c.Use(7, 0)
	assert.False(t, c.Record(8, time.Second, time.Second))
	assert.True(t, c.Meet(8, time.Second+failover.SettleFor))
}

// The clock of the guard may run faster than the client's: the window is a little shorter here.
func TestWhatWasSentAfterTheWindowRenewsNothing(t *testing.T) {
	var c failover.Tracker[int]
	c.Use(7, time.Minute)
	const last = time.Minute + 9500*time.Millisecond
	assert.True(t, c.Renews(last, 10*time.Second))
	assert.False(t, c.Renews(last+1, 10*time.Second))
	assert.True(t, c.Record(7, 2*time.Minute, 2*time.Minute))
	assert.True(t, c.Renews(last+time.Minute, 10*time.Second))
	assert.Greater(t, failover.LeastWindow-failover.LeastWindow/20, failover.ConfirmedFor, "votes are within the window as well")
}
