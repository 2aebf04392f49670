package master

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// voting returns a group whose voters answer these texts, "" for one that is down. Voter i
// has the address "i:1". Sentinels know each other.
func voting(t *testing.T, option rueidis.ClientOption, answers ...string) *Group {
	t.Helper()
	voters := make([]voter, len(answers))
	for i, answer := range answers {
		others := slices.Delete([]string{"id0", "id1", "id2", "id3"}, i, i+1)
		voters[i] = voter{master: answer, id: bulkText(fmt.Sprint("id", i)), others: sentinelsWith(others...)}
	}
	return votingAs(t, option, voters...)
}

// voter is what a Sentinel answers, or in master a node of a cluster; it is down if that is "".
// Without id and others, a Sentinel answers everything alike; without addr, it gives clients the address in master.
type voter struct{ master, addr, id, others string }

func bulkText(text string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(text), text) }

// sentinelsWith is what a Sentinel answers that knows others with these ids.
func sentinelsWith(ids ...string) string {
	text := fmt.Sprintf("*%d\r\n", len(ids))
	for _, id := range ids {
		text += "*4\r\n" + bulkText("name") + bulkText("x") + bulkText("runid") + bulkText(id)
	}
	return text
}

func votingAs(t *testing.T, option rueidis.ClientOption, voters ...voter) *Group {
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
		answers.addr = cmp.Or(answers.addr, givenIn(answers.master))
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
		p := redistest.NewParrot(map[string][]byte{"CLUSTER": []byte(answers.master),
			"SENTINEL MASTER": []byte(answers.master), "SENTINEL GET-MASTER-ADDR-BY-NAME": []byte(answers.addr),
			"SENTINEL MYID": []byte(answers.id), "SENTINEL SENTINELS": []byte(answers.others)})
		served.Go(func() { p.Serve(there) })
		return here, nil
	}
	life, end := context.WithCancel(t.Context())
	g := New(life, &option, func() (_ clock.Validity, _ clock.Steady) { return clock.Validity(time.Hour), clock.Steady(time.Hour) }, func(o rueidis.ClientOption) rueidis.ClientOption {
		o.DialCtxFn, o.AlwaysRESP2 = option.DialCtxFn, true
		o.ForceSingleClient, o.DisableCache, o.DisableRetry, o.PipelineMultiplex = true, true, true, -1
		o.ClientSetInfo = rueidis.DisableClientSetInfo
		o.ReadBufferEachConn, o.WriteBufferEachConn, o.RingScaleEachConn = 4<<10, 4<<10, 4 // a question has 500 ms, on a busy machine as well
		return o
	}, nil)
	t.Cleanup(func() {
		end()
		g.voters.close()
		mu.Lock()
		ended = true
		mu.Unlock()
		served.Wait()
	})
	return g
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

// gives is what a Sentinel answers to clients that ask for the address.
func gives(host string) string { return "*2\r\n" + bulkText(host) + bulkText("6379") }

var hostIn = regexp.MustCompile(`\$2\r\nip\r\n\$\d+\r\n(.+)\r\n\$4\r\nport\r\n`)

// givenIn returns what gives does, for the host of what says returned; it returns any other answer as it is.
func givenIn(master string) string {
	if host := hostIn.FindStringSubmatch(master); host != nil {
		return gives(host[1])
	}
	return master
}

func TestAMajorityOfTheSentinelsNamesTheMaster(t *testing.T) {
	const unknown, plain = "-ERR No such master with that name\r\n", "-ERR unknown command 'SENTINEL'\r\n"
	for claim, c := range map[string]struct {
		answers []string
		term    Term
		text    string // of the error
		config  bool   // an operator must fix it
	}{
		"all agree":                  {answers: []string{says("a", 7), says("a", 7), says("a", 7)}, term: Term{"a:6379", 7}},
		"one is behind":              {answers: []string{says("old", 6), says("a", 7), says("a", 7)}, term: Term{"a:6379", 7}},
		"one is down":                {answers: []string{says("a", 7), "", says("a", 7)}, term: Term{"a:6379", 7}},
		"one knows nothing":          {answers: []string{unknown, says("a", 7), says("a", 7)}, term: Term{"a:6379", 7}},
		"IPv6":                       {answers: []string{says("::1", 7)}, term: Term{"[::1]:6379", 7}},
		"a stale minority is alone":  {answers: []string{says("old", 6), "", ""}, text: "no majority of the 3 Sentinels names a master"},
		"all differ":                 {answers: []string{says("a", 5), says("a", 6), says("b", 6)}, text: "the 3 Sentinels name different masters"},
		"half is no majority":        {answers: []string{says("a", 7), says("a", 7), says("b", 8), says("b", 8)}, text: "name different masters"},
		"a wrong master set":         {answers: []string{unknown, unknown, ""}, text: `knows no master set "m"`, config: true},
		"a wrong master set at one":  {answers: []string{unknown, "", says("a", 7)}, text: "no majority"},
		"no majority knows the set":  {answers: []string{unknown, says("a", 7)}, text: `knows no master set "m"`, config: true},
		"half of them know the set":  {answers: []string{unknown, says("a", 7), unknown, says("a", 7)}, text: `knows no master set "m"`, config: true},
		"no Sentinels":               {answers: []string{plain, plain, plain}, text: "is not a Sentinel", config: true},
		"no password":                {answers: []string{"-NOAUTH Authentication required.\r\n"}, text: "set Sentinel.Username", config: true},
		"an answer without an epoch": {answers: []string{"*2\r\n$2\r\nip\r\n$1\r\na\r\n"}, text: "not understood"},
	} {
		t.Run(claim, func(t *testing.T) {
			g := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, c.answers...)
			term, err := g.resolve(t.Context())
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
		"nobody owns it":            {answers: []string{nodes(otherLine, copyLine)}, text: "hash slot 12182 has no owner"},
		"no cluster":                {answers: []string{"-ERR This instance has cluster support disabled\r\n"}, text: "is not part of a cluster", config: true},
		"nonsense":                  {answers: []string{nodes("x y@z master - 0 0 -1 connected 12182")}, text: "not understood"},
	} {
		t.Run(claim, func(t *testing.T) {
			g := voting(t, SlotOption(tag, nil), c.answers...)
			term, err := g.resolve(t.Context())
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
	term, err := ownerOf(ownersIn(ownerLine, true), 12182)
	require.NoError(t, err)
	assert.Equal(t, "a.example:6379", term.Addr, "the name that is in the certificate")
	strangers := "dd44 :0@0 slave,fail,noaddr 9a1c 0 0 0 disconnected\nee55 10.0.0.5:6379@16379 handshake - 0 0 0 connected\n"
	failed := strings.Replace(copyLine, "slave", "slave,fail", 1)
	self, all := membersIn(strings.Join([]string{ownerLine, otherLine, failed}, "\n") + "\n" + strangers)
	assert.Equal(t, "bb22", self)
	assert.Equal(t, []string{"9a1c", "bb22", "cc33"}, all, "masters and replicas, also when they are down")
	for tag, slot := range map[string]int{"{foo}": 12182, "{123456789}": 12739, "{}": 15257} {
		assert.Equal(t, slot, Slot(tag), tag)
	}
}

// One Sentinel, or one node of a cluster, under two addresses would be a majority alone: cut off with the old master,
// it would confirm that master forever.
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
				g := votingAs(t, c.option, l.voters...)
				_, err := g.resolve(t.Context())
				var config *wire.ConfigError
				require.ErrorAs(t, err, &config)
				assert.Regexp(t, `^(0:1 and [123]:1|2:1 and 3:1) lead to the same one of the `+kind+` \(id x\)$`, config.Problem)
				assert.Contains(t, config.Fix, "list each of them once")

				g.Use(c.term, clock.Validity(time.Hour)) // a name that leads to another voter for a while ends no lease
				term, err := g.resolve(t.Context())
				if !l.another {
					require.Error(t, err)
					return
				}
				require.NoError(t, err)
				assert.Equal(t, c.term, term)
				testFaults(t, g, "0:1 and 2:1 lead to the same one of the "+kind)
			})
		}
	}
}

// testFaults checks what must be fixed at the voters, when all have answered.
func testFaults(t *testing.T, g *Group, texts ...string) {
	t.Helper()
	g.voters.pending.Wait() // a majority does not wait for the rest
	faults := g.Faults()
	for _, text := range texts {
		assert.Contains(t, fmt.Sprint(faults), text)
	}
	if len(texts) == 0 {
		assert.Empty(t, faults)
	}
}

// It is one mistake, so its error is of one kind, whatever the mix.
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
				g := votingAs(t, c.option, voters...)
				_, err := g.resolve(t.Context())
				var config *wire.ConfigError
				require.ErrorAs(t, err, &config)
				assert.Contains(t, config.Problem, kind+" at 0:1 and 1:1 are of two groups")
			})
		}
		t.Run(kind+"/the one that is down may be the majority's", func(t *testing.T) {
			g := votingAs(t, c.option, c.of("a", "1"), c.of("b", "1"), voter{})
			_, err := g.resolve(t.Context())
			var config *wire.ConfigError
			require.Error(t, err)
			require.NotErrorAs(t, err, &config)
			assert.Contains(t, err.Error(), "are of two groups")
		})
		t.Run(kind+"/a stranger beside a failover is no mistake of the others", func(t *testing.T) {
			behind := c.of("a", "2")
			behind.master = strings.NewReplacer(bulkText("7"), bulkText("6"), " 12 connected", " 11 connected").Replace(behind.master)
			g := votingAs(t, c.option, c.of("b", "1"), c.of("a", "1"), behind)
			_, err := g.resolve(t.Context())
			var config *wire.ConfigError
			require.ErrorContains(t, err, "no majority of the 3")
			require.NotErrorAs(t, err, &config)
		})
		t.Run(kind+"/a stranger beside a majority is a warning", func(t *testing.T) {
			g := votingAs(t, c.option, c.of("b", "1"), c.of("a", "1"), c.of("a", "2"))
			_, err := g.resolve(t.Context())
			require.NoError(t, err)
			testFaults(t, g, kind+" at 1:1 and 0:1 are of two groups")
		})
	}
}

// A majority works without the rest, so no operator would look at the rest without a report.
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
		"it is not a Sentinel":   {voter{master: "-ERR unknown command 'SENTINEL'\r\n"}, "2:1 is not a Sentinel"},
		"it does not say which one it is": {voter{master: says("a", 7), id: noRight, others: noRight},
			"a Sentinel does not identify itself or the others (NOPERM this user has no permissions to run the 'sentinel|myid' command)"},
		"it does not say which others it knows": {voter{master: says("a", 7), id: bulkText("z"), others: noRight}, "give the Sentinels' user " + sentinelRights},
		"all is well":                           {good("z"), ""},
		"it is down":                            {voter{}, ""},
	} {
		t.Run(claim, func(t *testing.T) {
			g := votingAs(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, good("x"), good("y"), c.third)
			term, err := g.resolve(t.Context())
			require.NoError(t, err)
			assert.Equal(t, Term{"a:6379", 7}, term)
			if c.text == "" {
				testFaults(t, g)
			} else {
				testFaults(t, g, c.text)
				assert.Len(t, g.Faults(), 1)
			}
		})
	}
	all := voter{master: says("a", 7), id: noRight, others: noRight}
	g := votingAs(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, all, all, all)
	_, err := g.resolve(t.Context())
	require.NoError(t, err, "as a node without the right to INFO")
	testFaults(t, g, "a Sentinel does not identify itself or the others")
	assert.Len(t, g.Faults(), 1, "said once")

	half := func(id string) voter { return voter{master: says("a", 7), id: bulkText(id), others: noRight} }
	g = votingAs(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, half("x"), half("y"), half("x"))
	_, err = g.resolve(t.Context())
	require.ErrorContains(t, err, "0:1 and 2:1 lead to the same one of the Sentinels", "its id is enough for that")
}

// A majority answers first each time. The answer of the slowest one still becomes a warning.
func TestTheSlowestVoterIsHeardAsWell(t *testing.T) {
	g := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, says("a", 7), says("a", 7), "-NOAUTH Authentication required.\r\n")
	named := make(chan struct{})
	option := &g.voters.conns[2].option
	dial := option.DialCtxFn
	option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		<-named
		return dial(ctx, addr, d, c)
	}
	g.Use(Term{"a:6379", 7}, clock.Validity(time.Hour)) // the first question waits for the others
	_, err := g.resolve(t.Context())
	require.NoError(t, err)
	require.Empty(t, g.Faults())
	close(named)
	testFaults(t, g, "the Sentinel at 2:1 asks for a password")
}

// A Sentinel without its configuration is restarted. Its warning would come and go in the log.
func TestSilenceDoesNotHideWhatHasToBeFixed(t *testing.T) {
	voters := []voter{{master: says("a", 7)}, {master: says("a", 7)}, {master: "-ERR No such master with that name\r\n"}}
	for i := range voters[:2] {
		voters[i].id, voters[i].others = bulkText(fmt.Sprint("id", i)), sentinelsWith("id0", "id1")
	}
	g := votingAs(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, voters...)
	_, err := g.resolve(t.Context())
	require.NoError(t, err)
	testFaults(t, g, "the Sentinel at 2:1 knows no master set")
	down := &g.voters.conns[2]
	down.client.Close()
	down.client, down.option.DialCtxFn = nil, func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
		return nil, errors.New("down")
	}
	_, err = g.resolve(t.Context())
	require.NoError(t, err)
	testFaults(t, g, "the Sentinel at 2:1 knows no master set")
}

// A step of the wall clock moves the validity clock alone. Leases move to the new master when the old one no longer
// votes for others, and the step does not bring that instant nearer.
func TestAStepOfTheWallClockDoesNotShortenTheWaitForANewTerm(t *testing.T) {
	validity, steady := time.Hour, time.Hour
	g := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, says("a", 7))
	g.clock = func() (_ clock.Validity, _ clock.Steady) { return clock.Validity(validity), clock.Steady(steady) }
	g.terms.Meet(Term{"old:6379", 6}, clock.Steady(steady))
	g.Use(Term{"old:6379", 6}, clock.Validity(validity))
	require.False(t, g.Confirm(), "the answer that names the new term first")
	dialled := errors.New("dialled")
	dial := g.Dial(func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) { return nil, dialled }, true)

	validity += 2 * failover.SettleFor
	_, err := dial(t.Context(), "", nil, nil)
	require.ErrorIs(t, err, ErrNewTerm, "the wall clock was stepped, and no time has passed")

	steady += failover.SettleFor
	_, err = dial(t.Context(), "", nil, nil)
	require.ErrorIs(t, err, dialled)
}

// The texts of Redis name a cause that no user can fix, and commands that no user sends.
func TestAnErrorOfAServerBeginsWithWhatItMeans(t *testing.T) {
	for text, c := range map[string]struct {
		want   string
		status wire.Status
	}{
		"ERR Script attempted to access a non local key in a cluster node script: x, on @user_script:40.": {
			"the cluster is moving the keys of the slot to another server: requests work again when the move ends: Script attempted to access a non local key in a cluster node script: x, on @user_script:40.", wire.Failed},
		"NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used": {
			"server asks for a password (NOAUTH): set Username and Password of the node", wire.Misconfigured},
	} {
		status, err := wire.Classify(wire.OperationError(strings.TrimPrefix(text, "ERR ")))
		assert.Equal(t, c.status, status)
		assert.EqualError(t, err, c.want)
	}
	const noPassword = "-NOAUTH HELLO must be called with the client already authenticated\r\n"
	for want, option := range map[string]rueidis.ClientOption{
		"the Sentinel at 0:1 asks for a password (NOAUTH): set Sentinel.Username and Sentinel.Password of the option; Username and Password are the master's": {Sentinel: rueidis.SentinelOption{MasterSet: "m"}},
		"the node at 0:1 asks for a password (NOAUTH): set Username and Password of the option":                                                               SlotOption("{foo}", nil),
	} {
		_, err := voting(t, option, noPassword).resolve(t.Context())
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

// A user's function that hangs holds up no majority, and piles nothing up.
func TestAVoterThatHangsHoldsUpNoMajority(t *testing.T) {
	g := voting(t, rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}, says("a", 7), says("a", 7), says("a", 7))
	hang := make(chan struct{})
	var hanging atomic.Int32
	option := &g.voters.conns[0].option
	dial := option.DialCtxFn
	option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, c *tls.Config) (net.Conn, error) {
		hanging.Add(1)
		<-hang
		return dial(ctx, addr, d, c)
	}
	defer close(hang)
	for range 20 {
		master, err := g.resolve(t.Context())
		require.NoError(t, err)
		assert.Equal(t, "a:6379", master.Addr)
	}
	assert.LessOrEqual(t, g.voters.conns[0].asked.Load(), g.voters.askers, "questions to the one that hangs")
	assert.LessOrEqual(t, hanging.Load(), int32(1), "the others wait for the first")
}

func TestAHostThatIsNamedSlotIsAHost(t *testing.T) {
	for addr, want := range map[string]string{"slot:6379": "", "slot:{6379}": "slot", "slot:locks": "slot", "slot:": "slot", "slots:6379": ""} {
		kind, name := Name(&rueidis.ClientOption{InitAddress: []string{addr}})
		assert.Equal(t, want, kind, addr)
		assert.Equal(t, addr, name)
	}
}
