package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// traced is a process with the SDK: a provider, and the spans that it exported.
type traced struct {
	*sdktrace.TracerProvider
	exported *tracetest.InMemoryExporter
}

func newTraced(t *testing.T, name string, more ...sdktrace.TracerProviderOption) *traced {
	t.Helper()
	exported := tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(append(more, sdktrace.WithSyncer(exported),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", name))))...)
	t.Cleanup(func() { _ = tp.Shutdown(context.Background()) })
	return &traced{tp, exported}
}

// request starts the span of a request.
func (p *traced) request(ctx context.Context, name string) (context.Context, func()) {
	ctx, span := p.Tracer("test").Start(ctx, name)
	return ctx, func() { span.End() }
}

// spans returns the exported spans of a name, in the order of their ends.
func (p *traced) spans(name string) (all tracetest.SpanStubs) {
	for _, s := range p.exported.GetSpans() {
		if s.Name == name {
			all = append(all, s)
		}
	}
	return all
}

// only returns the one exported span of a name.
func (p *traced) only(t *testing.T, name string) tracetest.SpanStub {
	t.Helper()
	all := p.spans(name)
	require.Len(t, all, 1, name)
	return all[0]
}

func attributes(s tracetest.SpanStub) map[attribute.Key]attribute.Value {
	all := map[attribute.Key]attribute.Value{}
	for _, a := range s.Attributes {
		all[a.Key] = a.Value
	}
	return all
}

// bubble runs a test on three nodes in virtual time.
func bubble(t *testing.T, test func(t *testing.T, cluster *quorumlocktest.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, quorumlocktest.Start(t, 3)) })
}

func manager(t *testing.T, cluster *quorumlocktest.Cluster, opts ...quorumlock.Option) *quorumlock.Manager {
	t.Helper()
	m, err := quorumlock.New(t.Context(), cluster.Options(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close(context.Background()) })
	return m
}

// settle waits until all goroutines of the Managers are blocked.
func settle() {
	time.Sleep(time.Millisecond)
	synctest.Wait()
}

// collect returns the current metrics of a reader, by name.
func collect(t *testing.T, reader *sdkmetric.ManualReader) map[string]metricdata.Metrics {
	t.Helper()
	var found metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &found))
	all := map[string]metricdata.Metrics{}
	for _, s := range found.ScopeMetrics {
		require.Equal(t, "github.com/quorumlock/quorumlock", s.Scope.Name)
		for _, m := range s.Metrics {
			all[m.Name] = m
		}
	}
	return all
}
