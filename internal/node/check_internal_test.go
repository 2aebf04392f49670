package node

import (
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// The early answers of a greeting count once, and only if they cover everything that is to be asked.
func TestWhatWasAskedEarlyCountsOnlyForTheSameQuestions(t *testing.T) {
	n := New(Config{Guard: 60e9})
	g := &n.greeter
	g.identity.RunID = "one"
	asked := g.guarding(false, false)
	answer := [][]rueidis.RedisMessage{{{}}}
	again := func() {
		g.early = early{clock.Steady(1), map[string][]rueidis.RedisMessage{asked.key: answer[0], "rehearsal": nil}}
	}

	again()
	assert.Equal(t, answer, g.early.take([]question{g.guarding(false, false)}), "another nonce asks for the same")
	assert.Nil(t, g.early.take([]question{g.guarding(false, false)}), "an answer counts once")
	again()
	assert.Nil(t, g.early.take([]question{g.guarding(false, true)}), "a quarantine for all")
	assert.Nil(t, g.early.take([]question{asked, {key: "list"}}), "not all was asked")
	assert.Len(t, g.early.take([]question{asked, g.rehearsal()}), 2)
	again()
	g.identity.RunID = "two"
	assert.Nil(t, g.early.take([]question{g.guarding(false, false)}), "the answers have named another server")
}
