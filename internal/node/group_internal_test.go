package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// voting returns a node whose voters answer these texts, "" for one that is down. Voter i
// has the address "i:1". Sentinels know each other.
func voting(t *testing.T, option rueidis.ClientOption, answers ...string) *Node {
	t.Helper()
	voters := make([]voter, len(answers))
	for i, answer := range answers {
		others := slices.Delete([]string{"id0", "id1", "id2", "id3"}, i, i+1)
		voters[i] = voter{master: answer, id: bulkText(fmt.Sprint("id", i)), others: sentinelsWith(others...)}
	}
	return votingAs(t, option, voters...)
}

// voter is what a Sentinel answers, or in master a node of a cluster; it is down if that is "".
// Without id and others, a Sentinel answers everything alike.
type voter struct{ master, id, others string }

func bulkText(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

// sentinelsWith is what a Sentinel answers that knows others with these ids.
func sentinelsWith(ids ...string) string {
	text := fmt.Sprintf("*%d\r\n", len(ids))
	for _, id := range ids {
		text += "*4\r\n" + bulkText("name") + bulkText("x") + bulkText("runid") + bulkText(id)
	}
	return text
}

func votingAs(t *testing.T, option rueidis.ClientOption, voters ...voter) *Node {
	t.Helper()
	var (
		served sync.WaitGroup
		mu     sync.Mutex
		ended  bool // a dial that was abandoned may come after the end
	)
	for i := range voters {
		option.InitAddress = append(option.InitAddress, fmt.Sprint(i, ":1"))
	}
	option.AlwaysRESP2 = true
	option.DialCtxFn = func(_ context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
		answers := voters[int(addr[0]-'0')]
		answers.id, answers.others = cmp.Or(answers.id, answers.master), cmp.Or(answers.others, answers.master)
		if answers.master == "" {
			return nil, errors.New("down")
		}
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return nil, net.ErrClosed
		}
		here, there := net.Pipe()
		p := &parrot{replies: map[string][]byte{"CLUSTER": []byte(answers.master),
			"SENTINEL MASTER": []byte(answers.master), "SENTINEL MYID": []byte(answers.id), "SENTINEL SENTINELS": []byte(answers.others)}}
		served.Go(func() { p.serve(there) })
		return here, nil
	}
	n := New(Config{Option: option, Clock: func() (_, _ time.Duration) { return time.Hour, time.Hour }})
	t.Cleanup(func() {
		n.cancel()
		if n.group != nil {
			n.group.voters.close()
		}
		mu.Lock()
		ended = true
		mu.Unlock()
		served.Wait()
	})
	return n
}

// says is what a Sentinel answers about the master set.
func says(host string, epoch int) string {
	var b strings.Builder
	fields := []string{"name", "m", "ip", host, "port", "6379", "config-epoch", fmt.Sprint(epoch)}
	fmt.Fprintf(&b, "*%d\r\n", len(fields))
	for _, f := range fields {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(f), f)
	}
	return b.String()
}

func TestAMajorityOfTheSentinelsNamesTheMaster(t *testing.T) {
	const unknown, plain = "-ERR No such master with that name\r\n", "-ERR unknown command 'SENTINEL'\r\n"
	for claim, c := range map[string]struct {
		answers []string
		term    Term
		text    string // of the error
		config  bool   // somebody has to mend it
	}{
		"all agree":                  {answers: []string{says("a", 7), says("a", 7), says("a", 7)}, term: Term{"a:6379", 7}},
		"one is behind":              {answers: []string{says("old", 6), says("a", 7), says("a", 7)}, term: Term{"a:6379", 7}},
		"one is down":                {answers: []string{says("a", 7), "", says("a", 7)}, term: Term{"a:6379", 7}},
		"one knows nothing":          {answers: []string{unknown, says("a", 7), says("a", 7)}, term: Term{"a:6379", 7}},
		"IPv6":                       {answers: []string{says("::1", 7)}, term: Term{"[::1]:6379", 7}},
		"a stale minority is alone":  {answers: []string{says("old", 6), "", ""}, text: "no majority of the 3 Sentinels names a master"},
		"all differ":                 {answers: []string{says("a", 5), says("a", 6), says("b", 6)}, text: "the 3 Sentinels do not agree"},
		"half is no majority":        {answers: []string{says("a", 7), says("a", 7), says("b", 8), says("b", 8)}, text: "do not agree"},
		"a wrong master set":         {answers: []string{unknown, unknown, ""}, text: `knows no master set "m"`, config: true},
		"a wrong master set at one":  {answers: []string{unknown, "", says("a", 7)}, text: "no majority"},
		"no majority knows the set":  {answers: []string{unknown, says("a", 7)}, text: `knows no master set "m"`, config: true},
		"half of them know the set":  {answers: []string{unknown, says("a", 7), unknown, says("a", 7)}, text: `knows no master set "m"`, config: true},
		"no Sentinels":               {answers: []string{plain, plain, plain}, text: "is no Sentinel", config: true},
		"no password":                {answers: []string{"-NOAUTH Authentication required.\r\n"}, text: "set Sentinel.Username", config: true},
		"an answer without an epoch": {answers: []string{"*2\r\n$2\r\nip\r\n$1\r\na\r\n"}, text: "not understood"},
	} {
		t.Run(claim, func(t *testing.T) {
			n := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, c.answers...)
			term, err := n.group.resolve(t.Context())
			assert.Equal(t, c.term, term)
			if c.text == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.text)
			assert.NotContains(t, err.Error(), "\n")
			var config *wire.ConfigError
			assert.Equal(t, c.config, errors.As(err, &config))
		})
	}
}

// nodes is what a cluster node answers.
func nodes(lines ...string) string {
	text := strings.Join(lines, "\n") + "\n"
	return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text)
}

const (
	ownerLine = "9a1c 10.0.0.1:6379@16379,a.example master - 0 1700000000000 12 connected 0-99 12182 [93->-bb]"
	otherLine = "bb22 10.0.0.2:6379@16379 myself,master - 0 1700000000000 9 connected 100-12181 12183-16383 [12182-<-9a1c]"
	copyLine  = "cc33 10.0.0.3:6379@16379 slave 9a1c 0 1700000000000 12 connected"
)

func TestAMajorityOfTheClusterNamesTheOwnerOfTheSlot(t *testing.T) {
	const tag = "{foo}" // slot 12182, as CLUSTER KEYSLOT says
	older := strings.ReplaceAll(strings.Replace(ownerLine, " 12 ", " 8 ", 1), "10.0.0.1", "10.0.0.9")
	for claim, c := range map[string]struct {
		answers []string
		term    Term
		text    string
		config  bool
	}{
		"all agree":                 {answers: []string{nodes(copyLine, ownerLine), nodes(otherLine, ownerLine), nodes(ownerLine)}, term: Term{"10.0.0.1:6379", 12}},
		"one is behind":             {answers: []string{nodes(older), nodes(ownerLine), nodes(ownerLine)}, term: Term{"10.0.0.1:6379", 12}},
		"one answers of three":      {answers: []string{nodes(ownerLine), "", ""}, text: "no majority of the 3 cluster nodes names a master"},
		"it asks itself":            {answers: []string{nodes(strings.Replace(ownerLine, "10.0.0.1", "", 1))}, term: Term{"0:6379", 12}},
		"only one knows the newest": {answers: []string{nodes(older), nodes(ownerLine), ""}, text: "no majority of the 3 cluster nodes names a master"},
		"nobody owns it":            {answers: []string{nodes(otherLine, copyLine)}, text: "nobody owns hash slot 12182"},
		"no cluster":                {answers: []string{"-ERR This instance has cluster support disabled\r\n"}, text: "is not part of a cluster", config: true},
		"nonsense":                  {answers: []string{nodes("x y@z master - 0 0 -1 connected 12182")}, text: "not understood"},
	} {
		t.Run(claim, func(t *testing.T) {
			n := voting(t, SlotOption(tag, nil), c.answers...)
			term, err := n.group.resolve(t.Context())
			if c.text == "" {
				require.NoError(t, err)
				assert.Equal(t, c.term, term)
				return
			}
			require.ErrorContains(t, err, c.text)
			var config *wire.ConfigError
			assert.Equal(t, c.config, errors.As(err, &config))
		})
	}
	term, err := ownerOf(ownerLine, 12182, true)
	require.NoError(t, err)
	assert.Equal(t, "a.example:6379", term.Addr, "the name that is in the certificate")
	strangers := "dd44 :0@0 slave,fail,noaddr 9a1c 0 0 0 disconnected\nee55 10.0.0.5:6379@16379 handshake - 0 0 0 connected\n"
	failed := strings.Replace(copyLine, "slave", "slave,fail", 1)
	self, all := membersIn(strings.Join([]string{ownerLine, otherLine, failed}, "\n") + "\n" + strangers)
	assert.Equal(t, "bb22", self)
	assert.Equal(t, []string{"9a1c", "bb22", "cc33"}, all, "masters and replicas, also when they are down")
	for tag, slot := range map[string]int{"{foo}": 12182, "{123456789}": 12739, "{}": 0} {
		assert.Equal(t, slot, slotOf(tag), tag)
	}
}

// A client to which nobody has confirmed the term for a while counts no vote.
func TestAnUnconfirmedTermGivesNoVote(t *testing.T) {
	n := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, says("a", 7))
	n.group.terms.Use(Term{"a:6379", 7}, time.Hour-failover.ConfirmedFor) // it is one hour now
	require.NoError(t, n.paused())
	n.group.terms.Use(Term{"a:6379", 7}, time.Hour-failover.ConfirmedFor-1)
	require.ErrorIs(t, n.paused(), ErrUnconfirmed)
	r := wire.Reply{Status: wire.Granted}
	require.True(t, n.conclude(&transfer{}, entry{req: &wire.Request{Kind: wire.Acquire}}, &r))
	assert.Equal(t, wire.Unknown, r.Status, "a grant that comes then does not count, and is released")
	require.ErrorIs(t, r.Err, ErrUnconfirmed)
}

// Another master may vote as soon as the guard is over, which covers the window. So what this
// one confirms to a later request keeps no lease.
func TestNothingThatWasSentAfterTheWindowKeepsALease(t *testing.T) {
	n := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, says("a", 7))
	n.cfg.Window = 10 * time.Second
	confirmed := time.Hour - time.Minute
	n.group.terms.Use(Term{"a:6379", 7}, confirmed)
	last := confirmed + 9500*time.Millisecond // the clocks of two machines run at different rates
	for kind, counts := range map[wire.Kind]bool{wire.Extend: false, wire.Heal: false, wire.Raise: false, wire.Release: true, wire.Read: true} {
		for sent, inTime := range map[time.Duration]bool{last: true, last + 1: false} {
			r := wire.Reply{Status: wire.Done, N: wire.Ours, Answers: []int64{wire.Ours}}
			require.True(t, n.conclude(&transfer{validity: sent, term: Term{"a:6379", 7}}, entry{req: &wire.Request{Kind: kind}}, &r))
			assert.Equal(t, counts || inTime, r.Status == wire.Done, "%v, sent %v after the confirmation", kind, sent-confirmed)
			if r.Status != wire.Done {
				require.ErrorIs(t, r.Err, ErrUnconfirmed)
				assert.Nil(t, r.Answers)
			}
		}
	}
}

// The answer comes from the master of a term before the one that is confirmed.
func TestAnAnswerOfAFormerTermKeepsNoLease(t *testing.T) {
	n := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, says("a", 7))
	n.cfg.Window = 10 * time.Second
	n.group.terms.Use(Term{"b:6379", 8}, time.Hour)
	r := wire.Reply{Status: wire.Done, N: wire.Ours}
	require.True(t, n.conclude(&transfer{validity: time.Hour, term: Term{"a:6379", 7}}, entry{req: &wire.Request{Kind: wire.Extend}}, &r))
	require.ErrorIs(t, r.Err, ErrUnconfirmed)
}

// A keep prolongs no lease, and is sent until it is answered: an answer that did not count
// would send it again at once.
// The term has changed while the request was on its way: the vote is of the master before.
func TestAVoteOfAFormerTermDoesNotCount(t *testing.T) {
	n := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, says("a", 7))
	n.group.terms.Use(Term{"b:6379", 8}, time.Hour)
	require.NoError(t, n.paused())
	for term, want := range map[Term]wire.Status{{"a:6379", 7}: wire.Unknown, {"b:6379", 8}: wire.Granted} {
		r := wire.Reply{Status: wire.Granted}
		require.True(t, n.conclude(&transfer{term: term}, entry{req: &wire.Request{Kind: wire.Acquire}}, &r))
		assert.Equal(t, want, r.Status, "%v", term)
	}
}

// A node remembers a list until the last lease has ended that may rely on it: from a vote
// that was sent when the registration was as old as it may be.
func TestAListOutlivesTheLeasesThatRelyOnIt(t *testing.T) {
	for _, guard := range []time.Duration{100 * time.Millisecond, 30 * time.Second, 48 * time.Hour} {
		for _, drift := range []float64{0, 0.01, 0.1} {
			n := New(Config{Option: rueidis.ClientOption{InitAddress: []string{"a:1"}}, Guard: guard, Drift: drift})
			needed := float64(ListAge+guard) * (1 + max(drift, 0.01)) // by a node's clock that is fast
			assert.Greater(t, float64(n.listLife()), needed, "guard %v, drift %v", guard, drift)
			n.cancel()
		}
	}
	assert.Greater(t, ListAge, checkEvery+2*answerTimeout, "a look comes before a registration is too old")
}

func TestAKeepIsAnsweredWithoutAConfirmation(t *testing.T) {
	n := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, says("a", 7))
	n.cfg.Window = 10 * time.Second
	r := wire.Reply{Status: wire.Done, N: wire.Ours}
	require.True(t, n.conclude(&transfer{validity: time.Hour}, entry{req: wire.NewKeep("l", wire.Compose("owner", 1, ""), "1000", 2*time.Hour)}, &r))
	assert.Equal(t, wire.Done, r.Status)
}

// A greeting may take so long that the term is not confirmed at its end. It runs no guard then.
// A later confirmation does not replace the guard, because the marker was not read.
func TestNoVoteCountsBeforeTheGuardHasRun(t *testing.T) {
	n := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, says("a", 7))
	n.cfg.Guard, n.identity = time.Hour, Identity{RunID: "run", ReplID: "data"}
	n.group.terms.Use(Term{"a:6379", 7}, 0)
	withheld, err := n.guard(t.Context()) // without a connection it would fail
	require.NoError(t, err)
	require.NoError(t, withheld, "what keeps a lease goes on")
	n.confirm(n.group)
	require.NoError(t, n.unconfirmed())
	require.ErrorIs(t, n.paused(), ErrUnconfirmed)
	n.report(nil)
	require.ErrorIs(t, n.Health().Err, ErrUnconfirmed)
	r := wire.Reply{Status: wire.Granted}
	require.True(t, n.conclude(&transfer{}, entry{req: &wire.Request{Kind: wire.Acquire}}, &r))
	require.ErrorIs(t, r.Err, ErrUnconfirmed)
}

func TestTheMarkerOfAGroupNamesServerDataAndEpoch(t *testing.T) {
	n := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, says("a", 7))
	n.identity = Identity{RunID: "run", ReplID: "data"}
	n.group.terms.Use(Term{"a:6379", 7}, 0)
	assert.Equal(t, "run.data.7", n.markerWord())
	assert.EqualValues(t, 7, epochOf(n.markerWord()+" 1700000000000000 60000 nonce"))
	assert.EqualValues(t, 0, epochOf("run 1700000000000000 60000 nonce"))
	n.group = nil
	assert.Equal(t, "run", n.markerWord())
	n.group = voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, says("a", 7)).group
}

func TestOnlyASafeMasterIsTheNodeOfAGroup(t *testing.T) {
	sound := Identity{RunID: "run", ReplID: "data", Role: "master", Mode: "standalone", Version: "7.0.0"}
	sentinel, slot := rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, SlotOption("{foo}", nil)
	for claim, c := range map[string]struct {
		option rueidis.ClientOption
		change func(*Identity)
		text   string // of the error, "" for none
		away   bool   // it passes by itself
	}{
		"a master":                        {sentinel, func(*Identity) {}, "", false},
		"a replica":                       {sentinel, func(id *Identity) { id.Role = "slave" }, "not the master of its group now", true},
		"Redis 6":                         {sentinel, func(id *Identity) { id.Version = "6.2.14" }, "use Redis 7.0 or newer", false},
		"Redis 10":                        {sentinel, func(id *Identity) { id.Version = "10.0.0" }, "", false},
		"no INFO":                         {sentinel, func(id *Identity) { *id = Identity{Unchecked: errors.New("NOPERM")} }, "", false},
		"a cluster under Sentinels":       {sentinel, func(id *Identity) { id.Mode = "cluster" }, "with ClusterSlot", false},
		"a slot":                          {slot, func(id *Identity) { id.Mode = "cluster" }, "", false},
		"a server without a cluster":      {slot, func(*Identity) {}, "server runs in standalone mode", false},
		"a replica of a cluster":          {slot, func(id *Identity) { id.Mode, id.Role = "cluster", "slave" }, "not the master", true},
		"one server":                      {rueidis.ClientOption{}, func(*Identity) {}, "", false},
		"one server that is a replica":    {rueidis.ClientOption{}, func(id *Identity) { id.Role = "slave" }, "list the master only", false},
		"one server of a cluster":         {rueidis.ClientOption{}, func(id *Identity) { id.Mode = "cluster" }, "quorumlock.ClusterSlot", false},
		"a Sentinel in place of a server": {rueidis.ClientOption{}, func(id *Identity) { id.Mode = "sentinel" }, "quorumlock.Sentinel", false},
	} {
		t.Run(claim, func(t *testing.T) {
			n := voting(t, c.option, says("a", 7))
			id := sound
			c.change(&id)
			err := n.suits(id)
			assert.Equal(t, c.away, wire.Away(err))
			if c.text == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.text)
			}
		})
	}
	n := voting(t, rueidis.ClientOption{}, says("a", 7))
	n.identity = sound
	err := n.suits(Identity{Role: "slave", Mode: "standalone"})
	require.ErrorContains(t, err, "list the master only")
	assert.True(t, wire.Away(err), "a server that was a master before may be one again")
}

// One Sentinel, or one node of a cluster, under two addresses would be a majority alone: cut
// off with the old master, it would confirm that one for ever.
func TestAVoterUnderTwoAddressesIsRefusedAndNeverCountsTwice(t *testing.T) {
	sentinel := func(id string) voter {
		return voter{master: says("a", 7), id: bulkText(id), others: sentinelsWith("x", "y", "z")}
	}
	slot := func(id string) voter {
		return voter{master: nodes(ownerLine, id+" 10.0.0.2:6379@16379 myself,slave 9a1c 0 1700000000000 9 connected", "x h:1@2 slave 9a1c 0 0 9 connected")}
	}
	for kind, c := range map[string]struct {
		option rueidis.ClientOption
		voter  func(id string) voter
		term   Term
	}{
		"Sentinels":     {rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, sentinel, Term{"a:6379", 7}},
		"cluster nodes": {SlotOption("{foo}", nil), slot, Term{"10.0.0.1:6379", 12}},
	} {
		for claim, l := range map[string]struct {
			voters  []voter
			another bool // a majority is left without the second address
		}{
			"twice and no other":          {[]voter{c.voter("x"), c.voter("x")}, false},
			"twice and one that is down":  {[]voter{c.voter("x"), {}, c.voter("x")}, false},
			"twice and another one":       {[]voter{c.voter("x"), c.voter("y"), c.voter("x")}, true},
			"three times and another two": {[]voter{c.voter("x"), c.voter("y"), c.voter("x"), c.voter("x"), c.voter("z")}, true},
		} {
			t.Run(kind+"/"+claim, func(t *testing.T) {
				n := votingAs(t, c.option, l.voters...)
				_, err := n.group.resolve(t.Context())
				var config *wire.ConfigError
				require.ErrorAs(t, err, &config)
				assert.Regexp(t, `^(0:1 and [123]:1|2:1 and 3:1) lead to one of the `+kind+` \(id x\)$`, config.Problem)
				assert.Contains(t, config.Fix, "list each once")

				n.group.terms.Use(c.term, time.Hour) // a name that leads to another voter for a while ends no lease
				term, err := n.group.resolve(t.Context())
				if !l.another {
					require.Error(t, err)
					return
				}
				require.NoError(t, err)
				assert.Equal(t, c.term, term)
				testFaults(t, n, "0:1 and 2:1 lead to one of the "+kind)
			})
		}
	}
}

// testFaults checks what has to be fixed at the voters, when all have answered.
func testFaults(t *testing.T, n *Node, texts ...string) {
	t.Helper()
	n.group.voters.pending.Wait() // a majority does not wait for the rest
	faults := n.VoterFaults()
	for _, text := range texts {
		assert.Contains(t, fmt.Sprint(faults), text)
	}
	if len(texts) == 0 {
		assert.Empty(t, faults)
	}
}

// The mistake is one, so its error is of one kind, whatever the mix.
func TestVotersOfTwoGroupsAreAMistakeInTheList(t *testing.T) {
	of := func(group, id string) voter {
		return voter{master: says(group, 7), id: bulkText(group + id), others: sentinelsWith(group+"0", group+"9", group+map[string]string{"1": "2", "2": "1"}[id])}
	}
	in := func(group, id string) voter {
		return voter{master: nodes(strings.ReplaceAll(ownerLine, "9a1c 10.0.0.1", group+"1 "+group), group+id+" h:1@2 myself,slave x 0 0 9 connected")}
	}
	for kind, c := range map[string]struct {
		option rueidis.ClientOption
		of     func(group, id string) voter
	}{
		"the Sentinels":     {rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, of},
		"the cluster nodes": {SlotOption("{foo}", nil), in},
	} {
		for claim, voters := range map[string][]voter{
			"one of each of two":     {c.of("a", "1"), c.of("b", "1")},
			"one of each of three":   {c.of("a", "1"), c.of("b", "1"), c.of("c", "1")},
			"two of each of two":     {c.of("a", "1"), c.of("b", "1"), c.of("a", "2"), c.of("b", "2")},
			"as many, and one down ": {c.of("a", "1"), c.of("b", "1"), c.of("a", "2"), c.of("b", "2"), c.of("c", "1"), {}},
		} {
			t.Run(kind+"/"+claim, func(t *testing.T) {
				n := votingAs(t, c.option, voters...)
				_, err := n.group.resolve(t.Context())
				var config *wire.ConfigError
				require.ErrorAs(t, err, &config)
				assert.Contains(t, config.Problem, kind+" at 0:1 and 1:1 are of two groups")
			})
		}
		t.Run(kind+"/the one that is down may be the majority's", func(t *testing.T) {
			n := votingAs(t, c.option, c.of("a", "1"), c.of("b", "1"), voter{})
			_, err := n.group.resolve(t.Context())
			var config *wire.ConfigError
			require.Error(t, err)
			require.NotErrorAs(t, err, &config)
			assert.Contains(t, err.Error(), "are of two groups")
		})
		t.Run(kind+"/a stranger beside a failover is no mistake of the others", func(t *testing.T) {
			behind := c.of("a", "2")
			behind.master = strings.NewReplacer(bulkText("7"), bulkText("6"), " 12 connected", " 11 connected").Replace(behind.master)
			n := votingAs(t, c.option, c.of("b", "1"), c.of("a", "1"), behind)
			_, err := n.group.resolve(t.Context())
			var config *wire.ConfigError
			require.ErrorContains(t, err, "no majority of the 3")
			require.NotErrorAs(t, err, &config)
		})
		t.Run(kind+"/a stranger beside a majority is a warning", func(t *testing.T) {
			n := votingAs(t, c.option, c.of("b", "1"), c.of("a", "1"), c.of("a", "2"))
			_, err := n.group.resolve(t.Context())
			require.NoError(t, err)
			testFaults(t, n, kind+" at 1:1 and 0:1 are of two groups")
		})
	}
}

// A majority works without the rest, which nobody would look at otherwise.
func TestAVoterThatCannotBeAskedShowsBesideAMajority(t *testing.T) {
	good := func(id string) voter { // each knows those before it, or is known by those behind it
		return voter{master: says("a", 7), id: bulkText(id), others: sentinelsWith(map[string][]string{"x": {}, "y": {"x"}, "z": {"x", "y"}}[id]...)}
	}
	const noRight = "-NOPERM this user has no permissions to run the 'sentinel|myid' command\r\n"
	for claim, c := range map[string]struct {
		third voter
		text  string
	}{
		"it knows no such set":   {voter{master: "-ERR No such master with that name\r\n"}, `the Sentinel at 2:1 knows no master set "m"`},
		"it asks for a password": {voter{master: "-NOAUTH Authentication required.\r\n"}, "the Sentinel at 2:1 asks for a password (NOAUTH): set Sentinel.Username"},
		"it is no Sentinel":      {voter{master: "-ERR unknown command 'SENTINEL'\r\n"}, "2:1 is no Sentinel"},
		"it does not say which one it is": {voter{master: says("a", 7), id: noRight, others: noRight},
			"a Sentinel does not say which one it is, or which others it knows (NOPERM this user has no permissions to run the 'sentinel|myid' command)"},
		"it does not say which others it knows": {voter{master: says("a", 7), id: bulkText("z"), others: noRight}, "give the Sentinels' user +sentinel|master, +sentinel|myid"},
		"all is well":                           {good("z"), ""},
		"it is down":                            {voter{}, ""},
	} {
		t.Run(claim, func(t *testing.T) {
			n := votingAs(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, good("x"), good("y"), c.third)
			term, err := n.group.resolve(t.Context())
			require.NoError(t, err)
			assert.Equal(t, Term{"a:6379", 7}, term)
			if c.text == "" {
				testFaults(t, n)
			} else {
				testFaults(t, n, c.text)
				assert.Len(t, n.VoterFaults(), 1)
			}
		})
	}
	all := voter{master: says("a", 7), id: noRight, others: noRight}
	n := votingAs(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, all, all, all)
	_, err := n.group.resolve(t.Context())
	require.NoError(t, err, "as a node without the right to INFO")
	testFaults(t, n, "a Sentinel does not say which one it is")
	assert.Len(t, n.VoterFaults(), 1, "said once")

	half := func(id string) voter { return voter{master: says("a", 7), id: bulkText(id), others: noRight} }
	n = votingAs(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, half("x"), half("y"), half("x"))
	_, err = n.group.resolve(t.Context())
	require.ErrorContains(t, err, "0:1 and 2:1 lead to one of the Sentinels", "its id is enough for that")
}

// A majority answers first each time. What the slowest one says is a warning all the same.
func TestTheSlowestVoterIsHeardAsWell(t *testing.T) {
	n := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, says("a", 7), says("a", 7), "-NOAUTH Authentication required.\r\n")
	named := make(chan struct{})
	option := &n.group.voters.conns[2].option
	dial := option.DialCtxFn
	option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		<-named
		return dial(ctx, addr, d, c)
	}
	n.group.terms.Use(Term{"a:6379", 7}, time.Hour) // the first question waits for the others
	_, err := n.group.resolve(t.Context())
	require.NoError(t, err)
	require.Empty(t, n.VoterFaults())
	close(named)
	testFaults(t, n, "the Sentinel at 2:1 asks for a password")
}

// A Sentinel without its configuration is restarted. Its warning would come and go in the log.
func TestSilenceDoesNotHideWhatHasToBeFixed(t *testing.T) {
	voters := []voter{{master: says("a", 7)}, {master: says("a", 7)}, {master: "-ERR No such master with that name\r\n"}}
	for i := range voters[:2] {
		voters[i].id, voters[i].others = bulkText(fmt.Sprint("id", i)), sentinelsWith("id0", "id1")
	}
	n := votingAs(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, voters...)
	_, err := n.group.resolve(t.Context())
	require.NoError(t, err)
	testFaults(t, n, "the Sentinel at 2:1 knows no master set")
	down := &n.group.voters.conns[2]
	down.client.Close()
	down.client, down.option.DialCtxFn = nil, func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
		return nil, errors.New("down")
	}
	_, err = n.group.resolve(t.Context())
	require.NoError(t, err)
	testFaults(t, n, "the Sentinel at 2:1 knows no master set")
}

// The texts of Redis name a cause that no user can mend, and commands that no user sends.
func TestAnErrorOfAServerBeginsWithWhatItMeans(t *testing.T) {
	for text, c := range map[string]struct {
		want   string
		status wire.Status
	}{
		"ERR Script attempted to access a non local key in a cluster node script: x, on @user_script:40.": {
			"the keys of the slot are being moved to another server, and requests pass again afterwards: Script attempted to access a non local key in a cluster node script: x, on @user_script:40.", wire.Failed},
		"NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used": {
			"server asks for a password (NOAUTH): set Username and Password of the node", wire.Misconfigured},
	} {
		status, err := classify(wire.OperationError(strings.TrimPrefix(text, "ERR ")))
		assert.Equal(t, c.status, status)
		assert.EqualError(t, err, c.want)
	}
	const noPassword = "-NOAUTH HELLO must be called with the client already authenticated\r\n"
	for want, option := range map[string]rueidis.ClientOption{
		"the Sentinel at 0:1 asks for a password (NOAUTH): set Sentinel.Username and Sentinel.Password of the option; Username and Password are the master's": {Sentinel: rueidis.SentinelOption{MasterSet: "m"}},
		"the node at 0:1 asks for a password (NOAUTH): set Username and Password of the option":                                                               SlotOption("{foo}", nil),
	} {
		_, err := voting(t, option, noPassword).group.resolve(t.Context())
		assert.EqualError(t, err, want)
	}
}

// rueidis reports the end of its own timeout or ours, as it happens. A text that changes all the
// time would be an event each time.
func TestAVoterThatDoesNotAnswerHasOneText(t *testing.T) {
	for _, err := range []error{context.DeadlineExceeded, os.ErrDeadlineExceeded, errSilent,
		&net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}, fmt.Errorf("rueidis: %w", context.DeadlineExceeded)} {
		assert.EqualError(t, noAnswer("a:1", err), "a:1: no answer within 500ms")
	}
	assert.EqualError(t, noAnswer("a:1", errors.New("refused")), "a:1: refused")
}

// Every answer of every node comes by here.
func TestAnAnswerWithoutAnErrorAllocatesNothing(t *testing.T) {
	n := New(Config{Option: rueidis.ClientOption{InitAddress: []string{"a:1"}}, Clock: func() (_, _ time.Duration) { return 0, 0 }})
	defer n.cancel()
	for _, kind := range []wire.Kind{wire.Acquire, wire.Extend, wire.Release} {
		var r wire.Reply
		req := &wire.Request{Kind: kind}
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			r = wire.Reply{Status: wire.Granted}
			n.conclude(&transfer{}, entry{req: req}, &r)
		}), "%v", kind)
	}
}

// A health endpoint has to show it, and why.
func TestAnUnconfirmedTermIsReportedWithItsCause(t *testing.T) {
	n := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, "-NOAUTH Authentication required.\r\n")
	n.group.terms.Use(Term{"a:6379", 7}, time.Hour-failover.ConfirmedFor) // it is one hour now
	n.confirm(n.group)
	n.report(nil)
	require.NoError(t, n.Health().Err)
	n.group.terms.Use(Term{"a:6379", 7}, 0)
	n.report(nil)
	h := n.Health()
	assert.True(t, h.Withheld, "leases go on")
	require.ErrorIs(t, h.Err, ErrUnconfirmed)
	assert.ErrorContains(t, h.Err, "set Sentinel.Username")
	assert.Equal(t, h.Err.Error(), n.paused().Error())
	withheld, err := n.guard(t.Context()) // without a connection it would fail
	require.NoError(t, err)
	require.NoError(t, withheld, "a client of an old term starts no quarantine")
}

// A function of the user's that hangs holds up no majority, and piles nothing up.
func TestAVoterThatHangsHoldsUpNoMajority(t *testing.T) {
	n := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, says("a", 7), says("a", 7), says("a", 7))
	hang := make(chan struct{})
	var hanging atomic.Int32
	option := &n.group.voters.conns[0].option
	dial := option.DialCtxFn
	option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		hanging.Add(1)
		<-hang
		return dial(ctx, addr, d, c)
	}
	defer close(hang)
	for range 20 {
		master, err := n.group.resolve(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "a:6379", master.Addr)
	}
	assert.LessOrEqual(t, n.group.voters.conns[0].asked.Load(), int32(askers), "questions to the one that hangs")
	assert.LessOrEqual(t, hanging.Load(), int32(1), "the others wait for the first")
}

func TestAHostThatIsNamedSlotIsAHost(t *testing.T) {
	for addr, want := range map[string]string{"slot:6379": "", "slot:{6379}": "slot", "slot:locks": "slot", "slot:": "slot", "slots:6379": ""} {
		kind, name := Group(&rueidis.ClientOption{InitAddress: []string{addr}})
		assert.Equal(t, want, kind, addr)
		assert.Equal(t, addr, name)
	}
}
