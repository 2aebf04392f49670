package integration

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
)

// strangers returns commands with values that another program or an attacker may write under the key of a lock. The
// nodes do not check their form.
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

// dump returns the value of a key on the first server, without its time to live.
func dump(servers []*redistest.Server, key string) any {
	return servers[0].MustDo("DEBUG", "DIGEST-VALUE", key)
}

func TestAForeignValueUnderTheKeyOfALockIsToleratedAndUntouched(t *testing.T) {
	t.Parallel()
	for claim, opts := range map[string][]quorumlock.Option{
		"plain":    nil,
		"unfenced": {quorumlock.WithoutFencing()},
		"guarded":  {quorumlock.WithRestartGuard(time.Minute), quorumlock.WithTrustEmptyNodes()},
	} {
		t.Run(claim, func(t *testing.T) {
			if claim == "guarded" {
				testkit.OnlyAddrs(t, "every group has the guard")
			}
			servers := testkit.Start(t, 3, "--enable-debug-command", "local")
			m := open(t, testkit.Nodes(t, redistest.Addrs(servers)...), patient(append(opts, quorumlock.WithTracerProvider(&textCheck{t: t}))...)...)
			for claim, command := range strangers() {
				t.Run(claim, func(t *testing.T) {
					key := testkit.Prefix + claim
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
					testkit.Eventually(t, "inspected", func() bool {
						status, err = m.Inspect(background, claim)
						return err == nil || strings.Contains(err.Error(), "WRONGTYPE")
					})
					if err != nil {
						bounded(t, err)
					} else {
						boundedHolder(t, status.Holder)
						assert.True(t, status.Held, "Inspect agrees")
					}
					testkit.Released(t, testkit.Acquired(t, m, "other"))
					assert.Equal(t, before, dump(servers, key), "untouched")
					testkit.Remove(servers, key)
					testkit.Released(t, testkit.Acquired(t, m, claim)) // free again
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
			assert.True(t, n.Misconfigured || strings.Contains(n.Error(), "answer not awaited"), "%v", n)
		}
	default:
		require.Fail(t, "neither held nor misconfigured", "%v", err)
	}
	assert.Less(t, len(err.Error()), 4096)
	assert.True(t, utf8.ValidString(err.Error()))
}

// boundedHolder checks that the holder's fields are bounded and valid text: an OpenTelemetry exporter drops a whole
// batch of spans for one invalid string.
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

func (s textSpan) IsRecording() bool { return true }

func (s textSpan) SetAttributes(attrs ...attribute.KeyValue) { s.c.check(attrs...) }

func (s textSpan) SetStatus(_ codes.Code, text string) { s.c.check(attribute.String("status", text)) }

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
	t.Parallel()
	servers := testkit.Start(t, 3, "--enable-debug-command", "local")
	m := open(t, testkit.Nodes(t, redistest.Addrs(servers)...), patient()...)
	befores := map[string]any{}
	for claim, command := range strangers() {
		t.Run(claim, func(t *testing.T) {
			key := testkit.Prefix + claim
			l := testkit.Acquired(t, m, claim, quorumlock.WithoutRenewal())
			testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, claim) == 3 })
			put(servers, command, key)
			before := dump(servers, key)
			testkit.Eventually(t, "lost", func() bool { return errors.Is(l.Renew(background), quorumlock.ErrLost) })
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
	server := testkit.Start(t, 1)[0]
	m := open(t, testkit.Nodes(t, server.Addr()), patient()...)
	sizes := []int{64 << 20, 512 << 20}
	for _, size := range sizes[:testkit.Count(2, 1)] {
		key := testkit.Prefix + "job"
		// A machine that is short of memory may need longer for this than a test's command may take.
		_, _ = server.Do("SETRANGE", key, strconv.Itoa(size-1), "x")
		testkit.Eventually(t, "grown", func() bool {
			length, err := server.Do("STRLEN", key)
			return err == nil && length == int64(size)
		})
		server.MustDo("PEXPIRE", key, "600000")
		before := cpuTime(t, server)
		for range attempts {
			var held *quorumlock.HeldError
			require.ErrorAs(t, refused(t, m, "job"), &held)
			boundedHolder(t, held.Holder)
			assert.True(t, testkit.Inspected(t, m).Held)
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
