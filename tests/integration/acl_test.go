package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire/conformance"
)

// documented returns the minimal rules of the user, from the shell command in docs/reference.md.
func documented(t *testing.T) (rules []string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/reference.md")
	require.NoError(t, err)
	commands := regexp.MustCompile("(?s)redis-cli ACL SETUSER quorumlock (.*?)\n```").FindAllStringSubmatch(string(text), -1)
	require.Len(t, commands, 1, "the documentation has one such command")
	return strings.Fields(strings.NewReplacer("\\\n", " ", "'", "").Replace(commands[0][1]))
}

// forConstructor returns the documented rules for the keys of the tests, and adds the right that ClusterSlot needs.
func forConstructor(rules []string) []string {
	for i := range rules {
		rules[i] = strings.ReplaceAll(rules[i], config.DefaultPrefix, testkit.Prefix)
	}
	if testkit.Prefix != config.DefaultPrefix {
		rules = append(rules, "+cluster|nodes")
	}
	return rules
}

const documentedPassword = "CHANGE-ME"

// as returns options of the documented user.
func as(tb testing.TB, user string, addrs []string) []rueidis.ClientOption {
	return over(tb, addrs, func(o *rueidis.ClientOption) { o.Username, o.Password = user, documentedPassword })
}

func TestTheDocumentedRightsAreEnoughForAWholeLife(t *testing.T) {
	t.Parallel()
	user := append([]string{"--user", "quorumlock"}, forConstructor(documented(t))...)
	for claim, opts := range map[string][]quorumlock.Option{
		"plain":   nil,
		"guarded": {quorumlock.WithRestartGuard(9 * time.Second), quorumlock.WithTrustEmptyNodes()},
	} {
		t.Run(claim, func(t *testing.T) {
			if claim == "guarded" {
				testkit.OnlyAddrs(t, "every group has the guard")
			}
			t.Parallel()
			servers := testkit.Start(t, 3, user...)
			nodes := as(t, "quorumlock", redistest.Addrs(servers))
			opts := testkit.Options(append(opts, lively...)...)
			live(t, open(t, nodes, opts...), open(t, nodes, opts...), servers)
			for _, s := range servers {
				assert.Empty(t, s.MustDo("ACL", "LOG"), "the server refuses no command of the library")
			}
		})
	}
}

// Without any one of the documented rules, an error reports the gap and the user can act on it. A rule that no error
// would report does not belong in the line.
func TestAnErrorNamesEveryDocumentedRightThatIsMissing(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the errors of one server")
	t.Parallel()
	server := redistest.Start(t, 1)[0]
	rules := documented(t)
	want := map[string]string{ // the pattern of the error, if it is not the right itself
		"on": "WRONGPASS.*; set Username and Password", ">" + documentedPassword: "WRONGPASS.*; set Username and Password",
		"~quorumlock:*": "access (one of the keys|a key)",
		"&quorumlock:*": "channel",
		"reset":         "", "resetchannels": "", // these remove rights, and a new user has none
		"+ping":          "", // only the server complains, see below
		"+pubsub|numsub": "", // counts of waiters are too high, see below
	}
	// named finds the rights that an error names. The server writes them in quotes, the library writes a plus before
	// them. It matches whole words only, because some rights are part of others.
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
					for _, err := range complaints(t, as(t, user, []string{server.Addr()}), server, opts) {
						all = append(all, err.Error())
						found = found || expected && actionable(err) && fits.MatchString(err.Error())
						for _, match := range named.FindAllStringSubmatch(err.Error(), -1) {
							if strings.Contains(err.Error(), "+time +mget") && (rule == "+time" || rule == "+mget") {
								continue // Redis 7.0 does not say which of them ends the script
							}
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

// New reports the rights that the first renewal needs, even if the guard's own script needs fewer.
func TestNewReportsMissingRightsOfRenewalsUnderTheGuardToo(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the errors of one server")
	for _, right := range []string{"+getrange", "+pttl"} {
		rules := slices.DeleteFunc(documented(t), func(rule string) bool { return rule == right })
		server := redistest.Start(t, 1, append([]string{"--user", "quorumlock"}, rules...)...)[0]
		_, err := start(t, as(t, "quorumlock", []string{server.Addr()}), quorumlock.WithTTL(30*time.Second),
			quorumlock.WithRestartGuard(30*time.Second), quorumlock.WithTrustEmptyNodes())
		require.ErrorIs(t, err, quorumlock.ErrInvalid, right)
		require.ErrorContains(t, err, strings.TrimPrefix(right, "+")) // the right, or the rule that grants it
	}
}

// actionable reports whether the error says that waiting does not help.
func actionable(err error) bool {
	var node *quorumlock.NodeError
	return errors.Is(err, quorumlock.ErrInvalid) || errors.As(err, &node) && node.Misconfigured
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
		if err := l.Renew(background); !errors.Is(err, quorumlock.ErrLost) { // expected: the only node has lost the key
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
	var log transcript
	other, err := start(t, nodes, append(opts, quorumlock.WithLogger(log.logger()))...)
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
	testkit.Eventually(t, "it is in the queue, or the queue refused it", func() bool {
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
		return warned || ended() || server.MustDo("EXISTS", testkit.QueueKey("wanted")) == int64(1)
	})
	if err := l.Release(background); err != nil {
		errs = append(errs, err)
	}
	if err := <-came; err != nil && (!errors.Is(err, context.DeadlineExceeded) || actionable(err)) {
		errs = append(errs, err)
	}
	require.NoError(t, other.Close(background)) // its log is complete then
	if strings.Contains(log.String(), "a call waits for nodes that an operator must repair") {
		errs = append(errs, fmt.Errorf("%w: %s", quorumlock.ErrInvalid, log.String()))
	}
	return errs
}

// Without PING everything works, because a refusal is an answer too. But the server logs
// each refusal.
func TestWithoutTheRightToPINGOnlyTheServerComplains(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the errors of one server")
	rules := documented(t)
	i := slices.Index(rules, "+ping")
	require.NotEqual(t, -1, i)
	server := redistest.Start(t, 1, append([]string{"--user", "quorumlock"}, slices.Delete(rules, i, i+1)...)...)[0]
	m := open(t, as(t, "quorumlock", []string{server.Addr()}), patient()...)
	l := testkit.Acquired(t, m, "job")
	connection := func() string {
		return regexp.MustCompile(`(?m)^id=\d+ .* user=quorumlock `).FindString(fmt.Sprint(server.MustDo("CLIENT", "LIST")))
	}
	id, _, _ := strings.Cut(connection(), " ")
	require.NotEmpty(t, id)
	refused := regexp.MustCompile(`count ([2-9]|\d\d+) reason command context toplevel object ping `)
	testkit.Eventually(t, "refused repeatedly", func() bool {
		return refused.MatchString(fmt.Sprint(server.MustDo("ACL", "LOG")))
	})
	testkit.Renewed(t, l)
	assert.Contains(t, connection(), id+" ", "the connection stays")
	testkit.Released(t, l)
}

// Without INFO the checks are impossible: a warning without the guard, an error with it.
func TestWithoutTheRightToINFOThereIsAWarningAndTheGuardRefuses(t *testing.T) {
	testkit.OnlyAddrs(t, "it is about the errors of one server")
	rules := documented(t)
	i := slices.Index(rules, "+info")
	require.NotEqual(t, -1, i)
	server := redistest.Start(t, 1, append([]string{"--user", "quorumlock"}, slices.Delete(rules, i, i+1)...)...)[0]
	nodes := as(t, "quorumlock", []string{server.Addr()})
	var log transcript
	m := open(t, nodes, patient(quorumlock.WithLogger(log.logger()))...)
	testkit.Eventually(t, "warned", func() bool { return strings.Contains(log.String(), "allow INFO to the user") })
	testkit.Acquired(t, m, "job")
	_, err := start(t, nodes, quorumlock.WithRestartGuard(10*time.Second))
	require.ErrorIs(t, err, quorumlock.ErrInvalid)
	assert.Contains(t, err.Error(), "allow INFO")
}

func TestTheDocumentedRightsPassTheWholeConformance(t *testing.T) {
	testkit.OnlyNightly(t, "the cases run in internal/node as well, and one life of a lease runs with these rights")
	testkit.OnlyAddrs(t, "it is about the errors of one server")
	t.Parallel()
	conformance.Run(t, func(tb testing.TB) conformance.Server {
		server := redistest.Start(tb, 1, append([]string{"--user", "quorumlock"}, documented(t)...)...)[0]
		return conformance.Server{
			Option:  as(t, "quorumlock", []string{server.Addr()})[0],
			Prefix:  "quorumlock:", // so that the documented pattern is tested unchanged
			Do:      server.Do,
			Restart: server.Restart,
		}
	})
}
