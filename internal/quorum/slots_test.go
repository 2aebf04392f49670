package quorum_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

func TestACallAsksForTheSlotThatMostNodesName(t *testing.T) {
	s := quorum.NewSlots([]int{2, 0, 1}, 5)
	assert.Equal(t, 5, s.Begin(), "nothing speaks for another one")
	s.Named(0, 3)
	assert.Equal(t, 3, s.Begin())
	assert.Equal(t, 3, s.Begin(), "a message counts for one attempt")
	s.Named(0, 1)
	s.Named(1, 2)
	s.Named(2, 2)
	assert.Equal(t, 2, s.Begin())
	s.Named(0, 7)
	s.Named(0, 1)
	s.Named(1, 2)
	s.Named(2, 3)
	assert.Equal(t, 3, s.Begin(), "of several, that of the first node in the order of all clients")
	s.Named(2, 1)
	s.Named(0, 6)
	s.Named(1, 6)
	assert.Equal(t, 6, s.Begin(), "most nodes, and not the first")
	s.Refused([]int{4, 4, 4})
	assert.Equal(t, 4, s.Begin(), "what a node has offered is later than its message")
}

func TestACallAsksForOtherSlotsAtOnceAFewTimes(t *testing.T) {
	s := quorum.NewSlots([]int{0, 1, 2}, 0)
	s.Begin()
	_, again := s.Refused([]int{-1, -1, -1})
	assert.False(t, again, "no slot is free")
	for _, free := range [][]int{{4, -1, 6}, {-1, 5, 5}, {1, 2, 2}} {
		slot, again := s.Refused(free)
		assert.True(t, again)
		assert.Contains(t, []int{4, 5, 2}, slot)
	}
	_, again = s.Refused([]int{1, 1, 1})
	assert.False(t, again, "it has to wait")
	assert.Equal(t, 2, s.Begin())
	_, again = s.Refused([]int{1, 1, 1})
	assert.True(t, again, "after a wait it asks around again")
}

// Each node names a different slot to each waiter that it lets in together. Waiters with the messages of all nodes, and
// without a majority for one slot, follow the first node. So they choose different slots, whatever the order of a node.
func TestThoseWhoFollowTheSameNodeAskForDifferentSlots(t *testing.T) {
	for range 2000 {
		const waiters, nodes = 4, 3
		var slots [waiters]quorum.Slots
		for w := range slots {
			slots[w] = quorum.NewSlots([]int{1, 2, 0}, 0)
		}
		named := [nodes][]int{}
		for n := range nodes {
			named[n] = rand.Perm(waiters)
			for w, slot := range named[n] {
				slots[w].Named(n, slot)
			}
		}
		chosen := map[int]int{}
		for w := range slots {
			scattered := named[0][w] != named[1][w] && named[1][w] != named[2][w] && named[0][w] != named[2][w]
			if slot := slots[w].Begin(); scattered {
				assert.Equal(t, named[1][w], slot)
				chosen[slot]++
				assert.Equal(t, 1, chosen[slot])
			}
		}
	}
}

// Nodes that let a waiter in to different slots would make it go round forever, without a pause.
func TestAWaiterThatIsLetInAndNotGrantedPausesLongerAndLonger(t *testing.T) {
	const grace = 20 * time.Millisecond
	w := quorum.NewWaiter(quorum.WaiterConfig{Nodes: 3, Grace: grace, Subscribed: quorum.All(3), Sure: true})
	w.Begin(0)
	w.Ended(0, &quorum.AttemptResult{Outcome: quorum.OutcomeHeld, Refusals: []quorum.Refusal{{Node: 0, Left: time.Hour}, {Node: 1, Left: time.Hour}}}, time.Second, 0.9)
	now := time.Millisecond
	w.Wake(clock.Validity(now), 0, quorum.WakeReserved, 0, 0.9)
	assert.Greater(t, w.At(), clock.Validity(now), "one node is not enough for a permit")
	w.Wake(clock.Validity(now), 1, quorum.WakeReserved, 0, 0.9)
	assert.Equal(t, clock.Validity(now), w.At())
	before := time.Duration(0)
	for round := range 8 {
		w.Begin(clock.Validity(now))
		result := &quorum.AttemptResult{
			Outcome: quorum.OutcomeHeld, Granted: quorum.Set(0).With(2),
			Refusals: []quorum.Refusal{{Node: 0, Position: -1, LetIn: true, Left: time.Hour}, {Node: 1, Position: 0, Left: time.Hour}},
		}
		if round%2 == 1 { // it was let in before, and granted there only
			result.Granted, result.Refusals = quorum.Set(0).With(0), result.Refusals[1:]
		}
		next := w.Ended(clock.Validity(now), result, time.Second, 0.9)
		assert.LessOrEqual(t, next.At, clock.Validity(now+grace/2), "it may enter again")
		for i := range 3 {
			w.Wake(clock.Validity(now), i, quorum.WakeReserved, 0, 0.9) // for what it has given up
		}
		pause := w.At().Add(-now)
		assert.GreaterOrEqual(t, pause, clock.Validity(before), "round %d", round)
		assert.Positive(t, pause)
		assert.LessOrEqual(t, pause, clock.Validity(grace/2))
		now, before = time.Duration(w.At()), time.Duration(pause)
	}
	assert.Equal(t, grace*9/20, before)
}
