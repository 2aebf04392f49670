//go:build linux

package battery

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// heirConfig configures a process that resumes the handles that it receives.
type heirConfig struct{ Addrs []string }

// heirAnswer is its answer to each handle: the token, or 0 if it did not get the lease. It then waits for an empty
// handle, which releases the lease.
type heirAnswer struct{ Token int64 }

func init() { roles["heir"] = heirRole }

func heirRole() int {
	var c heirConfig
	if err := roleConfig(&c); err != nil {
		return roleFailed(err)
	}
	m, err := quorumlock.New(context.Background(), quorumlock.Addrs(c.Addrs...))
	if err != nil {
		return roleFailed(err)
	}
	var held *quorumlock.Lease
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		var handle quorumlock.Handle
		if err := json.Unmarshal(commands.Bytes(), &handle); err != nil {
			return roleFailed(err)
		}
		var a heirAnswer
		switch {
		case handle != "":
			l, err := m.Resume(context.Background(), handle)
			if held = l; err == nil {
				a.Token = l.Token()
			} else if !errors.Is(err, quorumlock.ErrLost) && !errors.Is(err, quorumlock.ErrNoQuorum) {
				return roleFailed(err)
			}
		case held != nil:
			if err := held.Release(context.Background()); err != nil {
				return roleFailed(err)
			}
		}
		if err := answer(a); err != nil {
			return roleFailed(err)
		}
	}
	if err := m.Close(context.Background()); err != nil {
		return roleFailed(err)
	}
	return 0
}

// A handle was copied, and two processes resume it at once.
func TestOfTwoProcessesThatResumeACopyOneGetsTheLease(t *testing.T) {
	forSizes(t, true, func(t *testing.T, n int) {
		r := newRow(t, fmt.Sprintf("two processes resume one handle at once, N=%d", n))
		addrs := redistest.Addrs(redistest.Start(t, n))
		m, err := quorumlock.New(t.Context(), quorumlock.Addrs(addrs...), quorumlock.WithStartupWait(10*time.Second))
		require.NoError(t, err)
		defer func() { assert.NoError(t, m.Close(context.Background())) }()
		heirs := []*child{spawn(t, "heir", heirConfig{addrs}), spawn(t, "heir", heirConfig{addrs})}
		rounds, both, one, stale := count(1000, 50), 0, 0, 0
		for i := range rounds {
			name := fmt.Sprint("job", i) // a new name: an unresumed handle would block the old one
			l, err := m.Acquire(t.Context(), name)
			require.NoError(t, err)
			handle, err := l.Detach(t.Context(), 10*time.Second)
			require.NoError(t, err)
			got := 0
			for _, command := range []quorumlock.Handle{handle, ""} {
				for k := range heirs {
					require.NoError(t, heirs[(k+i)%2].send(command))
				}
				for _, heir := range heirs {
					var a heirAnswer
					require.NoError(t, heir.receive(&a))
					if a.Token != 0 {
						got++
						if a.Token <= l.Token() {
							stale++
						}
					}
				}
			}
			if got > 1 {
				both++
			}
			if got == 1 {
				one++
			}
		}
		for _, heir := range heirs {
			require.NoError(t, heir.end())
		}
		r.figure(fmt.Sprintf("%d rounds: both got it in %d, one in %d", rounds, both, one), "0, and one in most", both == 0 && one > rounds/2)
		r.figure(fmt.Sprintf("%d tokens that do not grow", stale), "0", stale == 0)
	})
}
