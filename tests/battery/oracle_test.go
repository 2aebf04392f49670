//go:build linux

package battery

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
)

// A hold is one lease from its acquisition to its end, as its holder saw it.
//
// Two holds overlap if and only if the library reports both leases valid at one instant.
// Its reports are the results of Valid, and ValidUntil of a loss. So a hold lasts from
// Granted to Ended: at each instant of it Valid was true, or would have been if it had
// been called. If a process acts later, because it was stopped or checked too late, that
// is no overlap but a stale access, which the fenced register has to refuse.
type hold struct {
	Lock   string
	Client int
	Token  int64
	// Began is before the call of Acquire, Granted after its return.
	Began, Granted instant
	// Ended is the later of two instants: the last one before a call of Valid that
	// returned true, and for a lost lease its ValidUntil. It may be before Granted, if
	// the lease ended before its holder ran on.
	Ended instant
	// Reported is when the holder noticed the end: Release had returned, or the loss was
	// read.
	Reported instant
	// End is how it ended: "released", or the reason of the loss.
	End string
}

const released = "released"

func (h *hold) String() string {
	return fmt.Sprintf("%s: client %d, token %d, began %d, granted %d (+%v), ended %d (+%v, %s), reported +%v",
		h.Lock, h.Client, h.Token, h.Began, h.Granted, h.Granted.since(h.Began),
		h.Ended, h.Ended.since(h.Granted), h.End, h.Reported.since(h.Granted))
}

// byLock groups holds by their locks.
func byLock(holds []hold) map[string][]hold {
	locks := map[string][]hold{}
	for _, h := range holds {
		locks[h.Lock] = append(locks[h.Lock], h)
	}
	return locks
}

// overlaps is the interval oracle. It finds every hold during which another hold of the
// same lock was valid, and names one such. It takes O(n log n).
func overlaps(holds []hold) (found []string) {
	for _, of := range byLock(holds) {
		slices.SortFunc(of, func(a, b hold) int { return cmp.Compare(a.Granted, b.Granted) })
		latest := -1 // the earlier hold that ended last
		for i := range of {
			if of[i].Ended <= of[i].Granted {
				continue // it had ended before its holder ran on
			}
			if latest >= 0 && of[i].Granted < of[latest].Ended {
				both := min(of[i].Ended, of[latest].Ended).since(of[i].Granted)
				found = append(found, fmt.Sprintf("both valid for %v:\n\t%v\n\t%v", both, &of[latest], &of[i]))
			}
			if latest < 0 || of[i].Ended > of[latest].Ended {
				latest = i
			}
		}
	}
	return found
}

// disorders is the token oracle. It finds tokens of a lock that are not distinct, and
// grants whose token is below that of a grant which had returned before their acquire
// began. It takes O(n log n).
func disorders(holds []hold) (found []string) {
	for _, of := range byLock(holds) {
		slices.SortFunc(of, func(a, b hold) int { return cmp.Compare(a.Token, b.Token) })
		latest := 0 // among the lower tokens, the grant whose acquire began last
		for i := 1; i < len(of); i++ {
			if of[i].Token == of[i-1].Token {
				found = append(found, fmt.Sprintf("one token, two grants:\n\t%v\n\t%v", &of[i-1], &of[i]))
			}
			if of[latest].Began > of[i].Granted {
				found = append(found, fmt.Sprintf("the later grant has the lower token:\n\t%v\n\t%v", &of[i], &of[latest]))
			}
			if of[i].Began > of[latest].Began {
				latest = i
			}
		}
	}
	return found
}

// The operations of a mutex with a token. Expire is a separate operation: the lease of a
// holder that did not release ended at some instant between Ended and Reported.
type mutexOp int

const (
	opAcquire mutexOp = iota + 1
	opRelease
	opExpire
)

type mutexInput struct {
	op    mutexOp
	token int64 // of the lease that is released or expires
}

type mutexState struct {
	held    bool
	token   int64 // of the holder
	highest int64 // of all grants so far
}

// mutexModel is a mutex with growing tokens.
var mutexModel = porcupine.Model{
	Init: func() any { return mutexState{} },
	Step: func(state, input, output any) (bool, any) {
		s, in := state.(mutexState), input.(mutexInput)
		switch in.op {
		case opAcquire:
			token := output.(int64)
			return !s.held && token > s.highest, mutexState{held: true, token: token, highest: token}
		default:
			return s.held && s.token == in.token, mutexState{token: s.token, highest: s.highest}
		}
	},
	DescribeOperation: func(input, output any) string {
		in := input.(mutexInput)
		switch in.op {
		case opAcquire:
			return fmt.Sprintf("acquire() -> %v", output)
		case opRelease:
			return fmt.Sprintf("release(%d)", in.token)
		default:
			return fmt.Sprintf("expire(%d)", in.token)
		}
	},
}

// maxOperations bounds a history. Longer histories take the search seconds, mostly those
// that are wrong.
const maxOperations = 10_000

// linearizable checks the history of each lock against the model. It cuts a history of
// more than maxOperations into windows of consecutive grants, each overlapping the next
// by half. That is sound: any part of a linearizable history that consists of whole holds
// is linearizable too.
func linearizable(holds []hold) (histories, operations int, illegal []string) {
	const window = maxOperations / 2 // two operations a hold
	for lock, of := range byLock(holds) {
		slices.SortFunc(of, func(a, b hold) int { return cmp.Compare(a.Granted, b.Granted) })
		for from := 0; ; from += window / 2 {
			part := of[from:min(from+window, len(of))]
			histories++
			operations += 2 * len(part)
			if verdict := porcupine.CheckOperationsTimeout(mutexModel, mutexHistory(part), time.Minute); verdict != porcupine.Ok {
				illegal = append(illegal, fmt.Sprintf("%s: %s, %d operations from %v", lock, verdict, 2*len(part), &part[0]))
			}
			if from+window >= len(of) {
				break
			}
		}
	}
	return histories, operations, illegal
}

// mutexHistory translates holds into operations.
func mutexHistory(holds []hold) []porcupine.Operation {
	history := make([]porcupine.Operation, 0, 2*len(holds))
	for i := range holds {
		h := &holds[i]
		end := opExpire
		if h.End == released {
			end = opRelease
		}
		history = append(history,
			porcupine.Operation{
				ClientId: h.Client, Input: mutexInput{op: opAcquire}, Output: h.Token,
				Call: int64(h.Began), Return: int64(h.Granted),
			},
			porcupine.Operation{
				ClientId: h.Client, Input: mutexInput{op: end, token: h.Token},
				Call: int64(max(h.Ended, h.Began)), Return: int64(max(h.Reported, h.Granted)),
			})
	}
	return history
}

// An oracle that never complains is worthless. All oracles accept the history of a real
// contention. Then one change is made: a grant is added inside a hold with a token in
// order, two tokens are exchanged, or one token is granted twice. porcupine and the
// matching plain oracle must both find it, and the other plain oracle must not.
func TestAnInjectedDoubleGrantIsFlaggedByBoth(t *testing.T) {
	r := newRow(t, "injected into real histories")
	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[string]int{}
	rounds := count(20, 2)
	for round := range rounds {
		honest := contend(t, contention{
			nodes: 3, clients: 8, locks: 1, lasting: 30 * time.Second, enough: 60, ttl: 400 * time.Millisecond, seed: uint64(round),
		})
		require.GreaterOrEqual(t, len(honest), 60, "an empty history proves nothing")
		for i := range honest {
			honest[i].Token *= 2 // room for one more between two
		}
		slices.SortFunc(honest, func(a, b hold) int { return cmp.Compare(a.Granted, b.Granted) })
		judge := func(what string, history []hold) {
			_, _, illegal := linearizable(history)
			for oracle, complaints := range map[string][]string{
				"intervals": overlaps(history), "tokens": disorders(history), "porcupine": illegal,
			} {
				if len(complaints) > 0 {
					seen[what+"/"+oracle]++
				}
			}
		}
		judge("nothing", slices.Clone(honest))

		double := slices.Clone(honest)
		victim := rng.IntN(len(honest))
		for honest[victim].Ended.since(honest[victim].Granted) < 10*time.Microsecond {
			victim = rng.IntN(len(honest))
		}
		v := honest[victim]
		third := (v.Ended - v.Granted) / 3
		double = append(double, hold{
			Lock: v.Lock, Client: v.Client + 100, Token: v.Token + 1, End: released,
			Began: v.Granted + 1, Granted: v.Granted + third, Ended: v.Granted + 2*third, Reported: v.Granted + 2*third,
		})
		judge("double grant", double)

		first, last := 0, 0
		for i := range honest {
			if honest[i].Began > honest[last].Began {
				last = i
			}
		}
		swapped := slices.Clone(honest)
		require.Greater(t, honest[last].Began, honest[first].Granted)
		swapped[first].Token, swapped[last].Token = swapped[last].Token, swapped[first].Token
		judge("tokens out of order", swapped)

		twice := slices.Clone(honest)
		twice[last].Token = twice[first].Token
		judge("token given twice", twice)
	}
	all := fmt.Sprintf("%d/%d", rounds, rounds)
	for _, c := range []struct{ what, by, notBy string }{
		{"double grant", "intervals", "tokens"},
		{"tokens out of order", "tokens", "intervals"},
		{"token given twice", "tokens", "intervals"},
	} {
		both := min(seen[c.what+"/"+c.by], seen[c.what+"/porcupine"])
		r.figure(fmt.Sprintf("%s flagged by %s and porcupine %d/%d", c.what, c.by, both, rounds), all,
			both == rounds && seen[c.what+"/"+c.notBy] == 0)
	}
	untouched := seen["nothing/intervals"] + seen["nothing/tokens"] + seen["nothing/porcupine"]
	r.figure(fmt.Sprintf("untouched histories flagged %d", untouched), "0", untouched == 0)
}
