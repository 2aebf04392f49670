package campaign

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// beginAs begins the campaign of a call of another kind.
func beginAs(s *Campaigns, call Call) *Campaign {
	c := &Campaign{}
	call.Wait, call.Key, call.Caller = context.Background(), "p:job", &caller{}
	call.Terms = &config.Terms{Terms: quorum.Terms{Nodes: s.ensemble.Size(), TTL: time.Hour, Timeout: time.Hour}, Manual: true}
	s.Begin(c, call)
	return c
}

// Odd numbers are the tokens of readers.
func TestAProposalIsEven(t *testing.T) {
	s := idle(1)
	c := begin(s, &caller{})
	for range 64 {
		require.Zero(t, s.newAttempt(c, c.Key, quorum.Ask{}, nil).votes.proposal%2)
		time.Sleep(time.Microsecond)
	}
}

// A node serves readers that wait together, and lets a call for a permit in below its limit.
func TestATicketSaysForWhatItWaits(t *testing.T) {
	s := idle(3)
	for mark, call := range map[string]Call{"s": {Kind: Shared()}, "p7": {Kind: Permit(7)}, "p128": {Kind: Permit(128)}, "": {Kind: Exclusive}} {
		c := beginAs(s, call)
		c.Enrol()
		assert.Regexp(t, "^[0-9a-f]{32}[1-9][0-9]*"+mark+"$", c.ticket)
		assert.Same(t, c, s.find(c.ticket[:wire.TicketLen]), "the nodes wake it from now on")
	}
}

// If a reader and writers ask at one instant, the reader comes first, because the writers see no owner value of it.
func TestAReaderComesFirstInATie(t *testing.T) {
	for kind, keeps := range map[Kind]bool{Shared(): true, Exclusive: false} {
		s := idle(3)
		c := beginAs(s, Call{Kind: kind, Once: true})
		a := s.newAttempt(c, c.Key, quorum.Ask{}, nil)
		c.machine.Begin(s.clock.Now())
		a.votes.ballot.Grant(0, a.votes.proposal, 0)
		for i, digit := range []string{"1", "2"} {
			value := wire.Compose(strings.Repeat("0", wire.OwnerLen-1)+digit, 7, "1 - ")
			a.votes.count(1+i, 3, &wire.Reply{Status: wire.Taken, Held: value, TTL: time.Second, Position: -1}, s.clock.Now())
		}
		assert.Equal(t, keeps, c.machine.Ended(s.clock.Now(), a.result(), time.Second, 0).Keep)
	}
}

func TestALockThatWaitsForReadersIsReserved(t *testing.T) {
	reply := &wire.Reply{Status: wire.Taken, Held: "s " + wire.Nobody + " 0 0 - ", TTL: time.Second, Readers: &wire.Readers{Count: 1}}
	r := newRefusal(0, reply, 0)
	assert.Equal(t, []any{true, false, ""}, []any{r.Reserved, r.Stranger, r.value})
	reply.Readers.Values = []string{"a reader's"}
	r = newRefusal(0, reply, 0)
	assert.Equal(t, []any{false, false, "a reader's"}, []any{r.Reserved, r.Stranger, r.value})
	value, readers, _ := holder([]refusal{r})
	assert.Equal(t, []any{"a reader's", 1}, []any{value, readers})
}
