package wire_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/wire"
)

func TestADeadlineOfOursIsNotTheCallers(t *testing.T) {
	ours := fmt.Errorf("ask the Sentinel: %w", context.DeadlineExceeded)
	assert.NotErrorIs(t, wire.Opaque(ours), context.DeadlineExceeded)
	assert.EqualError(t, wire.Opaque(ours), ours.Error())
	other := errors.New("connection refused")
	assert.Same(t, other, wire.Opaque(other))
}
