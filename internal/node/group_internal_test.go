package node

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock/internal/clock"
	"github.com/quorumlock/quorumlock/internal/failover"
	"github.com/quorumlock/quorumlock/internal/master"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/vote"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// masterSet is the option of a node that is a master set.
var masterSet = rueidis.ClientOption{Sentinel: rueidis.SentinelOption{MasterSet: "m"}}

// voting returns a node with one voter, which answers this text.
func voting(t *testing.T, option rueidis.ClientOption, answer string) *Node {
	t.Helper()
	var (
		served sync.WaitGroup
		mu     sync.Mutex
		ended  bool // a dial that was abandoned may come after the end
	)
	option.InitAddress = append(option.InitAddress, "0:1")
	option.AlwaysRESP2 = true
	option.DialCtxFn = func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if ended {
			return nil, net.ErrClosed
		}
		here, there := net.Pipe()
		p := redistest.NewParrot(map[string][]byte{"CLUSTER": []byte(answer), "SENTINEL MASTER": []byte(answer),
			"SENTINEL GET-MASTER-ADDR-BY-NAME": []byte("*2\r\n$1\r\na\r\n$4\r\n6379\r\n"), "SENTINEL MYID": []byte("$3\r\nid0\r\n"),
			"SENTINEL SENTINELS": []byte("*0\r\n")})
		served.Go(func() { p.Serve(there) })
		return here, nil
	}
	n := New(Config{Option: option, Clock: func() (_ clock.Validity, _ clock.Steady) { return clock.Validity(time.Hour), clock.Steady(time.Hour) }})
	t.Cleanup(func() {
		n.cancel()
		n.group.Run(func() {}, func() {}) // ends at once, and closes the connection
		mu.Lock()
		ended = true
		mu.Unlock()
		served.Wait()
	})
	return n
}

// says is what a Sentinel answers about the master set.
const says = "*8\r\n$4\r\nname\r\n$1\r\nm\r\n$2\r\nip\r\n$1\r\na\r\n$4\r\nport\r\n$4\r\n6379\r\n$12\r\nconfig-epoch\r\n$1\r\n7\r\n"

func TestAnUnconfirmedTermGivesNoVote(t *testing.T) {
	n := voting(t, masterSet, says)
	n.group.Use(master.Term{Addr: "a:6379", Epoch: 7}, clock.Validity(time.Hour-failover.ConfirmedFor)) // it is one hour now
	require.NoError(t, n.greeter.mayVote())
	n.group.Use(master.Term{Addr: "a:6379", Epoch: 7}, clock.Validity(time.Hour-failover.ConfirmedFor-1))
	require.ErrorIs(t, n.greeter.mayVote(), failover.ErrUnconfirmed)
	r := wire.Reply{Status: wire.Granted}
	require.True(t, n.courier.conclude(&transfer{}, entry{req: &wire.Request{Kind: wire.Acquire}}, &r))
	assert.Equal(t, wire.Unknown, r.Status, "a grant that comes then does not count, and is released")
	require.ErrorIs(t, r.Err, failover.ErrUnconfirmed)
}

func TestNothingThatWasSentAfterTheWindowKeepsALease(t *testing.T) {
	n := voting(t, masterSet, says)
	n.cfg.Window = 10 * time.Second
	confirmed := time.Hour - time.Minute
	n.group.Use(master.Term{Addr: "a:6379", Epoch: 7}, clock.Validity(confirmed))
	last := confirmed + 9500*time.Millisecond // the clocks of two machines run at different rates
	for kind, counts := range map[wire.Kind]bool{wire.Extend: false, wire.Heal: false, wire.Raise: false, wire.Mark: false, wire.Release: true, wire.Read: true} {
		for sent, inTime := range map[time.Duration]bool{last: true, last + 1: false} {
			r := wire.Reply{Status: wire.Done, N: wire.Ours, Answers: []int64{wire.Ours}}
			require.True(t, n.courier.conclude(&transfer{validity: clock.Validity(sent), term: master.Term{Addr: "a:6379", Epoch: 7}}, entry{req: &wire.Request{Kind: kind}}, &r))
			assert.Equal(t, counts || inTime, r.Status == wire.Done, "%v, sent %v after the confirmation", kind, sent-confirmed)
			if r.Status != wire.Done {
				require.ErrorIs(t, r.Err, failover.ErrUnconfirmed)
				assert.Nil(t, r.Answers)
			}
		}
	}
}

func TestAnAnswerOfAFormerTermKeepsNoLease(t *testing.T) {
	n := voting(t, masterSet, says)
	n.cfg.Window = 10 * time.Second
	n.group.Use(master.Term{Addr: "b:6379", Epoch: 8}, clock.Validity(time.Hour))
	r := wire.Reply{Status: wire.Done, N: wire.Ours}
	require.True(t, n.courier.conclude(&transfer{validity: clock.Validity(time.Hour), term: master.Term{Addr: "a:6379", Epoch: 7}}, entry{req: &wire.Request{Kind: wire.Extend}}, &r))
	require.ErrorIs(t, r.Err, failover.ErrUnconfirmed)
}

func TestAVoteOfAFormerTermDoesNotCount(t *testing.T) {
	n := voting(t, masterSet, says)
	n.group.Use(master.Term{Addr: "b:6379", Epoch: 8}, clock.Validity(time.Hour))
	require.NoError(t, n.greeter.mayVote())
	for term, want := range map[master.Term]wire.Status{{Addr: "a:6379", Epoch: 7}: wire.Unknown, {Addr: "b:6379", Epoch: 8}: wire.Granted} {
		r := wire.Reply{Status: wire.Granted}
		require.True(t, n.courier.conclude(&transfer{term: term}, entry{req: &wire.Request{Kind: wire.Acquire}}, &r))
		assert.Equal(t, want, r.Status, "%v", term)
	}
}

func TestAListOutlivesTheLeasesThatRelyOnIt(t *testing.T) {
	for _, guard := range []time.Duration{100 * time.Millisecond, 30 * time.Second, 48 * time.Hour} {
		for _, drift := range []float64{0, 0.01, 0.1} {
			n := New(Config{Option: rueidis.ClientOption{InitAddress: []string{"a:1"}}, Guard: guard, Drift: drift})
			needed := float64(ListAge+guard) * (1 + max(drift, 0.01)) // by a node's clock that is fast
			assert.Greater(t, float64(listLife(guard, drift)), needed, "guard %v, drift %v", guard, drift)
			n.cancel()
		}
	}
	assert.Greater(t, ListAge, checkEvery+2*answerTimeout, "a look comes before a registration is too old")
}

// The node may forget the list a while after it was last asked to remember it. Until then, and not
// longer, a lease may rely on renewals there.
func TestARenewalReliesOnANodeWhileThatRemembersTheList(t *testing.T) {
	n := New(Config{Option: rueidis.ClientOption{InitAddress: []string{"a:1"}}, Guard: time.Minute, Clock: func() (_ clock.Validity, _ clock.Steady) { return clock.Validity(time.Hour), clock.Steady(time.Hour) }})
	defer n.cancel()
	renewals, heal := wire.NewBatch(wire.Extend, 2, clock.Steady(2*time.Hour)), wire.NewBatch(wire.Heal, 1, clock.Steady(2*time.Hour))
	value := wire.Compose(strings.Repeat("0", wire.OwnerLen), 1, "")
	wire.Entry{Lock: "l", Value: value}.Extend(renewals, "1000")
	wire.Entry{Lock: "m", Value: value}.Extend(renewals, "20000")
	wire.Entry{Value: value}.Heal(heal, "20000", 0, 0)
	status := func(req *wire.Request, sent time.Duration) wire.Status {
		r := wire.Reply{Status: wire.Done, N: wire.Ours, Answers: []int64{wire.Ours}}
		require.True(t, n.courier.conclude(&transfer{steady: clock.Steady(sent)}, entry{req: req}, &r))
		if r.Status != wire.Done {
			require.ErrorIs(t, r.Err, vote.ErrLapsed)
			assert.Nil(t, r.Answers)
		}
		return r.Status
	}
	const listed = 10 * time.Minute
	last := listed + n.cfg.Guard + looksPerList*checkEvery - 20*time.Second
	for _, req := range []*wire.Request{renewals, heal} {
		assert.Equal(t, wire.Done, status(req, last+1), "it has registered nothing there")
		n.vote.Remembers = clock.Steady(last + 20*time.Second)
		assert.Equal(t, wire.Done, status(req, last))
		assert.Equal(t, wire.Unknown, status(req, last+1))
		n.vote.Remembers = 0
	}
	n.vote.Remembers = clock.Steady(last + 20*time.Second)
	for _, kind := range []wire.Kind{wire.Release, wire.Read, wire.Mark, wire.Raise} {
		assert.Equal(t, wire.Done, status(&wire.Request{Kind: kind}, time.Hour), "%v", kind)
	}
	assert.Greater(t, listLife(n.cfg.Guard, n.cfg.Drift), last-listed+20*time.Second, "the entry stands for longer")
}

// A keep prolongs no lease, and is sent until it is answered: an answer that did not count
// would send it again at once.
func TestAKeepIsAnsweredWithoutAConfirmation(t *testing.T) {
	n := voting(t, masterSet, says)
	n.cfg.Window = 10 * time.Second
	r := wire.Reply{Status: wire.Done, N: wire.Ours}
	require.True(t, n.courier.conclude(&transfer{validity: clock.Validity(time.Hour)}, entry{req: wire.Entry{Lock: "l", Value: wire.Compose("owner", 1, "")}.Keep("1000", clock.Steady(2*time.Hour))}, &r))
	assert.Equal(t, wire.Done, r.Status)
}

func TestNoVoteCountsBeforeTheGuardHasRun(t *testing.T) {
	n := voting(t, masterSet, says)
	n.cfg.Guard, n.greeter.identity = time.Hour, Identity{RunID: "run", ReplID: "data"}
	n.group.Use(master.Term{Addr: "a:6379", Epoch: 7}, 0)
	withheld, err := n.greeter.guard() // without a connection it would fail
	require.NoError(t, err)
	require.NoError(t, withheld, "what keeps a lease goes on")
	n.group.Confirm()
	require.False(t, n.group.Unconfirmed())
	require.ErrorIs(t, n.greeter.mayVote(), failover.ErrUnconfirmed)
	n.report(nil)
	require.ErrorIs(t, n.Health().Err, failover.ErrUnconfirmed)
	r := wire.Reply{Status: wire.Granted}
	require.True(t, n.courier.conclude(&transfer{}, entry{req: &wire.Request{Kind: wire.Acquire}}, &r))
	require.ErrorIs(t, r.Err, failover.ErrUnconfirmed)
}

func TestTheMarkerOfAGroupNamesServerDataAndEpoch(t *testing.T) {
	n := voting(t, masterSet, says)
	n.greeter.identity = Identity{RunID: "run", ReplID: "data"}
	n.group.Use(master.Term{Addr: "a:6379", Epoch: 7}, 0)
	assert.Equal(t, "run.data.7", n.greeter.markerWord())
	epoch, found := epochOf(n.greeter.markerWord() + " 1700000000000000 60000 nonce")
	assert.EqualValues(t, 7, epoch)
	assert.True(t, found)
	_, found = epochOf("run 1700000000000000 60000 nonce")
	assert.False(t, found)
	n.group = nil
	assert.Equal(t, "run", n.greeter.markerWord())
	n.group = voting(t, masterSet, says).group
}

func TestOnlyASafeMasterIsTheNodeOfAGroup(t *testing.T) {
	sound := Identity{RunID: "run", ReplID: "data", Role: "master", Mode: "standalone", Version: "7.0.0"}
	sentinel, slot := masterSet, master.SlotOption("{foo}", nil)
	for claim, c := range map[string]struct {
		option rueidis.ClientOption
		change func(*Identity)
		text   string // of the error, "" for none
		away   bool   // it passes by itself
	}{
		"a master":                        {sentinel, func(*Identity) {}, "", false},
		"a replica":                       {sentinel, func(id *Identity) { id.Role = "slave" }, "not the master of its group", true},
		"Redis 6":                         {sentinel, func(id *Identity) { id.Version = "6.2.14" }, "locks need 7.0 or later", false},
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
			n := voting(t, c.option, says)
			id := sound
			c.change(&id)
			err := n.greeter.suits(id)
			assert.Equal(t, c.away, wire.Away(err))
			if c.text == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.text)
			}
		})
	}
	n := voting(t, rueidis.ClientOption{}, says)
	n.greeter.identity = sound
	err := n.greeter.suits(Identity{Role: "slave", Mode: "standalone"})
	require.ErrorContains(t, err, "list the master only")
	assert.True(t, wire.Away(err), "a server that was a master before may be one again")
}

func TestAnAnswerWithoutAnErrorAllocatesNothing(t *testing.T) {
	n := New(Config{Option: rueidis.ClientOption{InitAddress: []string{"a:1"}}, Clock: func() (_ clock.Validity, _ clock.Steady) { return 0, 0 }})
	defer n.cancel()
	for _, kind := range []wire.Kind{wire.Acquire, wire.Extend, wire.Release} {
		var r wire.Reply
		req := &wire.Request{Kind: kind}
		assert.Zero(t, testing.AllocsPerRun(100, func() {
			r = wire.Reply{Status: wire.Granted}
			n.courier.conclude(&transfer{}, entry{req: req}, &r)
		}), "%v", kind)
	}
}

func TestAnUnconfirmedTermIsReportedWithItsCause(t *testing.T) {
	n := voting(t, masterSet, "-NOAUTH Authentication required.\r\n")
	n.group.Use(master.Term{Addr: "a:6379", Epoch: 7}, clock.Validity(time.Hour-failover.ConfirmedFor)) // it is one hour now
	n.group.Confirm()
	n.report(nil)
	require.NoError(t, n.Health().Err)
	n.group.Use(master.Term{Addr: "a:6379", Epoch: 7}, 0)
	n.report(nil)
	h := n.Health()
	assert.True(t, h.Withheld, "leases go on")
	require.ErrorIs(t, h.Err, failover.ErrUnconfirmed)
	assert.ErrorContains(t, h.Err, "set Sentinel.Username")
	assert.Equal(t, h.Err.Error(), n.greeter.mayVote().Error())
	withheld, err := n.greeter.guard() // without a connection it would fail
	require.NoError(t, err)
	require.NoError(t, withheld, "a client of an old term starts no quarantine")
}

// Keys have left the slot, and an answer shows it. If the move is taken back, nothing else shows it.
func TestAnAnswerFromAHalfMovedSlotEndsTheVotes(t *testing.T) {
	for _, text := range []string{"TRYAGAIN Multiple keys request", "ASK 1 a:1", "Script attempted to access a non local key in a cluster node",
		"Attempted to access a non local key in a cluster node script: on @user_script:40."} { // of Valkey 9
		n := voting(t, master.SlotOption("{a}", nil), "")
		n.group.Use(master.Term{Addr: "a:6379", Epoch: 7}, clock.Validity(time.Hour))
		require.ErrorIs(t, n.greeter.mayVote(), failover.ErrUnconfirmed, "it has not been asked for a move")
		n.group.Look("", clock.Validity(time.Hour))
		require.NoError(t, n.greeter.mayVote())
		n.greeted = 1
		status, err := wire.Classify(wire.OperationError(text))
		require.True(t, n.courier.conclude(&transfer{}, entry{req: &wire.Request{Kind: wire.Acquire}}, &wire.Reply{Status: status, Err: err}))
		require.ErrorIs(t, n.greeter.mayVote(), wire.ErrMoving)
		assert.Zero(t, n.greeted, "the next greeting writes a new marker")
		r := wire.Reply{Status: wire.Granted}
		require.True(t, n.courier.conclude(&transfer{term: n.group.Used()}, entry{req: &wire.Request{Kind: wire.Acquire}}, &r))
		assert.Equal(t, wire.Unknown, r.Status, "a grant of a later request, which was on the wire")
	}
}

func TestAnOldServerIsRefusedAtTheGreeting(t *testing.T) {
	for _, option := range []rueidis.ClientOption{{InitAddress: []string{"a:1"}}, masterSet} {
		n := voting(t, option, "")
		require.ErrorContains(t, n.greeter.suits(Identity{Version: "6.0.16", Role: "master"}), `server is Redis "6.0.16", and locks need 7.0 or later`)
		for _, version := range []string{"7.0.15", "7.2.4", ""} { // every Valkey reports the second
			require.NoError(t, n.greeter.suits(Identity{Version: version, Role: "master"}))
		}
	}
}

// The voters have half a second, and so has the server that they name: from far away TCP and TLS take three round trips.
func TestADialOfAGroupHasTimeForTheQuestionToItsVoters(t *testing.T) {
	for most, l := range map[time.Duration]*link{maxDial: {}, 2 * maxDial: {group: &master.Group{}}} {
		l.life = t.Context()
		var left time.Duration
		o := l.required(rueidis.ClientOption{DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			end, _ := ctx.Deadline()
			left = time.Until(end)
			return nil, net.ErrClosed
		}}, nil)
		_, err := o.DialCtxFn(t.Context(), "a", &net.Dialer{}, nil)
		require.Error(t, err)
		assert.InDelta(t, most, left, float64(maxDial/2))
	}
}
