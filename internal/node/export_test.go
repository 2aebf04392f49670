package node

import (
	"context"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// HintMax is how many requests that messages have caused may wait.
const HintMax = hintMax

// NewForget returns the request with which a node drops old registers.
func NewForget(expires time.Duration) *wire.Request {
	return wire.NewForget(wire.RegistersKey("p:"), registerAge, forgetMost, clock.Steady(expires))
}

// AcquireMax is the length of the lane of acquisitions.
const AcquireMax = acquireMax

// Ping sends a command over the connection of the worker, whose goroutine must call it.
func (n *Node) Ping() error {
	return n.client.Do(context.Background(), n.client.B().Ping().Build()).Error()
}
