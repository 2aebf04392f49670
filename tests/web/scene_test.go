package web

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/quorumlocktest"
	"github.com/quorumlock/quorumlock/web"
)

var background = context.Background()

// traced returns a context with a span, and the id of its trace.
func traced() (context.Context, string) {
	id := trace.TraceID{0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d, 0x0e, 0x0e, 0x47, 0x36}
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{1, 2, 3, 4, 5, 6, 7, 8}, TraceFlags: trace.FlagsSampled})
	return trace.ContextWithSpanContext(background, span), id.String()
}

// manager returns a Manager over the nodes, which logs nothing: nodes go down on purpose.
func manager(t *testing.T, c *quorumlocktest.Cluster, label string) *quorumlock.Manager {
	t.Helper()
	return c.Manager(t, quorumlock.WithHolder(label), quorumlock.WithLogger(slog.New(slog.DiscardHandler)), quorumlock.WithTTL(30*time.Second),
		quorumlock.WithNodeTimeout(5*time.Second), quorumlock.WithStartupWait(patience))
}

// acquire takes a lease in a context, with options.
func acquire(t *testing.T, ctx context.Context, m *quorumlock.Manager, name string, opts ...quorumlock.AcquireOption) *quorumlock.Lease {
	t.Helper()
	l, err := m.Acquire(ctx, name, opts...)
	require.NoError(t, err)
	return l
}

// wait has a call wait for a name until the end of the test.
func wait(t *testing.T, m *quorumlock.Manager, name string, opts ...quorumlock.AcquireOption) {
	t.Helper()
	ctx, stop := context.WithCancel(background)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = m.Acquire(ctx, name, opts...)
	}()
	t.Cleanup(func() { stop(); <-done })
}

// crowd has 9 readers wait for "crowd", and adds a forged entry with a text to its queue.
func crowd(t *testing.T, c *quorumlocktest.Cluster, m *quorumlock.Manager, text string) {
	t.Helper()
	acquire(t, background, m, "crowd")
	for _, n := range c.Nodes() {
		_, err := n.Do("ZADD", "quorumlock:crowd\xffq", "9007199254740991", text)
		require.NoError(t, err)
	}
	other := manager(t, c, "")
	for range 9 {
		wait(t, other, "crowd", quorumlock.Shared())
	}
	require.Eventually(t, func() bool {
		s, err := m.Inspect(background, "crowd")
		return err == nil && s.Waiters == 9
	}, patience, 10*time.Millisecond)
}

// serve serves the page of a Manager below a prefix, on the given address or a free one, and returns its URL.
func serve(t *testing.T, h http.Handler, addr string) (url string, server *http.Server) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", addr)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("/debug/locks/", http.StripPrefix("/debug/locks", h))
	server = &http.Server{Handler: mux, ReadHeaderTimeout: patience, ReadTimeout: 2 * time.Second, WriteTimeout: 2 * time.Second}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return "http://" + listener.Addr().String() + "/debug/locks/", server
}

// handler returns the page with links to traces.
func handler(t *testing.T, m *quorumlock.Manager) http.Handler {
	t.Helper()
	link, err := web.TraceLink("https://jaeger.example/trace/{trace}?uiFind={span}")
	require.NoError(t, err)
	return web.Handler(m, link)
}

// night is a scene for an operator: billing-1 and billing-2 hold, wait, and one node of three is down.
func night(t *testing.T) (url string) {
	t.Helper()
	c := quorumlocktest.Start(t, 3)
	m := manager(t, c, "billing-1 (eu-west)")
	other, third := manager(t, c, "billing-2 (eu-west)"), manager(t, c, "reports-1 (eu-west)")
	h := handler(t, m)
	lost := acquire(t, background, m, "invoices/close-month")
	c.ForceLost(t, lost)
	inTrace, _ := traced()
	acquire(t, inTrace, other, "reports/daily")
	wait(t, m, "reports/daily")
	wait(t, third, "reports/daily")
	acquire(t, background, m, "orders/4711")
	wait(t, third, "orders/4711")
	for _, name := range []string{"shards/03", "shards/07", "shards/11"} {
		acquire(t, background, m, name)
	}
	acquire(t, background, m, "encode", quorumlock.Permits(4))
	acquire(t, background, other, "encode", quorumlock.Permits(4))
	acquire(t, background, m, "prices", quorumlock.Shared())
	acquire(t, background, third, "prices", quorumlock.Shared())
	require.NoError(t, third.AskRelease(background, "orders/4711", "deploy of checkout"))
	require.Eventually(t, func() bool { return everywhere(m) }, patience, 10*time.Millisecond)
	c.Kill(2)
	require.Eventually(t, func() bool { return !m.Nodes()[2].Voting }, patience, 10*time.Millisecond)
	url, _ = serve(t, h, "127.0.0.1:0")
	return url
}

// everywhere reports whether each node has each lock: the last votes come after the grant.
func everywhere(m *quorumlock.Manager) bool {
	for s, err := range m.List(background, "") {
		if err != nil || s.Name != "invoices/close-month" && s.Votes < 3 {
			return false
		}
	}
	return true
}
