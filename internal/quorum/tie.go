package quorum

import (
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
)

// tiePatience is for how many node timeouts a caller that comes first in a tie asks again:
// the others learn of the tie within one timeout, and then their releases need to arrive.
const tiePatience = 2

// tie makes the decisions of callers that ask once, at the same instant, so that each of them may get some of the nodes
// and none a quorum. Every caller sees the owner values on the other nodes. The caller with the smallest value keeps
// its votes and asks again until the others have released theirs. The others release at once, and have lost. So the
// order of random values decides, not chance or distance: with one of three nodes down a caller needs both of the
// others, and callers that each get their near node first would collide again and again, however they spread their
// attempts.
//
// The smallest value of all never gives way to another one. So one caller gets the lock,
// unless the caller with the smallest value dies.
type tie struct {
	timeout time.Duration  // of a node
	since   clock.Validity // when the first attempt of the tie had failed; 0 for none
	pause   time.Duration  // before the next attempt
}

// onceMore returns what follows a failed attempt: another one that keeps the votes, if
// they are scattered and this caller comes first, and otherwise none. The pauses begin with
// a quarter of poll and double up to it, because the distance of the others is not known.
func (t *tie) onceMore(nodes int, now clock.Validity, r *AttemptResult, poll time.Duration) Next {
	if !Scattered(nodes, r) || !comesFirst(r) {
		return Next{At: Never}
	}
	if t.since == 0 {
		t.since, t.pause = max(now, 1), poll/8
	}
	if now.Sub(t.since) >= tiePatience*t.timeout {
		return Next{At: Never}
	}
	t.pause = min(2*t.pause, poll)
	return Next{At: now.Add(t.pause), Keep: true}
}

// Scattered reports whether several callers asked at one instant, so that each of them has some of the votes: no owner
// has a quorum, and the nodes that have not failed are a quorum. A reservation shows a waiter, and the lock is left to
// it.
func Scattered(nodes int, r *AttemptResult) bool {
	need := Size(nodes)
	if len(r.Refusals) == 0 || r.Granted.Len() >= need || nodes-r.Failed.Len() < need {
		return false
	}
	for _, refusal := range r.Refusals {
		votes := 0
		for _, other := range r.Refusals {
			if other.Owner == refusal.Owner {
				votes++
			}
		}
		if refusal.Reserved || votes >= need {
			return false
		}
	}
	return true
}

// AwaitsVotes reports whether a caller that asks once waits for the other answers, although
// enough nodes have refused it. In a tie, every vote counts: the others give way to a
// smaller value that they see, so its caller must know of its votes.
func AwaitsVotes(nodes int, r *AttemptResult) bool {
	return r.Granted.Len()+len(r.Refusals)+r.Failed.Len() < nodes && Scattered(nodes, r)
}

// comesFirst reports whether the attempt has votes, and an owner value smaller than all that
// have refused it. A caller without votes would only take those that others release for the
// caller that comes first.
func comesFirst(r *AttemptResult) bool {
	if r.Granted == 0 {
		return false
	}
	for _, refusal := range r.Refusals {
		if refusal.Owner <= r.Owner {
			return false
		}
	}
	return true
}
