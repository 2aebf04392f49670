package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/rueidis"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorumlock/quorumlock"
)

// ttl is short, so that a lease is renewed while a request works. A service would use the
// default of 10 s.
const ttl = 3 * time.Second

// service is one process: its telemetry and its Manager.
type service struct {
	name    string
	tracers *sdktrace.TracerProvider
	meters  *sdkmetric.MeterProvider
	page    *prometheus.Registry
	manager *quorumlock.Manager
}

func newService(ctx context.Context, name string, s *settings, kept *recorder, nodes []rueidis.ClientOption) (*service, error) {
	of := resource.NewSchemaless(attribute.String("service.name", name))
	tracing := []sdktrace.TracerProviderOption{
		sdktrace.WithResource(of), sdktrace.WithSyncer(kept),
		sdktrace.WithSampler(holdsOfKeptRequests{sdktrace.ParentBased(sdktrace.AlwaysSample())}), // TraceIDRatioBased keeps fewer
	}
	if s.endpoint != "none" {
		exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(strings.TrimSuffix(s.endpoint, "/")+"/v1/traces"),
			otlptracehttp.WithTimeout(2*time.Second), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}))
		if err != nil {
			return nil, err
		}
		// Longer than a round, so that flush returns an export error, not only the log.
		tracing = append(tracing, sdktrace.WithBatcher(exporter, sdktrace.WithBatchTimeout(time.Minute)))
	}
	service := &service{name: name, tracers: sdktrace.NewTracerProvider(tracing...), page: prometheus.NewRegistry()}
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(service.page))
	if err != nil {
		return nil, err
	}
	service.meters = sdkmetric.NewMeterProvider(sdkmetric.WithResource(of), sdkmetric.WithReader(reader))

	options := []quorumlock.Option{
		quorumlock.WithTTL(ttl),
		quorumlock.WithHolder(name),
		quorumlock.WithMeterProvider(service.meters),
		quorumlock.WithNameAttribute(kindOf),
	}
	if name == "checkout" {
		options = append(options, quorumlock.WithTracerProvider(service.tracers))
	} // billing configures nothing: its spans come from the provider of the request's span
	service.manager, err = quorumlock.New(ctx, nodes, options...)
	if err != nil {
		return nil, err
	}
	return service, nil
}

// kindOf shortens a name for metrics: "orders/4711" becomes "orders/*". Each different
// text creates its own time series. Leaders keep their names: an alert needs them.
func kindOf(name string) string {
	kind, _, found := strings.Cut(name, "/")
	switch {
	case !found:
		return ""
	case kind == "leader":
		return name
	}
	return kind + "/*"
}

// tracer returns the tracer of the service's own spans.
func (s *service) tracer() trace.Tracer { return s.tracers.Tracer("example/" + s.name) }

// flush exports the spans that are still in memory.
func (s *service) flush() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return s.tracers.ForceFlush(ctx)
}

// close closes the Manager first, because the spans and metrics of its end must still be
// exported.
func (s *service) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = s.manager.Close(ctx)
	_ = s.tracers.Shutdown(ctx)
	_ = s.meters.Shutdown(ctx)
}

// serve serves a metrics page for each service, as two processes would.
func serve(ctx context.Context, s *settings, services []*service) (stop func(), err error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", s.metrics)
	if err != nil {
		return nil, fmt.Errorf("-metrics: %w", err)
	}
	mux := http.NewServeMux()
	for _, s := range services {
		mux.Handle("/"+s.name+"/metrics", promhttp.HandlerFor(s.page, promhttp.HandlerOpts{EnableOpenMetrics: true} /* for exemplars */))
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			_, _ = fmt.Fprintln(s.out, "metrics:", err)
		}
	}()
	_, _ = fmt.Fprintf(s.out, "metrics on http://%s/checkout/metrics and /billing/metrics\n", listener.Addr())
	return func() {
		_ = server.Close()
		<-done
	}, nil
}

// recorder keeps the spans that the services export, for the story and the picture.
type recorder struct {
	mu    sync.Mutex
	spans []sdktrace.ReadOnlySpan
}

// ExportSpans implements [sdktrace.SpanExporter].
func (r *recorder) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans = append(r.spans, spans...)
	return nil
}

// Shutdown implements [sdktrace.SpanExporter].
func (r *recorder) Shutdown(context.Context) error { return nil }

// take returns the spans since the last call. It waits a moment until there is a hold
// span for each lease, because the Managers make these spans in separate goroutines.
func (r *recorder) take() []sdktrace.ReadOnlySpan {
	deadline := time.Now().Add(time.Second)
	for {
		r.mu.Lock()
		count := map[string]int{}
		for _, s := range r.spans {
			count[s.Name()]++
		}
		if count["quorumlock.hold"] >= count["quorumlock.acquire"] || time.Now().After(deadline) {
			spans := r.spans
			r.spans = nil
			r.mu.Unlock()
			return spans
		}
		r.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
	}
}
