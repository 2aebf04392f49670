package integration

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// transcript records all output of a Manager. It is the writer of its log, its tracer and its meter.
type transcript struct {
	tracenoop.TracerProvider
	testkit.Buffer
}

// note records values in every way in which they can be printed.
func (e *transcript) note(what string, values ...any) {
	for _, v := range values {
		_, _ = fmt.Fprintf(e, "%s: %v\n%+v\n%#v\n%q\n", what, v, v, v, fmt.Sprint(v))
	}
}

// noteError records an error and everything that it wraps.
func (e *transcript) noteError(err error) {
	if err == nil {
		return
	}
	e.note("error", err)
	switch wrapped := err.(type) { //nolint:errorlint // every level is checked
	case interface{ Unwrap() error }:
		e.noteError(wrapped.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range wrapped.Unwrap() {
			e.noteError(inner)
		}
	}
}

func (e *transcript) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(e, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true}))
}

func (e *transcript) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return &transcriptTracer{e: e}
}

type transcriptTracer struct {
	tracenoop.Tracer
	e *transcript
}

func (t *transcriptTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	config := trace.NewSpanStartConfig(opts...)
	t.e.note("span "+name, config.Attributes(), config.Links())
	s := &transcriptSpan{e: t.e}
	return trace.ContextWithSpan(ctx, s), s
}

type transcriptSpan struct {
	tracenoop.Span
	e *transcript
}

func (s *transcriptSpan) IsRecording() bool { return true }

func (s *transcriptSpan) SetName(name string) { s.e.note("name", name) }

func (s *transcriptSpan) SetStatus(_ codes.Code, text string) { s.e.note("status", text) }

func (s *transcriptSpan) SetAttributes(attrs ...attribute.KeyValue) { s.e.note("attributes", attrs) }

func (s *transcriptSpan) RecordError(err error, _ ...trace.EventOption) { s.e.noteError(err) }

func (s *transcriptSpan) AddEvent(name string, opts ...trace.EventOption) {
	config := trace.NewEventConfig(opts...)
	s.e.note("event "+name, config.Attributes())
}

// meters is the transcript's MeterProvider. It is a separate type because the names of the methods clash.
type meters struct {
	metricnoop.MeterProvider
	e *transcript
}

func (m meters) Meter(string, ...metric.MeterOption) metric.Meter { return transcriptMeter{e: m.e} }

type transcriptMeter struct {
	metricnoop.Meter
	e *transcript
}

func (m transcriptMeter) Float64Histogram(name string, _ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return transcriptHistogram{e: m.e, name: name}, nil
}

func (m transcriptMeter) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return transcriptCounter{e: m.e, name: name}, nil
}

type transcriptHistogram struct {
	metricnoop.Float64Histogram
	e    *transcript
	name string
}

func (h transcriptHistogram) Record(_ context.Context, _ float64, opts ...metric.RecordOption) {
	attrs := metric.NewRecordConfig(opts).Attributes()
	h.e.note("metric "+h.name, attrs.ToSlice())
}

type transcriptCounter struct {
	metricnoop.Int64Counter
	e    *transcript
	name string
}

func (c transcriptCounter) Add(_ context.Context, _ int64, opts ...metric.AddOption) {
	attrs := metric.NewAddConfig(opts).Attributes()
	c.e.note("metric "+c.name, attrs.ToSlice())
}

// withoutHello is set where scripts/compat.sh has renamed HELLO. Valkey 9 asks for the password before it reports that,
// so a client cannot detect it.
var withoutHello = os.Getenv("QUORUMLOCK_RESP") == "2"

// A Manager runs into every kind of failure, and none of its output contains a secret.
func TestSecretsAreNeverPrinted(t *testing.T) {
	testkit.OnlyAddrs(t, "the Sentinel and the owner of the slots know the plain port")
	t.Parallel()
	const (
		password = "open-sesame-4711"
		wrong    = "closed-barley-0815"
	)
	ca, clients, stranger := redistest.NewCA(t), redistest.NewCA(t), redistest.NewCA(t)
	certificate := clients.Certificate("client")
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	require.NoError(t, err)
	servers := redistest.StartWith(t, 3, redistest.Options{
		TLS:  &redistest.TLS{CA: ca, Clients: clients},
		Args: []string{"--user", "default", "on", ">" + password, "~*", "&*", "+@all", "--user", "admin", "on", "nopass", "~*", "+@all"},
	})
	var proxies []*redistest.Proxy
	var addrs []string
	for _, s := range servers {
		p := redistest.NewProxy(t, s.TLSAddr())
		proxies, addrs = append(proxies, p), append(addrs, p.Addr())
	}
	var said transcript
	named := func(user, password string) func(*rueidis.ClientOption) {
		return func(o *rueidis.ClientOption) {
			o.TLSConfig = ca.ClientConfig(certificate)
			o.Username, o.Password = user, password
			o.AlwaysRESP2 = withoutHello
		}
	}
	function := func(user, password string) func(*rueidis.ClientOption) {
		return func(o *rueidis.ClientOption) {
			named("", "")(o)
			o.AuthCredentialsFn = func(rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
				return rueidis.AuthCredentials{Username: user, Password: password}, nil
			}
		}
	}
	opts := []quorumlock.Option{
		quorumlock.WithTTL(3 * time.Second), quorumlock.WithNodeTimeout(500 * time.Millisecond), quorumlock.WithLogger(said.logger()), quorumlock.WithTracerProvider(&said),
		quorumlock.WithMeterProvider(meters{e: &said}), quorumlock.WithHolder("me"),
	}
	keptOut := func(change func(*rueidis.ClientOption)) {
		t.Helper()
		_, err := quorumlock.New(background, over(t, addrs, change), opts...)
		require.Error(t, err)
		said.noteError(err)
	}

	// Rejected at the start.
	keptOut(named("", wrong))
	keptOut(named("default", wrong))
	keptOut(named("nobody", password))
	keptOut(function("default", wrong))
	keptOut(func(o *rueidis.ClientOption) {
		named("", password)(o)
		o.TLSConfig = stranger.ClientConfig(certificate)
	})
	keptOut(func(o *rueidis.ClientOption) {
		named("", password)(o)
		o.TLSConfig = ca.ClientConfig(stranger.Certificate("client"))
	})
	keptOut(func(o *rueidis.ClientOption) { named("", password)(o); o.SelectDB = 999 })
	keptOut(func(o *rueidis.ClientOption) { named("", password)(o); o.ConnLifetime = time.Second })
	keptOut(func(o *rueidis.ClientOption) { named("", password)(o); o.TLSConfig = nil })
	// An address that contains a password, as a URL does, is invalid.
	for _, addr := range []string{"redis://default:%s@127.0.0.1:6379", ":%s@127.0.0.1:6379"} {
		keptOut(func(o *rueidis.ClientOption) {
			named("", password)(o)
			o.InitAddress[0] = fmt.Sprintf(addr, password) + o.InitAddress[0][len("127.0.0.1:"):] // the port, so that all addresses differ
		})
	}

	// Accepted, and then everything fails.
	for _, change := range []func(*rueidis.ClientOption){named("", password), function("default", password)} {
		nodes := over(t, addrs, change)
		m, err := start(t, nodes, opts...)
		require.NoError(t, err)
		events := m.Subscribe(10_000)
		l := testkit.Acquired(t, m, "job")
		err = refused(t, m, "job")
		require.ErrorIs(t, err, quorumlock.ErrHeld)
		said.noteError(err)

		proxies[0].Refuse() // dials fail
		said.noteError(l.Renew(background))
		servers[1].Kill() // connections break
		said.noteError(l.Renew(background))
		<-l.Done()
		said.noteError(l.Err())
		said.note("lost", <-l.Lost())
		said.noteError(l.Release(background))
		status, err := m.Inspect(background, "job")
		said.note("status", status)
		for _, n := range status.Nodes {
			said.noteError(n.Err)
		}
		said.noteError(err)
		_, err = m.TryAcquire(background, "job")
		require.ErrorIs(t, err, quorumlock.ErrNoQuorum)
		said.noteError(err)
		proxies[0].Heal()
		servers[1].Restart()

		// The password is changed while the client runs.
		for _, s := range servers {
			s.Restart()
		}
		testkit.Eventually(t, "all nodes vote again", func() bool {
			l, err := m.TryAcquire(background, "other")
			return err == nil && l.Release(background) == nil
		})
		for _, s := range servers {
			change := redis(t, s.TLSAddr(), ca.ClientConfig(certificate), password)
			require.NoError(t, change.Do(background, change.B().Arbitrary("ACL", "SETUSER", "default", "resetpass", ">changed").Build()).Error())
			require.NoError(t, change.Do(background, change.B().Arbitrary("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Build()).Error())
			change.Close()
		}
		testkit.Eventually(t, "locked out", func() bool {
			_, err := m.TryAcquire(background, "job")
			said.noteError(err)
			return err != nil && strings.Contains(err.Error(), "WRONGPASS")
		})
		require.NoError(t, m.Close(background))
		said.note("output of a careless program", m, l) // all values are final now
		for e := range events.C() {
			said.note("event", e)
			if changed, ok := e.(quorumlock.NodeChanged); ok {
				said.noteError(changed.Err)
			}
		}
		for _, s := range servers {
			s.Restart()
		}
	}

	all := said.String()
	for _, must := range []string{ // the transcript is not empty
		"WRONGPASS", "unknown authority", "refused", "quorumlock.acquire", "quorumlock.node.operation.duration",
		"node grants no locks", "NodeChanged", "AtRisk", "Lost", "status: ", `"level":"INFO"`,
	} {
		assert.Contains(t, all, must)
	}
	for name, secret := range map[string]string{
		"password": password, "wrong password": wrong, "key": hex.EncodeToString(key), "KEY": strings.ToUpper(hex.EncodeToString(key)),
		"PEM of the key":    strings.SplitN(string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})), "\n", 3)[1],
		"number of the key": fmt.Sprint(certificate.PrivateKey),
	} {
		if at := strings.Index(all, secret); at >= 0 {
			t.Errorf("the %s is in it: %s", name, all[max(0, at-300):min(len(all), at+300)])
		}
	}
}

// redis returns a plain client over TLS.
func redis(t *testing.T, addr string, config *tls.Config, password string) rueidis.Client {
	t.Helper()
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{addr}, TLSConfig: config, Password: password, DisableCache: true, ForceSingleClient: true, AlwaysRESP2: withoutHello,
	})
	require.NoError(t, err)
	return c
}
