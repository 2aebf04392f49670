package quorumlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/ensemble"
	"github.com/quorumlock/quorumlock/internal/errs"
	"github.com/quorumlock/quorumlock/internal/quorum"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// newPatience is how much longer New waits for slow nodes once a quorum has answered.
const newPatience = 250 * time.Millisecond

// startup waits for New.
type startup struct {
	m     *Manager
	began clock.Steady  // on the steady clock
	wait  time.Duration // of WithStartupWait
}

// waited returns how long New has waited.
func (s *startup) waited() time.Duration { return s.m.clock.Steady().Sub(s.began) }

// await waits for the first greeting of each node, and with WithStartupWait for a majority.
// It returns an error if New cannot succeed.
func (s *startup) await(ctx context.Context) error {
	m := s.m
	late := time.NewTimer(time.Hour) // greetings are bounded by themselves
	defer late.Stop()
	for waiting, said := true, false; waiting; {
		up, silent, _ := s.census()
		enough := up >= quorum.Size(len(m.nodes))
		if silent == 0 && (enough || s.wait == 0 || s.misconfigured() != nil) {
			break
		}
		switch {
		case enough:
			late.Reset(newPatience)
		case s.wait > 0:
			late.Reset(s.wait - s.waited())
		}
		if silent == 0 && !said {
			said = true
			m.reporter.Warn("waiting for a majority of the nodes to start", "up", up, "need", quorum.Size(len(m.nodes)), "for", s.wait)
		}
		select {
		case <-m.greeted:
		case <-late.C:
			waiting = false
		case <-ctx.Done():
			return errs.Ended(ctx, s.unreached(), "quorumlock: connect")
		}
	}
	if err := s.misconfigured(); err != nil {
		return err
	}
	err := s.unreached()
	if err != nil && s.wait > 0 {
		return errs.Several(err.Error()+"; waited "+errs.Readable(s.waited()), err)
	}
	return err
}

// misconfigured returns the error of the first node that an operator must correct, if the list of nodes
// is wrong or no majority is left without such nodes; otherwise nil.
func (s *startup) misconfigured() (first error) {
	broken := 0
	for i, n := range s.m.nodes {
		var config *wire.ConfigError
		if err := n.Health().Err; errors.As(err, &config) && !errors.Is(err, wire.ErrUnguarded) { // without votes, the nodes can be read all the same
			broken++
			if first != nil && !config.List {
				continue
			}
			first = &InvalidError{
				What: "node", Value: fmt.Sprintf("%d (%s)", i, n.Addr()),
				Bound: strings.TrimSuffix(err.Error(), ": "+config.Fix), Fix: config.Fix, // and with which other node
				Err: nodeError(i, n.Addr(), err),
			}
			if config.List {
				return first
			}
		}
	}
	if len(s.m.nodes)-broken >= quorum.Size(len(s.m.nodes)) {
		return nil
	}
	return first
}

// unreached returns a QuorumError after New has waited, nil if a majority is up.
func (s *startup) unreached() error {
	up, _, problems := s.census()
	if up >= quorum.Size(len(s.m.nodes)) {
		return nil
	}
	return s.m.noQuorum("connect", up, problems)
}

// census counts the nodes that may vote, or be read by a client that lacks the guard of
// the others, and those without a greeting so far. problems has the errors of the nodes that have one.
func (s *startup) census() (up, silent int, problems []error) {
	problems = make([]error, len(s.m.nodes))
	for i, n := range s.m.nodes {
		switch problems[i] = n.Health().Err; {
		case problems[i] == nil, errors.Is(problems[i], wire.ErrUnguarded):
			up++
		case errors.Is(problems[i], wire.ErrConnecting):
			problems[i] = ensemble.Silence(s.waited())
			silent++
		}
	}
	return up, silent, problems
}
