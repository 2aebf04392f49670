package contest_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
)

func TestOneNodeLibrariesTakePartWithOneNodeOnly(t *testing.T) {
	for _, one := range []string{contest.Redislock, contest.Rueidislock} {
		assert.Contains(t, contest.ForNodes(1), one)
		assert.NotContains(t, contest.ForNodes(3), one)
	}
	assert.Contains(t, contest.ForNodes(5), contest.Sockets)
}

func TestPeersAreNeitherOursNorTheLimit(t *testing.T) {
	assert.Equal(t, []string{contest.RedsyncGoredis, contest.RedsyncRueidis, contest.Redislock, contest.Rueidislock}, contest.PeersForNodes(1))
	assert.Equal(t, []string{contest.RedsyncGoredis, contest.RedsyncRueidis}, contest.PeersForNodes(3))
}
