package quorum_test

import (
	"math/rand"
	"reflect"
	"testing"
	"testing/quick"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/quorum"
)

const (
	ms    = time.Millisecond
	grace = 20 * ms
)

// unqueued is a refusal of a node whose queue does not have our ticket.
func unqueued(left time.Duration) quorum.Refusal { return quorum.Refusal{Left: left, Position: -1} }

// behind is a refusal of a node with position tickets before ours.
func behind(position int, left time.Duration) quorum.Refusal {
	return quorum.Refusal{Left: left, Position: position}
}

func TestAWaiterAsksAgainWhenEnoughOfTheKeysInItsWayHaveEnded(t *testing.T) {
	const never = quorum.Endless
	for _, c := range []struct {
		what     string
		refusals []quorum.Refusal
		need     int
		poll     time.Duration
		want     time.Duration
	}{
		{"nothing is in the way", nil, 2, 10 * ms, 10 * ms},
		{"the second of three", []quorum.Refusal{unqueued(30 * ms), unqueued(10 * ms), unqueued(20 * ms)}, 2, time.Second, 21 * ms},
		{"the one that is needed", []quorum.Refusal{unqueued(30 * ms), unqueued(10 * ms), unqueued(20 * ms)}, 1, time.Second, 11 * ms},
		{"as many as there are", []quorum.Refusal{unqueued(30 * ms), unqueued(10 * ms)}, 3, time.Second, 31 * ms},
		{"as many as end", []quorum.Refusal{unqueued(30 * ms), unqueued(never), unqueued(never)}, 2, time.Second, 31 * ms},
		{"none ends", []quorum.Refusal{unqueued(never), unqueued(never)}, 1, time.Second, time.Second},
		{"none is needed", []quorum.Refusal{unqueued(30 * ms), unqueued(10 * ms)}, 0, time.Second, 11 * ms},
		{"poll is sooner", []quorum.Refusal{unqueued(30 * ms)}, 1, 10 * ms, 10 * ms},
		{"it ends now", []quorum.Refusal{unqueued(0)}, 1, 10 * ms, ms},
	} {
		assert.Equal(t, c.want, quorum.RetryDelay(c.refusals, c.need, c.poll, grace), c.what)
	}
}

func TestWaitersForAKeyThatEndsAskOneAfterAnotherWithinHalfAGrace(t *testing.T) {
	for position, want := range map[int]time.Duration{
		0: 31 * ms, 1: 33 * ms, 2: 35 * ms, 4: 39 * ms, 5: 41 * ms, 6: 41 * ms, 300: 41 * ms, 1 << 60: 41 * ms,
	} {
		refusals := []quorum.Refusal{behind(position, 30*ms), behind(position, 30*ms), behind(position, time.Second)}
		assert.Equal(t, want, quorum.RetryDelay(refusals, 2, time.Second, grace), "%d before it", position)
	}
}

func TestAWaiterThatQueuesOnAQuorumPollsTheLessTheMoreTicketsAreBeforeIt(t *testing.T) {
	const never = quorum.Endless
	for _, c := range []struct {
		what      string
		positions [3]int
		poll      time.Duration
		want      time.Duration
	}{
		{"the first", [3]int{0, 0, 0}, 10 * ms, 50 * ms},
		{"the first, by a longer poll", [3]int{0, 0, 0}, 200 * ms, 200 * ms},
		{"the second", [3]int{1, 1, 1}, 10 * ms, 100 * ms},
		{"the third, by a longer poll", [3]int{2, 2, 2}, 200 * ms, 600 * ms},
		{"the first on one of them", [3]int{7, 0, 3}, 200 * ms, 200 * ms},
		{"the 30th", [3]int{29, 29, 30}, 200 * ms, 5 * time.Second},
		{"the last of very many", [3]int{1 << 40, 1 << 40, 1 << 40}, 10 * ms, 5 * time.Second},
		{"one whose poll is longer by itself", [3]int{3, 3, 3}, 7 * time.Second, 7 * time.Second},
		{"one whose poll is longer than a queue lives", [3]int{0, 0, 0}, time.Hour, 20 * time.Second},
		{"the same with others before it", [3]int{3, 3, 3}, time.Hour, 20 * time.Second},
		{"in one queue only", [3]int{-1, 0, -1}, time.Hour, 20 * time.Second},
		{"in the queues of a quorum", [3]int{-1, 1, 1}, 10 * ms, 50 * ms},
		{"in too few queues", [3]int{-1, 0, -1}, 10 * ms, 10 * ms},
		{"in no queue", [3]int{-1, -1, -1}, 10 * ms, 10 * ms},
		{"in no queue, by a longer poll", [3]int{-1, -1, -1}, time.Hour, time.Hour},
	} {
		var refusals []quorum.Refusal
		for _, position := range c.positions {
			refusals = append(refusals, behind(position, never))
		}
		assert.Equal(t, c.want, quorum.RetryDelay(refusals, 2, c.poll, grace), c.what)
	}
	assert.Equal(t, 10*ms, quorum.RetryDelay([]quorum.Refusal{unqueued(never)}, 0, 10*ms, grace),
		"without a queue, the waiter does not poll less, however little it needs")
}

// failure has the results of a failed attempt.
type failure struct {
	Refusals []quorum.Refusal
	Need     int
	Poll     time.Duration
	Grace    time.Duration
}

// Generate makes failures whose keys end close to each other.
func (failure) Generate(r *rand.Rand, _ int) reflect.Value {
	f := failure{Need: r.Intn(6) - 1, Poll: time.Duration(r.Intn(200)) * ms, Grace: time.Duration(10*r.Intn(8)) * ms}
	if r.Intn(10) == 0 {
		f.Poll *= 200
	}
	for range r.Intn(6) {
		left := time.Duration(r.Intn(20)) * 10 * ms
		if r.Intn(4) == 0 {
			left = quorum.Endless
		}
		position := r.Intn(5) - 1
		if r.Intn(4) == 0 {
			position *= 10
		}
		f.Refusals = append(f.Refusals, behind(max(-1, position), left))
	}
	return reflect.ValueOf(f)
}

// dumbRetryDelay tries the instants one by one.
func dumbRetryDelay(f failure) time.Duration {
	const step = ms
	queued, first, end := 0, 1000, 0
	for _, r := range f.Refusals {
		if r.Position >= 0 {
			queued++
		}
		first = min(first, max(0, r.Position))
		if r.Left != quorum.Endless {
			end++
		}
	}
	poll := f.Poll
	if len(f.Refusals) > 0 && queued >= max(1, f.Need) && poll < quorum.MinPoll {
		poll = quorum.MinPoll
	}
	for more := poll; len(f.Refusals) > 0 && first > 0 && poll < quorum.MaxPoll; first-- {
		poll = min(poll+more, quorum.MaxPoll)
	}
	if queued > 0 && poll > quorum.KeepPlace {
		poll = quorum.KeepPlace
	}
	for d := step; d < poll && end > 0; d += step {
		ended := 0
		for _, r := range f.Refusals {
			later := 2 * ms * time.Duration(max(0, r.Position))
			if later > f.Grace/2 {
				later = f.Grace / 2
			}
			if r.Left != quorum.Endless && r.Left+ms+later <= d {
				ended++
			}
		}
		if ended >= min(max(1, f.Need), end) {
			return d
		}
	}
	return poll
}

func TestRetryDelayAgreesWithGoingThroughTheInstants(t *testing.T) {
	same := func(f failure) bool {
		got, want := quorum.RetryDelay(f.Refusals, f.Need, f.Poll, f.Grace), dumbRetryDelay(f)
		if got != want {
			t.Logf("%+v: got %v, want %v", f, got, want)
		}
		return got == want
	}
	if err := quick.Check(same, quickConfig); err != nil {
		t.Error(err)
	}
}
