//go:build unix

package workload

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
)

// A fakeClient keeps every name, and notes on its scene when it comes and leaves.
type fakeClient struct {
	scene *fakeScene
	name  string
}

// A fakeScene has the clients that are connected.
type fakeScene struct {
	mu        sync.Mutex
	connected map[string]bool
	kept      map[string]int
}

func (s *fakeScene) contestant(name string) contest.Contestant {
	return contest.Contestant{Name: name, Connect: func(context.Context, []string, contest.Settings) (contest.Client, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.connected[name] = true
		return &fakeClient{s, name}, nil
	}}
}

func (c *fakeClient) Lock(context.Context, string) (contest.Held, error) { return nil, errUnsupported }

func (c *fakeClient) Keep(context.Context, string) (contest.Kept, error) {
	c.scene.mu.Lock()
	defer c.scene.mu.Unlock()
	c.scene.kept[c.name]++
	return nil, nil
}

func (c *fakeClient) Close(context.Context) error {
	c.scene.mu.Lock()
	defer c.scene.mu.Unlock()
	delete(c.scene.connected, c.name)
	return nil
}

func (c *fakeClient) LockKey(string) string { return "" }

func TestTwoClientsAreComparedInTurnsAndOnlyOneIsConnected(t *testing.T) {
	s := &fakeScene{connected: map[string]bool{}, kept: map[string]int{}}
	both := []contest.Contestant{s.contestant("first"), s.contestant("second")}
	b := &Bench{Context: t.Context()}
	var order []string
	costs := []cost{{60, 8, 1}, {20, 4, 0}, {30, 9, 0}, {15, 3, 2}, {40, 5, 0}, {8, 5, 0}} // ratios 3, 2, 5 and 2, 3, 1
	v, err := b.compare(both, 3, func(_ *Bench, client contest.Client, heap float64) (cost, error) {
		name := client.(*fakeClient).name
		assert.Equal(t, map[string]bool{name: true}, s.connected)
		assert.Equal(t, map[string]int{"first": firstLeases, "second": firstLeases}, s.kept, "the guard is outlasted before")
		assert.Positive(t, heap)
		order = append(order, name)
		return costs[len(order)-1], nil
	})
	require.NoError(t, err)
	assert.Equal(t, []string{"first", "second", "first", "second", "first", "second"}, order)
	assert.Empty(t, s.connected)
	assert.Equal(t, Values{"whole": 40, "slot": 15, "ratio": 3, "least": 2, "most": 5, "servers": 2, "failed": 3}, v)

	broken := errors.New("broken")
	_, err = b.compare(both, 1, func(*Bench, contest.Client, float64) (cost, error) { return cost{}, broken })
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "first: ")
	assert.Empty(t, s.connected, "a client that fails is closed")
}
