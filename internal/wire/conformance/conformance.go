// Package conformance holds the cases that every node passes, real or in-process.
// Because the same cases run on both, what a test shows with in-process nodes
// holds for Redis. Each operation of the script has a file of its cases; registers, reserve, wake, batch and node have
// the cases about several operations.
package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// Run runs every case. The cases share one server, which is emptied before each.
func Run(t *testing.T, start func(testing.TB) Server) {
	server := start(t)
	if server.Prefix == "" {
		server.Prefix = "p:"
	}
	for _, topic := range [][]testCase{
		acquireCases, waitCases, extendCases, healCases, raiseCases, releaseCases, leaveCases, passCases, recallCases, markCases, resumeCases, sharedCases, admitCases, permitCases, takenCases, readCases, scanCases,
		forgetCases, guardCases, boundCases, listCases, announceCases, fullCases, registerCases, reserveCases, wakeCases, strangerCases, batchCases, companionCases, leanCases, nodeCases,
	} {
		for _, c := range topic {
			t.Run(c.claim, func(t *testing.T) {
				_, err := server.Do("FLUSHALL")
				require.NoError(t, err)
				c.test(newRig(t, server, clock.New()))
			})
		}
	}
}
