//go:build unix

package cli

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// reads starts a command under a shared lease of "job", and returns when it runs.
func reads(t *testing.T, addrs []string, args ...string) (c *exec.Cmd, stderr string) {
	t.Helper()
	c, _, stderr = begin(t, addrs, append(append([]string{"--shared", "job"}, args...), "--", "sh", "-c", "echo $$ >PID; exec sleep 600")...)
	return c, stderr
}

// stop ends a command line that is at work.
func stop(t *testing.T, c *exec.Cmd) {
	t.Helper()
	require.NoError(t, c.Process.Signal(syscall.SIGTERM))
	_ = c.Wait()
	assert.Equal(t, exitSignalBase+15, c.ProcessState.ExitCode())
}

func TestCommandsThatReadRunTogetherAndAWriterWaits(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	first, _ := reads(t, addrs, "--ttl", "60s", "--holder", "first")
	o := invoke(t, addrs, "run", "job", "--wait", "0", "-E", "3", "--", "true")
	assert.Equal(t, 3, o.code)
	assert.Regexp(t, `^quorumlock: "job" is held by reader "first"; the lease expires in \S+ unless renewed\n$`, o.stderr)
	second, _ := reads(t, addrs, "--ttl", "60s", "--holder", "first")
	o = invoke(t, addrs, "run", "job", "--wait", "0", "--", "true")
	assert.Equal(t, exitConflict, o.code)
	assert.Contains(t, o.stderr, `"job" is held by reader "first" and 1 other; the lease expires in `)

	third := invoke(t, addrs, "run", "--shared", "job", "--wait", "0", "--", "sh", "-c", `echo "$QUORUMLOCK_NAME $QUORUMLOCK_TOKEN $QUORUMLOCK_OWNER"`)
	require.Equal(t, 0, third.code, third.stderr)
	assert.Empty(t, third.stderr)
	require.Regexp(t, `^job \d+ [0-9a-f]{32}\n$`, third.stdout)
	token, err := strconv.ParseInt(strings.Fields(third.stdout)[1], 10, 64)
	require.NoError(t, err)
	assert.EqualValues(t, 1, token%2, "the token of a reader is odd")

	writer := commandLine(t, addrs, "run", "job", "--", "sh", "-c", `test $QUORUMLOCK_TOKEN -gt `+strconv.FormatInt(token, 10)+` && exit 7`)
	require.NoError(t, writer.Start())
	m := open(t, addrs)
	eventually(t, "the writer waits", func() bool { s, err := m.Inspect(t.Context(), "job"); return err == nil && s.Waiters == 1 })
	o = invoke(t, addrs, "run", "--shared", "job", "--wait", "0", "--", "true")
	assert.Equal(t, exitConflict, o.code, "a writer that waits bars the readers that come later")
	stop(t, first)
	stop(t, second)
	_ = writer.Wait()
	assert.Equal(t, 7, writer.ProcessState.ExitCode())
}

func TestACommandThatReadsWaitsForAWriter(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	m := open(t, addrs, quorumlock.WithTTL(30*time.Second), quorumlock.WithHolder("writer"))
	l, err := m.TryAcquire(t.Context(), "job")
	require.NoError(t, err)
	o := invoke(t, addrs, "run", "--shared", "job", "--wait", "300ms", "--", "true")
	assert.Equal(t, exitConflict, o.code)
	assert.Contains(t, o.stderr, `"job" is held by "writer"; the lease expires in `)
	assert.Contains(t, o.stderr, "--wait 300ms has passed")
	readers := make([]*exec.Cmd, 2)
	for i := range readers {
		readers[i] = commandLine(t, addrs, "run", "--shared", "job", "--", "true")
		require.NoError(t, readers[i].Start())
	}
	eventually(t, "both wait", func() bool { s, err := m.Inspect(t.Context(), "job"); return err == nil && s.Waiters == 2 })
	assert.Regexp(t, `(?m)^WAITER +WAITS FOR +WANTS
[0-9a-f]{16} +[0-9.]+[a-zµ]+ +to share it
[0-9a-f]{16} +[0-9.]+[a-zµ]+ +to share it

 +NODE `, invoke(t, addrs, "inspect", "job").stdout)
	require.NoError(t, l.Release(t.Context()))
	for _, c := range readers {
		require.NoError(t, c.Wait())
	}
}

func TestSharedTakesOneName(t *testing.T) {
	t.Parallel()
	o := within(t, "run", "--shared", "a", "b", "--", "true")
	assert.Equal(t, outcome{code: exitUsage, stderr: "quorumlock: --shared with 2 names: it takes one; leave --shared out, " +
		"or let each command run the next, in one order everywhere: quorumlock run --shared A -- quorumlock run --shared B -- COMMAND; a script between the two needs --keep-password\n"}, o)
}

// A reader that loses its lease is stopped in time, as a writer is.
func TestACommandThatReadsIsStoppedWhenItsLeaseIsLost(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	c, stderr := reads(t, redistest.Addrs(servers), "--ttl", "3s")
	for _, s := range servers[1:] {
		s.Stop()
	}
	_ = c.Wait()
	assert.Equal(t, exitLost, c.ProcessState.ExitCode())
	said, err := os.ReadFile(stderr)
	require.NoError(t, err)
	assert.Regexp(t, `(?m)^quorumlock: the shared lease of "job" is not renewed, \S+ left: the command is stopped; node 1 .*no answer`, string(said))
	assert.Contains(t, string(said), `quorumlock: the release of the shared lease of "job" is not confirmed, it ends after 3s at the latest: `)
	assert.Contains(t, string(said), `quorumlock: the shared lease of "job" was lost, or about to be: the command was stopped (signal 15, terminated)`)
}

func TestMinHoldKeepsWritersOutAfterACommandThatReads(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	begun := time.Now()
	o := invoke(t, addrs, "run", "--shared", "job", "--min-hold", "1s", "--", "true")
	assert.Equal(t, 0, o.code, o.stderr)
	_, err := open(t, addrs).Acquire(t.Context(), "job")
	require.NoError(t, err)
	assert.GreaterOrEqual(t, time.Since(begun), time.Second)
}

func TestARiskOfASharedLeaseIsNotedAsOne(t *testing.T) {
	var notes []string
	s := &supervisor{nodes: 3, what: "the shared lease of ", risky: map[string]bool{}, note: func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }}
	s.warn(quorumlock.AtRisk{Name: "job", Remaining: 6 * time.Second, Confirmed: 1}, true)
	s.calm(quorumlock.Renewed{Name: "job", Confirmed: 3, Margin: 1}, true)
	assert.Equal(t, []string{
		`the shared lease of "job" is at risk: 1 of 3 nodes confirmed its renewal, 6s left`,
		`the shared lease of "job" is safe again: 3 nodes confirmed it, margin 1`,
	}, notes)
}

// readerOf returns a reader of "job" that the nodes see as a separate process. The nodes name the reader with the
// longest TTL.
func readerOf(t *testing.T, addrs []string, label string, ttl time.Duration) *quorumlock.Lease {
	t.Helper()
	l, err := open(t, addrs, quorumlock.WithTTL(ttl), quorumlock.WithHolder(label)).Acquire(t.Context(), "job", quorumlock.Shared())
	require.NoError(t, err)
	return l
}

// afterAWriter moves the fencing registers of "job", which readers leave unchanged.
func afterAWriter(t *testing.T, addrs []string) {
	t.Helper()
	l, err := open(t, addrs).TryAcquire(t.Context(), "job")
	require.NoError(t, err)
	require.NoError(t, l.Release(t.Context()))
}

func TestInspectNamesTheReadersOfALock(t *testing.T) {
	t.Parallel()
	servers := redistest.Start(t, 3)
	addrs := redistest.Addrs(servers)
	afterAWriter(t, addrs)
	first := readerOf(t, addrs, "first", time.Minute)
	o := invoke(t, addrs, "inspect", "job")
	assert.Contains(t, o.stdout, "state    held by 1 reader\n")
	readers := []*quorumlock.Lease{first, readerOf(t, addrs, long, 3*time.Minute), readerOf(t, addrs, "", 2*time.Minute)}
	o = invoke(t, addrs, "inspect", "job")
	require.Equal(t, 0, o.code, o.stderr)
	plain(t, o.stdout)
	assert.Contains(t, o.stdout, "state    held by 3 readers\n")
	assert.Regexp(t, `(?m)^READER +OWNER +SINCE\nfirst +`+first.Owner()+` +\S+s ago\nhost .*`+readers[1].Owner()+` .*\n- +`+readers[2].Owner()+` +\S+s ago\n\n`, o.stdout)
	assert.Contains(t, o.stdout, fmt.Sprintf("token    at most %d\n", first.Token()))
	assert.Equal(t, 3, strings.Count(o.stdout, " 3 readers  "), "on each node: %s", o.stdout)
	assert.NotContains(t, o.stdout, "holder ")

	s := decoded[statusJSON](t, invoke(t, addrs, "inspect", "--json", "job").stdout)
	assert.Equal(t, []any{true, 3, 3, readers[1].Owner()}, []any{s.Held, s.Readers, s.Votes, s.Holder.Owner})
	require.Len(t, s.Holders, 3)
	for i, h := range s.Holders {
		assert.Equal(t, readers[i].Owner(), h.Owner)
		assert.NotEmpty(t, h.Since)
		assert.Equal(t, 3, s.NodeTable[i].Readers)
	}
	assert.Equal(t, "first", s.Holders[0].Label)

	for range 17 {
		readerOf(t, addrs, "another", time.Minute)
	}
	o = invoke(t, addrs, "inspect", "job")
	plain(t, o.stdout)
	assert.Contains(t, o.stdout, "state    held by 20 readers\n")
	assert.Contains(t, o.stdout, "\nand 4 more\n")

	m := open(t, addrs)
	_, err := m.TryAcquire(t.Context(), "alone")
	require.NoError(t, err)
	o = invoke(t, addrs, "inspect", "--json", "alone")
	assert.Contains(t, o.stdout, `"readers":0,"holders":[]`)
	o = invoke(t, addrs, "inspect", "alone")
	assert.NotContains(t, strings.ToLower(o.stdout), "reader")

	servers[0].MustDo("SET", "quorumlock:few", "s "+strings.Repeat("0", 32)+" 0 0 - ", "PX", "60000")
	servers[0].MustDo("ZADD", wire.ReadersKey("quorumlock:few"), strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10), strings.Repeat("a", 32)+" 0 1700000000000000 - lonely")
	o = invoke(t, addrs, "inspect", "few")
	plain(t, o.stdout)
	assert.Contains(t, o.stdout, "state    no majority agrees on a holder\n")
	assert.Regexp(t, `(?m)^lonely +a{32} +\S+ ago$`, o.stdout)
	assert.Contains(t, o.stdout, " 1 reader ")
}

func TestAHandleIsOfALockThatNobodyReads(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	l := readerOf(t, addrs, "first", time.Minute)
	o := invoke(t, addrs, "acquire", "job", "--wait", "0")
	assert.Equal(t, exitConflict, o.code)
	assert.Regexp(t, `^quorumlock: "job" is held by reader "first"; the lease expires in \S+ unless renewed\n$`, o.stderr)
	require.NoError(t, l.Release(t.Context()))
	o = invoke(t, addrs, "acquire", "job")
	require.Equal(t, 0, o.code, o.stderr)
	assert.Equal(t, exitConflict, invoke(t, addrs, "run", "--shared", "job", "--wait", "0", "--", "true").code)
	assert.Equal(t, 0, invoke(t, addrs, "release", strings.TrimSpace(o.stdout)).code)
	assert.Equal(t, exitUsage, within(t, "acquire", "--shared", "job").code)
}

func TestInspectSaysThatReadersWereRevoked(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	afterAWriter(t, addrs)
	reader := readerOf(t, addrs, "first", 30*time.Second)
	_, err := open(t, addrs, quorumlock.WithHolder("ops")).Revoke(t.Context(), "job", "it hangs")
	require.NoError(t, err)
	o := invoke(t, addrs, "inspect", "job")
	plain(t, o.stdout)
	assert.Contains(t, o.stdout, "state    held\nholder   revoked readers\nowner    "+revokedReaders+"\nexpires  in ")
	assert.Contains(t, o.stdout, "revoked  by ops: it hangs\n")
	assert.Contains(t, o.stdout, fmt.Sprintf("token    at most %d\n", reader.Token()))
	assert.Equal(t, 4, strings.Count(o.stdout, "revoked readers"))
	assert.NotContains(t, o.stdout, "1970-", "the year of a time that is zero, and no part of a port")
	o = invoke(t, addrs, "list")
	assert.Regexp(t, `(?m)^job +revoked readers +- +`, o.stdout)
	o = invoke(t, addrs, "run", "job", "--wait", "0", "--", "true")
	assert.Equal(t, exitConflict, o.code)
	assert.Contains(t, o.stderr, `"job" is held by readers whose leases were revoked; the lease expires in `)
	assert.NotContains(t, o.stderr, "unless renewed")
}

func TestListCountsTheReadersOfALock(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	c := commandLine(t, addrs, "list", "--follow", "--json", "--interval", "100ms")
	stdout, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	lines := bufio.NewReader(stdout)
	var events []string
	next := func(event string) (s change) {
		for s.Event != event {
			line, err := lines.ReadString('\n')
			require.NoError(t, err)
			s = decoded[change](t, line)
			events = append(events, s.Event)
		}
		return s
	}
	writer := open(t, addrs, quorumlock.WithTTL(30*time.Second), quorumlock.WithHolder("writer"))
	l, err := writer.TryAcquire(t.Context(), "job")
	require.NoError(t, err)
	assert.Zero(t, next("held").Readers)
	first, err := l.Downgrade(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 1, next("readers").Readers)
	second := readerOf(t, addrs, "second", time.Minute)
	s := next("readers")
	for len(s.Holders) < 2 { // in the middle of the grant, a look counts only what a majority has
		s = next("readers")
	}
	assert.Equal(t, []any{2, 2, second.Owner()}, []any{s.Readers, len(s.Holders), s.Holder.Owner})
	o := invoke(t, addrs, "list")
	plain(t, o.stdout)
	assert.Regexp(t, `(?m)^job +2 readers +\d+s +\S+s +3/3 +0$`, o.stdout)
	require.NoError(t, second.Release(t.Context()))
	assert.Equal(t, first.Owner(), next("readers").Holder.Owner)
	require.NoError(t, first.Release(t.Context()))
	next("free")
	assert.NotContains(t, events, "passed_on", "among readers")
	require.NoError(t, c.Process.Signal(syscall.SIGINT))
	require.NoError(t, c.Wait())
}

func TestAChangeFromReadersToAWriterIsSeen(t *testing.T) {
	alone := quorumlock.Status{Name: "job", Held: true, Votes: 3, Holder: quorumlock.Holder{Owner: "a"}}
	readers := quorumlock.Status{Name: "job", Held: true, Votes: 3, Holder: quorumlock.Holder{Owner: "b"}, Readers: 2}
	others := readers
	others.Holder.Owner = "c"
	revoked := quorumlock.Status{Name: "job", Held: true, Votes: 3, Holder: quorumlock.Holder{Owner: revokedReaders}}
	assert.Equal(t, []string{"passed_on", "passed_on", "", "readers", "passed_on"},
		[]string{changed(alone, readers), changed(readers, alone), changed(readers, others), changed(readers, revoked), changed(revoked, alone)})
}

func TestWatchCountsReadersAsOneHolder(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	afterAWriter(t, addrs)
	first := readerOf(t, addrs, "first", 30*time.Second)
	follow := func(args ...string) (next func() string, end func()) {
		c := commandLine(t, addrs, append([]string{"watch", "--every", "50ms", "job"}, args...)...)
		stdout, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		lines := bufio.NewReader(stdout)
		return func() string {
				line, err := lines.ReadString('\n')
				require.NoError(t, err)
				return line
			}, func() {
				require.NoError(t, c.Process.Signal(syscall.SIGINT))
				require.NoError(t, c.Wait())
			}
	}
	next, end := follow("--json")
	h := decoded[holdingJSON](t, next())
	assert.Equal(t, []any{"held", 1, first.Owner(), first.Token()}, []any{h.Event, h.Readers, h.Holder.Owner, h.Token})
	second := readerOf(t, addrs, "second", time.Minute)
	text, endText := follow()
	assert.Contains(t, text(), fmt.Sprintf(" held    job by second and 1 other reader, token at most %d, waiters 0\n", second.Token()))
	time.Sleep(200 * time.Millisecond)
	require.NoError(t, second.Release(t.Context()))
	time.Sleep(200 * time.Millisecond)
	require.NoError(t, first.Release(t.Context()))
	assert.Equal(t, "nobody", decoded[holdingJSON](t, next()).Event, "readers that come and go are no change")
	assert.Contains(t, text(), " nobody ")
	reader := readerOf(t, addrs, "third", time.Minute)
	assert.Contains(t, text(), " held    job by the reader third, token at most ")
	assert.Equal(t, reader.Owner(), decoded[holdingJSON](t, next()).Holder.Owner)
	end()
	endText()
}

func TestAnAskReachesEveryCommandThatReads(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	patient, stderr := reads(t, addrs, "--ttl", "3s", "--holder", "patient")
	var yielding [2]*exec.Cmd
	var notes [2]string
	for i := range yielding {
		yielding[i], notes[i] = reads(t, addrs, "--ttl", "3s", "--holder", "patient", "--release-when-asked")
	}
	o := invoke(t, addrs, "ask-release", "job", "--reason", "deploy", "--by", "ops")
	assert.Equal(t, outcome{stdout: "asked patient and 2 other readers to release \"job\"; they find out at their next renewals\n"}, o)
	for i, c := range yielding {
		_ = c.Wait()
		assert.Equal(t, exitSignalBase+15, c.ProcessState.ExitCode())
		said, err := os.ReadFile(notes[i])
		require.NoError(t, err)
		assert.Equal(t, "quorumlock: the shared lease of \"job\" is asked for by ops: deploy\n", string(said))
	}
	eventually(t, "the third is asked, too", func() bool {
		said, _ := os.ReadFile(stderr)
		return string(said) == "quorumlock: the shared lease of \"job\" is asked for by ops: deploy\n"
	})
	o = invoke(t, addrs, "inspect", "job")
	assert.Contains(t, o.stdout, "asked by ops: deploy\n")
	plain(t, o.stdout)
	stop(t, patient)
	assert.Equal(t, outcome{stdout: "\"job\" is not held\n"}, invoke(t, addrs, "ask-release", "job"))
}

func TestRevokeTakesALockAwayFromItsReadersAndWaitsForTheirEnd(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	first, second := readerOf(t, addrs, "first", 2*time.Second), readerOf(t, addrs, "second", 3*time.Second)
	begun := time.Now()
	o := invoke(t, addrs, "revoke", "job", "--reason", "it hangs", "--by", "ops", "--wait")
	require.Equal(t, 0, o.code, o.stderr)
	assert.Regexp(t, `^revoked "job" of second and 1 other reader: ends at the latest at \S+Z, in \S+, and no other client gets it before\n\S+Z nobody  job\n$`, o.stdout)
	assert.Greater(t, time.Since(begun), 3*time.Second, "nobody holds the lock, but for those who do not notice")
	for _, l := range []*quorumlock.Lease{first, second} {
		lost := <-l.Lost()
		assert.Equal(t, quorumlock.LostRevoked, lost.Reason)
		require.ErrorContains(t, lost.Nodes[0], "ops: it hangs")
	}

	third := readerOf(t, addrs, "third", time.Minute)
	readerOf(t, addrs, "fourth", 30*time.Second)
	r := decoded[revocationJSON](t, invoke(t, addrs, "revoke", "job", "--json").stdout)
	assert.Equal(t, []any{third.Owner(), 2, 3}, []any{r.Holder.Owner, r.Readers, r.Marked})
	o = invoke(t, addrs, "revoke", "job")
	assert.Regexp(t, `^the leases of the readers of "job" were revoked before: end at the latest at \S+Z, in \S+, and no other client gets it before\n$`, o.stdout)
}

func TestACommandThatReadsEndsWhenItIsRevoked(t *testing.T) {
	t.Parallel()
	addrs := three(t)
	c, stderr := reads(t, addrs, "--ttl", "2s", "--holder", "nightly")
	o := invoke(t, addrs, "revoke", "job")
	assert.Regexp(t, `^revoked "job" of the reader nightly: ends at the latest at `, o.stdout)
	_ = c.Wait()
	assert.Equal(t, exitLost, c.ProcessState.ExitCode())
	said, err := os.ReadFile(stderr)
	require.NoError(t, err)
	assert.Contains(t, string(said), `the shared lease of "job" was lost, or about to be: the command was stopped`)
	assert.Contains(t, string(said), "lease was revoked: ")
	assert.Contains(t, string(said), `the shared lease of "job" is lost: the command is stopped`)
	assert.NotContains(t, string(said), "asked for")
}
