package main

import (
	"context"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestAWaitersSpanLinksToTheHoldersSpanInTheOtherServicesTrace(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		checkout, billing := newTraced(t, "checkout"), newTraced(t, "billing")
		holder := manager(t, cluster, quorumlock.WithTracerProvider(checkout), quorumlock.WithHolder("checkout"))
		waiter := manager(t, cluster, quorumlock.WithTracerProvider(billing), quorumlock.WithHolder("billing"))

		ctx, end := checkout.request(t.Context(), "pay")
		lease, err := holder.Acquire(ctx, "orders/1")
		require.NoError(t, err)
		var both sync.WaitGroup
		both.Go(func() {
			ctx, end := billing.request(context.Background(), "invoice")
			defer end()
			assert.NoError(t, waiter.Do(ctx, "orders/1", func(context.Context, *quorumlock.Lease) error {
				time.Sleep(2 * time.Second)
				return nil
			}))
		})
		time.Sleep(5 * time.Second)
		require.NoError(t, lease.Release(ctx))
		end()
		both.Wait()
		settle()

		held, waited := checkout.only(t, "quorumlock.acquire"), billing.only(t, "quorumlock.acquire")
		require.Len(t, waited.Links, 1)
		link := waited.Links[0]
		assert.Equal(t, held.SpanContext.TraceID(), link.SpanContext.TraceID())
		assert.Equal(t, held.SpanContext.SpanID(), link.SpanContext.SpanID())
		assert.True(t, link.SpanContext.IsRemote())
		assert.True(t, link.SpanContext.IsSampled())
		assert.Equal(t, []attribute.KeyValue{attribute.String("quorumlock.holder", "checkout")}, link.Attributes)
		assert.NotEqual(t, held.SpanContext.TraceID(), waited.SpanContext.TraceID())
		assert.Equal(t, billing.only(t, "invoice").SpanContext.SpanID(), waited.Parent.SpanID())
		assert.Equal(t, trace.SpanKindClient, waited.SpanKind)
		assert.InDelta(t, 5, attributes(waited)["quorumlock.wait.duration"].AsFloat64(), 0.2)
		assert.Zero(t, attributes(held)["quorumlock.wait.duration"].AsFloat64())

		// The hold spans: roots with the true times, linked to their acquire spans.
		for _, c := range []struct {
			p       *traced
			acquire trace.SpanContext
			took    time.Duration
		}{{checkout, held.SpanContext, 5 * time.Second}, {billing, waited.SpanContext, 2 * time.Second}} {
			hold := c.p.only(t, "quorumlock.hold")
			assert.False(t, hold.Parent.IsValid())
			require.Len(t, hold.Links, 1)
			assert.Equal(t, c.acquire.SpanID(), hold.Links[0].SpanContext.SpanID())
			assert.Equal(t, c.acquire.TraceID(), hold.Links[0].SpanContext.TraceID())
			assert.InDelta(t, c.took.Seconds(), hold.EndTime.Sub(hold.StartTime).Seconds(), 0.1)
			assert.Equal(t, "released", attributes(hold)["quorumlock.outcome"].AsString())
			assert.Equal(t, codes.Unset, hold.Status.Code)
		}
		assert.WithinDuration(t, held.StartTime, checkout.only(t, "quorumlock.hold").StartTime, 100*time.Millisecond)
		assert.WithinDuration(t, waited.EndTime, billing.only(t, "quorumlock.hold").StartTime, 100*time.Millisecond)
	})
}

func TestSpansComeFromTheProviderOfTheRequestsSpan(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		p := newTraced(t, "billing")
		m := manager(t, cluster) // nothing configured
		nothing := func(context.Context, *quorumlock.Lease) error { return nil }
		require.NoError(t, m.Do(t.Context(), "untraced", nothing))
		settle()
		assert.Empty(t, p.exported.GetSpans())

		ctx, end := p.request(t.Context(), "invoice")
		require.NoError(t, m.Do(ctx, "traced", nothing))
		end()
		settle()
		request := p.only(t, "invoice").SpanContext
		for _, name := range []string{"quorumlock.acquire", "quorumlock.release"} {
			assert.Equal(t, request.SpanID(), p.only(t, name).Parent.SpanID(), name)
			assert.Equal(t, request.TraceID(), p.only(t, name).SpanContext.TraceID(), name)
		}
		assert.Equal(t, p.only(t, "quorumlock.acquire").SpanContext.SpanID(), p.only(t, "quorumlock.hold").Links[0].SpanContext.SpanID())
	})
}

func TestTheScopeIsTheModuleAndItsVersion(t *testing.T) {
	const module = "github.com/quorumlock/quorumlock"
	want := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range info.Deps {
			if dep.Path == module {
				want = dep.Version
			}
		}
	}
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		p := newTraced(t, "checkout")
		m := manager(t, cluster, quorumlock.WithTracerProvider(p))
		l, err := m.Acquire(t.Context(), "job")
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context()))
		settle()
		for _, name := range []string{"quorumlock.acquire", "quorumlock.hold", "quorumlock.release"} {
			assert.Equal(t, module, p.only(t, name).InstrumentationScope.Name)
			assert.Equal(t, want, p.only(t, name).InstrumentationScope.Version)
		}
	})
	t.Logf("version %q", want)
}

func TestANameThatIsTakenIsNoError(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		p := newTraced(t, "billing")
		holder, other := manager(t, cluster), manager(t, cluster, quorumlock.WithTracerProvider(p))
		l, err := holder.Acquire(t.Context(), "job")
		require.NoError(t, err)
		_, err = other.TryAcquire(t.Context(), "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		span := p.only(t, "quorumlock.acquire")
		assert.Equal(t, codes.Unset, span.Status.Code)
		assert.Equal(t, "held", attributes(span)["quorumlock.outcome"].AsString())
		assert.NotContains(t, attributes(span), attribute.Key("error.type"))
		require.NoError(t, l.Release(t.Context()))
	})
}

// The callers of one process queue in it, so the nodes do not know which of them has the
// lease.
func TestACallerOfTheSameProcessLinksToTheLeaseAtItsArrivalAndToTheOneBeforeIt(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		p := newTraced(t, "checkout")
		m := manager(t, cluster, quorumlock.WithTracerProvider(p))
		stranger, err := manager(t, cluster).Acquire(t.Context(), "job")
		require.NoError(t, err)
		var callers sync.WaitGroup
		caller := func() {
			callers.Go(func() {
				assert.NoError(t, m.Do(context.Background(), "job", func(context.Context, *quorumlock.Lease) error {
					time.Sleep(time.Second)
					return nil
				}))
			})
			time.Sleep(10 * time.Millisecond)
		}
		caller()
		caller()
		caller()
		require.NoError(t, stranger.Release(t.Context()))
		time.Sleep(1500 * time.Millisecond) // the second of the three has the lease
		caller()
		time.Sleep(2 * time.Second) // the fourth has the lease
		caller()
		callers.Wait()
		settle()

		spans := p.spans("quorumlock.acquire")
		require.Len(t, spans, 5)
		linksOf := func(n int) (ids []trace.SpanID) {
			for _, link := range spans[n].Links {
				ids = append(ids, link.SpanContext.SpanID())
			}
			return ids
		}
		id := func(n int) trace.SpanID { return spans[n].SpanContext.SpanID() }
		assert.Empty(t, linksOf(0), "the foreign holder has no trace")
		assert.Equal(t, []trace.SpanID{id(0)}, linksOf(1))
		assert.Equal(t, []trace.SpanID{id(1)}, linksOf(2))
		assert.Equal(t, []trace.SpanID{id(1), id(2)}, linksOf(3), "the second had the lease when it arrived; the third arrived before it")
		assert.Equal(t, []trace.SpanID{id(3)}, linksOf(4), "one link: the holder at its arrival is also the caller before it")
	})
}

// A hold span is a root. A sampler decides about it separately, and sees its link.
func TestAHeadSamplerDecidesAboutAHoldByItself(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		asked := map[string]int{}
		p := newTraced(t, "checkout", sdktrace.WithSampler(sdktrace.ParentBased(samplerFunc(func(s sdktrace.SamplingParameters) bool {
			asked[s.Name] = len(s.Links)
			return s.Name != "quorumlock.hold"
		}))))
		m := manager(t, cluster, quorumlock.WithTracerProvider(p))
		ctx, end := p.request(t.Context(), "pay")
		require.NoError(t, m.Do(ctx, "job", func(context.Context, *quorumlock.Lease) error { return nil }))
		end()
		require.NoError(t, m.Close(context.Background()))
		assert.Equal(t, map[string]int{"pay": 0, "quorumlock.hold": 1}, asked, "the others follow their parent")
		assert.Empty(t, p.spans("quorumlock.hold"))
		p.only(t, "quorumlock.acquire")
	})
}

type samplerFunc func(sdktrace.SamplingParameters) bool

func (f samplerFunc) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if f(p) {
		return sdktrace.SamplingResult{Decision: sdktrace.RecordAndSample}
	}
	return sdktrace.SamplingResult{Decision: sdktrace.Drop}
}

func (f samplerFunc) Description() string { return "a function" }
