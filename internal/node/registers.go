package node

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

const (
	// registerAge is how long a register is kept after its last move. When it is dropped,
	// later tokens start from the base, so they are larger still.
	registerAge = 24 * time.Hour
	// forgetMost is how many registers a node drops at once: a script stops the server while it runs.
	forgetMost = 200
)

// newForget returns a request that drops old registers.
func newForget(registers string, now clock.Steady) *wire.Request {
	return wire.NewForget(registers, registerAge, forgetMost, now.Add(time.Minute))
}
