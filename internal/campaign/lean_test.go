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

// A node that was asked in the lean way may later make a lock that isn't a vote, and would answer as if it were one.
func TestAnAttemptThatKeepsVotesHasLocksThatAreNoVotesMadeAnew(t *testing.T) {
	for status, anew := range map[wire.Status]bool{0: true, wire.Unknown: true, wire.NotApplied: false, wire.Taken: false} { // 0: no answer yet
		s := idle(5)
		c := beginAs(s, Call{Kind: Exclusive, Once: true})
		a := s.newAttempt(c, c.Key, quorum.Ask{}, nil)
		c.unreleased = a
		c.machine.Begin(s.clock.Now())
		a.value = strings.Repeat("0", wire.OwnerLen) + a.value[wire.OwnerLen:] // the smallest: it decides a tie
		for i := range 2 {
			a.votes.ballot.Grant(i, a.votes.proposal, 0)
		}
		for i, status := range []wire.Status{wire.Taken, wire.Taken, status} {
			if status != 0 {
				value := wire.Compose(strings.Repeat("0", wire.OwnerLen-1)+[]string{"1", "2", "3"}[i], 7, "1 - ")
				a.votes.count(2+i, 5, &wire.Reply{Status: status, Held: value, TTL: time.Second, Position: -1}, s.clock.Now())
			}
		}
		c.Concede(time.Second)
		require.Same(t, a, c.unreleased)
		next := c.begin()
		assert.Equal(t, anew, next.req.Unproven(1<<4), "%v", status)
		assert.False(t, next.req.Unproven(1<<4-1))
	}
}

// A node may run a request after one that was sent later, over another connection. So a node that has refused the second
// request for a value may still make the lock of the first.
func TestAnAttemptThatKeepsVotesIsUndoneOnNodesThatRefuseIt(t *testing.T) {
	for name, kind := range map[string]Kind{"acquired": Exclusive, "resumed": Resumed(strings.Repeat("f", wire.OwnerLen))} {
		s := idle(3)
		c := beginAs(s, Call{Kind: kind, Once: true})
		undo := func(before *attempt) *wire.Request {
			a := s.newAttempt(c, c.Key, quorum.Ask{}, before)
			for i := range 2 {
				a.req.MarkSent(1 << i)
				a.req.MarkRefused(1 << i)
			}
			a.req.Withdraw()
			return kind.undo(a, wire.TicketUpdate{}, 1)
		}
		first := s.newAttempt(c, c.Key, quorum.Ask{}, nil)
		first.votes.count(2, 3, &wire.Reply{Status: wire.NotApplied, Err: wire.ErrExpired}, s.clock.Now())
		second := undo(first)
		for i := range 2 {
			assert.False(t, second.UndoesNothing(1<<i), "%s, node %d", name, i)
		}
		assert.True(t, second.UndoesNothing(1<<2), "%s: no request was sent to the node", name)
		assert.True(t, undo(nil).UndoesNothing(1), "%s: the node had one request, which it has refused", name)
	}
}
