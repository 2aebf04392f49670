//go:build linux

package battery

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// A hold is one lease from its acquisition to its end, as its holder saw it.
//
// Two holds overlap if and only if the library reports both leases valid at one instant. Only two readers may overlap.
// The library reports by the results of Valid, and by ValidUntil of a loss. So a hold lasts from Granted to Ended: at
// each of its instants Valid was true, or would have been if it had been called. If a process acts later, because it
// was stopped or checked too late, that isn't an overlap but a stale access, which the fenced register must refuse.
type hold struct {
	Lock   string
	Client int
	Shared bool // a reader's
	Token  int64
	// Began is before the call of Acquire, Granted after its return.
	Began, Granted instant
	// Ended is the later of two instants: the last one before a call of Valid that returned true, and for a lost lease
	// its ValidUntil. It may be before Granted, if the lease ended before its holder continued.
	Ended instant
	// Reported is when the holder noticed the end: Release had returned, or the loss was
	// read.
	Reported instant
	// End is the way in which it ended: "released", or the reason of the loss.
	End string
}

const released = "released"

func (h *hold) String() string {
	what := "writes"
	if h.Shared {
		what = "reads"
	}
	return fmt.Sprintf("%s: client %d %s, token %d, began %d, granted %d (+%v), ended %d (+%v, %s), reported +%v",
		h.Lock, h.Client, what, h.Token, h.Began, h.Granted, h.Granted.since(h.Began),
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

// kind is the index of a reader or a writer in arrays that have both.
func (h *hold) kind() int {
	if h.Shared {
		return 1
	}
	return 0
}

// overlaps is the interval oracle. It finds every hold during which another hold of the same lock was valid, unless
// both read, and names one such hold. It takes O(n log n).
func overlaps(holds []hold) (found []string) {
	for _, of := range byLock(holds) {
		slices.SortFunc(of, func(a, b hold) int { return cmp.Compare(a.Granted, b.Granted) })
		var latest [2]*hold // the earlier writer that ended last, and the earlier reader
		for i := range of {
			h := &of[i]
			if h.Ended <= h.Granted {
				continue // it had ended before its holder continued
			}
			for _, other := range latest {
				if other != nil && !(other.Shared && h.Shared) && h.Granted < other.Ended {
					both := min(h.Ended, other.Ended).since(h.Granted)
					found = append(found, fmt.Sprintf("both valid for %v:\n\t%v\n\t%v", both, other, h))
					break
				}
			}
			if of := &latest[h.kind()]; *of == nil || h.Ended > (*of).Ended {
				*of = h
			}
		}
	}
	return found
}

// disorders is the token oracle. It finds tokens of a lock that are not distinct, unless their holders read. It also
// finds grants whose token is below the token of a grant that had returned before their acquire began. Of two valid
// holds that are not both of readers, the later one must have the higher token. It takes O(n log n).
func disorders(holds []hold) (found []string) {
	for _, of := range byLock(holds) {
		slices.SortFunc(of, func(a, b hold) int { return cmp.Compare(a.Token, b.Token) })
		var below, latest *hold // the grant whose acquire began last: among lower tokens, and among all up to here
		for i := range of {
			h := &of[i]
			if i > 0 && of[i-1].Token == h.Token {
				if !of[i-1].Shared || !h.Shared {
					found = append(found, fmt.Sprintf("one token, two grants:\n\t%v\n\t%v", &of[i-1], h))
				}
			} else {
				below = latest
			}
			if below != nil && below.Began > h.Granted {
				found = append(found, fmt.Sprintf("the later grant has the lower token:\n\t%v\n\t%v", h, below))
			}
			if latest == nil || h.Began > latest.Began {
				latest = h
			}
		}
		found = append(found, inversions(of)...)
	}
	return found
}

// inversions finds valid holds of one lock whose token isn't above the token of an earlier one, unless both read. It
// sorts them by their grants.
func inversions(of []hold) (found []string) {
	slices.SortFunc(of, func(a, b hold) int { return cmp.Compare(a.Granted, b.Granted) })
	var highest [2]*hold // the earlier writer with the highest token, and the earlier reader
	for i := range of {
		h := &of[i]
		if h.Ended <= h.Granted {
			continue
		}
		for _, other := range highest {
			if other != nil && !(other.Shared && h.Shared) && h.Token <= other.Token {
				found = append(found, fmt.Sprintf("the later hold has the lower token:\n\t%v\n\t%v", other, h))
				break
			}
		}
		if of := &highest[h.kind()]; *of == nil || h.Token > (*of).Token {
			*of = h
		}
	}
	return found
}

// mutexOp is an operation of a mutex with a token. Expire is a separate operation: if a holder did not release, its
// lease ended at some instant between Ended and Reported.
type mutexOp int

const (
	opAcquire mutexOp = iota + 1
	opRelease
	opExpire
)

type mutexInput struct {
	op     mutexOp
	client rune
	shared bool
	token  int64 // of the lease that is released or expires
}

type mutexState struct {
	held    bool   // by a writer
	readers string // the clients that read, sorted
	token   int64  // of the writer
	highest int64  // of all grants so far
	written int64  // of all writers so far
}

// mutexModel is a mutex with growing tokens, or readers in its place. Each reader's token is above the tokens of all
// earlier writers, and not below another reader's token.
var mutexModel = porcupine.Model{
	Init: func() any { return mutexState{} },
	Step: func(state, input, output any) (bool, any) {
		s, in := state.(mutexState), input.(mutexInput)
		if in.op == opAcquire {
			token := output.(int64)
			return s.acquire(in, token)
		}
		return s.end(in)
	},
	DescribeOperation: func(input, output any) string {
		in := input.(mutexInput)
		shared := ""
		if in.shared {
			shared = "shared "
		}
		switch in.op {
		case opAcquire:
			return fmt.Sprintf("%sacquire() -> %v", shared, output)
		case opRelease:
			return fmt.Sprintf("%srelease(%d)", shared, in.token)
		default:
			return fmt.Sprintf("%sexpire(%d)", shared, in.token)
		}
	},
}

func (s mutexState) acquire(in mutexInput, token int64) (bool, mutexState) {
	if !in.shared {
		ok := !s.held && s.readers == "" && token > s.highest
		return ok, mutexState{held: true, token: token, highest: token, written: token}
	}
	ok := !s.held && token > s.written && token >= s.highest
	readers := append([]rune(s.readers), in.client)
	slices.Sort(readers)
	s.readers, s.highest = string(readers), token
	return ok, s
}

func (s mutexState) end(in mutexInput) (bool, mutexState) {
	if !in.shared {
		ok := s.held && s.token == in.token
		s.held = false
		return ok, s
	}
	before, after, ok := strings.Cut(s.readers, string(in.client))
	s.readers = before + after
	return ok, s
}

// maxOperations bounds a history. In longer histories the search takes seconds, mostly for those that are wrong.
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
				illegal = append(illegal, fmt.Sprintf("%s: %s, %d operations from %v%s", lock, verdict, 2*len(part), &part[0], late(part)))
			}
			if from+window >= len(of) {
				break
			}
		}
	}
	return histories, operations, illegal
}

// late names a hold that ended after the grant of a higher token, unless both read. If overlaps and disorders find
// nothing, this is what makes a history illegal.
func late(holds []hold) string {
	of := slices.SortedFunc(slices.Values(holds), func(a, b hold) int { return cmp.Compare(a.Token, b.Token) })
	var last [2]*hold // the writer with a lower token that ended last, and the reader
	for i := range of {
		h := &of[i]
		for _, other := range last {
			if other != nil && !(other.Shared && h.Shared) && other.end() > h.Granted {
				return fmt.Sprintf("; ended too late:\n\t%v\n\t%v", other, h)
			}
		}
		if of := &last[h.kind()]; *of == nil || h.end() > (*of).end() {
			*of = h
		}
	}
	return ""
}

// end is the first instant at which the lease may have ended.
func (h *hold) end() instant { return max(h.Ended, h.Began) }

// mutexHistory translates holds into operations.
func mutexHistory(holds []hold) []porcupine.Operation {
	history := make([]porcupine.Operation, 0, 2*len(holds))
	for i := range holds {
		h := &holds[i]
		end := opExpire
		if h.End == released {
			end = opRelease
		}
		in := mutexInput{op: opAcquire, client: rune(h.Client), shared: h.Shared, token: h.Token}
		out := in
		out.op = end
		history = append(history,
			porcupine.Operation{
				ClientId: h.Client, Input: in, Output: h.Token,
				Call: int64(h.Began), Return: int64(h.Granted),
			},
			porcupine.Operation{
				ClientId: h.Client, Input: out,
				Call: int64(h.end()), Return: int64(max(h.Reported, h.Granted)),
			})
	}
	return history
}

// A process may stop after a grant, before it has the lease in its hands, for longer than the lease. No oracle takes its
// successor for an error.
func TestALeaseThatEndsBeforeItsHolderContinuesIsNoError(t *testing.T) {
	m, err := quorumlock.New(t.Context(), quorumlock.Addrs(redistest.Start(t, 1)[0].Addr()))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close(context.Background())) }()
	began := now()
	l := testkit.Acquired(t, m, "job")
	end := time.Now()
	time.Sleep(time.Millisecond)
	next := hold{Lock: l.Name(), Client: 1, Token: l.Token() + 1, Began: now(), Granted: now(), End: released}
	next.Ended, next.Reported = now(), now()
	stopped := newTenure(l, 0, began)
	stopped.lost(&quorumlock.LostError{Lost: quorumlock.Lost{Reason: quorumlock.LostSuspended, ValidUntil: end}}, now())
	holds := []hold{stopped.h, next}
	require.Less(t, next.Reported, stopped.h.Granted)
	assert.Empty(t, overlaps(holds))
	assert.Empty(t, disorders(holds))
	_, _, illegal := linearizable(holds)
	assert.Empty(t, illegal)
	stopped.h.Ended = next.Granted + 1
	_, _, illegal = linearizable([]hold{stopped.h, next})
	require.Len(t, illegal, 1)
	assert.Contains(t, illegal[0], "ended too late", "the pair is named")
}

// An oracle that never complains is worthless. All oracles accept the history of a real contention. Then one change is
// made: a grant with a token in order is added inside a writer's hold, two tokens are exchanged, or one token is
// granted twice. porcupine and the matching plain oracle must both find it, and the other plain oracle must not. In
// every other history half of the clients read, and the added grant is a reader's.
func TestAnInjectedDoubleGrantIsFlaggedByBoth(t *testing.T) {
	r := newRow(t, "injected into real histories")
	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[string]int{}
	rounds := count(20, 2)
	for round := range rounds {
		shared := float64(round%2) / 2
		honest := contend(t, contention{
			nodes: 3, clients: 8, locks: 1, lasting: 30 * time.Second, enough: 60, ttl: 400 * time.Millisecond, seed: uint64(round),
			shared: shared,
		})
		require.GreaterOrEqual(t, len(honest), 60, "an empty history proves nothing")
		for what, history := range injected(t, honest, rng, shared > 0) {
			_, _, illegal := linearizable(history)
			for oracle, complaints := range map[string][]string{
				"intervals": overlaps(history), "tokens": disorders(history), "porcupine": illegal,
			} {
				if len(complaints) > 0 {
					seen[what+"/"+oracle]++
				}
			}
		}
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

// injected returns a history, and copies of it with one error each.
func injected(t *testing.T, honest []hold, rng *rand.Rand, reader bool) map[string][]hold {
	t.Helper()
	slices.SortFunc(honest, func(a, b hold) int { return cmp.Compare(a.Granted, b.Granted) })
	var writers []int // that held it long enough for an inserted grant
	for i := range honest {
		honest[i].Token *= 2 // room for another token between two
		if h := &honest[i]; !h.Shared && h.Ended.since(h.Granted) >= 10*time.Microsecond {
			writers = append(writers, i)
		}
	}
	require.Greater(t, len(writers), 2)
	v := honest[writers[rng.IntN(len(writers))]]
	third := (v.Ended - v.Granted) / 3
	double := append(slices.Clone(honest), hold{
		Lock: v.Lock, Client: v.Client + 100, Shared: reader, Token: v.Token + 1, End: released,
		Began: v.Granted + 1, Granted: v.Granted + third, Ended: v.Granted + 2*third, Reported: v.Granted + 2*third,
	})

	first, last := writers[0], writers[0]
	for _, i := range writers {
		if honest[i].Began > honest[last].Began {
			last = i
		}
	}
	require.Greater(t, honest[last].Began, honest[first].Granted)
	swapped, twice := slices.Clone(honest), slices.Clone(honest)
	swapped[first].Token, swapped[last].Token = swapped[last].Token, swapped[first].Token
	twice[last].Token = twice[first].Token
	return map[string][]hold{
		"nothing": slices.Clone(honest), "double grant": double, "tokens out of order": swapped, "token given twice": twice,
	}
}
