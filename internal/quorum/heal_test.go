package quorum_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// A node in quarantine has forgotten votes, perhaps of another client. A heal there may
// restore a key that this lease had, but must not give the lease a new vote.
func TestHeldUntilIsTheEndOfAKeyThatTheNodeHad(t *testing.T) {
	terms := quorum.Terms{Nodes: 3, TTL: 10 * time.Second, Drift: 100 * time.Millisecond, SafetyMargin: 200 * time.Millisecond, Timeout: time.Second}
	began := time.Hour
	had, never := 0, 2
	start := func() quorum.Machine {
		return quorum.NewMachine(&terms, make(quorum.Window[clock.Validity], 3), clock.Validity(began), quorum.Set(0).With(had).With(1), quorum.All(3))
	}
	missing := func(m *quorum.Machine, i int, at time.Duration) {
		m.Step(clock.Validity(at), quorum.Input{Kind: quorum.InputBegin})
		m.Step(clock.Validity(at), quorum.Input{Kind: quorum.InputMissing, Node: i, At: clock.Validity(at)})
	}
	until := terms.Keeps(clock.Validity(began))

	m := start()
	assert.Equal(t, until, m.HeldUntil(had))
	assert.Zero(t, m.HeldUntil(never))

	missing(&m, never, began+time.Second)
	assert.Zero(t, m.HeldUntil(never), "a key that the node never had cannot be lost")

	m.Step(clock.Validity(began+time.Second), quorum.Input{Kind: quorum.InputConfirmed, Node: never, At: clock.Validity(began + time.Second)})
	missing(&m, had, began+2*time.Second)
	assert.Equal(t, until, m.HeldUntil(had), "until then no other client had a vote there")
	missing(&m, had, began+3*time.Second)
	assert.Equal(t, until, m.HeldUntil(had), "reported twice")
	assert.Equal(t, quorum.StateAtRisk, m.State(), "a former key is no vote")

	m.Step(clock.Validity(began+3*time.Second), quorum.Input{Kind: quorum.InputClockStep, Node: had, By: time.Millisecond})
	assert.Equal(t, until, m.HeldUntil(had), "a later clock step changes nothing")

	m = start()
	m.Step(clock.Validity(began+time.Second), quorum.Input{Kind: quorum.InputConfirmed, Node: never, At: clock.Validity(began + time.Second)})
	m.Step(clock.Validity(began+time.Second), quorum.Input{Kind: quorum.InputClockStep, Node: had, By: time.Hour})
	assert.Equal(t, until, m.HeldUntil(had), "the clock step has ended the key")
	assert.Equal(t, quorum.Margin(3, 2), m.Margin(clock.Validity(began+time.Second)), "it is no vote")

	m = start()
	m.Step(clock.Validity(began+time.Second), quorum.Input{Kind: quorum.InputConfirmed, Node: never, At: clock.Validity(began + time.Second)})
	m.Step(clock.Validity(began+time.Second), quorum.Input{Kind: quorum.InputTaken, Node: had, At: clock.Validity(began + time.Second)})
	assert.Zero(t, m.HeldUntil(had), "another client has the lock")
}
