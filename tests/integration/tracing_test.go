package integration

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// recorder is a TracerProvider that records its calls. The SDK would be a dependency of
// this module.
type recorder struct {
	embedded.TracerProvider
	hang  <-chan struct{} // spans with this name end only after it is closed; nil: at once
	hangs string
	mu    sync.Mutex
	ended []*recorded

	started int
}

type recorded struct {
	noop.Span // for the methods that are not recorded
	r         *recorder
	name      string
	config    trace.SpanConfig
	parent    trace.SpanContext
	context   trace.SpanContext
	attrs     map[attribute.Key]attribute.Value
	events    []string
	links     []trace.Link // added after the start, without those in config
	status    codes.Code
	text      string // of the status
	from, to  time.Time
}

func (r *recorder) Tracer(string, ...trace.TracerOption) trace.Tracer { return tracer{r: r} }

type tracer struct {
	embedded.Tracer
	r *recorder
}

func (t tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	return t.r.Start(ctx, name, opts...)
}

func (r *recorder) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &recorded{
		r: r, name: name, config: trace.NewSpanStartConfig(opts...),
		parent: trace.SpanContextFromContext(ctx), attrs: map[attribute.Key]attribute.Value{},
	}
	r.started++
	id := byte(r.started)
	traceID := s.parent.TraceID()
	if !s.parent.IsValid() || s.config.NewRoot() {
		traceID, s.parent = trace.TraceID{15: id}, trace.SpanContext{}
	}
	s.context = trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: trace.SpanID{7: id + 100}, TraceFlags: trace.FlagsSampled,
	})
	if s.from = s.config.Timestamp(); s.from.IsZero() {
		s.from = time.Now()
	}
	s.SetAttributes(s.config.Attributes()...)
	return trace.ContextWithSpan(ctx, s), s
}

func (s *recorded) SpanContext() trace.SpanContext { return s.context }

func (s *recorded) IsRecording() bool { return true }

func (s *recorded) SetStatus(code codes.Code, text string) { s.status, s.text = code, text }

func (s *recorded) AddLink(link trace.Link) { s.links = append(s.links, link) }

func (s *recorded) TracerProvider() trace.TracerProvider { return s.r }

func (s *recorded) AddEvent(n string, _ ...trace.EventOption) { s.events = append(s.events, n) }

func (s *recorded) RecordError(error, ...trace.EventOption) {
	panic("status and error.type, not RecordError")
}

func (s *recorded) SetAttributes(attrs ...attribute.KeyValue) {
	for _, a := range attrs {
		s.attrs[a.Key] = a.Value
	}
}

func (s *recorded) End(opts ...trace.SpanEndOption) {
	if s.r.hang != nil && s.name == s.r.hangs {
		<-s.r.hang
	}
	config := trace.NewSpanEndConfig(opts...)
	if s.to = config.Timestamp(); s.to.IsZero() {
		s.to = time.Now()
	}
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.r.ended = append(s.r.ended, s)
}

// take returns the only ended span of a name.
func (r *recorder) take(t *testing.T, name string) *recorded {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var found *recorded
	for _, s := range r.ended {
		if s.name == name {
			require.Nil(t, found, "one span %s", name)
			found = s
		}
	}
	require.NotNil(t, found, "a span %s", name)
	return found
}

func TestSpansShowWhoWaitedAndHowLongALeaseWasHeld(t *testing.T) {
	r := &recorder{}
	m, servers := testkit.Manager(t, 3, quorumlock.WithTracerProvider(r))
	ctx, caller := r.Start(background, "caller")
	l, err := m.Acquire(ctx, "job")
	require.NoError(t, err)
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, l.Release(background))

	acquire := r.take(t, "quorumlock.acquire")
	assert.Equal(t, caller.SpanContext().SpanID(), acquire.parent.SpanID())
	assert.Equal(t, "job", acquire.attrs["quorumlock.name"].AsString())
	assert.Equal(t, "ok", acquire.attrs["quorumlock.outcome"].AsString())
	assert.Equal(t, int64(1), acquire.attrs["quorumlock.attempts"].AsInt64())
	assert.Equal(t, int64(3), acquire.attrs["quorumlock.nodes"].AsInt64())
	assert.Equal(t, int64(2), acquire.attrs["quorumlock.quorum"].AsInt64())
	assert.Equal(t, l.Token(), acquire.attrs["quorumlock.token"].AsInt64())

	held := func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.ended) == 3 }
	testkit.Eventually(t, "ended by a separate goroutine", held)
	hold := r.take(t, "quorumlock.hold")
	assert.False(t, hold.parent.IsValid(), "in its own trace, so that no trace stays open for hours")
	require.Len(t, hold.config.Links(), 1)
	assert.Equal(t, acquire.context.SpanID(), hold.config.Links()[0].SpanContext.SpanID())
	assert.GreaterOrEqual(t, hold.to.Sub(hold.from), 20*time.Millisecond)
	assert.WithinDuration(t, acquire.from, hold.from, 5*time.Second)
	release := r.take(t, "quorumlock.release")
	assert.Equal(t, acquire.context.SpanID(), release.config.Links()[0].SpanContext.SpanID())

	// The holder's traceparent is stored with the lock.
	r.ended = nil
	l, err = m.Acquire(ctx, "job")
	require.NoError(t, err)
	s, err := m.Inspect(background, "job")
	require.NoError(t, err)
	assert.Contains(t, s.Holder.TraceParent, caller.SpanContext().TraceID().String())
	assert.Contains(t, s.Holder.TraceParent, r.take(t, "quorumlock.acquire").context.SpanID().String())

	// A wait that ends without the lease, and a lease that is lost.
	r.ended = nil
	waiting, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = m.Acquire(waiting, "job")
	require.Error(t, err)
	acquire = r.take(t, "quorumlock.acquire")
	assert.Equal(t, codes.Error, acquire.status)
	assert.Equal(t, "timeout", acquire.attrs["error.type"].AsString())
	assert.Equal(t, []string{"held"}, acquire.events, "one event for a holder, and not one for a poll")
	assert.InDelta(t, 0.1, acquire.attrs["quorumlock.wait.duration"].AsFloat64(), 0.095)
	for _, server := range servers {
		server.MustDo("SET", testkit.Prefix+"job", "somebody else")
	}
	require.Error(t, l.Renew(background))
	testkit.Eventually(t, "hold span", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.ended) == 2 })
	hold = r.take(t, "quorumlock.hold")
	assert.Equal(t, "taken", hold.attrs["quorumlock.reason"].AsString())
	assert.Equal(t, codes.Error, hold.status)
}

func TestSpansAreMadeWithTheProviderOfTheCallersSpan(t *testing.T) {
	r := &recorder{}
	m := testkit.Connect(t, redistest.Addrs(testkit.Start(t, 1)))
	untraced, err := m.Acquire(background, "untraced")
	require.NoError(t, err)
	require.NoError(t, untraced.Release(background))

	ctx, caller := r.Start(background, "caller")
	l, err := m.Acquire(ctx, "job")
	require.NoError(t, err)
	acquire := r.take(t, "quorumlock.acquire")
	assert.Equal(t, caller.SpanContext().SpanID(), acquire.parent.SpanID())
	s, err := m.Inspect(background, "job")
	require.NoError(t, err)
	assert.Contains(t, s.Holder.TraceParent, acquire.context.SpanID().String(), "stored with the lock")
	require.NoError(t, l.Release(ctx))
	assert.Equal(t, caller.SpanContext().SpanID(), r.take(t, "quorumlock.release").parent.SpanID())
	testkit.Eventually(t, "the hold as well", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.ended) == 3 })
	assert.Equal(t, "job", r.take(t, "quorumlock.hold").attrs["quorumlock.name"].AsString())
}

// A taken name, and a caller that goes away, are ordinary outcomes of a call.
func TestOnlyErrorsAreErrorsInATrace(t *testing.T) {
	r := &recorder{}
	m, servers := testkit.Manager(t, 3, quorumlock.WithTracerProvider(r))
	acquired := func(ctx context.Context, name string, opts ...quorumlock.AcquireOption) (*recorded, *quorumlock.Lease) {
		t.Helper()
		r.mu.Lock()
		r.ended = nil
		r.mu.Unlock()
		l, _ := m.Acquire(ctx, name, opts...)
		return r.take(t, "quorumlock.acquire"), l
	}
	span, l := acquired(background, "job")
	assert.Equal(t, codes.Unset, span.status)
	span, _ = acquired(background, "job", quorumlock.WithWait(0))
	assert.Equal(t, codes.Unset, span.status)
	assert.Equal(t, "held", span.attrs["quorumlock.outcome"].AsString())
	assert.NotContains(t, span.attrs, attribute.Key("error.type"))
	ctx, cancel := context.WithCancel(background)
	time.AfterFunc(50*time.Millisecond, cancel)
	span, _ = acquired(ctx, "job")
	assert.Equal(t, codes.Unset, span.status)
	assert.Equal(t, "cancelled", span.attrs["quorumlock.outcome"].AsString())
	require.NoError(t, l.Release(background))

	for _, s := range servers[:2] {
		s.Stop()
	}
	span, _ = acquired(background, "job", quorumlock.WithWait(0))
	assert.Equal(t, codes.Error, span.status)
	assert.Equal(t, "no_quorum", span.attrs["error.type"].AsString())
	assert.Equal(t, "too few nodes gave an answer that counts", span.text, "the same for all: no names, no durations")
	for _, s := range servers[:2] {
		s.Continue()
	}
}

// The second holder is another client: the nodes granted it the lock after the first.
func TestAWaitersSpanLinksToEachHolderThatItWaitedBehind(t *testing.T) {
	servers := testkit.Start(t, 3)
	ofFirst, ofWaiting := &recorder{}, &recorder{started: 100} // IDs that the processes do not share
	first := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTracerProvider(ofFirst))
	waiting := testkit.Connect(t, redistest.Addrs(servers), quorumlock.WithTracerProvider(ofWaiting),
		quorumlock.WithRetryBackoff(func() backoff.BackOff { return backoff.NewConstantBackOff(5 * time.Millisecond) }))
	_, err := first.Acquire(background, "job")
	require.NoError(t, err)
	got := make(chan *quorumlock.Lease, 1)
	go func() {
		l, err := waiting.Acquire(background, "job")
		assert.NoError(t, err)
		got <- l
	}()
	testkit.Eventually(t, "it waits", func() bool {
		s, err := first.Inspect(background, "job")
		return err == nil && s.Waiters == 1
	})
	const second = "00-000000000000000000000000000000ee-00000000000000ee-01"
	for _, s := range servers {
		s.MustDo("SET", testkit.Prefix+"job", strings.Repeat("e", 32)+" 0 1795344466720373 "+second+" second")
	}
	time.Sleep(300 * time.Millisecond) // it polls repeatedly
	for _, s := range servers {
		s.MustDo("DEL", testkit.Prefix+"job")
	}
	require.NoError(t, (<-got).Release(background))

	span := ofWaiting.take(t, "quorumlock.acquire")
	var holders []string
	for _, link := range span.links {
		assert.True(t, link.SpanContext.IsRemote())
		assert.True(t, link.SpanContext.IsSampled())
		holders = append(holders, link.SpanContext.SpanID().String())
	}
	assert.Equal(t, []string{ofFirst.take(t, "quorumlock.acquire").context.SpanID().String(), "00000000000000ee"}, holders)
	held := 0
	for _, event := range span.events {
		if event == "held" {
			held++
		}
	}
	assert.Equal(t, 2, held, "one event for a holder, and not one for a poll")
}

// The lease is passed on inside the process, so no node reports its holder.
func TestACallersSpanLinksToTheLeaseThatWasPassedOnToIt(t *testing.T) {
	r := &recorder{}
	m, servers := testkit.Manager(t, 3, quorumlock.WithTracerProvider(r))
	other := testkit.Connect(t, redistest.Addrs(servers))
	stranger, err := other.Acquire(background, "job")
	require.NoError(t, err)
	var callers sync.WaitGroup
	for range 3 { // the first of them contends, and the lease goes from one to the next
		callers.Go(func() {
			l, err := m.Acquire(background, "job")
			if assert.NoError(t, err) {
				time.Sleep(20 * time.Millisecond)
				assert.NoError(t, l.Release(background))
			}
		})
	}
	testkit.Eventually(t, "they wait", func() bool { s, err := m.Inspect(background, "job"); return err == nil && s.Waiters > 0 })
	require.NoError(t, stranger.Release(background))
	callers.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	spans, linked := map[trace.SpanID]bool{}, 0
	for _, s := range r.ended {
		if s.name == "quorumlock.acquire" {
			spans[s.context.SpanID()] = true
		}
	}
	for _, s := range r.ended {
		for _, link := range s.links {
			if s.name == "quorumlock.acquire" && spans[link.SpanContext.SpanID()] {
				linked++
			}
		}
	}
	assert.GreaterOrEqual(t, linked, 2, "each of those that came after the first")
}

func TestASpanProcessorThatHangsHoldsUpNoLoss(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	m, servers := testkit.Manager(t, 3, quorumlock.WithTracerProvider(&recorder{hang: hang, hangs: "quorumlock.hold"}), quorumlock.WithTTL(3*time.Second))
	var leases []*quorumlock.Lease
	for _, name := range []string{"a", "b", "c"} {
		l, err := m.Acquire(background, name)
		require.NoError(t, err)
		leases = append(leases, l)
	}
	for _, l := range leases {
		assert.Equal(t, quorumlock.LostMissing, testkit.Forgotten(t, l, servers[:2]).Reason)
	}
	next, err := m.Acquire(background, "a")
	require.NoError(t, err)
	require.NoError(t, next.Release(background))
}

func TestASpanProcessorThatHangsInACallHoldsUpNoClose(t *testing.T) {
	for _, call := range []string{"quorumlock.acquire", "quorumlock.release"} {
		t.Run(call, func(t *testing.T) {
			hang := make(chan struct{})
			servers := testkit.Start(t, 3)
			m, err := testkit.New(t, redistest.Addrs(servers),
				quorumlock.WithTracerProvider(&recorder{hang: hang, hangs: call}))
			require.NoError(t, err)
			var calls sync.WaitGroup
			calls.Go(func() {
				l, err := m.Acquire(background, "job")
				if err == nil {
					_ = l.Release(background)
				}
			})
			testkit.Eventually(t, "the call has done its work", func() bool {
				return call == "quorumlock.acquire" == (testkit.Locks(t, servers, "job") == 3)
			})
			closed := make(chan error)
			go func() { closed <- m.Close(background) }()
			hangs := time.After(20 * time.Second)
			select {
			case err = <-closed:
				close(hang)
			case <-hangs:
				t.Error("Close hangs")
				close(hang)
				err = <-closed
			}
			require.NoError(t, err)
			calls.Wait()
		})
	}
}

// The function is the user's: a lease must not call it under its mutex, at each renewal.
func TestEachAcquisitionAsksOnceForTheLabelOfItsName(t *testing.T) {
	var calls atomic.Int32
	m, _ := testkit.Manager(t, 1, quorumlock.WithTTL(300*time.Millisecond),
		quorumlock.WithMeterProvider(metricnoop.NewMeterProvider()),
		quorumlock.WithNameAttribute(func(name string) string { calls.Add(1); return name }))
	l := testkit.Acquired(t, m, "job")
	for range 2 {
		<-l.Renewed()
	}
	testkit.Released(t, l)
	assert.EqualValues(t, 1, calls.Load())
}

func TestAPassedLeaseHasOneHoldSpanOfItsOwn(t *testing.T) {
	const many = 10
	r := &recorder{}
	m, _ := testkit.Queueing(t, 3, quorumlock.WithTracerProvider(r))
	first := testkit.Acquired(t, m, "job")
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			l, err := m.Acquire(background, "job")
			if !assert.NoError(t, err) {
				return
			}
			if i%3 == 0 {
				time.Sleep(10 * time.Millisecond) // so that some are passed on behind a check
			}
			assert.NoError(t, l.Release(background))
		})
	}
	require.NoError(t, first.Release(background))
	all.Wait()
	holds := func() (tokens map[int64]int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		tokens = map[int64]int{}
		for _, s := range r.ended {
			if s.name == "quorumlock.hold" {
				tokens[s.attrs["quorumlock.token"].AsInt64()]++
			}
		}
		return tokens
	}
	testkit.Eventually(t, "all have ended", func() bool { return len(holds()) >= many+1 })
	time.Sleep(50 * time.Millisecond)
	for token, n := range holds() {
		assert.Equal(t, 1, n, "spans of token %d", token)
	}
}
