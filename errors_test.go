package quorumlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/quorumlock"
)

// An error is its sentinel and the errors that it wraps, and nothing else.
func TestErrorsIsAndAsFindTheSameInEachError(t *testing.T) {
	node := &quorumlock.NodeError{Node: 1, Addr: "b:6379", Err: fmt.Errorf("read: %w", io.ErrUnexpectedEOF)}
	nodes := []*quorumlock.NodeError{node}
	held, short := &quorumlock.HeldError{Name: "job"}, &quorumlock.QuorumError{Op: "renew", Nodes: nodes}
	invalid := &quorumlock.InvalidError{What: "node", Err: node}
	over := &quorumlock.LostError{Lost: quorumlock.Lost{Name: "job", Nodes: nodes}}
	sentinels := map[string]error{
		"held": quorumlock.ErrHeld, "no quorum": quorumlock.ErrNoQuorum, "lost": quorumlock.ErrLost, "released": quorumlock.ErrReleased,
		"detached": quorumlock.ErrDetached, "closed": quorumlock.ErrClosed, "invalid": quorumlock.ErrInvalid, "EOF": io.ErrUnexpectedEOF, "cancelled": context.Canceled,
	}
	types := map[string]func(error) bool{
		"HeldError":    as[*quorumlock.HeldError],
		"QuorumError":  as[*quorumlock.QuorumError],
		"NodeError":    as[*quorumlock.NodeError],
		"LostError":    as[*quorumlock.LostError],
		"InvalidError": as[*quorumlock.InvalidError],
		"FuncError":    as[*quorumlock.FuncError],
	}
	for _, c := range []struct {
		err  error
		want []string
	}{
		{held, []string{"held", "HeldError"}},
		{short, []string{"no quorum", "EOF", "QuorumError", "NodeError"}},
		{&quorumlock.QuorumError{}, []string{"no quorum", "QuorumError"}},
		{node, []string{"EOF", "NodeError"}},
		{over, []string{"lost", "EOF", "LostError", "NodeError"}},
		{&quorumlock.LostError{}, []string{"lost", "LostError"}},
		{invalid, []string{"invalid", "EOF", "InvalidError", "NodeError"}},
		{&quorumlock.InvalidError{}, []string{"invalid", "InvalidError"}},
		{quorumlock.ErrDetached, []string{"released", "detached"}},
		{&quorumlock.FuncError{Err: held}, []string{"FuncError"}},
		{&quorumlock.FuncError{Err: short}, []string{"EOF", "FuncError"}},
		{&quorumlock.FuncError{Err: over}, []string{"EOF", "FuncError"}},
		{&quorumlock.FuncError{Err: invalid}, []string{"EOF", "FuncError"}},
		{&quorumlock.FuncError{Err: errors.Join(quorumlock.ErrLost, context.Canceled)}, []string{"cancelled", "FuncError"}},
	} {
		for _, err := range []error{c.err, fmt.Errorf("job: %w", c.err), errors.Join(errors.New("first"), c.err)} {
			var found []string
			for name, sentinel := range sentinels {
				if errors.Is(err, sentinel) {
					found = append(found, name)
				}
			}
			for name, is := range types {
				if is(err) {
					found = append(found, name)
				}
			}
			assert.ElementsMatch(t, c.want, found, "%T: %v", c.err, err)
		}
	}
}

func as[E error](err error) bool {
	var target E
	return errors.As(err, &target)
}
