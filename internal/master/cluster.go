package master

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/quorumlock/quorumlock/internal/failover"
)

// Cluster asks the seeds of a cluster for the owners of its slots: one question for the groups of all slots.
type Cluster struct {
	life   context.Context
	voters *voters

	mu     sync.Mutex
	groups []*Group // whose Run has begun and not ended
}

// NewCluster returns the cluster with the seeds in o; the option of each of its slots has the same. aside completes the
// option of a connection to a seed. Nothing is dialled before the first question; the questions end with life.
func NewCluster(life context.Context, o *rueidis.ClientOption, nodes int, aside func(rueidis.ClientOption) rueidis.ClientOption) *Cluster {
	c := &Cluster{life: life, voters: newSlotOwner(life, o, aside)}
	c.voters.askers = int32(1 + 2*nodes) // Run, and the worker and the subscriber of each slot that dials
	return c
}

// Run asks, until the end of life, whether the terms of the groups continue, and tells the groups. It must be called
// once, and closes the connections to the seeds.
func (c *Cluster) Run() {
	defer c.voters.close()
	tick := time.NewTicker(failover.ConfirmEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.life.Done():
			return
		case <-tick.C:
			c.ask()
		}
	}
}

// join makes Run tell the group, until leave.
func (c *Cluster) join(g *Group) (leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups = append(c.groups, g)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.groups = slices.DeleteFunc(c.groups, func(other *Group) bool { return other == g })
	}
}

// ask asks all seeds once. Each group learns its master as soon as a majority names it.
func (c *Cluster) ask() {
	c.mu.Lock()
	open := make([]question, len(c.groups))
	for i, g := range c.groups {
		open[i] = g.question()
	}
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.life, askMax)
	defer cancel()
	v := c.voters
	answers, incoming := v.unanswered(), v.poll()
	for range v.addrs {
		select {
		case a := <-incoming:
			answers[a.voter] = a
		case <-ctx.Done():
		}
		open = slices.DeleteFunc(open, func(q question) bool {
			term, ok := v.named(v.at(q.group.slot, answers))
			if ok {
				q.group.tell(q.answered(term, nil))
			}
			return ok
		})
	}
	for _, q := range open {
		q.group.tell(q.answered(Term{}, v.failed(v.at(q.group.slot, answers))))
	}
}
