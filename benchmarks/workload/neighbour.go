//go:build unix

package workload

import (
	"context"
	"fmt"
	"time"

	"github.com/quorumlock/quorumlock/benchmarks/contest"
	"github.com/quorumlock/quorumlock/benchmarks/report"
)

const (
	neighbourOwn = 16 // our clients next to the strangers, with one caller each
	// metWithin is how long a stranger may take to get the lock for the first time. Our clients leave it free less
	// often until they have met one: a second is too short to measure both.
	metWithin = 10 * time.Second
)

// NeighbourCase returns the name of a case of the neighbour workload.
func NeighbourCase(strangers int) string {
	return fmt.Sprintf("%d redsync, polling every %v, N=3", strangers, contendedPoll)
}

const neighbourDefault = "4 redsync at its default delay, N=3"

func neighbour() Workload {
	w := Workload{
		Name:  "neighbour",
		Title: "A plain Redlock client next to ours",
		About: fmt.Sprintf("%d clients of the contestant and some of redsync want one lock and hold it for %v. 1 is a fair share for "+
			"redsync, counted from its first grant on.", neighbourOwn, managerHold),
		Columns: []report.Column{
			{Key: "share", Title: "redsync's share / fair share", Digits: 2, Library: "redsync"},
			{Key: "strangers", Title: "redsync, grants/s", Digits: 1}, {Key: "own", Title: "ours, grants/s", Digits: 1},
			{Key: "first", Title: "s to redsync's first grant", Digits: 2},
		},
		Chart: "share",
	}
	add := func(name string, strangers int, poll time.Duration) {
		w.Cases = append(w.Cases, Case{
			Name: name, Nodes: 3, Contestants: []string{contest.Fenced, contest.Unfenced},
			Measure: func(b *Bench) (Values, error) { return b.beside(strangers, poll) },
		})
	}
	add(NeighbourCase(1), 1, contendedPoll)
	add(NeighbourCase(4), 4, contendedPoll)
	add(neighbourDefault, 4, 0)
	return w
}

// beside measures how often strangers get a lock that clients of the contestant
// want as well.
func (b *Bench) beside(strangers int, poll time.Duration) (Values, error) {
	redsync, _ := contest.Named(contest.RedsyncRueidis)
	all := make([]contest.Client, neighbourOwn+strangers)
	names := make([]string, len(all))
	var key string
	for i := range all {
		contestant, delay := b.contestant, time.Duration(0)
		names[i] = contestedName
		if i >= neighbourOwn {
			contestant, delay = redsync, poll
			names[i] = key // its name is the key itself
		}
		client, err := b.connectAs(contestant, delay)
		if err != nil {
			return nil, err
		}
		if closer, ok := client.(contest.Closer); ok {
			key = closer.LockKey(contestedName)
		}
		all[i] = client
	}
	if key == "" {
		return nil, errUnsupported
	}
	c := b.startCrowd(len(all), func(ctx context.Context, caller int) error {
		held, err := all[caller].Lock(ctx, names[caller])
		if err != nil {
			return err
		}
		time.Sleep(managerHold)
		return held.Release(b.Context)
	})
	defer c.end()
	first, err := b.meet(func() bool { return sum(c.counts()[neighbourOwn:]) > 0 })
	if err != nil {
		return nil, err
	}
	s, err := b.measureCrowd(c, contendedTimes*b.Duration)
	if err != nil {
		return nil, err
	}
	own, others := sum(s.counts[:neighbourOwn]), sum(s.counts[neighbourOwn:])
	fair := float64(strangers) / float64(len(all))
	return Values{
		"share":     others / (own + others) / fair,
		"strangers": others / s.elapsed.Seconds(),
		"own":       own / s.elapsed.Seconds(),
		"first":     first.Seconds(),
	}, nil
}

// meet waits until strangers have had the lock, for metWithin at most, and returns how long that took.
func (b *Bench) meet(had func() bool) (time.Duration, error) {
	began := time.Now()
	for !had() && time.Since(began) < metWithin {
		if err := b.sleep(time.Millisecond); err != nil {
			return 0, err
		}
	}
	return time.Since(began), nil
}

func sum(counts []int64) (all float64) {
	for _, n := range counts {
		all += float64(n)
	}
	return all
}
