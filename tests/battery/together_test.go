package battery

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// togetherFault keeps one of three nodes from answering. It begins before the first round, so that the clients learn of
// it only in that round. If it is brief, it begins before every round.
type togetherFault struct {
	name  string
	begin func(*redistest.Server, []*redistest.Proxy)
	brief bool
}

var togetherFaults = []togetherFault{
	{name: "all nodes up"},
	{name: "one killed", begin: func(s *redistest.Server, _ []*redistest.Proxy) { s.Kill() }},
	{name: "one stopped", begin: func(s *redistest.Server, _ []*redistest.Proxy) { s.Stop() }},
	{name: "one stopped just before each round", begin: func(s *redistest.Server, _ []*redistest.Proxy) { s.Stop() }, brief: true},
	{name: "one behind a black hole", begin: func(_ *redistest.Server, all []*redistest.Proxy) {
		for _, p := range all {
			p.Swallow()
		}
	}},
}

// Several hosts ask for one name at the same instant, as at the full hour, and each of them once. One of them must run
// the job, whatever the order in which their requests reach the nodes.
func TestOneOfThoseWhoAskTogetherRunsTheJob(t *testing.T) {
	eachNight(t)
	for _, hosts := range []int{2, 5} {
		for _, apart := range []time.Duration{0, 20 * time.Millisecond} {
			for _, fault := range togetherFaults {
				name := fmt.Sprintf("%d hosts ask at one instant, %s", hosts, fault.name)
				if apart > 0 {
					name += ", a near node each"
				}
				t.Run(name, func(t *testing.T) {
					if !full && hosts == 5 && (apart > 0 || fault.begin == nil) {
						t.Skip("make battery runs it: the other cases with five hosts show the tie")
					}
					together(t, name, hosts, apart, fault)
				})
			}
		}
	}
}

func together(t *testing.T, name string, hosts int, apart time.Duration, fault togetherFault) {
	r := newRow(t, name)
	servers := redistest.Start(t, 3)
	managers := make([]*quorumlock.Manager, hosts)
	byNode := make([][]*redistest.Proxy, len(servers))
	for h := range managers {
		proxies, addrs := testkit.Proxied(t, servers)
		for i, p := range proxies {
			p.Delay(time.Duration((h+i)%len(servers)) * apart)
			byNode[i] = append(byNode[i], p)
		}
		managers[h] = testkit.Connect(t, addrs)
	}
	const victim = 2
	if fault.begin != nil && !fault.brief {
		fault.begin(servers[victim], byNode[victim])
	}
	rounds, missed, twice := count(100, 6), 0, 0
	var took []time.Duration
	for round := range rounds {
		if fault.brief {
			patiently(t, "all nodes vote", func() bool {
				return !slices.ContainsFunc(managers, func(m *quorumlock.Manager) bool { return !everybodyVotes(m, len(servers)) })
			})
			fault.begin(servers[victim], byNode[victim])
		}
		ran, slowest := ask(t, managers, fmt.Sprint("job-", round))
		took = append(took, slowest)
		switch {
		case ran == 0:
			missed++
		case ran > 1:
			twice++
		}
		if fault.brief {
			servers[victim].Continue()
		}
	}
	r.figure(fmt.Sprintf("%d rounds, nobody ran the job in %d, several did in %d; the slowest answer: %s", rounds, missed, twice, spread(took)),
		"0 and 0", missed == 0 && twice == 0)
}

// ask has all Managers ask for a name at one instant. It returns how many got it, and how long the slowest answer took.
func ask(t *testing.T, managers []*quorumlock.Manager, name string) (ran int, slowest time.Duration) {
	t.Helper()
	leases, errs := make([]*quorumlock.Lease, len(managers)), make([]error, len(managers))
	took := make([]time.Duration, len(managers))
	var ready, all sync.WaitGroup
	start := make(chan struct{})
	ready.Add(len(managers))
	for h, m := range managers {
		all.Go(func() {
			ready.Done()
			<-start
			time.Sleep(time.Duration(rand.Int64N(int64(200 * time.Microsecond))))
			began := time.Now()
			leases[h], errs[h] = m.TryAcquire(t.Context(), name, quorumlock.WithMinHold(5*time.Second))
			took[h] = time.Since(began)
		})
	}
	ready.Wait()
	close(start)
	all.Wait()
	for h, l := range leases {
		if l != nil {
			ran++
			require.NoError(t, l.Release(t.Context()))
		} else if !errors.Is(errs[h], quorumlock.ErrHeld) && !errors.Is(errs[h], quorumlock.ErrNoQuorum) {
			t.Error(errs[h])
		}
	}
	return ran, slices.Max(took)
}
