package clock

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// epoch is the approximate time of the node clocks in the tests: November 2026.
const epoch = 1_795_300_000 * time.Second

// Readings of one node in order, in milliseconds: the instant of the request, the time
// until the answer, and how far the node's clock was ahead of the epoch plus the instant
// of the answer. After each reading: the step that is found, 0 for none, and the reading
// that stays.
func TestOffset(t *testing.T) {
	type reading struct {
		sent, took, ahead time.Duration
		step              time.Duration // rounded to ms
		bestAt            time.Duration
	}
	for _, c := range []struct {
		name     string
		drift    float64
		readings []reading
	}{
		{"The first reading stays.", 0.01, []reading{{0, 2, 7, 0, 2}}},
		{"A reading that is no sharper does not replace one of the same second.", 0.01, []reading{
			{0, 2, 7, 0, 2}, {500, 2, 8, 0, 2}, {1000, 1, 7, 0, 2},
		}},
		{"It replaces one that is a second old.", 0.01, []reading{
			{0, 2, 7, 0, 2}, {1000, 2, 8, 0, 1002},
		}},
		{"A reading of less than half the width replaces one at once.", 0.01, []reading{
			{0, 20, 7, 0, 20}, {20, 10, 7, 0, 20}, {40, 9, 7, 0, 49},
		}},
		{"A blunt reading waits until the sharp one has become as blunt by its age.", 0.01, []reading{
			{0, 2, 7, 0, 2}, {1000, 40, 0, 0, 2}, {3700, 40, 0, 0, 2}, {3800, 40, 0, 0, 3840},
		}},
		{"With a smaller bound on rates it waits longer.", 0.001, []reading{
			{0, 2, 7, 0, 2}, {3800, 40, 0, 0, 2}, {37_000, 40, 0, 0, 2}, {38_000, 40, 0, 0, 38_040},
		}},
		{"A step forward is found, and its reading stays.", 0.01, []reading{
			{0, 2, 7, 0, 2}, {100, 2, 107, 103, 102}, {200, 2, 107, 0, 102},
		}},
		{"A step backward as well.", 0.01, []reading{
			{0, 2, 7, 0, 2}, {100, 2, -93, -103, 102}, {200, 2, -93, 0, 102},
		}},
		{"There and back are two steps.", 0.01, []reading{
			{0, 2, 7, 0, 2}, {100, 2, 107, 103, 102}, {200, 2, 7, -103, 202},
		}},
		{"A difference that a slow answer explains is no step.", 0.01, []reading{
			{0, 100, 0, 0, 100}, {100, 2, 100, 0, 102},
		}},
		{"Nor is one that the age explains.", 0.01, []reading{
			{0, 2, 7, 0, 2}, {10_000, 2, 108, 0, 10_002},
		}},
		{"With a smaller bound on rates it is.", 0.001, []reading{
			{0, 2, 7, 0, 2}, {10_000, 2, 108, 113, 10_002},
		}},
		{"A small jump is no step, but its reading stays.", 0.01, []reading{
			{0, 2, 7, 0, 2}, {100, 2, 17, 0, 102},
		}},
		{"Small jumps add up.", 0.01, []reading{
			{0, 2, 7, 0, 2}, {100, 2, 17, 0, 102}, {200, 2, 27, 0, 202}, {300, 2, 37, 35, 302}, {400, 2, 47, 0, 402},
		}},
		{"A jump that may have been the least step is found: the rates may have hidden a part.", 0.01, []reading{
			{0, 2, 7, 0, 2}, {1000, 2, 22, 27, 1002},
		}},
		{"Small jumps back and forth do not.", 0.01, []reading{
			{0, 2, 7, 0, 2}, {100, 2, 22, 0, 102}, {200, 2, 7, 0, 202}, {300, 2, 22, 0, 302}, {400, 2, 7, 0, 402},
		}},
		{"Small jumps that the bound on rates allows for are forgotten.", 0.01, []reading{
			{0, 2, 7, 0, 2}, {100, 2, 19, 0, 102}, {1400, 2, 19, 0, 1402}, {1500, 2, 31, 0, 1502},
			{2800, 2, 31, 0, 2802}, {2900, 2, 43, 0, 2902},
		}},
		{"Of a clock that was 40 years behind too.", 0.01, []reading{
			{0, 2, -40 * 365 * 86_400_000, 0, 2}, {100, 2, 0, 40*365*86_400_000 + 3, 102},
		}},
	} {
		o := NewOffset(c.drift)
		assert.False(t, o.Known(), c.name)
		assert.Zero(t, o.At(), c.name)
		for i, r := range c.readings {
			sent := time.Hour + r.sent*ms
			received := sent + r.took*ms
			low := epoch + r.ahead*ms
			step, found := o.Observe(low+received, Steady(sent), Steady(received))
			assert.Equal(t, r.step, step.By.Round(ms)/ms, "%s reading %d", c.name, i)
			assert.Equal(t, r.step != 0, found, "%s reading %d", c.name, i)
			assert.Equal(t, r.step > 0, step.Forward(), "%s reading %d", c.name, i)
			assert.Equal(t, Steady(time.Hour+r.bestAt*ms), o.At(), "%s reading %d: the reading that stays", c.name, i)
			if o.At() == Steady(received) {
				assert.Equal(t, low, o.Low(), "%s reading %d", c.name, i)
				assert.Equal(t, r.took*ms+grain, o.Width(), "%s reading %d", c.name, i)
				assert.Equal(t, low+r.took*ms/2, o.Mid().Truncate(grain), "%s reading %d", c.name, i)
			}
			assert.True(t, o.Known(), c.name)
		}
	}
}

// nodeClock is a naive model of a node's clock. Its rate changes at every reading, within
// a bound, and the test makes it jump.
type nodeClock struct {
	rng   *rand.Rand
	bound float64
	now   time.Duration // the steady instant
	ahead time.Duration // the true difference
}

// advance moves the steady clock forward by d.
func (c *nodeClock) advance(d time.Duration) {
	rate := (2*c.rng.Float64() - 1) * c.bound
	if c.rng.IntN(3) == 0 {
		rate = math.Copysign(c.bound, rate)
	}
	c.now += d
	c.ahead += time.Duration(math.Trunc(float64(d) * rate))
}

// ask makes a reading that takes up to width, and returns the true difference at the
// node's instant.
func (c *nodeClock) ask(o *Offset, width time.Duration) (step Step, found bool, truth time.Duration) {
	sent := c.now
	c.advance(time.Duration(c.rng.Int64N(int64(width))))
	reading, truth := (c.now + c.ahead).Truncate(grain), c.ahead
	c.advance(time.Duration(c.rng.Int64N(int64(width))))
	step, found = o.Observe(reading, Steady(sent), Steady(c.now))
	return step, found, truth
}

// pick draws from 1 to most, of any order of magnitude.
func pick(rng *rand.Rand, most time.Duration) time.Duration {
	return 1 + time.Duration(math.Exp(rng.Float64()*math.Log(float64(most))))
}

var drifts = []float64{0.0001, 0.01, 0.1}

func TestAClockWithinTheBoundNeverSeemsToStepAndLiesWithinItsInterval(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 1))
	replaced := 0
	for range 400 {
		drift := drifts[rng.IntN(len(drifts))]
		c := nodeClock{rng: rng, bound: drift, now: time.Hour, ahead: epoch}
		o := NewOffset(drift)
		for range 300 {
			c.advance(pick(rng, time.Minute))
			step, found, truth := c.ask(&o, pick(rng, 500*ms))
			require.False(t, found, "a step by %v of a clock that made none", step.By)
			if o.At() == Steady(c.now) {
				replaced++
				require.GreaterOrEqual(t, truth, o.Low())
				require.LessOrEqual(t, truth, o.Low()+o.Width())
			}
			// The bounds stay true afterwards, within the drift over the age of the
			// reading that stays.
			age := time.Duration(math.Ceil(float64((Steady(c.now) - o.At()).Add(o.Width())) * drift))
			require.GreaterOrEqual(t, c.ahead, o.Low()-age)
			require.LessOrEqual(t, c.ahead, o.Low()+o.Width()+age)
		}
	}
	assert.Greater(t, replaced, 1000)
}

func TestAStepAboveTheWidthsAndTheLeastIsAlwaysFound(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 2))
	least, below := 0, 0
	for range 20_000 {
		drift := drifts[rng.IntN(len(drifts))]
		c := nodeClock{rng: rng, bound: drift, now: time.Hour, ahead: epoch}
		o := NewOffset(drift)
		widest := pick(rng, 200*ms)
		for range 1 + rng.IntN(20) {
			c.advance(pick(rng, 2*time.Second))
			_, found, _ := c.ask(&o, widest)
			require.False(t, found)
		}
		before := Steady(c.now) - o.At()
		c.advance(pick(rng, 10*time.Second))
		// Two widths of up to two halves each, and the drift since the reading that stays.
		elapsed := Steady(c.now).Sub(o.At()) + o.Width() + 2*widest
		sure := 4*widest + 2*grain + 2*drifted(elapsed, drift)
		by := pick(rng, time.Hour)
		if rng.IntN(2) == 0 {
			by = sure + 1
		}
		by = max(by, LeastStep)
		back := rng.IntN(2) == 0
		if back {
			by = -by
		}
		c.ahead += by
		step, found, truth := c.ask(&o, widest)
		if !found {
			below++
			require.LessOrEqual(t, by.Abs(), sure, "a step by %v is not found, %v after the reading that stayed", by, before)
			continue
		}
		least++
		require.Equal(t, !back, step.Forward())
		require.GreaterOrEqual(t, step.By.Abs(), by.Abs(), "the upper bound of the step")
		require.LessOrEqual(t, step.By.Abs(), by.Abs()+sure, "the bound is close")
		require.Equal(t, Steady(c.now), o.At(), "earlier readings are void")
		require.GreaterOrEqual(t, truth, o.Low())
		require.LessOrEqual(t, truth, o.Low()+o.Width())
		c.advance(pick(rng, time.Second))
		_, again, _ := c.ask(&o, widest)
		require.False(t, again, "it is found once")
	}
	assert.Greater(t, least, 5000)
	assert.Greater(t, below, 100, "some steps must be below the bounds, or the bounds prove nothing")
}

// A step that is found contradicts some earlier reading. The check is naive, over all
// pairs: between two readings the node's clock advanced by more than the longest time
// between them at the fastest rate, or by less than the shortest time at the slowest
// rate.
func TestAFoundStepContradictsAnEarlierReading(t *testing.T) {
	type reading struct{ clock, sent, received time.Duration }
	rng := rand.New(rand.NewPCG(13, 3))
	steps := 0
	for range 2000 {
		drift := drifts[rng.IntN(len(drifts))]
		o := NewOffset(drift)
		var since []reading
		now := time.Hour
		ahead := epoch
		for range 50 {
			now += pick(rng, 3*time.Second)
			if rng.IntN(4) == 0 {
				more, less := pick(rng, 300*ms), pick(rng, 300*ms)
				ahead += more - less
			}
			r := reading{sent: now}
			now += pick(rng, 50*ms)
			r.clock = (now + ahead).Truncate(grain)
			now += pick(rng, 50*ms)
			r.received = now
			step, found := o.Observe(r.clock, Steady(r.sent), Steady(r.received))
			if found {
				steps++
				contradicts := false
				for _, old := range since {
					went := float64(r.clock - old.clock)
					if step.Forward() {
						contradicts = contradicts || went-float64(grain) > float64(r.received-old.sent)*(1+drift)
					} else {
						contradicts = contradicts || went+float64(grain) < float64(r.sent-old.received)*(1-drift)
					}
				}
				require.True(t, contradicts, "a step by %v without a contradiction", step.By)
				since = since[:0]
			}
			since = append(since, r)
		}
	}
	assert.Greater(t, steps, 1000)
}

// chrony slews by up to 8 % by default. If a node is asked often, its clock moves less
// than the least step between two readings.
func TestAClockThatIsSlewedBeyondTheBoundIsFoundHoweverOftenItIsRead(t *testing.T) {
	for _, every := range []time.Duration{ms, 10 * ms, 100 * ms, time.Second} {
		o := NewOffset(0.01)
		var hidden time.Duration
		ahead := epoch
		for now := time.Hour; now < time.Hour+30*time.Second; now += every {
			ahead += every * 8 / 100
			hidden += every * 7 / 100
			step, found := o.Observe(now+ahead, Steady(now-ms/2), Steady(now+ms/2))
			if found {
				assert.True(t, step.Forward())
				assert.GreaterOrEqual(t, step.By, LeastStep)
				hidden = 0
			}
			require.Less(t, hidden, LeastStep+every*8/100+5*ms, "asked every %v", every)
		}
	}
}

func TestTheGivenBoundOnRatesIsUsed(t *testing.T) {
	for _, c := range []struct {
		drift, rate float64
		found       bool
	}{
		{0.01, 0.0099, false}, {0.01, 0.02, true}, {0.1, 0.02, false}, {0.1, 0.099, false}, {0.1, 0.12, true},
		{0.001, 0.0009, false}, {0.001, 0.003, true},
	} {
		o := NewOffset(c.drift)
		any := false
		for i := range 3000 {
			now := time.Hour + time.Duration(i)*10*ms
			ahead := epoch + time.Duration(float64(now-time.Hour)*c.rate)
			_, found := o.Observe(now+ahead, Steady(now-ms/10), Steady(now))
			any = any || found
		}
		assert.Equal(t, c.found, any, "bound %v, rate %v", c.drift, c.rate)
	}
}

// One host, or one time service, steps the clocks of the client and of a node together.
// Measured by a clock that makes the same jump, the node's clock does not move; measured
// by the steady clock it does.
func TestAStepThatClientAndNodeMakeTogetherIsFound(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, time.Second, 30 * ms} {
		r := Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
		c := at(&r)
		steady, jumping := NewOffset(0.01), NewOffset(0.01)
		ask := func(after time.Duration) (found bool) {
			sentV, sentS := c.Both()
			r.Mono += after
			r.Boot += after
			r.Wall += after
			receivedV, receivedS := c.Both()
			reading := epoch + r.Wall
			_, there := jumping.Observe(reading, Steady(sentV), Steady(receivedV))
			assert.False(t, there, "measured by the clock that makes the same jump")
			step, found := steady.Observe(reading, sentS, receivedS)
			assert.Equal(t, found, step.Forward())
			if found {
				assert.GreaterOrEqual(t, step.By, by)
			}
			return found
		}
		assert.False(t, ask(ms))
		r.Wall += by
		assert.True(t, ask(ms), "a step by %v", by)
		assert.False(t, ask(ms))
	}
}

// The node's clock and the steady clock continue while the client's machine sleeps.
func TestASuspendOfTheClientIsNoStepOfANode(t *testing.T) {
	r := Reading{Mono: time.Second, Boot: time.Second, Wall: time.Second}
	c := at(&r)
	o := NewOffset(0.01)
	for range 10 {
		sent := c.Steady()
		r.Mono += ms
		r.Boot += ms
		_, found := o.Observe(epoch+r.Boot, sent, c.Steady())
		assert.False(t, found)
		r.Boot += time.Hour
		r.Wall += 30 * time.Minute // as the battery-backed clock of the machine has it
	}
}

// A node may answer anything. No answer may turn a step forward, which the client must notice, into a step back.
func TestAReadingBeyondAllTimeIsAStepLikeAnyOther(t *testing.T) {
	for _, far := range []time.Duration{math.MaxInt64, math.MaxInt64 / 2, math.MinInt64, -1, 0} {
		o := NewOffset(0.01)
		o.Observe(epoch, Steady(time.Hour), Steady(time.Hour+ms))
		step, found := o.Observe(far, Steady(time.Hour+ms), Steady(time.Hour+2*ms))
		assert.True(t, found, "%d", far)
		assert.Equal(t, far > epoch, step.Forward(), "%d", far)
		step, found = o.Observe(epoch, Steady(time.Hour+2*ms), Steady(time.Hour+3*ms))
		assert.True(t, found, "%d", far)
		assert.Equal(t, far < epoch, step.Forward(), "%d", far)
	}
	o := NewOffset(0.01)
	o.Observe(0, Steady(time.Hour), Steady(time.Hour))
	step, found := o.Observe(math.MaxInt64, Steady(time.Hour), Steady(time.Hour))
	assert.True(t, found && step.Forward())
	_, found = o.Observe(0, Steady(time.Hour+ms), Steady(time.Hour))
	assert.True(t, found, "sent after it was received: a mistake of the caller must not panic")
}

func BenchmarkObserve(b *testing.B) {
	o := NewOffset(0.01)
	now := time.Hour
	b.ReportAllocs()
	for b.Loop() {
		now += 100 * time.Microsecond
		o.Observe(epoch+now, Steady(now-50*time.Microsecond), Steady(now))
	}
}
