package ensemble

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/node"
	"github.com/quorumlock/quorumlock/internal/quorum"
)

// maxNodes is the largest number of nodes.
const maxNodes = 15

// If the steps of several nodes' clocks are found within stallWindow of each other, one
// stall of our own clock may explain them all.
const stallWindow = 30 * time.Second

// A Step is a forward step of a node's clock.
type Step struct {
	Node int
	By   time.Duration
	At   clock.Steady // when it was found, on the steady clock
}

// Error returns the step as evidence of a loss.
func (s *Step) Error() string {
	return fmt.Sprintf("the node's clock was stepped forward by %v", s.By.Round(time.Millisecond))
}

// Steps keeps the recent steps of nodes' clocks, as long as an attempt or
// ownClockStepped may need them.
type Steps struct {
	sync.Mutex // taken after the mutex of an attempt, which grants under it, and before all others
	recent     []*Step
}

// Add adds a step, and drops those that are too old to be needed. The mutex is held.
func (c *Steps) Add(step *Step) {
	c.recent = slices.DeleteFunc(c.recent, func(old *Step) bool { return old.At < step.At.Add(-time.Minute) })
	c.recent = append(c.recent, step)
}

// last returns the newest step of a node, nil for none.
func (c *Steps) last(node int) *Step {
	c.Lock()
	defer c.Unlock()
	for _, step := range slices.Backward(c.recent) {
		if step.Node == node {
			return step
		}
	}
	return nil
}

// Since returns the steps that were found at an instant or later. The mutex is held.
func (c *Steps) Since(at clock.Steady) (steps []*Step) {
	for _, step := range c.recent {
		if step.At >= at {
			steps = append(steps, step)
		}
	}
	return steps
}

// clocks compares the clocks of the nodes with each other and with ours.
type clocks struct {
	Clock *clock.Clock // ours
	Steps Steps
	nodes []*node.Node // in the order of Config.Nodes; the parts of the Ensemble share it
}

// LastStep returns the newest step of a node's clock, nil for none.
func (c *clocks) LastStep(i int) *Step { return c.Steps.last(i) }

// ownClockStepped reports whether the clock of node i made the step that was found at since.
// Otherwise it was the clock of this process, and then all nodes seem to be stepped. So the
// clock is the node's own if a quorum of the other nodes has answered since without a step.
// sure means that this answer will not change.
func (c *clocks) ownClockStepped(i int, since clock.Steady) (own, sure bool) {
	steady, stepped, need := 0, 1, quorum.Size(len(c.nodes))
	for j, n := range c.nodes {
		reading, _ := n.Reading()
		switch step := c.Steps.last(j); {
		case j == i:
		case step != nil && step.At > since.Add(-stallWindow):
			stepped++
		case reading.At >= since:
			steady++
		}
	}
	own = steady >= need
	return own, own || len(c.nodes)-stepped < need
}

// Time returns the nodes' time at an instant of our steady clock: the median of
// the known node clocks. So all clients agree on it, whatever this machine's wall clock
// shows.
func (c *clocks) Time(at clock.Steady) time.Duration {
	if median, known := c.medianOffset(); known > 0 {
		return time.Duration(at) + median
	}
	return time.Duration(c.Clock.Time(c.Clock.Now()).UnixNano())
}

// medianOffset returns the lower median of the nodes' clocks minus our steady clock, 0 if none is known, and
// how many clocks are known.
func (c *clocks) medianOffset() (median time.Duration, known int) {
	var offsets [maxNodes]time.Duration
	known = c.sort(&offsets, func(r node.Reading) time.Duration { return r.Offset })
	return offsets[max(known-1, 0)/2], known
}

// sort writes a value of each known clock into all, the smallest first, and returns how many clocks are known.
func (c *clocks) sort(all *[maxNodes]time.Duration, of func(node.Reading) time.Duration) (known int) {
	for _, n := range c.nodes {
		if reading, ok := n.Reading(); ok {
			all[known] = of(reading)
			known++
		}
	}
	slices.Sort(all[:known])
	return known
}

// skew returns how far a node's clock is from the median of all known clocks; 0 with
// fewer than three, because two clocks do not show which one is off.
func (c *clocks) skew(i int) time.Duration {
	own, ok := c.nodes[i].Reading()
	median, known := c.medianOffset()
	if !ok || known < 3 {
		return 0
	}
	return own.Offset - median
}

// Late returns by how much this process has lately read a majority's answers late. One wrong clock does not make a
// majority late, and a node that is slow to answer does not make anything late.
func (c *clocks) Late(now clock.Steady) time.Duration {
	var lates [maxNodes]time.Duration
	for i, n := range c.nodes {
		if reading, ok := n.Reading(); ok && now.Sub(reading.At) < lateFor {
			lates[i] = reading.Late
		}
	}
	return quorum.Window[time.Duration](lates[:len(c.nodes)]).Deadline()
}

// lateFor is how long a late answer counts.
const lateFor = 10 * time.Second

// Trip is the median round trip to the nodes, 0 if none is known.
func (c *clocks) Trip() time.Duration {
	var trips [maxNodes]time.Duration
	known := c.sort(&trips, func(r node.Reading) time.Duration { return r.RoundTrip })
	return trips[known/2]
}
