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

const ms = time.Millisecond

// key is a refusal of a node in whose queue we are not.
func key(left time.Duration) quorum.Refusal { return quorum.Refusal{Left: left, Place: -1} }

// behind is a refusal of a node on which so many are before us.
func behind(place int, left time.Duration) quorum.Refusal {
	return quorum.Refusal{Left: left, Place: place}
}

func TestAWaiterLooksWhenEnoughOfTheKeysInItsWayHaveEnded(t *testing.T) {
	const never = quorum.Never
	for _, c := range []struct {
		what     string
		refusals []quorum.Refusal
		need     int
		poll     time.Duration
		want     time.Duration
	}{
		{"nothing is in the way", nil, 2, 10 * ms, 10 * ms},
		{"the second of three", []quorum.Refusal{key(30 * ms), key(10 * ms), key(20 * ms)}, 2, time.Second, 21 * ms},
		{"the one that is needed", []quorum.Refusal{key(30 * ms), key(10 * ms), key(20 * ms)}, 1, time.Second, 11 * ms},
		{"as many as there are", []quorum.Refusal{key(30 * ms), key(10 * ms)}, 3, time.Second, 31 * ms},
		{"as many as end", []quorum.Refusal{key(30 * ms), key(never), key(never)}, 2, time.Second, 31 * ms},
		{"none ends", []quorum.Refusal{key(never), key(never)}, 1, time.Second, time.Second},
		{"none is needed", []quorum.Refusal{key(30 * ms), key(10 * ms)}, 0, time.Second, 11 * ms},
		{"poll is sooner", []quorum.Refusal{key(30 * ms)}, 1, 10 * ms, 10 * ms},
		{"it ends now", []quorum.Refusal{key(0)}, 1, 10 * ms, ms},
	} {
		assert.Equal(t, c.want, quorum.Look(c.refusals, c.need, c.poll), c.what)
	}
}

// The first is there first, and the others do not get in each other's way.
func TestWaitersOfAKeyThatEndsLookOneAfterAnother(t *testing.T) {
	for place, want := range []time.Duration{31 * ms, 33 * ms, 35 * ms} {
		refusals := []quorum.Refusal{behind(place, 30*ms), behind(place, 30*ms), behind(place, time.Second)}
		assert.Equal(t, want, quorum.Look(refusals, 2, time.Second), "%d before it", place)
	}
}

// As long as it queues on so many nodes that they can tell it.
func TestAWaiterThatWillBeToldPollsTheLessTheMoreAreBeforeIt(t *testing.T) {
	const never = quorum.Never
	for _, c := range []struct {
		what   string
		places [3]int
		poll   time.Duration
		want   time.Duration
	}{
		{"the first", [3]int{0, 0, 0}, 10 * ms, 50 * ms},
		{"the first, by a longer poll", [3]int{0, 0, 0}, 200 * ms, 200 * ms},
		{"the second", [3]int{1, 1, 1}, 10 * ms, 100 * ms},
		{"the third, by a longer poll", [3]int{2, 2, 2}, 200 * ms, 600 * ms},
		{"the first on one of them", [3]int{7, 0, 3}, 200 * ms, 200 * ms},
		{"the 30th", [3]int{29, 29, 30}, 200 * ms, 5 * time.Second},
		{"the last of very many", [3]int{1 << 40, 1 << 40, 1 << 40}, 10 * ms, 5 * time.Second},
		{"whose poll is longer by itself", [3]int{3, 3, 3}, 7 * time.Second, 7 * time.Second},
		{"whose poll is longer than a queue is kept", [3]int{0, 0, 0}, time.Hour, 20 * time.Second},
		{"the same with others before it", [3]int{3, 3, 3}, time.Hour, 20 * time.Second},
		{"in one queue only", [3]int{-1, 0, -1}, time.Hour, 20 * time.Second},
		{"in the queues of a quorum", [3]int{-1, 1, 1}, 10 * ms, 50 * ms},
		{"in too few queues", [3]int{-1, 0, -1}, 10 * ms, 10 * ms},
		{"in no queue", [3]int{-1, -1, -1}, 10 * ms, 10 * ms},
		{"in no queue, by a longer poll", [3]int{-1, -1, -1}, time.Hour, time.Hour},
	} {
		var refusals []quorum.Refusal
		for _, place := range c.places {
			refusals = append(refusals, behind(place, never))
		}
		assert.Equal(t, c.want, quorum.Look(refusals, 2, c.poll), c.what)
	}
	assert.Equal(t, 10*ms, quorum.Look([]quorum.Refusal{key(never)}, 0, 10*ms), "no queue is none, whatever is needed")
}

// wait is what an attempt met that came to nothing.
type wait struct {
	Refusals []quorum.Refusal
	Need     int
	Poll     time.Duration
}

// Generate makes waits whose keys end at instants that are close to each other.
func (wait) Generate(r *rand.Rand, _ int) reflect.Value {
	w := wait{Need: r.Intn(6) - 1, Poll: time.Duration(r.Intn(200)) * ms}
	if r.Intn(10) == 0 {
		w.Poll *= 200
	}
	for range r.Intn(6) {
		left := time.Duration(r.Intn(20)) * 10 * ms
		if r.Intn(4) == 0 {
			left = quorum.Never
		}
		w.Refusals = append(w.Refusals, behind(r.Intn(5)-1, left))
	}
	return reflect.ValueOf(w)
}

// dumbLook goes through the instants and asks at each of them.
func dumbLook(w wait) time.Duration {
	const step = ms
	queued, first, end := 0, 1000, 0
	for _, r := range w.Refusals {
		if r.Place >= 0 {
			queued++
		}
		first = min(first, max(0, r.Place))
		if r.Left != quorum.Never {
			end++
		}
	}
	poll := w.Poll
	if len(w.Refusals) > 0 && queued >= max(1, w.Need) && poll < quorum.MinPoll {
		poll = quorum.MinPoll
	}
	for more := poll; len(w.Refusals) > 0 && first > 0 && poll < quorum.MaxPoll; first-- {
		poll = min(poll+more, quorum.MaxPoll)
	}
	if queued > 0 && poll > quorum.KeepPlace {
		poll = quorum.KeepPlace
	}
	for d := step; d < poll && end > 0; d += step {
		ended := 0
		for _, r := range w.Refusals {
			if r.Left != quorum.Never && r.Left+ms+2*ms*time.Duration(max(0, r.Place)) <= d {
				ended++
			}
		}
		if ended >= min(max(1, w.Need), end) {
			return d
		}
	}
	return poll
}

func TestLookAgreesWithGoingThroughTheInstants(t *testing.T) {
	same := func(w wait) bool {
		got, want := quorum.Look(w.Refusals, w.Need, w.Poll), dumbLook(w)
		if got != want {
			t.Logf("%+v: got %v, want %v", w, got, want)
		}
		return got == want
	}
	if err := quick.Check(same, quickConfig); err != nil {
		t.Error(err)
	}
}

// told tells a waiter of one node after the other, and returns how many it takes
// to make it the waiter's turn.
func told(t *testing.T, turns *quorum.Turns, n int) (needed int) {
	t.Helper()
	turn, some := turns.Turn()
	assert.False(t, turn, "of %d", n)
	assert.False(t, some, "of %d", n)
	for i := range n {
		for range 2 { // told twice is told once
			turns.Told(i)
			turn, some = turns.Turn()
			assert.True(t, some, "%d of %d", i+1, n)
			if turn && needed == 0 {
				needed = i + 1
			}
			assert.Equal(t, needed > 0, turn, "%d of %d", i+1, n)
		}
	}
	return needed
}

func TestItIsAWaitersTurnWhenAQuorumKeepsTheLockForIt(t *testing.T) {
	for n := 1; n <= 5; n++ {
		q := quorum.Size(n)
		turns := quorum.NewTurns(n)
		for range 3 {
			assert.Equal(t, max(1, q-1), told(t, &turns, n), "of %d, and one may follow", n)
			turns.Ask()
			turns.Ask() // that nobody has told anything is no haste
		}
		if q == 1 {
			continue
		}
		for i := range q - 1 {
			turns.Told(i)
		}
		turns.Ask()
		for range 3 {
			assert.Equal(t, q, told(t, &turns, n), "of %d, after it asked too early", n)
			turns.Ask()
		}
	}
}
