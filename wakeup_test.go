package quorumlock_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/redistest"
)

// A published message is a hint: none can end a lease, and an unused ticket costs little.

// managerID returns the id under which the servers wake a Manager. It must be the only
// one that is subscribed.
func managerID(t *testing.T, servers []*redistest.Server) string {
	t.Helper()
	channels, _ := servers[0].MustDo("PUBSUB", "CHANNELS", wakeChannel("*")).([]any)
	require.Len(t, channels, 1)
	return strings.TrimPrefix(channels[0].(string), wakeChannel(""))
}

func wakeChannel(manager string) string { return "quorumlock:\xffw" + manager }

// A message must not make the Manager release a ticket that is not its own: it would be
// the owner's lock, which another client would then be granted under the same token.
func TestNoPublishedMessageEndsALease(t *testing.T) {
	m, servers := queueing(t, 3)
	id := managerID(t, servers)
	other := connect(t, redistest.Addrs(servers))
	mine, theirs := acquired(t, m, "mine"), acquired(t, other, "theirs")
	for _, name := range []string{"mine", "theirs"} {
		eventually(t, "all votes are in", func() bool { return locks(t, servers, name) == 3 })
	}
	ctx, cancel := context.WithCancel(background)
	gone := make(chan error)
	go func() { _, err := m.Acquire(ctx, "theirs"); gone <- err }() // so that the Manager has a ticket
	queued := func() (tickets []any) {
		tickets, _ = servers[0].MustDo("ZRANGE", queueKey("theirs"), "0", "-1").([]any)
		return tickets
	}
	eventually(t, "it queues", func() bool { return len(queued()) == 1 })
	ticket := queued()[0].(string)[:32]
	before := values(servers, "mine", "theirs")
	published := 0
	for _, kind := range []string{"k", "r", "n", "a", "g", "s", "\x00"} {
		for _, whose := range []string{mine.Owner(), theirs.Owner(), id + mine.Owner()[16:], id + theirs.Owner()[16:], ticket, strings.Repeat("0", 32)} {
			for _, key := range []string{"quorumlock:mine", "quorumlock:theirs", "mine", "", "quorumlock:", markerKey} {
				for _, s := range servers {
					assert.Equal(t, int64(1), s.MustDo("PUBLISH", wakeChannel(id), kind+whose+key))
					published++
				}
			}
		}
	}
	for _, junk := range []string{"", "k", "r" + ticket, strings.Repeat("r", 1<<16)} {
		servers[0].MustDo("PUBLISH", wakeChannel(id), junk)
	}
	time.Sleep(200 * time.Millisecond) // time for the Manager to handle them
	assert.Equal(t, before, values(servers, "mine", "theirs"), "after %d messages", published)
	for _, l := range []*quorumlock.Lease{mine, theirs} {
		confirmed(t, l.Verify)
	}
	require.ErrorIs(t, refused(t, other, "mine"), quorumlock.ErrHeld)
	require.ErrorIs(t, refused(t, m, "theirs"), quorumlock.ErrHeld)
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	released(t, mine)
	next := acquired(t, other, "mine")
	assert.Greater(t, next.Token(), mine.Token())
	released(t, next)
	released(t, theirs)
}

// A forged ticket, and a lock that is not ours: the Manager must not pass on a lock that
// it does not own.
func TestAForgedWakeUpLeavesOthersKeysUntouched(t *testing.T) {
	_, servers := queueing(t, 1)
	server, id := servers[0], managerID(t, servers)
	unused, foreign := id+strings.Repeat("0", 16), strings.Repeat("f", 32)
	server.MustDo("ZADD", queueKey("job"), "1", foreign+"200")
	server.MustDo("SET", "other:job", unused+" w ")
	server.MustDo("SET", "quorumlock:last", unused+" w ")
	for _, message := range []string{"r" + foreign + "quorumlock:job", "r" + unused + "other:job", "r" + unused + "quorumlock:last"} {
		server.MustDo("PUBLISH", wakeChannel(id), message)
	}
	eventually(t, "the last message, which is valid, has its effect", func() bool { return server.MustDo("EXISTS", "quorumlock:last") == int64(0) })
	assert.EqualValues(t, 1, server.MustDo("ZCARD", queueKey("job")), "another Manager's ticket")
	assert.EqualValues(t, 1, server.MustDo("EXISTS", "other:job"), "another program's key")
}

// A waiter has gone while a node reserved the lock for it. The next waiter need not wait
// for the grace.
func TestAReservationForAnUnusedTicketIsPassedOn(t *testing.T) {
	_, servers := queueing(t, 1)
	server, id := servers[0], managerID(t, servers)
	unused, next := id+strings.Repeat("0", 16), id+strings.Repeat("1", 16)
	server.MustDo("SET", "quorumlock:job", unused+" w ", "PX", "600000")
	server.MustDo("ZADD", queueKey("job"), "1", next+"999")
	server.MustDo("PUBLISH", wakeChannel(id), "r"+unused+"quorumlock:job")
	eventually(t, "both are passed on", func() bool {
		return server.MustDo("EXISTS", "quorumlock:job", queueKey("job")) == int64(0)
	})
}

// values returns what the locks have on every server.
func values(servers []*redistest.Server, names ...string) (all []any) {
	for _, name := range names {
		for _, s := range servers {
			all = append(all, s.MustDo("GET", quorumlock.DefaultPrefix+name))
		}
	}
	return all
}

func TestARefusalByAReservationSaysSo(t *testing.T) {
	m, servers := newManager(t, 1)
	servers[0].MustDo("SET", "quorumlock:job", strings.Repeat("a", 32)+" w ", "PX", "60000")
	var held *quorumlock.HeldError
	require.ErrorAs(t, refused(t, m, "job"), &held)
	assert.Empty(t, held.Holder)
	assert.Positive(t, held.RetryAfter)
	assert.Regexp(t, `^quorumlock: "job" is reserved for a waiter, for [0-9.]+m?s more$`, held.Error())
	assert.Equal(t, `quorumlock: "job" is reserved for a waiter`, (&quorumlock.HeldError{Name: "job"}).Error())
	s := inspected(t, m)
	assert.False(t, s.Held, "a reservation is no lease")

	held = &quorumlock.HeldError{Name: "job", Holder: quorumlock.Holder{Label: "me"}, RetryAfter: time.Second}
	assert.Equal(t, `quorumlock: "job" is held by me, for 1s more unless renewed`, held.Error())
	held.Holder = quorumlock.Holder{Owner: "abc"}
	assert.Equal(t, `quorumlock: "job" is held by owner abc, for 1s more unless renewed`, held.Error())
}

// A Manager that meets contention for the first time notices late that the lock is taken,
// and is not subscribed yet. It enters the queues later than another Manager's callers
// that called after it. Its place is still that of its call.
func TestThePlaceInTheQueueIsTheInstantOfTheCall(t *testing.T) {
	const late = 500 * time.Millisecond
	holder, servers := newManager(t, 3)
	proxies, addrs := proxied(t, servers)
	second := crowd(t, servers, 1)[0]
	for _, p := range proxies {
		p.DelayCommand(func(cmd []string) bool { return cmd[0] == "SUBSCRIBE" }, late)
		p.Delay(30 * time.Millisecond)
	}
	first := connect(t, addrs, lazily())
	l := acquired(t, holder, "job")
	came := make(chan string, 2)
	call := func(name string, m *quorumlock.Manager) {
		l, err := m.Acquire(background, "job")
		assert.NoError(t, err)
		came <- name
		assert.NoError(t, l.Release(background))
	}
	go call("first", first)
	time.Sleep(25 * time.Millisecond)
	go call("second", second)
	queued(t, servers, 1)
	tickets, _ := servers[0].MustDo("ZRANGE", queueKey("job"), "0", "-1").([]any)
	require.Len(t, tickets, 1, "the second caller's")
	queued(t, servers, 2)
	behind, _ := servers[0].MustDo("ZRANGE", queueKey("job"), "0", "-1").([]any)
	assert.Equal(t, tickets[0], behind[1], "the first caller's ticket is before it")
	require.NoError(t, l.Release(background))
	assert.Equal(t, "first", <-came)
	assert.Equal(t, "second", <-came)
}

// Processes that are connected but frozen, and clients that subscribe to every channel,
// make the dead tickets ahead look as if they were in use.
func TestDeadTicketsAheadCostThreeGracesAtTheMost(t *testing.T) {
	const grace = 200 * time.Millisecond
	for _, dead := range []int{1, 50, 300} {
		for _, hidden := range []bool{true, false} {
			t.Run(fmt.Sprintf("dead=%d,hidden=%v", dead, hidden), func(t *testing.T) {
				m, servers := newManager(t, 3)
				waiter := crowd(t, servers, 1)[0]
				if hidden {
					for _, s := range servers {
						listenToAll(t, s)
					}
				}
				l := acquired(t, m, "job")
				now := time.Now().UnixMicro()
				for _, s := range servers {
					add := []string{"ZADD", queueKey("job")}
					for i := range dead {
						add = append(add, fmt.Sprint(now-int64(i)-1_000_000), fmt.Sprintf("%016x%016x%d", i+1, i+1, grace.Milliseconds()))
					}
					s.MustDo(add...)
				}
				came := make(chan time.Time, 1)
				go func() {
					l, err := waiter.Acquire(background, "job")
					assert.NoError(t, err)
					at := time.Now()
					assert.NoError(t, l.Release(background))
					came <- at
				}()
				queued(t, servers, dead+1)
				released := time.Now()
				require.NoError(t, l.Release(background))
				took := (<-came).Sub(released)
				t.Logf("%v behind %d dead tickets", took, dead)
				assert.LessOrEqual(t, took, 3*grace)
			})
		}
	}
}

// listenToAll subscribes a client to every channel of a server, until the test ends.
func listenToAll(t *testing.T, s *redistest.Server) {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write([]byte("PSUBSCRIBE *\r\n"))
	require.NoError(t, err)
	_, err = conn.Read(make([]byte, 256)) // confirmed
	require.NoError(t, err)
	go func() { // unread messages fill the server's buffers; ends with the connection
		buffer := make([]byte, 1<<16)
		for {
			if _, err := conn.Read(buffer); err != nil {
				return
			}
		}
	}()
}
