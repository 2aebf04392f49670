package campaign

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A node that may have a lock which is no vote would answer the same owner value as if it were one.
func TestAnAttemptThatKeepsVotesHasLocksThatAreNoVotesMadeAnew(t *testing.T) {
	for _, tried := range []struct {
		anew uint32
		mark func(*wire.Request)
	}{
		{0, func(*wire.Request) {}},
		{4, func(r *wire.Request) { r.MarkUnproven(4) }},
		{4, func(r *wire.Request) { r.MarkLean(4) }}, // it has not answered
		{0, func(r *wire.Request) { r.MarkLean(4); r.ClearUnproven(4) }},
	} {
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
		tried.mark(&a.req)
		c.Concede(time.Second)
		require.Same(t, a, c.unreleased)
		assert.Equal(t, tried.anew, c.begin().req.Open())
	}
}
