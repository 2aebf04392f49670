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
