//go:build linux

package battery

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	group "github.com/quorumlock/quorumlock/spread"
)

// This row judges package spread by its own record. Each function writes to a file when it begins, runs and returns, by
// the clock that all processes share.

const (
	largeGroup  = "orders" // the group with more names
	sharedNames = 60
	sharingTTL  = 5 * time.Second
	sharingSlow = 30 * time.Second
)

// sharerConfig configures a process with a member of each group.
type sharerConfig struct {
	Client int
	Addrs  []string
	Record string
	Groups map[string]int // the names of each
}

// sharingNote is a line of the record.
type sharingNote struct {
	Kind     string // "start", "runs", "told", "stop"
	Group    string
	Name     string
	Token    int64
	At       instant
	Valid    bool // the lease, after At was read
	Released bool // the lease, before the function has returned
}

func init() { roles["sharer"] = sharerRole }

// sharer is the state that the functions of a process share.
type sharer struct {
	mu     sync.Mutex
	record *os.File // guarded by mu
	slow   atomic.Int64
}

// sharerRole runs its members until SIGTERM. After the command "slow", functions take 30 s to return.
func sharerRole() int {
	var config sharerConfig
	if err := roleConfig(&config); err != nil {
		return roleFailed(err)
	}
	record, err := os.OpenFile(config.Record, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return roleFailed(err)
	}
	s := &sharer{record: record}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	m, err := quorumlock.New(ctx, quorumlock.Addrs(config.Addrs...))
	if err != nil {
		return roleFailed(err)
	}
	go func() {
		for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
			s.slow.Store(int64(sharingSlow))
		}
	}()
	var members sync.WaitGroup
	for name, n := range config.Groups {
		member := group.New(m, group.Config{
			Group: name, Names: sharingList(n), TTL: sharingTTL,
			Func: func(ctx context.Context, l *quorumlock.Lease, job string) error { return s.work(ctx, l, name, job) },
		})
		members.Go(func() {
			if err := member.Run(ctx); !errors.Is(err, context.Canceled) {
				panic(err)
			}
		})
	}
	members.Wait()
	if err := m.Close(context.Background()); err != nil {
		return roleFailed(err)
	}
	return 0
}

func sharingList(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("shard-%02d", i))
	}
	return names
}

// work is the function of a name.
func (s *sharer) work(ctx context.Context, l *quorumlock.Lease, in, name string) error {
	note := func(kind string) {
		n := sharingNote{Kind: kind, Group: in, Name: name, Token: l.Token(), At: now()}
		n.Valid = l.Valid() // after the clock was read: a process that stands still in between has a shorter run
		n.Released = errors.Is(l.Err(), quorumlock.ErrReleased)
		text, err := json.Marshal(n)
		if err != nil {
			panic(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, err := s.record.Write(append(text, '\n')); err != nil {
			panic(err)
		}
	}
	note("start")
	beat := time.NewTicker(250 * time.Millisecond)
	defer beat.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-beat.C:
			note("runs")
		}
	}
	note("told")
	for end := time.Now().Add(time.Duration(s.slow.Load())); time.Now().Before(end); <-beat.C {
		note("runs")
	}
	note("stop")
	return context.Cause(ctx)
}

// sharingRun is a call of a function, from the record.
type sharingRun struct {
	client   int
	group    string
	name     string
	token    int64
	start    instant
	told     instant // its context ended; 0 if it did not
	stop     instant // 0 if it did not return
	until    instant // the last time at which it certainly ran, before a loss of its lease
	released bool    // it continued after the release of its lease
}

// shares reports whether the run counts for its member.
func (r *sharingRun) shares(at instant) bool {
	return r.start <= at && (r.told == 0 || at < r.told) && (r.stop == 0 || at < r.stop)
}

// sharings is the row's processes and their records.
type sharings struct {
	t       *testing.T
	r       *row
	addrs   []string
	dir     string
	groups  map[string]int // the names of each
	held    int            // how many names of the large group another client holds
	members map[int]*child // the living ones
	started int
	left    int // the member that was terminated
}

func newSharings(t *testing.T, what string, servers []*redistest.Server, groups map[string]int) *sharings {
	t.Helper()
	return &sharings{
		t: t, r: newRow(t, fmt.Sprintf("%s, TTL 5s, N=%d", what, len(servers))),
		addrs: redistest.Addrs(servers), dir: t.TempDir(), groups: groups, members: map[int]*child{},
	}
}

func (s *sharings) join(n int) {
	for range n {
		config := sharerConfig{Client: s.started, Addrs: s.addrs, Record: filepath.Join(s.dir, fmt.Sprint(s.started)), Groups: s.groups}
		s.members[s.started] = spawn(s.t, "sharer", config)
		s.started++
	}
}

// any takes one of the members away.
func (s *sharings) any() (client int, c *child) {
	client = slices.Min(slices.Collect(maps.Keys(s.members)))
	c = s.members[client]
	delete(s.members, client)
	return client, c
}

// end terminates all members.
func (s *sharings) end() {
	s.t.Helper()
	for len(s.members) > 0 {
		_, c := s.any()
		require.NoError(s.t, c.cmd.Process.Signal(syscall.SIGTERM))
		if len(s.members) == 0 {
			require.NoError(s.t, c.end()) // the last one has all names
		}
	}
}

// runs reads the records.
func (s *sharings) runs() (all []*sharingRun) {
	s.t.Helper()
	for client := range s.started {
		open := map[string]*sharingRun{}
		record, err := os.Open(filepath.Join(s.dir, fmt.Sprint(client)))
		require.NoError(s.t, err)
		lines := bufio.NewScanner(record)
		for lines.Scan() {
			var n sharingNote
			if json.Unmarshal(lines.Bytes(), &n) != nil {
				continue // the last line of a process that was killed, or that writes now
			}
			key := n.Group + "/" + n.Name
			run := open[key]
			switch n.Kind {
			case "start":
				run = &sharingRun{client: client, group: n.Group, name: n.Name, token: n.Token, start: n.At, until: n.At}
				open[key] = run
				all = append(all, run)
			case "told":
				run.told = n.At
			case "stop":
				run.stop = n.At
			}
			if n.Valid || n.Released { // not after a loss: another member may run the name then
				run.until = n.At
			}
			run.released = run.released || n.Released
		}
		require.NoError(s.t, lines.Err())
		require.NoError(s.t, record.Close())
	}
	return all
}

// even prints how long after an instant the names are evenly spread over the members, until now.
func (s *sharings) even(what string, from instant, ttls int) {
	s.t.Helper()
	runs, end := s.runs(), now()
	var last instant
	for at := from; at < end; at = at.after(50 * time.Millisecond) {
		for name, n := range s.groups {
			if name == largeGroup {
				n -= s.held
			}
			count := map[int]int{}
			for client := range s.members {
				count[client] = 0
			}
			all := 0
			for _, run := range runs {
				if _, lives := count[run.client]; lives && run.group == name && run.shares(at) {
					count[run.client]++
					all++
				}
			}
			shares := slices.Collect(maps.Values(count))
			if all != n || slices.Max(shares)-slices.Min(shares) > 1 {
				last = at
			}
		}
	}
	took := max(last.since(from), 0)
	stays := end.since(from)-took > time.Second
	s.r.figure(fmt.Sprintf("%s: even after %v (%.2f TTL)", what, brief(took), took.Seconds()/sharingTTL.Seconds()),
		atLeastInFull(fmt.Sprint(ttls, " TTL")), stays && took <= time.Duration(ttls)*sharingTTL || !full)
}

// moved prints how many names of the large group have started since an instant.
func (s *sharings) moved(what string, from instant, most int) {
	s.t.Helper()
	n := 0
	for _, run := range s.runs() {
		if run.group == largeGroup && run.start >= from {
			n++
		}
	}
	s.r.figure(fmt.Sprintf("%s moves %d of %d names", what, n, s.groups[largeGroup]), atLeastInFull(fmt.Sprintf("%d", most)), n <= most || !full)
}

// judge prints what must never happen. It returns how long a name had no runner: one that was given away, and one of the
// member that was terminated.
func (s *sharings) judge() (given, free []time.Duration) {
	s.t.Helper()
	runs := s.runs()
	byName := map[string][]*sharingRun{}
	overlaps, disorders, after, all := 0, 0, 0, 0
	for _, n := range s.groups {
		all += n
	}
	for _, run := range runs {
		byName[run.group+"/"+run.name] = append(byName[run.group+"/"+run.name], run)
		if run.released {
			after++
			s.t.Logf("%s of %d runs on after the release", run.name, run.client)
		}
	}
	for _, turns := range byName {
		slices.SortFunc(turns, func(a, b *sharingRun) int { return int(a.start - b.start) })
		for i, next := range turns[1:] {
			before := turns[i]
			if next.start < before.until {
				overlaps++
				s.t.Logf("%s of %d runs for %v beside that of %d", next.name, next.client, before.until.since(next.start), before.client)
			}
			if next.token <= before.token {
				disorders++
			}
			switch gap := next.start.since(before.stop); {
			case before.stop == 0 || before.until < before.stop || before.client == next.client: // killed, lost, or taken again
			case before.client == s.left:
				free = append(free, gap)
			default:
				given = append(given, gap)
			}
		}
	}
	s.r.figure(fmt.Sprintf("two runners of a name %d, tokens out of order %d, after a release %d, of %d runs of %d names", overlaps, disorders, after, len(runs), len(byName)),
		"0, 0, 0", overlaps+disorders+after == 0 && len(byName) == all)
	return given, free
}

// Members of two groups run in processes of their own. They join, leave, are killed and stopped, one of the servers
// stops, and functions take 30 s to return. A name never has two runners, and the names are evenly spread again within
// two TTLs.
func TestNamesAreSharedWithoutOverlap(t *testing.T) {
	eachNight(t)
	forSizes(t, true, func(t *testing.T, n int) {
		servers := redistest.Start(t, n)
		s := newSharings(t, "60 names and 7 beside over 3 to 7 processes", servers, map[string]int{largeGroup: sharedNames, "mail": 7})
		const rest = 3 * sharingTTL
		step := func(what string, do func()) (from instant) {
			from = now()
			do()
			time.Sleep(rest)
			s.even(what, from, 2)
			return from
		}
		step("3 start", func() { s.join(3) })
		step("3 join 3", func() { s.join(3) })
		step("SIGTERM", func() {
			client, c := s.any()
			s.left = client
			require.NoError(t, c.cmd.Process.Signal(syscall.SIGTERM))
			require.NoError(t, c.end())
		})
		step("SIGKILL", func() {
			_, c := s.any()
			require.NoError(t, c.cmd.Process.Kill())
		})
		client, stopped := s.any()
		step("SIGSTOP", func() {
			_, err := stopped.pause()
			require.NoError(t, err)
		})
		step("SIGCONT", func() {
			_, err := stopped.resume()
			require.NoError(t, err)
			s.members[client] = stopped
		})
		servers[0].Stop()
		from := step("a node stops, and one joins", func() { s.join(1) })
		s.moved("a join", from, sharedNames/len(s.members)+1)
		servers[0].Continue()
		for _, c := range s.members {
			require.NoError(t, c.send("slow"))
		}
		last := now()
		s.join(1)
		time.Sleep(sharingTTL + sharingSlow + rest)
		for _, run := range s.runs() {
			last = max(last, run.stop)
		}
		s.even("one joins, and functions take 30s, after the last return", last, 2)
		s.end()
		given, free := s.judge()
		s.r.figure(fmt.Sprintf("a name that was given has no runner for %s, %d times", spread(given), len(given)),
			atLeastInFull("1s"), len(given) > 0 && at(1, given) < time.Second || !full)
		s.r.figure(fmt.Sprintf("one of the terminated member has none for %s, %d times", spread(free), len(free)),
			atLeastInFull("1s"), len(free) > 0 && at(1, free) < time.Second || !full)
	})
}

// stranger has a client outside the group hold names of the large group, and counts how often it is asked for them.
func (s *sharings) stranger() (asks *atomic.Int64, release func()) {
	s.t.Helper()
	m, err := quorumlock.New(s.t.Context(), quorumlock.Addrs(s.addrs...), quorumlock.WithHolder("stranger"), quorumlock.WithTTL(sharingTTL))
	require.NoError(s.t, err)
	var reading sync.WaitGroup
	s.t.Cleanup(func() {
		require.NoError(s.t, m.Close(context.Background()))
		reading.Wait()
	})
	asks = new(atomic.Int64)
	var leases []*quorumlock.Lease
	for _, name := range sharingList(s.held) {
		l, err := m.Acquire(s.t.Context(), largeGroup+"/"+name)
		require.NoError(s.t, err)
		leases = append(leases, l)
		reading.Go(func() { testkit.CountAsks(l, asks) })
	}
	return asks, func() {
		lost := 0
		for _, l := range leases {
			if errors.Is(l.Release(context.Background()), quorumlock.ErrLost) {
				lost++
			}
		}
		s.held = 0
		s.r.figure(fmt.Sprintf("the client loses %d of %d names", lost, len(leases)), atLeastInFull("0"), lost == 0 || !full)
	}
}

// A client that is not a member holds half of the names of a group, and gives none away. The members ask it less and less
// often, and share the others. The names that it releases run soon.
func TestAHolderOutsideTheGroupIsAskedLessOften(t *testing.T) {
	eachNight(t)
	forSizes(t, true, func(t *testing.T, n int) {
		const names, rest, quiet = 24, 4 * sharingTTL, 16 * sharingTTL
		s := newSharings(t, "24 names over 3 and 4 processes, 12 of them held by another client", redistest.Start(t, n), map[string]int{largeGroup: names})
		s.held = names / 2
		asks, release := s.stranger()
		step := func(what string, do func()) (from instant) {
			from = now()
			do()
			time.Sleep(rest)
			// A member asks the client first, because it has most names, and other members after two waits of 0.4 TTL + 1.2s.
			s.even(what, from, 3)
			return from
		}
		step("3 start", func() { s.join(3) })
		from := step("one joins", func() { s.join(1) })
		s.moved("a join", from, names/2/len(s.members)+1)

		from = now()
		asks.Store(0)
		time.Sleep(quiet)
		const most = 110
		count := asks.Load()
		s.r.figure(fmt.Sprintf("the client is asked %d times in %v", count, quiet), fmt.Sprintf("10 to %d, 210 without a pause", most), count <= most && (count >= 10 || !full))
		s.moved("its silence", from, 0)

		from = now()
		release()
		time.Sleep(rest)
		s.even("it releases its names", from, 2)
		s.end()
		s.judge()
	})
}
