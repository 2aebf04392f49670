package hold

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A node that has never been sent the acquisition needs no release, unless a heal has made the lock
// there.
func TestALockThatAHealHasMadeIsReleasedThere(t *testing.T) {
	const third = 2
	for _, healed := range []bool{false, true} {
		p := idle(3)
		g := p.grant(hour(3))
		g.Acquire = &wire.Request{}
		*g.Ballot = quorum.NewBallot(3, true, 7)
		for i := range third {
			g.Ballot.Grant(i, 7, 3)
			g.Acquire.MarkSent(1 << i)
		}
		l, _ := p.open(t, g)
		if healed {
			l.TakeReservations(quorum.Set(0).With(third))
		}
		release := l.releaseRequest(wire.TicketUpdate{})
		assert.Equal(t, !healed, release.UndoesNothing(1<<third))
		assert.False(t, release.UndoesNothing(1))
	}
}

// Renewals overtake acquisitions. A node that has not been sent the acquisition yet must not shorten the keys after a
// renewal with a longer TTL.
func TestAChangeOfTheTTLWithdrawsAnAcquisitionThatWasNotSent(t *testing.T) {
	for _, changes := range []bool{false, true} {
		p := idle(3)
		g := p.grant(hour(3))
		g.Acquire = &wire.Request{}
		l, first := p.open(t, g)
		terms := *l.Terms()
		if changes {
			terms.TTL *= 2
		}
		l.Renew(first, &terms, nil)
		assert.Equal(t, changes, g.Acquire.Withdrawn())
	}
}
