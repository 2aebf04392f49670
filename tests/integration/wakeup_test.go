package integration

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/quorumlock"
	"github.com/quorumlock/quorumlock/internal/config"
	"github.com/quorumlock/quorumlock/internal/redistest"
	"github.com/quorumlock/quorumlock/internal/testkit"
	"github.com/quorumlock/quorumlock/internal/wire"
)

// A published message is a hint: it can never end a lease, and an unused ticket costs little.

// managerID returns the id under which the servers wake a Manager. Only this one Manager may be subscribed.
func managerID(t *testing.T, servers []*redistest.Server) string {
	t.Helper()
	channels := testkit.WakeChannels(servers[0])
	require.Len(t, channels, 1)
	return strings.TrimPrefix(channels[0], wakeChannel(""))
}

// issued is the number of the ticket that testkit.Queueing's caller got under contention. That caller has gone.
const issued = "0000000000000001"

func wakeChannel(manager string) string { return wire.WakeChannel(testkit.Prefix, manager) }

// A message may name the owner of a lock as the ticket. If the Manager passed that on, the
// owner's lock would be deleted, and granted to another client under the same token.
func TestNoPublishedMessageEndsALease(t *testing.T) {
	m, servers := testkit.Queueing(t, 3)
	id := managerID(t, servers)
	other := testkit.Connect(t, redistest.Addrs(servers))
	mine, theirs := testkit.Acquired(t, m, "mine"), testkit.Acquired(t, other, "theirs")
	for _, name := range []string{"mine", "theirs"} {
		testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, name) == 3 })
	}
	ctx, cancel := context.WithCancel(background)
	gone := make(chan error)
	go func() { _, err := m.Acquire(ctx, "theirs"); gone <- err }() // so that the Manager has a ticket
	queued := func() (tickets []any) {
		tickets, _ = servers[0].MustDo("ZRANGE", testkit.QueueKey("theirs"), "0", "-1").([]any)
		return tickets
	}
	testkit.Eventually(t, "it queues", func() bool { return len(queued()) == 1 })
	ticket := queued()[0].(string)[:32]
	before := values(servers, "mine", "theirs")
	published := 0
	for _, kind := range []string{"k", "r", "n", "a", "g", "s", "\x00"} {
		for _, whose := range []string{mine.Owner(), theirs.Owner(), id + mine.Owner()[16:], id + theirs.Owner()[16:], ticket, strings.Repeat("0", 32)} {
			for _, key := range []string{testkit.Prefix + "mine", testkit.Prefix + "theirs", "mine", "", "quorumlock:", markerKey} {
				for _, s := range servers {
					assert.Equal(t, int64(1), testkit.Publish(s, wakeChannel(id), kind+whose+key))
					published++
				}
			}
		}
	}
	for _, junk := range []string{"", "k", "r" + ticket, strings.Repeat("r", 1<<16)} {
		testkit.Publish(servers[0], wakeChannel(id), junk)
	}
	time.Sleep(200 * time.Millisecond) // time for the Manager to handle them
	assert.Equal(t, before, values(servers, "mine", "theirs"), "after %d messages", published)
	for _, l := range []*quorumlock.Lease{mine, theirs} {
		testkit.Confirmed(t, l.Verify)
	}
	require.ErrorIs(t, refused(t, other, "mine"), quorumlock.ErrHeld)
	require.ErrorIs(t, refused(t, m, "theirs"), quorumlock.ErrHeld)
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	testkit.Released(t, mine)
	next := testkit.Acquired(t, other, "mine")
	assert.Greater(t, next.Token(), mine.Token())
	testkit.Released(t, next)
	testkit.Released(t, theirs)
}

// A forged ticket, and a lock that another client owns: the Manager must not pass it on.
func TestAForgedWakeUpLeavesOthersKeysUntouched(t *testing.T) {
	_, servers := testkit.Queueing(t, 1)
	server, id, long := servers[0], managerID(t, servers), strings.Repeat("n", config.MaxNameLen+1)
	unused, never, foreign := id+issued, id+strings.Repeat("f", 16), strings.Repeat("f", 32)
	server.MustDo("ZADD", testkit.QueueKey("job"), "1", foreign+"200")
	server.MustDo("SET", "other:job", unused+" w ")
	server.MustDo("SET", testkit.Prefix+"last", unused+" w ")
	server.MustDo("SET", testkit.Prefix+"never", never+" w ")
	server.MustDo("SET", testkit.Prefix+long, unused+" w ")
	for _, message := range []string{
		"r" + foreign + testkit.Prefix + "job", "r" + unused + "other:job", "r" + never + testkit.Prefix + "never",
		"r" + unused + testkit.Prefix + long, "r" + unused + testkit.Prefix + "last",
	} {
		testkit.Publish(server, wakeChannel(id), message)
	}
	testkit.Eventually(t, "the last message, which is valid, has its effect", func() bool { return server.MustDo("EXISTS", testkit.Prefix+"last") == int64(0) })
	assert.EqualValues(t, 1, server.MustDo("ZCARD", testkit.QueueKey("job")), "another Manager's ticket")
	assert.EqualValues(t, 1, server.MustDo("EXISTS", "other:job"), "another program's key")
	assert.EqualValues(t, 1, server.MustDo("EXISTS", testkit.Prefix+"never"), "a ticket that the Manager has not issued")
	assert.EqualValues(t, 1, server.MustDo("EXISTS", testkit.Prefix+long), "a name that no lock has")
}

// A waiter has gone while a node reserved the lock for it. The next waiter need not wait
// for the grace.
func TestAReservationForAnUnusedTicketIsPassedOn(t *testing.T) {
	m, servers := testkit.Queueing(t, 1)
	server, id := servers[0], managerID(t, servers)
	ctx, cancel := context.WithTimeout(background, 100*time.Millisecond)
	defer cancel()
	_, err := m.Acquire(ctx, "contended") // a second ticket
	require.ErrorIs(t, err, context.DeadlineExceeded)
	unused, next := id+issued, id+"0000000000000002"
	server.MustDo("SET", testkit.Prefix+"job", unused+" w ", "PX", "600000")
	server.MustDo("ZADD", testkit.QueueKey("job"), "1", next+"999")
	testkit.Publish(server, wakeChannel(id), "r"+unused+testkit.Prefix+"job")
	testkit.Eventually(t, "both are passed on", func() bool {
		return server.MustDo("EXISTS", testkit.Prefix+"job", testkit.QueueKey("job")) == int64(0)
	})
}

// A lease has two votes, and forged messages say that the third node reserves the lock for it. Each such message may
// cause a request that goes out with the renewals: one at a time.
func TestAFloodOfMessagesCausesOneRequestAtATime(t *testing.T) {
	servers := testkit.Start(t, 3)
	cut, slow := redistest.NewProxy(t, servers[2].Addr()), redistest.NewProxy(t, servers[2].Addr())
	before := testkit.Connect(t, []string{servers[0].Addr(), servers[1].Addr(), cut.Addr()}, quorumlock.WithTTL(5*time.Minute))
	m := testkit.Connect(t, []string{servers[0].Addr(), servers[1].Addr(), slow.Addr()}, quorumlock.WithTTL(5*time.Minute))
	testkit.Subscribe(t, m, servers)
	id := managerID(t, servers)
	first := testkit.Acquired(t, before, "job")
	testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	got := make(chan *quorumlock.Lease, 1)
	go func() { got <- testkit.Acquired(t, m, "job") }()
	testkit.Queued(t, servers, 1)
	ticket, _ := servers[0].MustDo("ZRANGE", testkit.QueueKey("job"), "0", "0").([]any)[0].(string)
	cut.Swallow() // so the third node keeps the lock of the lease before
	testkit.Released(t, first)
	lease := <-got
	var requests atomic.Int64
	slow.DelayCommand(func(cmd []string) bool {
		for _, word := range cmd {
			if word == "heal" {
				requests.Add(1)
			}
		}
		return cmd[0] == "EVALSHA"
	}, 200*time.Millisecond)
	const messages = 300
	for range messages {
		testkit.Publish(servers[2], wakeChannel(id), "r"+ticket[:32]+testkit.Prefix+"job")
	}
	testkit.Eventually(t, "the messages are handled", func() bool { return requests.Load() > 0 })
	time.Sleep(time.Second)
	assert.Less(t, requests.Load(), int64(messages/10), "after %d messages", messages)
	cut.Heal()
	testkit.Released(t, lease)
}

// values returns the values of the locks on every server.
func values(servers []*redistest.Server, names ...string) (all []any) {
	for _, name := range names {
		for _, s := range servers {
			all = append(all, s.MustDo("GET", testkit.Prefix+name))
		}
	}
	return all
}

func TestARefusalByAReservationSaysSo(t *testing.T) {
	m, servers := testkit.Manager(t, 1)
	servers[0].MustDo("SET", testkit.Prefix+"job", strings.Repeat("a", 32)+" w ", "PX", "60000")
	var held *quorumlock.HeldError
	require.ErrorAs(t, refused(t, m, "job"), &held)
	assert.Empty(t, held.Holder)
	assert.Positive(t, held.RetryAfter)
	assert.Regexp(t, `^quorumlock: "job" is reserved for a waiter; the reservation expires in [0-9.]+m?s$`, held.Error())
	assert.Equal(t, `quorumlock: "job" is reserved for a waiter`, (&quorumlock.HeldError{Name: "job"}).Error())
	s := testkit.Inspected(t, m)
	assert.False(t, s.Held, "a reservation is no lease")

	held = &quorumlock.HeldError{Name: "job", Holder: quorumlock.Holder{Label: "me"}, RetryAfter: time.Second}
	assert.Equal(t, `quorumlock: "job" is held by "me"; the lease expires in 1s unless renewed`, held.Error())
	held.Holder = quorumlock.Holder{Owner: "abc"}
	assert.Equal(t, `quorumlock: "job" is held by owner "abc"; the lease expires in 1s unless renewed`, held.Error())
}

// One server has lost the key of a lease. Each waiter gets the lock there, is refused elsewhere, and gives it back; the
// server then reserves it for one of them. They must not repeat this in a loop (ADR 47).
func TestAServerThatHasLostTheKeyIsNotAskedAgainAndAgain(t *testing.T) {
	t.Parallel()
	m, servers := testkit.Manager(t, 3)
	l := testkit.Acquired(t, m, "job", quorumlock.WithTTL(time.Minute)) // renewed after 20 s
	testkit.Eventually(t, "all votes are in", func() bool { return testkit.Locks(t, servers, "job") == 3 })
	servers[2].MustDo("DEL", testkit.Prefix+"job")
	ctx, stop := context.WithCancel(background)
	gone := make(chan error)
	const waiters = 8
	for range waiters {
		waiter := testkit.Connect(t, redistest.Addrs(servers))
		go func() { _, err := waiter.Acquire(ctx, "job"); gone <- err }()
	}
	testkit.Eventually(t, "they queue", func() bool {
		return servers[0].MustDo("ZCARD", testkit.QueueKey("job")) == int64(waiters)
	})
	scripts := func() (all int) {
		for _, s := range servers {
			calls := regexp.MustCompile(`cmdstat_evalsha:calls=(\d+)`).FindStringSubmatch(s.MustDo("INFO", "commandstats").(string))
			n, err := strconv.Atoi(calls[1])
			require.NoError(t, err)
			all += n
		}
		return all
	}
	time.Sleep(time.Second) // they have all met the third server
	before := scripts()
	time.Sleep(4 * time.Second)
	assert.Less(t, scripts()-before, 600, "on three servers in 4 s; it was 2,800")
	stop()
	for range waiters {
		assert.ErrorIs(t, <-gone, context.Canceled)
	}
	testkit.Released(t, l)
}
