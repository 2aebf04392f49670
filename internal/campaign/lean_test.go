package campaign

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A node that may have a lock which is no vote would answer the same owner value as if it were one.
func TestAnAttemptWithALockThatIsNoVoteKeepsNoVotes(t *testing.T) {
	for unproven, keeps := range map[uint32]bool{0: true, 4: false} {
		s := idle(5)
		c := beginAs(s, Call{Kind: Exclusive, Once: true})
		a := s.newAttempt(c, c.Key, quorum.Ask{}, nil)
		c.unreleased = a
		c.machine.Begin(s.clock.Now())
		a.value = strings.Repeat("0", wire.OwnerLen) + a.value[wire.OwnerLen:] // the smallest: it decides a tie
		for i := range 2 {
			a.votes.ballot.Grant(i, a.votes.proposal, 0)
		}
		for i, digit := range []string{"1", "1", "2"} {
			value := wire.Compose(strings.Repeat("0", wire.OwnerLen-1)+digit, 7, "1 - ")
			a.votes.count(2+i, 5, &wire.Reply{Status: wire.Taken, Held: value, TTL: time.Second, Position: -1}, s.clock.Now())
		}
		a.req.MarkUnproven(unproven)
		c.Concede(time.Second)
		assert.Equal(t, keeps, c.unreleased == a)
	}
}
