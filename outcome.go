package quorumlock

import (
	"context"
	"errors"
)

// This file names the outcomes of calls for spans and metrics.

// descriptions are the texts of a failed span's status.
var descriptions = map[string]string{
	"timeout":   "the context's deadline passed before the call was through",
	"no_quorum": "too few nodes gave an answer that counts",
	"lost":      "the lease ended before it was released",
	"other":     "the call failed",
}

// errorType returns the error.type of an error, "" for an outcome that is no failure.
func errorType(err error) string { return failureOf(outcome(err)) }

// failureOf returns the error.type of an outcome, "" if it is no failure.
func failureOf(outcome string) string {
	switch outcome {
	case "ok", "held", "cancelled", "released", "closed":
		return ""
	default:
		return outcome
	}
}

// outcome returns the name of a call's outcome.
func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, ErrHeld):
		return "held"
	case errors.Is(err, ErrNoQuorum):
		return "no_quorum"
	case errors.Is(err, ErrLost):
		return "lost"
	case errors.Is(err, ErrReleased):
		return "released"
	case errors.Is(err, ErrClosed):
		return "closed"
	default:
		return "other"
	}
}
