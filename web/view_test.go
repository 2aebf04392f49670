package web

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
)

func TestTextsOfOthersAreOneLineThatPrints(t *testing.T) {
	for text, want := range map[string]string{
		"orders/4711":                "orders/4711",
		"<script>alert(1)</script>":  "<script>alert(1)</script>", // shown as text, see tests/web
		"a\x1b[2J\nb\x00":            `a\x1b[2J\nb\x00`,
		"user\u202egnp.exe":          `user\u202egnp.exe`,
		"\u2066a\u2069\u200b":        `\u2066a\u2069\u200b`,
		"bad \xff":                   `bad \xff`,
		"مرحبا":                      "مرحبا",
		"redis://me:pass@word@host":  "redis://***@host",
		"http://u:p@a https://v:q@b": "http://***@a https://***@b",
	} {
		assert.Equal(t, want, shown(text, alone))
	}
	assert.Equal(t, strings.Repeat("é", 10)+"… (22 bytes)", shown(strings.Repeat("é", 11), 10))
	assert.Equal(t, strings.Repeat("é", 10), shown(strings.Repeat("é", 10), 10))
	secret := shown("redis://user:"+strings.Repeat("x", 50)+"@host", 20)
	assert.NotContains(t, secret, "xxx", "the cut does not take the @ from a password")
}

func TestATemplateForTracesIsAnHTTPURLWithTheTraceInItsPath(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-0102030405060708-01"
	for template, want := range map[string]string{
		"https://jaeger.example/trace/{trace}?uiFind={span}": "https://jaeger.example/trace/4bf92f3577b34da6a3ce929d0e0e4736?uiFind=0102030405060708",
		"http://127.0.0.1:16686/trace/{trace}":               "http://127.0.0.1:16686/trace/4bf92f3577b34da6a3ce929d0e0e4736",
		"HTTPS://tempo.example/explore?q={trace}#x":          "HTTPS://tempo.example/explore?q=4bf92f3577b34da6a3ce929d0e0e4736#x",
	} {
		o, err := TraceLink(template)
		require.NoError(t, err, template)
		p := &page{}
		o.apply(p)
		assert.Equal(t, want, traceOf(p.link, parent))
		for _, bad := range []string{"", "-", "javascript:alert(1)", parent + "\n", "00-<script>-0102030405060708-01", strings.ToUpper(parent)} {
			assert.Empty(t, traceOf(p.link, bad))
		}
	}
	assert.Empty(t, traceOf("", parent))
	for template, bound := range map[string]string{
		"":                                         "has no {trace}",
		"https://jaeger.example/trace/":            "has no {trace}",
		"javascript:alert('{trace}')":              "host",
		"javascript://x/%0aalert(1)//{trace}":      "neither http nor https",
		"data:text/html,{trace}":                   "host",
		"//jaeger.example/{trace}":                 "neither http nor https",
		"/trace/{trace}":                           "host",
		"https:///trace/{trace}":                   "host",
		"https://{trace}.example/":                 "placeholder",
		"https://{span}.example/{trace}":           "placeholder",
		"https://me:secret@jaeger.example/{trace}": "password",
		"https://jaeger.example/\x7f{trace}":       "host",
		"https://jaeger.example/{trace}" + strings.Repeat("x", 2048): "2048",
	} {
		_, err := TraceLink(template)
		var invalid *quorumlock.InvalidError
		require.ErrorAs(t, err, &invalid, template)
		require.ErrorIs(t, err, quorumlock.ErrInvalid)
		assert.Contains(t, invalid.Bound, bound, template)
		assert.NotContains(t, err.Error(), "secret")
	}
}

func TestTheFirstHundredLeasesAreTheMostUrgent(t *testing.T) {
	var all []quorumlock.LeaseStatus
	for i := range 10_000 {
		all = append(all, quorumlock.LeaseStatus{
			Name: fmt.Sprintf("job/%05d", i), Slot: -1, TTL: 10 * time.Second, Remaining: time.Duration(9000-i%5000) * time.Millisecond, Margin: 1,
		})
	}
	all[7777].AtRisk, all[7777].Margin = true, 0
	all[8888].Margin = 0
	rows := leaseRows(urgent(all, mostLeases), time.Now())
	require.Len(t, rows, mostLeases)
	assert.Equal(t, "job/07777", rows[0].Name)
	assert.Equal(t, "job/08888", rows[1].Name)
	assert.Contains(t, rows[2].Name, "job/049", "the least time left, by name")
	for i := 3; i < len(rows); i++ {
		assert.Less(t, rows[i-1].Name, rows[i].Name)
	}
}

func TestTheVerdictSaysWhetherLocksAreGranted(t *testing.T) {
	votes, down, warned := quorumlock.NodeStatus{Voting: true}, quorumlock.NodeStatus{Err: errors.New("refused")},
		quorumlock.NodeStatus{Voting: true, Warning: errors.New("no persistence")}
	held := quorumlock.LeaseStatus{TTL: 10 * time.Second, Remaining: 8 * time.Second, Margin: 1}
	thin, ending := held, held
	thin.AtRisk, ending.AtRisk, ending.Remaining = true, true, 3*time.Second
	none := &quorumlock.QuorumError{RetryAfter: 12 * time.Second}
	buckets, starting := make([]quorumlock.NodeStatus, 16), make([]quorumlock.NodeStatus, 16) // of a whole cluster
	for i := range buckets {
		starting[i] = quorumlock.NodeStatus{Addr: fmt.Sprintf("slot:{qlb%d}", i)}
		buckets[i] = starting[i]
		buckets[i].Voting = i > 1
	}
	for _, c := range []struct {
		ready  error
		nodes  []quorumlock.NodeStatus
		leases []quorumlock.LeaseStatus
		want   verdict
	}{
		{nil, []quorumlock.NodeStatus{votes, votes, votes}, nil, verdict{good, "Locks are granted. 3 of 3 nodes are usable.", ""}},
		{nil, []quorumlock.NodeStatus{votes}, []quorumlock.LeaseStatus{held}, verdict{good, "Locks are granted. 1 of 1 node is usable.", ""}},
		{nil, []quorumlock.NodeStatus{votes, warned, votes}, nil, verdict{warn, "Locks are granted. 3 of 3 nodes are usable.", "1 node has a warning."}},
		{nil, []quorumlock.NodeStatus{votes, down, votes}, nil, verdict{warn, "Locks are granted. 2 of 3 nodes are usable.", "If one more node fails, no lock is granted or renewed."}},
		{nil, []quorumlock.NodeStatus{votes, down, votes, votes, votes}, nil, verdict{warn, "Locks are granted. 4 of 5 nodes are usable.", ""}},
		{nil, []quorumlock.NodeStatus{votes, votes, votes}, []quorumlock.LeaseStatus{held, thin}, verdict{warn, "Locks are granted. 3 of 3 nodes are usable.", "1 lease is at risk here. "}},
		{nil, []quorumlock.NodeStatus{votes, votes, votes}, []quorumlock.LeaseStatus{ending, thin}, verdict{bad, "Locks are granted. 3 of 3 nodes are usable.", "2 leases are at risk here. "}},
		{none, []quorumlock.NodeStatus{votes, down, down}, []quorumlock.LeaseStatus{thin}, verdict{
			bad, "No lock is granted or renewed. 1 of 3 nodes are usable; 2 are needed.", "1 lease is at risk here. Quarantines end in 12s, and then a majority can grant locks.",
		}},
		{nil, buckets, nil, verdict{bad, "Names in 2 buckets get no lock now. 14 of 16 are usable.", ""}},
		{none, starting, nil, verdict{bad, "Names in 16 buckets get no lock now. 0 of 16 are usable.", "Quarantines end in 12s, and then a majority can grant locks."}},
		{quorumlock.ErrClosed, []quorumlock.NodeStatus{votes}, nil, verdict{bad, "This Manager is closed.", "It holds nothing, and grants nothing."}},
	} {
		assert.Equal(t, c.want, verdictOf(c.ready, c.nodes, c.leases))
	}
}

func TestANameShowsWhoWaitsAndHowLong(t *testing.T) {
	at := time.UnixMilli(1_800_000_000_000)
	s := &quorumlock.Status{Name: "job", Known: true, AsOf: at, Waiters: 12, Queue: []quorumlock.Waiter{
		{Process: "0123456789abcdef", Since: at.Add(-90 * time.Second)},
		{Process: "00000000000000aa", Own: true, Since: at.Add(-2 * time.Second), Shared: true},
		{Process: "0123456789abcdef", Since: at.Add(time.Second), Permits: 4}, // the clocks were measured in between
	}}
	v := ofName("job", 0, s, nil, nil, "", at.Add(time.Hour))
	assert.Equal(t, []waiterRow{
		{Key: "0123456789abcdef/1", Process: "0123456789abcdef", Waited: 90_000, Since: at.UnixMilli() - 90_000, Wants: "exclusive"},
		{Key: "00000000000000aa/1", Process: "00000000000000aa", Own: true, Waited: 2000, Since: at.UnixMilli() - 2000, Wants: "shared"},
		{Key: "0123456789abcdef/2", Process: "0123456789abcdef", Since: at.UnixMilli() + 1000, Wants: "1 of 4 permits"},
	}, v.Queue)
	assert.NotNil(t, ofName("job", 0, &quorumlock.Status{}, nil, nil, "", at).Queue, "JSON for none is []")
}

// A reader that crashed may have left its keys on one node.
func TestReadersOfAMinorityAreNoHolders(t *testing.T) {
	left := &quorumlock.Status{Name: "job", Known: true, Votes: 1, Readers: 1}
	assert.Equal(t, "no one", listRowOf(left, time.Now()).Holder)
	left.Held = true
	assert.Equal(t, "1 reader", listRowOf(left, time.Now()).Holder)
}

// Another program's lock may have no value at all.
func TestANodeWithAnEmptyKeyIsHeld(t *testing.T) {
	const missing, endless = -2 * time.Millisecond, -1 * time.Millisecond
	s := &quorumlock.Status{Name: "job", Known: true, Held: true, Votes: 2, TTL: endless, Nodes: []quorumlock.NodeStatus{
		{TTL: endless}, {TTL: time.Second}, {TTL: missing}, {Err: errors.New("refused")},
	}}
	v := ofName("job", 0, s, nil, nil, "", time.Now())
	says := []string(nil)
	for _, n := range v.Nodes {
		says = append(says, n.Says)
	}
	assert.Equal(t, []string{"held by someone without a label", "held by someone without a label", "free", "no answer"}, says)
	assert.InDelta(t, 1000, v.Nodes[1].TTL, 0)
	assert.Len(t, v.Holders, 1)
}

// The nodes no longer name the readers, and show no time.
func TestReadersThatWereRevokedHaveNeitherAnOwnerNorATime(t *testing.T) {
	of := quorumlock.Holder{Owner: strings.Repeat("0", 32), Since: time.UnixMicro(0), Revoked: "ops: they hang"}
	s := &quorumlock.Status{
		Name: "job", Known: true, Held: true, Votes: 1, Holder: of, TTL: time.Second,
		Nodes: []quorumlock.NodeStatus{{Holder: of, TTL: time.Second}},
	}
	v := ofName("job", 0, s, nil, nil, "", time.Now())
	require.Len(t, v.Holders, 1)
	row := v.Holders[0]
	assert.Equal(t, []any{"revoked readers", "", -1.0, int64(0)}, []any{row.Label, row.Owner, row.Held, row.Since})
	assert.Equal(t, "Revoked by ops: they hang. ", row.Notes)
	assert.Equal(t, "held by revoked readers", v.Nodes[0].Says)
	listed := listRowOf(s, time.Now())
	assert.Equal(t, []any{"revoked readers", -1.0}, []any{listed.Holder, listed.Held})
}

func TestAllPermitsAreCountedAndTheFirstHoldersHaveRows(t *testing.T) {
	now := time.Now()
	slots := make([]quorumlock.Status, 100)
	for i := 0; i < 70; i++ {
		slots[i] = quorumlock.Status{Known: true, Held: true, Holder: quorumlock.Holder{Owner: fmt.Sprintf("owner%d", i), Since: now}}
	}
	v := ofName("encode", 100, &quorumlock.Status{Known: true, Held: true, Slots: slots}, nil, nil, "", now)
	assert.Equal(t, "70 of 100 permits are held.", v.Text)
	assert.Len(t, v.Holders, mostHolders)
	assert.Equal(t, 70-mostHolders, v.More)
}

func TestLossesAreNotPushedOut(t *testing.T) {
	r := &recent{from: &quorumlock.Subscription{}}
	at := time.UnixMilli(1_800_000_000_000)
	for i := range int64(60) {
		r.add(quorumlock.Lost{Name: "job", Token: i, Reason: quorumlock.LostExpired, At: at}, at)
	}
	for i := range int64(1000) {
		r.add(quorumlock.Acquired{Name: "job", Token: i}, at)
		r.add(quorumlock.Released{Name: "job", Token: i}, at)
	}
	assert.Len(t, r.events, keptEvents)
	assert.Len(t, r.losses, keptLosses)
	assert.Equal(t, 60, r.lost)
	assert.Equal(t, "token 59, not renewed in time", r.losses[keptLosses-1].Text)
	assert.Equal(t, "token 10, not renewed in time", r.losses[0].Text)
	assert.Equal(t, "released", r.events[keptEvents-1].What)
}

func TestEachEventSaysWhatHasHappened(t *testing.T) {
	broken := []*quorumlock.NodeError{{Node: 1, Addr: "b:6379", Err: errors.New("key is missing")}}
	at := time.UnixMilli(1_800_000_000_000)
	for want, e := range map[string]quorumlock.Event{
		"good acquired|job|token 7, shared": quorumlock.Acquired{Name: "job", Token: 7, Shared: true},
		"good released|job|token 7":         quorumlock.Released{Name: "job", Token: 7},
		"warn at risk|job|token 7, 1.5s left, margin 0; node 1 (b:6379): key is missing": quorumlock.AtRisk{Name: "job", Token: 7, Remaining: 1500 * time.Millisecond, Nodes: broken},
		"bad lost|job|token 7, revoked by an operator; node 1 (b:6379): key is missing":  quorumlock.Lost{Name: "job", Token: 7, Reason: quorumlock.LostRevoked, At: at, Nodes: broken},
		"good node grants locks|1 b:6379|":                                               quorumlock.NodeChanged{Node: 1, Addr: "b:6379"},
		"bad node grants no locks|1 b:6379|refused":                                      quorumlock.NodeChanged{Node: 1, Addr: "b:6379", Err: errors.New("refused")},
		"warn node in quarantine for 12s|1 b:6379|restarted":                             quorumlock.NodeChanged{Node: 1, Addr: "b:6379", Err: errors.New("restarted"), QuarantinedFor: 12 * time.Second},
		"warn node warns|1 b:6379|no persistence":                                        quorumlock.NodeChanged{Node: 1, Addr: "b:6379", Warning: errors.New("no persistence")},
	} {
		r := rowOf(e, at)
		assert.Equal(t, want, fmt.Sprintf("%s %s|%s|%s", r.Level, r.What, r.Name, r.Text))
		assert.Equal(t, at.UnixMilli(), r.At)
	}
}
