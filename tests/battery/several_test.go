//go:build linux

package battery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// pairsConfig configures a process that takes random pairs of names.
type pairsConfig struct {
	Addrs []string
	Seed  uint64
	Names int
	For   time.Duration
	// Dir has a file for each held name. It is made without overwriting, so a second holder finds the first one's.
	Dir string
}

// pairsSummary is the only answer of the process.
type pairsSummary struct{ Turns, Clashes int }

func init() { roles["pairs"] = pairsRole }

func pairsRole() int {
	var c pairsConfig
	if err := roleConfig(&c); err != nil {
		return roleFailed(err)
	}
	m, err := quorumlock.New(context.Background(), quorumlock.Addrs(c.Addrs...), quorumlock.WithStartupWait(10*time.Second))
	if err != nil {
		return roleFailed(err)
	}
	defer func() { _ = m.Close(context.Background()) }()
	ctx, cancel := context.WithTimeout(context.Background(), c.For)
	defer cancel()
	var s pairsSummary
	draw := rand.New(rand.NewPCG(c.Seed, 0))
	for ctx.Err() == nil {
		pair := draw.Perm(c.Names)[:2]
		names := []string{lockName(pair[0]), lockName(pair[1])}
		err := m.DoAll(ctx, names, func(context.Context, *quorumlock.Leases) error {
			for _, name := range names {
				file, err := os.OpenFile(filepath.Join(c.Dir, name), os.O_CREATE|os.O_EXCL, 0o600)
				if err != nil {
					s.Clashes++
					continue
				}
				_ = file.Close()
				defer func() { _ = os.Remove(file.Name()) }()
			}
			time.Sleep(time.Millisecond)
			s.Turns++
			return nil
		})
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return roleFailed(err)
		}
	}
	if err := answer(s); err != nil {
		return roleFailed(err)
	}
	return 0
}

// Eight processes take random pairs of five names. None waits forever, no name has two holders, and each gets its
// share.
func TestEightProcessesTakeRandomPairsOfNames(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("8 processes take random pairs of 5 names, N=%d", n))
		servers := redistest.Start(t, n)
		config := pairsConfig{Addrs: redistest.Addrs(servers), Names: 5, For: time.Duration(count(60, 3)) * time.Second, Dir: t.TempDir()}
		processes := make([]*child, 8)
		for i := range processes {
			config.Seed = uint64(i)
			processes[i] = spawn(t, "pairs", config)
		}
		clashes, turns := 0, make([]int, len(processes))
		for i, p := range processes {
			var s pairsSummary
			require.NoError(t, p.receive(&s))
			require.NoError(t, p.end())
			clashes, turns[i] = clashes+s.Clashes, s.Turns
		}
		least, most := slices.Min(turns), slices.Max(turns)
		r.figure(fmt.Sprintf("%d names with two holders", clashes), "0", clashes == 0)
		r.figure(fmt.Sprintf("turns of each in %v: %d to %d", config.For, least, most), atLeastInFull("the most have at most twice the least"),
			least > 0 && (!full || most <= 2*least))
	})
}
