package quorumlock_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

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
)

// Access control: TLS, users, and foreign values under our keys.

// over returns one changed option for each address.
func over(addrs []string, change func(*rueidis.ClientOption)) []rueidis.ClientOption {
	nodes := quorumlock.Addrs(addrs...)
	for i := range nodes {
		change(&nodes[i])
	}
	return nodes
}

// patient returns options for tests that are not about time: a machine that stalls for
// seconds must not change their result.
func patient(opts ...quorumlock.Option) []quorumlock.Option {
	return append([]quorumlock.Option{quorumlock.WithTTL(30 * time.Second), quorumlock.WithNodeTimeout(3 * time.Second)}, opts...)
}

// acquired waits for a lease that is free.
func acquired(tb testing.TB, m *quorumlock.Manager, name string, opts ...quorumlock.AcquireOption) *quorumlock.Lease {
	tb.Helper()
	ctx, cancel := context.WithTimeout(background, time.Minute)
	defer cancel()
	l, err := m.Acquire(ctx, name, opts...)
	require.NoError(tb, err)
	return l
}

// confirmed repeats a request that needs a majority while nodes are too slow for it.
func confirmed(tb testing.TB, ask func(context.Context) error) {
	tb.Helper()
	var err error
	eventually(tb, "a majority has confirmed", func() bool { err = ask(background); return !errors.Is(err, quorumlock.ErrNoQuorum) })
	require.NoError(tb, err)
}

// released releases a lease. Slow nodes may confirm it later.
func released(tb testing.TB, l *quorumlock.Lease) {
	tb.Helper()
	if err := l.Release(background); !errors.Is(err, quorumlock.ErrNoQuorum) {
		require.NoError(tb, err)
	}
}

// refused asks for a lease once, and again while nodes are too slow. It returns the
// reason for the refusal: another holder, or a misconfigured node.
func refused(tb testing.TB, m *quorumlock.Manager, name string) (err error) {
	tb.Helper()
	eventually(tb, "refused", func() bool {
		var l *quorumlock.Lease
		l, err = m.TryAcquire(background, name)
		require.Nil(tb, l)
		var short *quorumlock.QuorumError
		if !errors.As(err, &short) {
			return true
		}
		broken := 0
		for _, n := range short.Nodes {
			if n.Misconfigured() {
				broken++
			}
		}
		return broken >= short.Need
	})
	return err
}

// inspected returns the status of the name job, from all nodes.
func inspected(tb testing.TB, m *quorumlock.Manager) (s quorumlock.Status) {
	tb.Helper()
	confirmed(tb, func(ctx context.Context) (err error) { s, err = m.Inspect(ctx, "job"); return err })
	return s
}

// start returns the results of New. It tries again while running nodes are too slow for
// New.
func start(tb testing.TB, nodes []rueidis.ClientOption, opts ...quorumlock.Option) (m *quorumlock.Manager, err error) {
	tb.Helper()
	eventually(tb, "greeted", func() bool {
		m, err = quorumlock.New(background, nodes, opts...)
		return !errors.Is(err, quorumlock.ErrNoQuorum)
	})
	return m, err
}

// open returns a Manager that is closed with its test.
func open(tb testing.TB, nodes []rueidis.ClientOption, opts ...quorumlock.Option) *quorumlock.Manager {
	tb.Helper()
	m, err := start(tb, nodes, opts...)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, m.Close(background)) })
	return m
}

// tlsAddrs returns the addresses at which servers speak TLS.
func tlsAddrs(servers []*redistest.Server) (addrs []string) {
	for _, s := range servers {
		addrs = append(addrs, s.TLSAddr())
	}
	return addrs
}

func TestALeaseLivesItsWholeLifeOverTLS(t *testing.T) {
	ca, clients := redistest.NewCA(t), redistest.NewCA(t)
	named := ca.ClientConfig()
	named.ServerName = "redis.test"
	for _, c := range []struct {
		claim  string
		server redistest.TLS
		config *tls.Config
	}{
		{"by address", redistest.TLS{CA: ca}, ca.ClientConfig()},
		{"by name", redistest.TLS{CA: ca, Names: []string{"redis.test"}}, named},
		{"with client certificates", redistest.TLS{CA: ca, Clients: clients}, ca.ClientConfig(clients.Certificate("client"))},
	} {
		t.Run(c.claim, func(t *testing.T) {
			servers := redistest.StartWith(t, 3, redistest.Options{TLS: &c.server})
			nodes := over(tlsAddrs(servers), func(o *rueidis.ClientOption) { o.TLSConfig = c.config })
			live(t, open(t, nodes, lively...), open(t, nodes, lively...), servers)
		})
	}
}

// lively are options for live: the watchdog renews every 2 s.
var lively = []quorumlock.Option{quorumlock.WithTTL(6 * time.Second), quorumlock.WithNodeTimeout(3 * time.Second)}

// live takes a Manager through every event in the life of a lease, on servers of its own,
// with a contender over the same servers.
func live(t *testing.T, m, contender *quorumlock.Manager, servers []*redistest.Server) {
	t.Helper()
	l := acquired(t, m, "job", quorumlock.WithHolder("me"))
	assert.Positive(t, l.Token())
	eventually(t, "all votes are in", func() bool { return locks(t, servers, "job") == len(servers) })
	var held *quorumlock.HeldError
	require.ErrorAs(t, refused(t, contender, "job"), &held)
	assert.Equal(t, "me", held.Holder.Label)
	assert.Positive(t, held.RetryAfter)
	s := inspected(t, contender)
	assert.True(t, s.Held)
	assert.Equal(t, l.Token(), s.Fence)
	<-l.Renewed() // by the watchdog
	confirmed(t, l.Renew)
	confirmed(t, l.Verify)

	servers[0].MustDo("DEL", "quorumlock:job")
	confirmed(t, l.Renew)
	eventually(t, "healed", func() bool { return locks(t, servers, "job") == len(servers) })
	servers[0].Restart()
	eventually(t, "healed after a restart", func() bool { return locks(t, servers, "job") == len(servers) })
	released(t, l)
	eventually(t, "released", func() bool { return locks(t, servers, "job") == 0 })

	next := acquired(t, contender, "job")
	assert.Greater(t, next.Token(), l.Token())
	for _, server := range servers {
		server.MustDo("DEL", "quorumlock:job")
	}
	eventually(t, "lost", func() bool { return errors.Is(next.Verify(background), quorumlock.ErrLost) })
	require.ErrorIs(t, next.Release(background), quorumlock.ErrLost)

	// Registers that differ, and are above the proposed token, have to be raised before
	// the grant.
	ahead := time.Now().Add(time.Minute).UnixMicro()
	for i, server := range servers {
		server.MustDo("ZADD", registersKey, fmt.Sprint(ahead+int64(i)), "quorumlock:uneven")
	}
	next = acquired(t, m, "uneven")
	assert.Greater(t, next.Token(), ahead+1, "above two of the three")
	assert.LessOrEqual(t, next.Token(), ahead+3)
	released(t, next)
}

// The companion keys, as docs/operations.md has them.
func queueKey(name string) string { return "quorumlock:" + name + "\xffq" }

const (
	registersKey = "quorumlock:\xffr"
	baseKey      = "quorumlock:\xffb"
	hintKey      = "quorumlock:\xffh"
	markerKey    = "quorumlock:\xffg"
)

func TestATLSNodeThatCannotBeTrustedIsRefusedAndTheErrorSaysWhy(t *testing.T) {
	ca, clients := redistest.NewCA(t), redistest.NewCA(t)
	servers := redistest.StartWith(t, 1, redistest.Options{TLS: &redistest.TLS{CA: ca, Names: []string{"redis.test", "127.0.0.1"}}})
	strict := redistest.StartWith(t, 1, redistest.Options{TLS: &redistest.TLS{CA: ca, Clients: clients}})
	named := func(name string) *tls.Config { c := ca.ClientConfig(); c.ServerName = name; return c }
	// With TLS 1.3 a client notices its refusal only after the handshake, perhaps only by
	// the end of the connection.
	old := func(c *tls.Config) *tls.Config { c.MaxVersion = tls.VersionTLS12; return c }
	for _, c := range []struct {
		claim, addr string
		config      *tls.Config
		cause       any // for errors.As
		text        string
	}{
		{"another CA", servers[0].TLSAddr(), redistest.NewCA(t).ClientConfig(), new(x509.UnknownAuthorityError), "unknown authority"},
		{"another name", servers[0].TLSAddr(), named("other.test"), new(x509.HostnameError), "not other.test"},
		{"no TLS there", servers[0].Addr(), ca.ClientConfig(), nil, ""},
		{"no TLS here", servers[0].TLSAddr(), nil, nil, ""},
		{"no client certificate", strict[0].TLSAddr(), old(ca.ClientConfig()), nil, "tls: "},
		{"a client certificate of another CA", strict[0].TLSAddr(), old(ca.ClientConfig(ca.Certificate("client"))), nil, "tls: "},
		{"no client certificate, TLS 1.3", strict[0].TLSAddr(), ca.ClientConfig(), nil, ""},
	} {
		t.Run(c.claim, func(t *testing.T) {
			var err error
			eventually(t, "refused for this reason and not for a timeout", func() bool {
				_, err = quorumlock.New(background, over([]string{c.addr}, func(o *rueidis.ClientOption) { o.TLSConfig = c.config }))
				require.Error(t, err)
				return strings.Contains(err.Error(), c.text)
			})
			var node *quorumlock.NodeError
			require.ErrorAs(t, err, &node)
			assert.Equal(t, c.addr, node.Addr)
			if c.cause != nil {
				assert.ErrorAs(t, err, c.cause)
			}
			assert.True(t, errors.Is(err, quorumlock.ErrNoQuorum) || errors.Is(err, quorumlock.ErrInvalid), "%v", err)
		})
	}
}

func TestOneNodeThatCannotBeTrustedDoesNotVoteAndTheOthersDo(t *testing.T) {
	ca, other := redistest.NewCA(t), redistest.NewCA(t)
	servers := append(redistest.StartWith(t, 2, redistest.Options{TLS: &redistest.TLS{CA: ca}}),
		redistest.StartWith(t, 1, redistest.Options{TLS: &redistest.TLS{CA: other}})...)
	m := open(t, over(tlsAddrs(servers), func(o *rueidis.ClientOption) { o.TLSConfig = ca.ClientConfig() }), patient()...)
	l := acquired(t, m, "job")
	confirmed(t, l.Renew)
	eventually(t, "the reason", func() bool {
		err := inspected(t, m).Nodes[2].Err
		require.Error(t, err)
		return strings.Contains(err.Error(), "unknown authority")
	})
	released(t, l)
	assert.Empty(t, keys(t, servers[2:]))
}

// documented returns the minimal rules of the user in docs/operations.md, without the
// words "user" and the name.
func documented(t *testing.T) (rules []string) {
	t.Helper()
	text, err := os.ReadFile("docs/operations.md")
	require.NoError(t, err)
	lines := regexp.MustCompile(`(?m)^user quorumlock .*$`).FindAllString(string(text), -1)
	require.Len(t, lines, 1, "the documentation has one such line")
	return strings.Fields(lines[0])[2:]
}

const documentedPassword = "CHANGE-ME"

// as returns options of the documented user.
func as(user string, addrs []string) []rueidis.ClientOption {
	return over(addrs, func(o *rueidis.ClientOption) { o.Username, o.Password = user, documentedPassword })
}

func TestTheDocumentedRightsAreEnoughForAWholeLife(t *testing.T) {
	user := append([]string{"--user", "quorumlock"}, documented(t)...)
	for claim, opts := range map[string][]quorumlock.Option{
		"plain":   nil,
		"guarded": {quorumlock.WithRestartGuard(6 * time.Second), quorumlock.WithTrustEmptyNodes()},
	} {
		t.Run(claim, func(t *testing.T) {
			servers := redistest.Start(t, 3, user...)
			nodes := as("quorumlock", redistest.Addrs(servers))
			opts = append(opts, lively...)
			live(t, open(t, nodes, opts...), open(t, nodes, opts...), servers)
			for _, s := range servers {
				assert.Empty(t, s.MustDo("ACL", "LOG"), "the server refuses no command of the library")
			}
		})
	}
}

// Without any one of the rights, or of the other rules in the line, an error reports it
// in a way that the user can act on. A rule that no error would report does not belong in
// the line.
func TestAnErrorNamesEveryDocumentedRightThatIsMissing(t *testing.T) {
	server := redistest.Start(t, 1)[0]
	rules := documented(t)
	want := map[string]string{ // the pattern of the error, if it is not the right itself
		"on": "WRONGPASS.*; set Username and Password", ">" + documentedPassword: "WRONGPASS.*; set Username and Password",
		"~quorumlock:*": "access (one of the keys|a key)",
		"&quorumlock:*": "channel",
		"resetchannels": "", "-@all": "", // these remove rights, and a new user has none
		"+ping": "", // only the server complains, see below
	}
	// named finds the rights that an error names. The server writes them in quotes, the
	// library after a plus. Whole words only, since some rights are part of others.
	named := regexp.MustCompile(`'([a-z|]+)' command|\+([a-z|]+)`)
	for i, rule := range rules {
		t.Run(rule, func(t *testing.T) {
			user := fmt.Sprintf("without-%d", i)
			server.MustDo(append([]string{"ACL", "SETUSER", user}, slices.Delete(slices.Clone(rules), i, i+1)...)...)
			pattern, special := want[rule]
			if !special {
				pattern = named.String()
			}
			expected, fits := pattern != "", regexp.MustCompile(pattern)
			var all []string
			complained := func() bool {
				all = nil
				found := false
				for _, opts := range [][]quorumlock.Option{
					nil,
					{quorumlock.WithRestartGuard(30 * time.Second), quorumlock.WithTrustEmptyNodes()},
				} {
					for _, err := range complaints(t, as(user, []string{server.Addr()}), server, opts) {
						all = append(all, err.Error())
						found = found || expected && actionable(err) && fits.MatchString(err.Error())
						for _, match := range named.FindAllStringSubmatch(err.Error(), -1) {
							assert.Equal(t, strings.TrimPrefix(rule, "+"), match[1]+match[2], "the right that is missing, and no other: %v", err)
						}
					}
				}
				return found
			}
			for range 3 { // a slow node causes a different error
				if complained() == expected && (expected || all == nil) {
					return
				}
			}
			assert.Fail(t, "no error names the missing right and its remedy", "%q among\n%s", rule, strings.Join(all, "\n"))
		})
	}
}

// New reports the rights that the first renewal would need, whatever rights the guard's
// own script needs.
func TestNewReportsMissingRightsOfRenewalsUnderTheGuardToo(t *testing.T) {
	for _, right := range []string{"+getrange", "+pttl"} {
		rules := slices.DeleteFunc(documented(t), func(rule string) bool { return rule == right })
		server := redistest.Start(t, 1, append([]string{"--user", "quorumlock"}, rules...)...)[0]
		_, err := start(t, as("quorumlock", []string{server.Addr()}), quorumlock.WithTTL(30*time.Second),
			quorumlock.WithRestartGuard(30*time.Second), quorumlock.WithTrustEmptyNodes())
		require.ErrorIs(t, err, quorumlock.ErrInvalid, right)
		require.ErrorContains(t, err, strings.TrimPrefix(right, "+")) // the right, or the rule that grants it
	}
}

// actionable reports whether the error says that waiting does not help.
func actionable(err error) bool {
	var node *quorumlock.NodeError
	return errors.Is(err, quorumlock.ErrInvalid) || errors.As(err, &node) && node.Misconfigured()
}

// complaints takes a lease through its whole life on one server and returns every error.
func complaints(t *testing.T, nodes []rueidis.ClientOption, server *redistest.Server, opts []quorumlock.Option) (errs []error) {
	t.Helper()
	server.MustDo("FLUSHALL")
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	opts = append(opts, quorumlock.WithTTL(30*time.Second), quorumlock.WithNodeTimeout(300*time.Millisecond))
	m, err := start(t, nodes, opts...)
	note(err)
	if err != nil {
		return errs
	}
	defer func() { require.NoError(t, m.Close(background)) }()
	events := m.Subscribe(100)
	l, err := m.TryAcquire(background, "job", quorumlock.WithoutRenewal())
	note(err)
	if err == nil {
		note(l.Renew(background))
		note(l.Verify(background))
		server.MustDo("DEL", "quorumlock:job")
		if err := l.Renew(background); !errors.Is(err, quorumlock.ErrLost) { // expected: the key is gone on the only node
			note(err)
		}
	}
	server.MustDo("SET", "quorumlock:taken", "somebody else", "PX", "60000")
	if _, err := m.TryAcquire(background, "taken"); !errors.Is(err, quorumlock.ErrHeld) {
		note(err)
	}
	_, err = m.Inspect(background, "taken")
	note(err)
	l, err = m.TryAcquire(background, "other")
	note(err)
	if err == nil {
		note(l.Release(background))
	}
	for _, err := range waitAndCome(t, m, nodes, server, opts) {
		note(err)
	}
	for {
		select {
		case e := <-events.C():
			if changed, ok := e.(quorumlock.NodeChanged); ok {
				note(changed.Err)
			}
		default:
			return errs
		}
	}
}

// waitAndCome has a caller wait for a lease until it is released, and returns every
// error.
func waitAndCome(
	t *testing.T, m *quorumlock.Manager, nodes []rueidis.ClientOption, server *redistest.Server, opts []quorumlock.Option,
) (errs []error) {
	t.Helper()
	l, err := m.TryAcquire(background, "wanted")
	if err != nil {
		return []error{err}
	}
	other, err := start(t, nodes, opts...)
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close(background)) }()
	events := other.Subscribe(100)
	ctx, cancel := context.WithTimeout(background, 3*time.Second)
	defer cancel()
	came := make(chan error, 1)
	go func() {
		l, err := other.Acquire(ctx, "wanted")
		if err == nil {
			err = l.Release(background)
		}
		came <- err
	}()
	ended := func() bool { return len(came) > 0 }
	eventually(t, "it is in the queue, or the queue refused it", func() bool {
		warned := false
		for more := true; more; {
			select {
			case e := <-events.C():
				if changed, ok := e.(quorumlock.NodeChanged); ok && changed.Warning != nil {
					errs = append(errs, fmt.Errorf("%w: %w", quorumlock.ErrInvalid, changed.Warning))
					warned = true
				}
			default:
				more = false
			}
		}
		return warned || ended() || server.MustDo("EXISTS", queueKey("wanted")) == int64(1)
	})
	if err := l.Release(background); err != nil {
		errs = append(errs, err)
	}
	if err := <-came; err != nil && !errors.Is(err, context.DeadlineExceeded) {
		errs = append(errs, err)
	}
	return errs
}

// Without PING everything works, because a refusal is an answer too. But the server logs
// each refusal.
func TestWithoutTheRightToPINGOnlyTheServerComplains(t *testing.T) {
	rules := documented(t)
	i := slices.Index(rules, "+ping")
	require.NotEqual(t, -1, i)
	server := redistest.Start(t, 1, append([]string{"--user", "quorumlock"}, slices.Delete(rules, i, i+1)...)...)[0]
	m := open(t, as("quorumlock", []string{server.Addr()}), patient()...)
	l := acquired(t, m, "job")
	connection := func() string {
		return regexp.MustCompile(`(?m)^id=\d+ .* user=quorumlock `).FindString(fmt.Sprint(server.MustDo("CLIENT", "LIST")))
	}
	id, _, _ := strings.Cut(connection(), " ")
	require.NotEmpty(t, id)
	refused := regexp.MustCompile(`count ([2-9]|\d\d+) reason command context toplevel object ping `)
	eventually(t, "refused repeatedly", func() bool {
		return refused.MatchString(fmt.Sprint(server.MustDo("ACL", "LOG")))
	})
	confirmed(t, l.Renew)
	assert.Contains(t, connection(), id+" ", "the connection stays")
	released(t, l)
}

// Without INFO the checks are impossible. That is a warning, and an error with the guard.
func TestWithoutTheRightToINFOThereIsAWarningAndTheGuardRefuses(t *testing.T) {
	rules := documented(t)
	i := slices.Index(rules, "+info")
	require.NotEqual(t, -1, i)
	server := redistest.Start(t, 1, append([]string{"--user", "quorumlock"}, slices.Delete(rules, i, i+1)...)...)[0]
	nodes := as("quorumlock", []string{server.Addr()})
	var log transcript
	m := open(t, nodes, patient(quorumlock.WithLogger(log.logger()))...)
	eventually(t, "warned", func() bool { return strings.Contains(log.String(), "allow INFO to the user") })
	acquired(t, m, "job")
	_, err := start(t, nodes, quorumlock.WithRestartGuard(10*time.Second))
	require.ErrorIs(t, err, quorumlock.ErrInvalid)
	assert.Contains(t, err.Error(), "allow INFO")
}

// transcript records all output of a Manager: it is the writer of its log, its tracer and
// its meter.
type transcript struct {
	tracenoop.TracerProvider
	mu   sync.Mutex
	text bytes.Buffer
}

func (e *transcript) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.Write(b)
}

func (e *transcript) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.String()
}

// note records values, in every way in which they can be printed.
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

func (s *transcriptSpan) IsRecording() bool                             { return true }
func (s *transcriptSpan) SetName(name string)                           { s.e.note("name", name) }
func (s *transcriptSpan) SetStatus(_ codes.Code, text string)           { s.e.note("status", text) }
func (s *transcriptSpan) SetAttributes(attrs ...attribute.KeyValue)     { s.e.note("attributes", attrs) }
func (s *transcriptSpan) RecordError(err error, _ ...trace.EventOption) { s.e.noteError(err) }
func (s *transcriptSpan) AddEvent(name string, opts ...trace.EventOption) {
	config := trace.NewEventConfig(opts...)
	s.e.note("event "+name, config.Attributes())
}

// meters is the transcript's MeterProvider, a type of its own because the names of the
// methods clash.
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

// A Manager runs into every failure that there is, and none of its output contains a
// secret.
func TestSecretsAreNeverPrinted(t *testing.T) {
	const (
		password = "open-sesame-4711"
		wrong    = "closed-barley-0815"
	)
	ca, clients, strange := redistest.NewCA(t), redistest.NewCA(t), redistest.NewCA(t)
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
		_, err := quorumlock.New(background, over(addrs, change), opts...)
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
		o.TLSConfig = strange.ClientConfig(certificate)
	})
	keptOut(func(o *rueidis.ClientOption) {
		named("", password)(o)
		o.TLSConfig = ca.ClientConfig(strange.Certificate("client"))
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
		nodes := over(addrs, change)
		m, err := start(t, nodes, opts...)
		require.NoError(t, err)
		events := m.Subscribe(10_000)
		l := acquired(t, m, "job")
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
		eventually(t, "all nodes vote again", func() bool {
			l, err := m.TryAcquire(background, "other")
			return err == nil && l.Release(background) == nil
		})
		for _, s := range servers {
			change := redis(t, s.TLSAddr(), ca.ClientConfig(certificate), password)
			require.NoError(t, change.Do(background, change.B().Arbitrary("ACL", "SETUSER", "default", "resetpass", ">changed").Build()).Error())
			require.NoError(t, change.Do(background, change.B().Arbitrary("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Build()).Error())
			change.Close()
		}
		eventually(t, "locked out", func() bool {
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
		"node does not vote", "NodeChanged", "AtRisk", "Lost", "status: ", `"level":"INFO"`,
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
		InitAddress: []string{addr}, TLSConfig: config, Password: password, DisableCache: true, ForceSingleClient: true,
	})
	require.NoError(t, err)
	return c
}

// Values that another program or an attacker may write under the key of a lock. The nodes
// do not check their form.
func strangers() map[string][]string {
	owner := strings.Repeat("0123456789abcdef", 2)
	values := map[string]string{
		"empty":                  "",
		"text":                   "somebody else",
		"binary":                 "\x00\xff\xfe\r\n\x00",
		"only invalid UTF-8":     strings.Repeat("\xff", 400),
		"half invalid UTF-8":     strings.Repeat("a\xff", 400),
		"an owner and no more":   owner,
		"an owner and a space":   owner + " ",
		"no token":               owner + " x 1700000000000000 - label",
		"a negative token":       owner + " -1 1700000000000000 - label",
		"a token that overflows": owner + " 99999999999999999999999999 1700000000000000 - label",
		"the largest token":      owner + " 9223372036854775807 1700000000000000 - label",
		"a time that overflows":  owner + " 1 99999999999999999999999999 - label",
		"the largest time":       owner + " 1 9223372036854775807 - label",
		"the smallest time":      owner + " 1 -9223372036854775808 - label",
		"extra spaces":           owner + "  1  1700000000000000  -  label",
		"too few parts":          owner + " 1 1700000000000000",
		"an invalid label":       owner + " 1 1700000000000000 - \xff\xfe\xfd",
		"a label with newlines":  owner + " 1 1700000000000000 - a\r\nb\nc\x1b[31m",
		"a label without end":    owner + " 1 1700000000000000 - " + strings.Repeat("l", 4096),
		"an invalid traceparent": owner + " 1 1700000000000000 \xff\xfe label",
		"an endless traceparent": owner + " 1 1700000000000000 " + strings.Repeat("t", 4096) + " label",
		"the owner in capitals":  strings.ToUpper(owner) + " 1 1700000000000000 - label",
		"an owner too long":      owner + "0 1 1700000000000000 - label",
		"a label cut in a rune":  owner + " 1 1700000000000000 - " + strings.Repeat("l", 511-len(owner+" 1 1700000000000000 - ")) + "€",
	}
	commands := map[string][]string{
		"1 MiB":  {"SETRANGE", "", fmt.Sprint(1<<20 - 1), "x"},
		"list":   {"RPUSH", "", "item"},
		"hash":   {"HSET", "", "field", "v"},
		"set":    {"SADD", "", "member"},
		"zset":   {"ZADD", "", "1", "member"},
		"stream": {"XADD", "", "*", "field", "v"},
	}
	for claim, value := range values {
		commands[claim] = []string{"SET", "", value}
	}
	return commands
}

// put runs a command without its key on all servers, and replaces the key.
func put(servers []*redistest.Server, command []string, key string) {
	command = slices.Clone(command)
	command[1] = key
	for _, s := range servers {
		s.MustDo("DEL", key)
		s.MustDo(command...)
	}
}

// take deletes a key on all servers.
func take(servers []*redistest.Server, key string) {
	for _, s := range servers {
		s.MustDo("DEL", key)
	}
}

// dump returns the value of a key on the first server, without its time to live.
func dump(servers []*redistest.Server, key string) any {
	return servers[0].MustDo("DEBUG", "DIGEST-VALUE", key)
}

func TestAForeignValueUnderTheKeyOfALockIsToleratedAndUntouched(t *testing.T) {
	for claim, opts := range map[string][]quorumlock.Option{
		"plain":    nil,
		"unfenced": {quorumlock.WithoutFencing()},
		"guarded":  {quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes()},
	} {
		t.Run(claim, func(t *testing.T) {
			servers := redistest.Start(t, 3, "--enable-debug-command", "local")
			m := open(t, quorumlock.Addrs(redistest.Addrs(servers)...), patient(append(opts, quorumlock.WithTracerProvider(&textCheck{t: t}))...)...)
			for claim, command := range strangers() {
				t.Run(claim, func(t *testing.T) {
					key := quorumlock.DefaultPrefix + claim
					put(servers, command, key)
					before := dump(servers, key)
					var stats [2]runtime.MemStats
					runtime.ReadMemStats(&stats[0])
					began := time.Now()
					err := refused(t, m, claim)
					took := time.Since(began)
					runtime.ReadMemStats(&stats[1])
					bounded(t, err)
					assert.Less(t, took, 20*time.Second)
					assert.Less(t, stats[1].TotalAlloc-stats[0].TotalAlloc, uint64(8<<20), "bytes of memory, whatever was sent")

					var status quorumlock.Status
					eventually(t, "inspected", func() bool {
						status, err = m.Inspect(background, claim)
						return err == nil || strings.Contains(err.Error(), "WRONGTYPE")
					})
					if err != nil {
						bounded(t, err)
					} else {
						boundedHolder(t, status.Holder)
						assert.True(t, status.Held, "Inspect agrees")
					}
					released(t, acquired(t, m, "other"))
					assert.Equal(t, before, dump(servers, key), "untouched")
					take(servers, key)
					released(t, acquired(t, m, claim)) // free again
				})
			}
		})
	}
}

// bounded checks the error of an acquisition while a foreign value is there: the lock is
// held, or the node is misconfigured.
func bounded(t *testing.T, err error) {
	t.Helper()
	var held *quorumlock.HeldError
	var short *quorumlock.QuorumError
	switch {
	case errors.As(err, &held):
		boundedHolder(t, held.Holder)
	case errors.As(err, &short):
		assert.GreaterOrEqual(t, len(short.Nodes), 2)
		for _, n := range short.Nodes {
			assert.True(t, n.Misconfigured(), "%v", n)
		}
	default:
		require.Fail(t, "neither held nor misconfigured", "%v", err)
	}
	assert.Less(t, len(err.Error()), 4096)
	assert.True(t, utf8.ValidString(err.Error()))
}

// The holder's fields are bounded and valid text: an OpenTelemetry exporter drops a whole
// batch of spans for one string that is not.
func boundedHolder(t *testing.T, h quorumlock.Holder) {
	t.Helper()
	for name, text := range map[string]string{"owner": h.Owner, "label": h.Label, "traceparent": h.TraceParent} {
		assert.LessOrEqual(t, len(text), 512, name)
		assert.True(t, utf8.ValidString(text), "%s %.80q", name, text)
	}
}

// A textCheck is a tracer that requires valid text.
type textCheck struct {
	tracenoop.TracerProvider
	t *testing.T
}

func (c *textCheck) Tracer(string, ...trace.TracerOption) trace.Tracer { return textTracer{c: c} }

type textTracer struct {
	tracenoop.Tracer
	c *textCheck
}

func (t textTracer) Start(ctx context.Context, _ string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	config := trace.NewSpanStartConfig(opts...)
	t.c.check(config.Attributes()...)
	s := textSpan{c: t.c}
	return trace.ContextWithSpan(ctx, s), s
}

type textSpan struct {
	tracenoop.Span
	c *textCheck
}

func (s textSpan) IsRecording() bool                         { return true }
func (s textSpan) SetAttributes(attrs ...attribute.KeyValue) { s.c.check(attrs...) }
func (s textSpan) SetStatus(_ codes.Code, text string)       { s.c.check(attribute.String("status", text)) }
func (s textSpan) AddEvent(_ string, opts ...trace.EventOption) {
	config := trace.NewEventConfig(opts...)
	s.c.check(config.Attributes()...)
}

func (c *textCheck) check(attrs ...attribute.KeyValue) {
	for _, a := range attrs {
		assert.True(c.t, utf8.ValidString(a.Value.String()), "%s %.80q", a.Key, a.Value.String())
	}
}

func TestAForeignValueInPlaceOfALiveLockEndsTheLeaseAndStays(t *testing.T) {
	servers := redistest.Start(t, 3, "--enable-debug-command", "local")
	m := open(t, quorumlock.Addrs(redistest.Addrs(servers)...), patient()...)
	befores := map[string]any{}
	for claim, command := range strangers() {
		t.Run(claim, func(t *testing.T) {
			key := quorumlock.DefaultPrefix + claim
			l := acquired(t, m, claim, quorumlock.WithoutRenewal())
			eventually(t, "all votes are in", func() bool { return locks(t, servers, claim) == 3 })
			put(servers, command, key)
			before := dump(servers, key)
			eventually(t, "lost", func() bool { return errors.Is(l.Renew(background), quorumlock.ErrLost) })
			require.ErrorIs(t, l.Release(background), quorumlock.ErrLost)
			befores[key] = before
		})
	}
	time.Sleep(2 * time.Second) // the release in the background after a loss
	for key, before := range befores {
		assert.Equal(t, before, dump(servers, key), "%q is untouched", key)
	}
}

// Only the first bytes of a lock's value are read. A foreign value under one name must
// not stop the node for all other names.
func TestAHugeValueCostsTheNodeNothing(t *testing.T) {
	const attempts = 10
	server := redistest.Start(t, 1)[0]
	m := open(t, quorumlock.Addrs(server.Addr()), patient()...)
	sizes := []int{64 << 20, 512 << 20}
	if testing.Short() {
		sizes = sizes[:1]
	}
	for _, size := range sizes {
		key := quorumlock.DefaultPrefix + "job"
		// A machine that is short of memory may need longer for this than the limit of a
		// command in tests.
		_, _ = server.Do("SETRANGE", key, strconv.Itoa(size-1), "x")
		eventually(t, "grown", func() bool {
			length, err := server.Do("STRLEN", key)
			return err == nil && length == int64(size)
		})
		server.MustDo("PEXPIRE", key, "600000")
		before := cpuTime(t, server)
		for range attempts {
			var held *quorumlock.HeldError
			require.ErrorAs(t, refused(t, m, "job"), &held)
			boundedHolder(t, held.Holder)
			assert.True(t, inspected(t, m).Held)
		}
		spent := (cpuTime(t, server) - before) / attempts
		t.Logf("%d MiB: %v of the server for a refusal and an inspection", size>>20, spent)
		assert.Less(t, spent, 10*time.Millisecond, "of %d MiB", size>>20)
	}
}

// cpuTime returns the CPU time that the server has used.
func cpuTime(t *testing.T, s *redistest.Server) (total time.Duration) {
	t.Helper()
	found := regexp.MustCompile(`used_cpu_(?:sys|user):([0-9.]+)`).FindAllStringSubmatch(s.MustDo("INFO", "cpu").(string), -1)
	require.Len(t, found, 2)
	for _, f := range found {
		d, err := time.ParseDuration(f[1] + "s")
		require.NoError(t, err)
		total += d
	}
	return total
}

func TestAnInvalidGuardMarkerIsAQuarantineOrAnErrorAndNoRegisterTrustsIt(t *testing.T) {
	const farAway = "7258118400000000" // µs
	for claim, c := range map[string]struct {
		put     func(s *redistest.Server) []string
		refused bool // by New; otherwise a quarantine
	}{
		"text":          {put: func(*redistest.Server) []string { return []string{"SET", "", "text"} }},
		"empty":         {put: func(*redistest.Server) []string { return []string{"SET", "", ""} }},
		"binary":        {put: func(*redistest.Server) []string { return []string{"SET", "", "\xff\x00 1 2000 nonce"} }},
		"1 MiB":         {put: func(*redistest.Server) []string { return []string{"SETRANGE", "", fmt.Sprint(1<<20 - 1), "x"} }},
		"a number more": {put: func(s *redistest.Server) []string { return []string{"SET", "", runID(s) + " 1 2000 nonce 3"} }},
		"a float":       {put: func(s *redistest.Server) []string { return []string{"SET", "", runID(s) + " 1.5 2000 nonce"} }},
		"another run": {put: func(*redistest.Server) []string {
			return []string{"SET", "", "run 99999999999999999999999999 2000 nonce"}
		}},
		"hash": {put: func(*redistest.Server) []string { return []string{"HSET", "", "run", "x", "until", "0"} }, refused: true},
		"list": {put: func(*redistest.Server) []string { return []string{"RPUSH", "", "x"} }, refused: true},
		// Our own run_id, and an end that is only possible if a clock was set back. Lua
		// does not count beyond 2^53.
		"an end in the year 2200": {put: func(s *redistest.Server) []string {
			return []string{"SET", "", runID(s) + " " + farAway + " 2000 nonce"}
		}},
		"an end beyond 2^53": {put: func(s *redistest.Server) []string {
			return []string{"SET", "", runID(s) + " 9000000000000000000 2000 nonce"}
		}},
		"an end beyond int64": {put: func(s *redistest.Server) []string {
			return []string{"SET", "", runID(s) + " 99999999999999999999999999 2000 nonce"}
		}},
		"an endless maximum": {put: func(s *redistest.Server) []string {
			return []string{"SET", "", runID(s) + " 1 99999999999999999999999999 nonce"}
		}, refused: true},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			servers := redistest.Start(t, 3)
			for _, s := range servers {
				put([]*redistest.Server{s}, c.put(s), markerKey)
			}
			const longest = 2 * time.Second
			opts := []quorumlock.Option{
				quorumlock.WithTTL(longest), quorumlock.WithNodeTimeout(time.Second), quorumlock.WithRestartGuard(longest),
			}
			m, err := start(t, quorumlock.Addrs(redistest.Addrs(servers)...), opts...)
			if c.refused {
				require.ErrorIs(t, err, quorumlock.ErrInvalid)
				assert.Less(t, len(err.Error()), 1024)
				return
			}
			require.NoError(t, err)
			defer func() { require.NoError(t, m.Close(background)) }()
			ctx, cancel := context.WithTimeout(background, 20*longest)
			defer cancel()
			last := int64(0)
			for range 2 { // the second lease would find a register that the first has spoiled
				l, err := m.Acquire(ctx, "job")
				require.NoError(t, err)
				assert.Greater(t, l.Token(), last)
				assert.Less(t, l.Token(), int64(1)<<53)
				last = l.Token()
				_ = l.Release(background) // or its key expires
			}
		})
	}
}

// runID returns the run_id of the server's process.
func runID(s *redistest.Server) string {
	_, rest, _ := strings.Cut(s.MustDo("INFO", "server").(string), "\r\nrun_id:")
	id, _, _ := strings.Cut(rest, "\r\n")
	return id
}
