package hold

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

func TestALeaseIsToldOfEachChangeOnce(t *testing.T) {
	w := newWants(3, 2)
	now, changed := w.news()
	assert.True(t, changed)
	assert.Equal(t, Want{Waiters: 2}, now, "as the acquisition has found them")
	_, changed = w.news()
	assert.False(t, changed)
	w.callers = 3
	now, changed = w.news()
	assert.True(t, changed)
	assert.Equal(t, Want{Waiters: 5}, now, "with callers of this process")

	w.callers = 0
	w.record(0, wire.Want{Waiters: 1}, false)
	w.record(1, wire.Want{Waiters: 1, Marked: true, Note: wire.Note{By: "ops"}}, false)
	w.record(2, wire.Want{}, false)
	now, changed = w.news()
	assert.True(t, changed)
	assert.Equal(t, Want{Waiters: 1, Asked: true, Note: wire.Note{By: "ops"}}, now, "one node is enough for an ask")
}

// A ticket that the holder has left in a queue isn't a waiter.
func TestTheHoldersOwnTicketDoesNotCount(t *testing.T) {
	w := newWants(1, 0)
	for tickets, want := range map[int64]int{0: 0, 1: 0, 2: 1} {
		w.record(0, wire.Want{Waiters: tickets}, true)
		now, _ := w.news()
		assert.Equal(t, want, now.Waiters, "%d tickets", tickets)
	}
}

// A node that is down for hours would otherwise have the holder believe that its waiters are there.
func TestWhatASilentNodeHasSaidIsForgotten(t *testing.T) {
	w := newWants(3, 0)
	w.record(1, wire.Want{Waiters: 1, Marked: true}, false)
	w.forget(quorum.Set(0).With(0).With(2))
	now, _ := w.news()
	assert.Equal(t, Want{Waiters: 1, Asked: true}, now)
	w.forget(quorum.Set(0).With(1))
	now, changed := w.news()
	assert.True(t, changed)
	assert.Equal(t, Want{}, now)
}
