package clustercases

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/election"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/spread"
	"github.com/quorumlock/quorumlock/web"
)

// shortTTL is the shortest of package spread. An ask arrives after a third of it.
const shortTTL = 3 * time.Second

// BucketNames returns a name of each bucket that begins with a prefix.
func BucketNames(prefix string) []string {
	names := make([]string, master.Buckets)
	for i, missing := 0, len(names); missing > 0; i++ {
		name := fmt.Sprint(prefix, i)
		if b := master.Bucket(name); names[b] == "" {
			names[b], missing = name, missing-1
		}
	}
	return names
}

// layers uses what packages election, spread and web stand on, and these packages.
func layers(t *testing.T, m, other *quorumlock.Manager) {
	read(t, m, other)
	ask(t, m, other)
	share(t, m, other)
	elect(t, m, other)
	show(t, m)
}

// read has two readers of a name in each bucket, and looks at all names at one time.
func read(t *testing.T, m, other *quorumlock.Manager) {
	ctx := context.Background()
	names := BucketNames("read/")
	var readers []*quorumlock.Lease
	for _, name := range names {
		for _, reader := range []*quorumlock.Manager{m, other} {
			l, err := reader.Acquire(ctx, name, quorumlock.Shared())
			require.NoError(t, err)
			readers = append(readers, l)
		}
		_, err := other.TryAcquire(ctx, name)
		require.ErrorIs(t, err, quorumlock.ErrHeld)
	}
	assert.Len(t, m.Leases(), len(names))
	var seen []string
	for s, err := range m.InspectAll(ctx, names) {
		require.NoError(t, err)
		assert.Equal(t, 2, s.Readers, s.Name)
		seen = append(seen, s.Name)
	}
	assert.Equal(t, names, seen)
	for _, l := range readers {
		released(t, l)
	}
	for _, name := range names {
		l, err := m.Acquire(ctx, name)
		require.NoError(t, err, "a writer after the readers")
		released(t, l)
	}
}

// ask has a caller wait for a name and ask its holder for it, while another one observes the name.
func ask(t *testing.T, m, other *quorumlock.Manager) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	const name = "asked"
	statuses, err := other.Observe(ctx, name)
	require.NoError(t, err)
	observed := func(what string, is func(quorumlock.Status) bool) {
		t.Helper()
		eventually(t, "the observer knows "+what, func() bool {
			select {
			case s := <-statuses:
				return s.Known && is(s)
			default:
				return false
			}
		})
	}
	observed("that the name is free", func(s quorumlock.Status) bool { return !s.Held })
	l, err := m.Acquire(ctx, name, quorumlock.WithTTL(shortTTL), quorumlock.WithHolder("first"))
	require.NoError(t, err)
	observed("the holder", func(s quorumlock.Status) bool { return s.Holder.Label == "first" && s.Token >= l.Token() })
	waiting := make(chan *quorumlock.Lease, 1)
	go func() {
		next, err := other.Acquire(ctx, name, quorumlock.WithHolder("second"))
		assert.NoError(t, err)
		waiting <- next
	}()
	waited(t, m, name)
	eventually(t, "the master has the request", func() bool { return other.AskRelease(ctx, name, "deploy") == nil })
	eventually(t, "the holder has the request", func() bool {
		select {
		case w := <-l.Wanted():
			return w.Waiters == 1 && w.Asked && w.Reason == "deploy"
		default:
			return false
		}
	})
	released(t, l)
	next := <-waiting
	require.NotNil(t, next)
	observed("the next holder", func(s quorumlock.Status) bool { return s.Holder.Label == "second" && s.Token >= next.Token() })
	released(t, next)
}

// record knows under which lease the function of a name began last.
type record struct {
	t    *testing.T
	mu   sync.Mutex
	last map[string]*quorumlock.Lease // guarded by mu
}

// work is the function of a name.
func (r *record) work(ctx context.Context, l *quorumlock.Lease, name string) error {
	r.mu.Lock()
	if before := r.last[name]; before != nil {
		assert.False(r.t, before.Valid(), "two functions of %s", name)
		assert.Greater(r.t, l.Token(), before.Token())
	}
	r.last[name] = l
	r.mu.Unlock()
	<-ctx.Done()
	assert.NotErrorIs(r.t, l.Err(), quorumlock.ErrReleased, "the function of %s runs after the release", name)
	return nil
}

// share runs a member of a group, with names in all buckets. Another one joins it, and then the first one leaves.
func share(t *testing.T, m, other *quorumlock.Manager) {
	r := &record{t: t, last: map[string]*quorumlock.Lease{}}
	var names []string
	for _, lock := range append(BucketNames("shards/"), BucketNames("shards/more-")[:8]...) {
		names = append(names, strings.TrimPrefix(lock, "shards/"))
	}
	var running sync.WaitGroup
	defer running.Wait()
	join := func(m *quorumlock.Manager) (_ *spread.Member, leave func()) {
		member := spread.New(m, spread.Config{Group: "shards", Names: names, TTL: shortTTL, Func: r.work, Log: slog.New(slog.DiscardHandler)})
		ctx, leave := context.WithCancel(context.Background())
		running.Go(func() { assert.ErrorIs(t, member.Run(ctx), context.Canceled) })
		return member, leave
	}
	a, leave := join(m)
	defer leave()
	eventually(t, "one runs all names", func() bool { return len(a.Status().Names) == len(names) })
	b, end := join(other)
	defer end()
	eventually(t, "two have even shares", func() bool {
		return len(a.Status().Names) == len(names)/2 && len(b.Status().Names) == len(names)/2
	})
	assert.Positive(t, a.Status().GivenAway, "it was asked")
	leave()
	eventually(t, "the other runs all names", func() bool { return len(b.Status().Names) == len(names) })
	assert.Empty(t, a.Status().Names)
}

// elect has two candidates. The first one leads, and leaves.
func elect(t *testing.T, m, other *quorumlock.Manager) {
	r := &record{t: t, last: map[string]*quorumlock.Lease{}}
	var running sync.WaitGroup
	defer running.Wait()
	campaign := func(m *quorumlock.Manager) (_ *election.Elector, leave func()) {
		const name = "leader"
		candidate := election.New(m, election.Config{Name: name, Lead: func(ctx context.Context, l *quorumlock.Lease) error { return r.work(ctx, l, name) }})
		ctx, leave := context.WithCancel(context.Background())
		running.Go(func() { assert.ErrorIs(t, candidate.Run(ctx), context.Canceled) })
		return candidate, leave
	}
	first, leave := campaign(m)
	defer leave()
	eventually(t, "the first leads", first.IsLeader)
	second, end := campaign(other)
	defer end()
	waited(t, m, "leader")
	eventually(t, "the second knows a leader", func() bool { return second.Leader().Held })
	assert.False(t, second.IsLeader())
	leave()
	eventually(t, "the second leads", second.IsLeader)
	assert.False(t, first.IsLeader())
}

// show asks the page of a Manager for a name.
func show(t *testing.T, m *quorumlock.Manager) {
	l, err := m.Acquire(context.Background(), "shown", quorumlock.WithHolder("billing-1"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := &viewer{ResponseRecorder: httptest.NewRecorder(), leave: cancel}
	web.Handler(m).ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/events?name=shown", nil))
	_, name, _ := strings.Cut(w.Body.String(), "event: name\n")
	assert.Contains(t, name, `"text":"It is held."`)
	assert.Contains(t, name, `"label":"billing-1"`)
	released(t, l)
}

// viewer leaves the page when it shows the name.
type viewer struct {
	*httptest.ResponseRecorder
	leave context.CancelFunc
}

func (v *viewer) Write(text []byte) (int, error) {
	if strings.HasPrefix(string(text), "event: name\n") {
		v.leave()
	}
	return v.ResponseRecorder.Write(text)
}
