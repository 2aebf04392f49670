package node

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

var rewrite = flag.Bool("rewrite", false, "write the table into testdata; commit a changed line only if you can say why it is right")

// circumstance is one reason for which a vote may not count, or its absence.
type circumstance struct {
	what  string // reasons of one kind exclude each other
	name  string
	apply func(n *Node, t *transfer)
}

// listed stands for lists of nodes that answer err.
type listed struct {
	Lists
	err error
}

func (l listed) Votes(int) error { return l.err }

// circumstances are all that a vote depends on. The clock shows one hour.
var circumstances = []circumstance{
	{"quarantine", "restarted", func(n *Node, _ *transfer) { quarantineFor(n, time.Hour, wire.ErrQuarantined) }},
	{"quarantine", "stepped", func(n *Node, _ *transfer) { quarantineFor(n, time.Hour, wire.ErrClockStep) }},
	{"quarantine", "quarantine over", func(n *Node, _ *transfer) { quarantineFor(n, -time.Hour, wire.ErrQuarantined) }},
	{"withheld", "withheld", func(n *Node, _ *transfer) { withhold(n, &wire.ConfigError{Problem: "guard", Fix: "fix"}) }},
	{"term", "unconfirmed", func(n *Node, _ *transfer) { n.group.Use(n.group.Used(), clock.Validity(time.Minute)) }},
	{"term", "moved", func(n *Node, _ *transfer) { n.group.FoundMove() }},
	{"term", "former term", func(_ *Node, t *transfer) { t.term.Epoch-- }},
	{"term", "one server", func(n *Node, t *transfer) { n.group, n.greeter.group, t.term = nil, nil, master.Term{} }},
	{"guard", "unguarded", func(n *Node, _ *transfer) { unguard(n) }},
	{"lists", "listed", func(n *Node, _ *transfer) { n.cfg.Lists = listed{} }},
	{"lists", "not listed yet", func(n *Node, _ *transfer) { n.cfg.Lists = listed{err: wire.ErrConnecting} }},
	{"lists", "refused list", func(n *Node, _ *transfer) {
		n.cfg.Lists = listed{err: &wire.ConfigError{Problem: "list", Fix: "wait"}}
	}},
	{"list", "lapsed", func(n *Node, _ *transfer) { listedAt(n, clock.Steady(time.Minute)) }},
	{"sent", "sent after the window", func(_ *Node, t *transfer) { t.validity = clock.Validity(time.Hour + 9*time.Second) }},
	{"connection", "connection changed", func(_ *Node, t *transfer) { t.changed = true }},
}

func quarantineFor(n *Node, d time.Duration, reason error) {
	n.start = n.start.Add(-2 * time.Hour)
	n.vote.Quarantine(n.mono().Add(d-time.Hour), time.Hour*100/101, reason)
}

func withhold(n *Node, err error) { n.vote.Withheld = err }
func unguard(n *Node)             { n.vote.Unguarded = true }
func listedAt(n *Node, at clock.Steady) {
	n.vote.Remembers = at.Add(n.cfg.Guard + looksPerList*checkEvery)
}
func refuse(n *Node, err error)                { n.vote.Refused = err != nil }
func restarted(n *Node, was error) (now error) { return cmp.Or(n.vote.Withheld, was) }

// said is a reply in words.
func said(r *wire.Reply) string {
	text := map[wire.Status]string{
		wire.Granted: "granted", wire.Done: "done", wire.Unknown: "unknown", wire.NotApplied: "not applied", wire.Misconfigured: "misconfigured",
	}[r.Status]
	if r.Err != nil {
		text += ": " + brief(r.Err)
	}
	return text
}

// brief is an error in a few words.
func brief(err error) string {
	for known, text := range map[error]string{
		wire.ErrQuarantined: "quarantine", wire.ErrClockStep: "clock step", vote.ErrReconnected: "reconnected", wire.ErrConnecting: "connecting",
		wire.ErrMoving: "moving", vote.ErrLapsed: "lapsed", failover.ErrUnconfirmed: "unconfirmed",
	} {
		if errors.Is(err, known) {
			return text
		}
	}
	return err.Error()
}

// told receives one reply.
type told struct{ wire.Reply }

func (a *told) Receive(_ int, _ *wire.Request, r *wire.Reply) { a.Reply = *r }

// decisions returns what the node decides under these circumstances: whether it sends a vote, which marker its other
// requests carry, whether a grant or a renewal that arrives now counts, and what it reports.
func decisions(t *testing.T, all ...circumstance) string {
	t.Helper()
	under := func() (*Node, *transfer) {
		n := voting(t, masterSet, says)
		n.cfg.Window, n.cfg.Guard = 10*time.Second, 30*time.Second
		n.vote = vote.New(n.cfg.Guard, 0)
		term := master.Term{Addr: "a:6379", Epoch: 7}
		n.group.Use(term, clock.Validity(time.Hour-failover.ConfirmedFor))
		n.greeter.marker = "marker"
		sent := &transfer{term: term, validity: clock.Validity(time.Hour), steady: clock.Steady(time.Hour)}
		for _, c := range all {
			c.apply(n, sent)
		}
		sent.mono = n.mono()
		t.Cleanup(func() {
			if n.group == nil {
				n.group = voting(t, masterSet, says).group
			}
		})
		return n, sent
	}
	var out []string
	n, _ := under()
	var asked told
	req := &wire.Request{Kind: wire.Acquire, Expires: clock.Steady(2 * time.Hour)}
	n.lanes.acquire = []entry{{req: req, to: &asked}}
	n.now = clock.Steady(time.Hour)
	if n.take(); len(n.courier.batch) == 1 {
		out = append(out, "asks")
	} else {
		out = append(out, said(&asked.Reply))
	}
	n, _ = under()
	n.noticeEnd()
	out = append(out, n.greeter.head("").marker)
	n, sent := under()
	n.noticeEnd()
	grant := wire.Reply{Status: wire.Granted}
	sent.unlisted = n.greeter.unlisted()
	require.True(t, n.courier.conclude(sent, entry{req: &wire.Request{Kind: wire.Acquire}}, &grant))
	renewals := wire.NewBatch(wire.Extend, 1, clock.Steady(2*time.Hour))
	wire.Entry{Lock: "l", Value: wire.Compose("owner", 1, "")}.Extend(renewals, "1000")
	renewal := wire.Reply{Status: wire.Done, N: wire.Ours, Answers: []int64{wire.Ours}}
	require.True(t, n.courier.conclude(sent, entry{req: renewals}, &renewal))
	out = append(out, said(&grant), said(&renewal))
	n, _ = under()
	n.noticeEnd()
	n.report(restarted(n, nil))
	h := n.Health()
	health := "votes"
	switch {
	case h.Err != nil && h.Withheld:
		health = "withheld: " + brief(h.Err)
	case h.Err != nil:
		health = "down: " + brief(h.Err)
	}
	if h.Reason != nil {
		health += " until then: " + brief(h.Reason)
	}
	return strings.Join(append(out, health), " | ")
}

// The table has each reason alone, and each two of different kinds.
func TestEveryReasonAgainstAVoteIsDecidedAsTheTableSays(t *testing.T) {
	var got strings.Builder
	row := func(names string, all ...circumstance) {
		fmt.Fprintf(&got, "%s | %s\n", names, decisions(t, all...))
	}
	got.WriteString("circumstances | a vote | marker | a grant | a renewal | health\n")
	row("none")
	for i, one := range circumstances {
		row(one.name, one)
		for _, other := range circumstances[i+1:] {
			if other.what != one.what {
				row(one.name+", "+other.name, one, other)
			}
		}
	}
	const path = "testdata/votes.txt"
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(got.String()), 0o600))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, strings.Split(string(want), "\n"), strings.Split(got.String(), "\n"))
}

// Without a connection, a request is answered with the reason why there is none.
func TestWithoutAConnectionARequestHearsWhy(t *testing.T) {
	config := &wire.ConfigError{Problem: "p", Fix: "f"}
	for claim, c := range map[string]struct {
		set    func(n *Node)
		health error
		want   string
	}{
		"refused":                {func(n *Node) { refuse(n, config) }, config, "misconfigured: p: f"},
		"down":                   {func(*Node) {}, errors.New("refused"), "not applied: refused"},
		"just broken":            {func(*Node) {}, nil, "not applied: connecting"},
		"just broken, no votes":  {func(n *Node) { withhold(n, config) }, config, "not applied: connecting"},
		"broken, an unsure term": {func(*Node) {}, failover.ErrUnconfirmed, "not applied: unconfirmed"},
	} {
		n := New(Config{Option: rueidis.ClientOption{InitAddress: []string{"a:1"}}})
		c.set(n)
		var got told
		n.courier.batch = []entry{{req: &wire.Request{Kind: wire.Extend}, to: &got}}
		n.courier.postpone(c.health)
		assert.Equal(t, c.want, said(&got.Reply), claim)
		n.cancel()
	}
}
