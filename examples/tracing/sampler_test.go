package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

// Of 100 requests about every second one is kept, each with its own hold.
func TestHoldsOfKeptRequestsAreKept(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		p := newTraced(t, "checkout", sdktrace.WithSampler(holdsOfKeptRequests{sdktrace.ParentBased(sdktrace.TraceIDRatioBased(0.5))}))
		m := manager(t, cluster, quorumlock.WithTracerProvider(p))
		for range 100 {
			ctx, end := p.request(t.Context(), "pay")
			require.NoError(t, m.Do(ctx, "job", func(context.Context, *quorumlock.Lease) error { return nil }))
			end()
			time.Sleep(time.Second)
		}
		require.NoError(t, m.Close(context.Background()))
		acquired := map[trace.SpanID]bool{}
		for _, s := range p.spans("quorumlock.acquire") {
			acquired[s.SpanContext.SpanID()] = true
		}
		holds := p.spans("quorumlock.hold")
		assert.Len(t, holds, len(acquired))
		for _, s := range holds {
			assert.True(t, acquired[s.Links[0].SpanContext.SpanID()])
		}
		assert.Greater(t, len(holds), 20)
		assert.Less(t, len(holds), 80)
	})
}

// A request is traced, and its locks are not.
func TestAProviderThatMakesNoSpansSwitchesThemOff(t *testing.T) {
	bubble(t, func(t *testing.T, cluster *quorumlocktest.Cluster) {
		p := newTraced(t, "checkout")
		m := manager(t, cluster, quorumlock.WithTracerProvider(noop.NewTracerProvider()))
		ctx, end := p.request(t.Context(), "pay")
		require.NoError(t, m.Do(ctx, "job", func(context.Context, *quorumlock.Lease) error { return nil }))
		end()
		require.NoError(t, m.Close(context.Background()))
		require.Len(t, p.exported.GetSpans(), 1)
		p.only(t, "pay")
	})
}

// BenchmarkSpans measures the cost of a lock's spans for its caller, next to a
// real server.
func BenchmarkSpans(b *testing.B) {
	for _, c := range []struct {
		name    string
		sampler sdktrace.Sampler
	}{
		{"off", nil},
		{"sampled away", sdktrace.NeverSample()},
		{"without holds", samplerFunc(func(p sdktrace.SamplingParameters) bool { return p.Name != "quorumlock.hold" })},
		{"all", sdktrace.AlwaysSample()},
	} {
		b.Run(c.name, func(b *testing.B) {
			var provider trace.TracerProvider = noop.NewTracerProvider()
			if c.sampler != nil {
				sdk := sdktrace.NewTracerProvider(sdktrace.WithBatcher(tracetest.NewNoopExporter()), sdktrace.WithSampler(c.sampler))
				defer func() { require.NoError(b, sdk.Shutdown(context.Background())) }()
				provider = sdk
			}
			m, err := quorumlock.New(b.Context(), quorumlock.Addrs(redistest.Addrs(redistest.Start(b, 1))...), quorumlock.WithTracerProvider(provider))
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				if err := m.Do(b.Context(), "job", func(context.Context, *quorumlock.Lease) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, m.Close(context.Background()))
		})
	}
}
