package quorumlock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// recorder is a TracerProvider that keeps what it is told: the SDK would be a
// dependency of this module.
type recorder struct {
	embedded.TracerProvider
	hang  <-chan struct{} // spans of the name do not end before; nil to let them
	hangs string
	mu    sync.Mutex
	ended []*recorded
}

type recorded struct {
	noop.Span // for what is not recorded
	r         *recorder
	name      string
	config    trace.SpanConfig
	parent    trace.SpanContext
	context   trace.SpanContext
	attrs     map[attribute.Key]attribute.Value
	events    []string
	status    codes.Code
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
	id := byte(len(r.ended) + 1)
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

func (s *recorded) SpanContext() trace.SpanContext            { return s.context }
func (s *recorded) IsRecording() bool                         { return true }
func (s *recorded) SetStatus(code codes.Code, _ string)       { s.status = code }
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

func TestSpansTellWhoWaitedAndHowLongALeaseWasHeld(t *testing.T) {
	r := &recorder{}
	m, servers := newManager(t, 3, quorumlock.WithTracerProvider(r))
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
	eventually(t, "told by a goroutine of its own", held)
	hold := r.take(t, "quorumlock.hold")
	assert.False(t, hold.parent.IsValid(), "of its own trace: nothing stays open for hours")
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
	assert.Equal(t, "cancelled", acquire.attrs["error.type"].AsString())
	assert.NotEmpty(t, acquire.events)
	assert.Positive(t, acquire.attrs["quorumlock.wait_ms"].AsInt64())
	for _, server := range servers {
		server.MustDo("SET", "quorumlock:job", "somebody else")
	}
	require.Error(t, l.Renew(background))
	eventually(t, "hold span", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.ended) == 2 })
	hold = r.take(t, "quorumlock.hold")
	assert.Equal(t, "revoked", hold.attrs["quorumlock.reason"].AsString())
	assert.Equal(t, codes.Error, hold.status)
}

func TestTheCallersTraceIsStoredWithoutAProvider(t *testing.T) {
	m := connect(t, redistest.Addrs(redistest.Start(t, 1)))
	ctx, caller := (&recorder{}).Start(background, "caller")
	_, err := m.Acquire(ctx, "job")
	require.NoError(t, err)
	s, err := m.Inspect(background, "job")
	require.NoError(t, err)
	assert.Contains(t, s.Holder.TraceParent, caller.SpanContext().SpanID().String())
}

func TestASpanProcessorThatHangsHoldsUpNoLoss(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	m, servers := newManager(t, 3, quorumlock.WithTracerProvider(&recorder{hang: hang, hangs: "quorumlock.hold"}), quorumlock.WithTTL(3*time.Second))
	var leases []*quorumlock.Lease
	for _, name := range []string{"a", "b", "c"} {
		l, err := m.Acquire(background, name)
		require.NoError(t, err)
		leases = append(leases, l)
	}
	for _, l := range leases {
		assert.Equal(t, quorumlock.LostRevoked, forgotten(t, l, servers[:2]).Reason)
	}
	next, err := m.Acquire(background, "a")
	require.NoError(t, err)
	require.NoError(t, next.Release(background))
}

func TestASpanProcessorThatHangsInACallHoldsUpNoClose(t *testing.T) {
	for _, call := range []string{"quorumlock.acquire", "quorumlock.release"} {
		t.Run(call, func(t *testing.T) {
			hang := make(chan struct{})
			servers := redistest.Start(t, 3)
			m, err := quorumlock.New(background, quorumlock.Addrs(redistest.Addrs(servers)...),
				quorumlock.WithTracerProvider(&recorder{hang: hang, hangs: call}))
			require.NoError(t, err)
			var calls sync.WaitGroup
			calls.Go(func() {
				l, err := m.Acquire(background, "job")
				if err == nil {
					_ = l.Release(background)
				}
			})
			eventually(t, "the call has done its work", func() bool {
				return call == "quorumlock.acquire" == (locks(t, servers, "job") == 3)
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
