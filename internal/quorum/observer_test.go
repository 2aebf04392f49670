package quorum_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// seen is the answer of a node: "a7" for owner a with token 7, "a" without a token, "r" for readers, "-" for no owner,
// "?" for no answer.
func seen(text string) (s quorum.Sight, answered bool) {
	switch text {
	case "?":
		return s, false
	case "-":
		return s, true
	}
	s = quorum.Sight{Held: true, Owner: text[:1], Reused: text[:1] == "r", Until: clock.Validity(time.Minute)}
	_, _ = fmt.Sscanf(text[1:], "%d", &s.Token)
	return s, true
}

// polled gives an observer the answer of each node, and returns the result if it has changed.
func polled(o *quorum.Observer, at time.Duration, texts ...string) string {
	sights, answered := make([]quorum.Sight, len(texts)), quorum.Set(0)
	for i, text := range texts {
		s, ok := seen(text)
		if sights[i] = s; ok {
			answered = answered.With(i)
		}
	}
	if !o.Polled(clock.Validity(at), time.Second, sights, answered) {
		return "no change"
	}
	switch h, _ := o.Last(); {
	case !h.Known:
		return "unknown"
	case !h.Held:
		return "nobody"
	default:
		return fmt.Sprintf("%s%d", h.Owner, h.Token)
	}
}

func TestAnObserverGetsWhatAMajoritySays(t *testing.T) {
	for _, c := range []struct {
		nodes []string
		want  string
	}{
		{[]string{"a7"}, "a7"},
		{[]string{"-"}, "nobody"},
		{[]string{"a7", "a7", "?"}, "a7"},
		{[]string{"a7", "a", "b9"}, "a7"}, // a node that has restored the key shows no token
		{[]string{"a7", "?", "?"}, "no change"},
		{[]string{"a7", "-", "?"}, "no change"},
		{[]string{"-", "-", "?"}, "nobody"},
		{[]string{"a7", "-", "-"}, "nobody"},
		{[]string{"a7", "b9", "-"}, "nobody"}, // two that ask at once
		{[]string{"a7", "a7", "b9", "b9", "?"}, "no change"},
		{[]string{"a7", "b9", "-", "-", "?"}, "nobody"},
		{[]string{"a7", "a7", "-", "-"}, "nobody"}, // half of four is not a majority
		{[]string{"a7", "a7", "a7", "-"}, "a7"},
	} {
		o := quorum.NewObserver(0)
		assert.Equal(t, c.want, polled(&o, 0, c.nodes...), "%v", c.nodes)
	}
}

func TestAnObserverGetsChangesOnly(t *testing.T) {
	o := quorum.NewObserver(0)
	for i, step := range []struct {
		nodes [3]string
		want  string
	}{
		{[3]string{"-", "-", "-"}, "nobody"},
		{[3]string{"-", "-", "?"}, "no change"},
		{[3]string{"a7", "a7", "-"}, "a7"},
		{[3]string{"a7", "a7", "a7"}, "no change"},
		{[3]string{"a9", "a9", "a9"}, "a9"}, // the next block of a process that passes leases on
		{[3]string{"a", "a", "a9"}, "no change"},
		{[3]string{"a", "a", "?"}, "no change"},
		{[3]string{"-", "-", "a9"}, "nobody"},
		{[3]string{"a", "a", "-"}, "a9"},          // a lease that outlived the data of two nodes
		{[3]string{"b8", "b8", "-"}, "no change"}, // a node has brought back a lease that has ended
		{[3]string{"b12", "b12", "-"}, "b12"},
		{[3]string{"a9", "a9", "b12"}, "no change"},
		{[3]string{"a", "a", "b12"}, "no change"}, // nor does it go back where no node shows a token
		{[3]string{"x", "x", "-"}, "x0"},          // another program's lock, or one without fencing
		{[3]string{"b", "b", "-"}, "no change"},
		{[3]string{"y", "y", "-"}, "y0"},
		{[3]string{"x", "x", "-"}, "x0"}, // another program may have one value for all its locks
	} {
		assert.Equal(t, step.want, polled(&o, time.Duration(i)*time.Millisecond, step.nodes[:]...), "step %d: %v", i, step.nodes)
	}
}

// One poll without a result changes nothing: the next one may have a result.
func TestAnObserverLearnsAfterAnIntervalThatTheHolderIsUnknown(t *testing.T) {
	o := quorum.NewObserver(clock.Validity(10 * time.Second))
	at := func(ms int, nodes ...string) string {
		return polled(&o, 10*time.Second+time.Duration(ms)*time.Millisecond, nodes...)
	}
	assert.Equal(t, "no change", at(0, "?", "?", "a7"))
	assert.Equal(t, "no change", at(999, "?", "?", "a7"))
	assert.Equal(t, "unknown", at(1000, "?", "?", "a7"))
	assert.Equal(t, "no change", at(2000, "?", "?", "a7"))
	assert.Equal(t, "a7", at(3000, "?", "a7", "a7"))
	assert.Equal(t, "no change", at(3999, "?", "?", "a7"))
	assert.Equal(t, "unknown", at(4000, "?", "?", "?"))
	assert.Equal(t, "a7", at(5000, "a7", "a7", "a7"), "the same as before")
	assert.Equal(t, "no change", at(5001, "a7", "a7", "a7"))
	assert.Equal(t, "no change", at(6000, "b6", "b6", "b6"), "older, and the interval is not over")
	assert.Equal(t, "unknown", at(6001, "b6", "b6", "b6"), "nothing newer came")
	assert.Equal(t, "c8", at(7000, "c8", "c8", "b6"))
}

// All readers have one owner value. With a larger token than any before it is not old data.
func TestAnObserverSeesReadersAgainAfterAWriter(t *testing.T) {
	o := quorum.NewObserver(0)
	for i, owner := range []string{"r1", "w4", "r5", "x8", "r9"} {
		assert.Equal(t, owner, polled(&o, time.Duration(i)*time.Second, owner, owner, owner))
	}
	assert.Equal(t, "y10", polled(&o, time.Minute, "y10", "y10", "y10"))
	assert.Equal(t, "unknown", polled(&o, time.Hour, "r", "r", "r"), "without a token it may be old")

	o = quorum.NewObserver(0)
	polled(&o, 0, "a7", "a7", "a7")
	assert.Equal(t, "b0", polled(&o, time.Second, "b", "b", "b"), "its keys were restored, and show no token")
	assert.Equal(t, "unknown", polled(&o, time.Minute, "a7", "a7", "a7"), "old data")
}

// A request that is late, or comes twice, may make a key after the lease was released if the node's clock was set back.
func TestAnObserverGoesBackToNoFormerOwnerWhoseKeyWasMadeAnew(t *testing.T) {
	o := quorum.NewObserver(0)
	polled(&o, 0, "a7")
	polled(&o, time.Second, "b8")
	assert.Equal(t, "unknown", polled(&o, time.Minute, "a9"))
}

// However the answers of the polls are mixed, no smaller token follows a larger one.
func TestAnObserverNeverGoesBack(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		o := quorum.NewObserver(0)
		largest := int64(0)
		for i := range 50 {
			texts := make([]string, 3)
			for n := range texts {
				owner := r.IntN(10)
				texts[n] = []string{"?", "-", fmt.Sprintf("%c%d", 'a'+owner, 10+owner), fmt.Sprintf("%c", 'a'+owner)}[r.IntN(4)]
			}
			polled(&o, time.Duration(i)*time.Second, texts...)
			if h, any := o.Last(); any && h.Token != 0 {
				assert.GreaterOrEqual(t, h.Token, largest, "seed %d", seed)
				largest = h.Token
			}
		}
	}
}
